/* SPDX-License-Identifier: Apache-2.0 */
#include "cache.h"

#include <string.h>

#include "choice.h"
#include "collectives.h"
#include "error.h"
#include "groups.h"
#include "compile_scratch.h"

/* A layer of a network makes some five kinds of calls, and equal layers share them. */
enum { PROGRAMS = 64, WAYS = 4, SETS = PROGRAMS / WAYS };

/* All that a program depends on, as words: of a call, no address, but the power of two in it; of operations
 * that are no whole call, themselves. */
enum {
    HEADER = 21, /* those of sign_header, sign_call and sign_exchange */
    OPERAND = 6,
    VIEW = 9,
    TERM = VIEW + 2,
    OP = 6 + 3 * VIEW + EG_MAX_TERMS * TERM,
    TEMPORARY = 3 + VIEW,
    BUFFER = 3,
    OF_CALL = HEADER + EG_OPERANDS * OPERAND,
    OF_LIST = HEADER + EG_LOCAL_OPS * OP + EG_MAX_TEMPORARIES * TEMPORARY + EG_MAX_BUFFERS * BUFFER,
    WORDS = OF_LIST > OF_CALL ? OF_LIST : OF_CALL
};

typedef struct signature {
    int count;
    uint64_t hash;
    uint64_t word[WORDS];
} signature;

typedef struct entry {
    uint64_t used; /* the cache's clock when it was last found; 0: free */
    signature key;
    eg_chunks chunks;   /* of a call with a limit */
    eg_groups *groups;  /* of a grouped call; else NULL */
    eg_program program; /* of every other call */
} entry;

/* What trials found, by the signature of a call: more than there are programs, so that one that is made again
 * is not tried again. */
enum { CHOICES = 1024, CHOICE_PROBES = 8 };
typedef struct kept_choice {
    uint64_t hash; /* 0: free */
    eg_choice choice;
} kept_choice;

struct eg_cache {
    uint64_t clock, serial;
    kept_choice *choices; /* NULL: none yet */
    entry entries[SETS][WAYS];
};

eg_cache *eg_cache_make(const eg_context *context) {
    eg_cache *cache = eg_host_alloc(context, sizeof *cache);
    if (cache == NULL) return NULL;
    cache->clock = cache->serial = 0;
    cache->choices = NULL;
    for (int i = 0; i < PROGRAMS; i++) {
        cache->entries[i / WAYS][i % WAYS].used = 0;
        cache->entries[i / WAYS][i % WAYS].groups = NULL;
    }
    return cache;
}

void eg_cache_free(const eg_context *context, eg_cache *cache) {
    for (int i = 0; cache != NULL && i < PROGRAMS; i++)
        eg_groups_free(context, cache->entries[i / WAYS][i % WAYS].groups);
    if (cache != NULL) eg_host_free(context, cache->choices);
    eg_host_free(context, cache);
}

/* ---- Signatures --------------------------------------------------------------------------------- */

/* WebGPU forbids binding one buffer for reading and for writing in a pass. So which operands share a buffer is
 * part of the signature. */
static uint64_t buffer_of(const eg_problem *p, int id) {
    for (int other = 0; other < id; other++) {
        if (p->operands[other].data == p->operands[id].data) return (uint64_t)other;
    }
    return (uint64_t)id;
}

static void sign_operand(signature *key, const eg_problem *p, int id) {
    const eg_operand *x = &p->operands[id];
    const bool handle = p->addressing == EG_HANDLES;
    const uintptr_t at = eg_begin(p, x->data, x->offset) | EG_MOST_ALIGN;
    uint64_t *word = &key->word[key->count];
    word[0] = (uint64_t)id | (uint64_t)x->dtype << 8 | (uint64_t)(at & -at) << 16 |
              (uint64_t)(x->outer.inner > 0) << 28 | (handle ? buffer_of(p, id) << 32 : 0);
    word[1] = (uint64_t)x->row_stride;
    word[2] = (uint64_t)x->col_stride;
    word[3] = (uint64_t)x->batch_stride;
    word[4] = handle ? x->offset : 0;
    word[5] = (uint64_t)x->outer.stride;
    key->count += OPERAND;
}

static uint64_t hash_of(const signature *key) {
    uint64_t hash = 0xcbf29ce484222325U;
    for (int i = 0; i < key->count; i++) {
        hash = (hash ^ key->word[i]) * 0x9e3779b97f4a7c15U;
        hash ^= hash >> 32;
    }
    return hash;
}

/* What a call asks for beside its operands. */
typedef enum purpose { RUN, RUN_REFUSED, CHUNKS, LIST, LIST_REFUSED, CHOICE } purpose;

static void add(signature *key, uint64_t word) { key->word[key->count++] = word; }

static void sign_pack(signature *key, const eg_packed *packed) {
    add(key, packed != NULL ? 1 | (uint64_t)packed->batched << 1 : 0);
    add(key, packed != NULL ? packed->holds : 0);
}

static void add_number(signature *key, double number) {
    uint64_t word;
    memcpy(&word, &number, sizeof word);
    add(key, word);
}

static void sign_exchange(signature *key, const eg_exchange *x) {
    add(key, (uint64_t)x->rank | (uint64_t)x->ranks << 32);
    add(key, (uint64_t)x->parallel | (uint64_t)x->streams << 2 | (uint64_t)x->gathered << 3);
    add(key, (uint64_t)x->mean | (uint64_t)x->sharded << 1 | (uint64_t)x->d_b_by_columns << 2 |
                 (uint64_t)x->sums << 8 | (uint64_t)x->order << 16);
    add_number(key, x->now.latency);
    add_number(key, x->now.rate);
    add_number(key, x->begun.latency);
    add_number(key, x->begun.rate);
    add_number(key, x->busy);
}

static void sign_header(signature *key, const eg_context *context, purpose purpose, size_t limit,
                        const eg_packed *packed, const eg_packed *packed_up) {
    key->count = 0;
    add(key, (uint64_t)purpose | (uint64_t)context->caps.threads << 8);
    add(key, limit);
    sign_pack(key, packed);
    sign_pack(key, packed_up);
}

static void sign_call(signature *key, const eg_context *context, const eg_problem *p, purpose purpose,
                      size_t limit) {
    /* a query asks for the choice of a call whose operands begin where kernels like it best */
    const eg_addressing addressing = purpose == CHOICE ? EG_ADDRESSES : p->addressing;
    sign_header(key, context, purpose, limit, p->packed_b, p->packed_b_up);
    add(key, (uint64_t)p->backward | (uint64_t)p->propagate << 1 | (uint64_t)p->gated << 3 |
                 (uint64_t)eg_in_place(p) << 4 | (uint64_t)addressing << 5 | (uint64_t)p->dtype << 8 |
                 (uint64_t)p->math << 12 | (uint64_t)p->source << 16 | (uint64_t)p->below_source << 20 |
                 (uint64_t)p->activation << 24 | (uint64_t)p->below_activation << 32 |
                 (uint64_t)p->accumulate << 40);
    add(key, (uint64_t)p->m);
    add(key, (uint64_t)p->k);
    add(key, (uint64_t)p->n);
    add(key, (uint64_t)p->batch);
    add(key, (uint64_t)p->inner);
    add_number(key, p->scale);
    if (p->comm != NULL) sign_exchange(key, &p->exchange);
    for (int id = 0; id < EG_OPERANDS; id++) {
        if (p->operands[id].data != NULL) sign_operand(key, p, id);
    }
    key->hash = hash_of(key);
}

static void sign_view(signature *key, const eg_view *x) {
    if (!eg_is_present(x)) {
        add(key, 0);
        return;
    }
    add(key, (uint64_t)x->space | (uint64_t)x->id << 8 | (uint64_t)x->transposed << 16 |
                 (uint64_t)x->dtype << 20 | (uint64_t)x->align << 32);
    add(key, (uint64_t)x->rows);
    add(key, (uint64_t)x->cols);
    add(key, (uint64_t)x->row_stride);
    add(key, (uint64_t)x->col_stride);
    add(key, (uint64_t)x->batch_stride);
    add(key, (uint64_t)x->outer.inner);
    add(key, (uint64_t)x->outer.stride);
    add(key, (uint64_t)x->offset);
}

static void sign_op(signature *key, const eg_op *op) {
    add(key, (uint64_t)op->kind | (uint64_t)op->accumulate << 8 | (uint64_t)op->terms << 16 |
                 (uint64_t)op->axis << 24);
    add(key, (uint64_t)op->items);
    add(key, (uint64_t)op->rows);
    add(key, (uint64_t)op->cols);
    add(key, (uint64_t)op->depth);
    add(key, (uint64_t)op->summed);
    sign_view(key, &op->left);
    sign_view(key, &op->right);
    sign_view(key, &op->out);
    for (int i = 0; i < op->terms; i++) {
        const eg_term *term = &op->term[i];
        add(key, (uint64_t)term->kind | (uint64_t)term->activation << 8 | (uint64_t)term->of_y << 16 |
                     (uint64_t)term->propagate << 17);
        add_number(key, term->scale);
        sign_view(key, &term->view);
    }
}

static void sign_list(signature *key, const eg_context *context, const eg_op_list *list, purpose purpose) {
    sign_header(key, context, purpose, 0, list->packed_b, list->packed_b_up);
    add(key, (uint64_t)list->dtype | (uint64_t)list->compute << 8 | (uint64_t)list->math << 16 |
                 (uint64_t)list->in_place << 24);
    for (int i = 0; i < list->ops; i++) sign_op(key, &list->op[i]);
    for (int i = 0; i < list->temporaries; i++) {
        add(key, (uint64_t)list->temporary[i].items);
        add(key, (uint64_t)list->temporary[i].rows);
        add(key, (uint64_t)list->temporary[i].cols);
        sign_view(key, &list->temporary[i].same);
    }
    for (int i = 0; i < list->buffers; i++) {
        add(key, (uint64_t)list->buffer[i].items);
        add(key, (uint64_t)list->buffer[i].rows);
        add(key, (uint64_t)list->buffer[i].cols);
    }
    key->hash = hash_of(key);
}

static bool same(const signature *x, const signature *y) {
    return x->hash == y->hash && x->count == y->count &&
           memcmp(x->word, y->word, (size_t)x->count * sizeof *x->word) == 0;
}

/* ---- Programs ----------------------------------------------------------------------------------- */

/* The entry of a signature; NULL: there is none. */
static entry *find_seen(const eg_context *context, const signature *key) {
    entry *set = context->cache->entries[key->hash / 2 % SETS];
    for (int i = 0; i < WAYS; i++) {
        if (set[i].used != 0 && same(&set[i].key, key)) return &set[i];
    }
    return NULL;
}

/* The same, or the one that it takes the place of, which is then free. */
static entry *find(const eg_context *context, const signature *key) {
    eg_cache *cache = context->cache;
    entry *set = cache->entries[key->hash / 2 % SETS], *oldest = set, *seen = find_seen(context, key);
    if (seen != NULL) {
        seen->used = ++cache->clock;
        return seen;
    }
    for (int i = 0; i < WAYS; i++) {
        if (set[i].used < oldest->used) oldest = &set[i];
    }
    oldest->used = 0;
    eg_groups_free(context, oldest->groups);
    oldest->groups = NULL;
    return oldest;
}

static void keep_key(eg_cache *cache, const signature *key, entry *place) {
    place->used = ++cache->clock;
    place->key.count = key->count;
    place->key.hash = key->hash;
    memcpy(place->key.word, key->word, (size_t)key->count * sizeof *key->word);
}

/* Its place; where all are taken, that of another. */
static kept_choice *find_choice(const eg_cache *cache, uint64_t hash) {
    kept_choice *first = &cache->choices[hash / 2 % CHOICES];
    for (uint64_t i = 0; i < CHOICE_PROBES; i++) {
        kept_choice *x = &cache->choices[(hash / 2 + i) % CHOICES];
        if (x->hash == hash || x->hash == 0) return x;
    }
    return first;
}

/* Not inlined, as forget below: their callers have a signature of 12 KB on the stack already. */
__attribute__((noinline)) static const eg_choice *choice_of(const eg_context *context,
                                                            const eg_problem *problem) {
    if (!context->tunes || context->cache->choices == NULL) return NULL;
    signature key;
    sign_call(&key, context, problem, CHOICE, 0);
    const kept_choice *found = find_choice(context->cache, key.hash);
    return found->hash == key.hash ? &found->choice : NULL;
}

/* A tensor-parallel call whose ranks gain nothing from overlap runs a program that has no groups: there is to
 * be room for that, too. */
static eg_status compare_with_plain(const eg_caps *caps, const eg_problem *problem, eg_program *program) {
    if (program->list.row_groups == 1 || problem->exchange.streams) return EG_OK;
    eg_problem plain = *problem;
    eg_program *other = &caps->scratch->plain;
    plain.exchange.order = EG_COMM_ORDER_PLAIN;
    eg_lower(&plain, &other->list);
    EG_TRY(eg_compile(caps, other));
    if (other->workspace > program->workspace) program->workspace = other->workspace;
    program->plain_time = other->plain_time;
    program->overlaps = eg_collectives_overlap(program);
    return EG_OK;
}

/* The program of a call that trials choose, or have chosen. Calls over processes are not tried, as all of
 * them are to take the same time. */
static eg_status compile_tuned(eg_context *context, eg_caps *caps, const eg_problem *problem,
                               eg_program *program) {
    const bool tries = context->tunes && !caps->refused && problem->comm == NULL;
    if (tries) caps->choice = choice_of(context, problem);
    EG_TRY(eg_compile(caps, program));
    program->measured = !tries || caps->choice != NULL;
    if (!tries) return EG_OK;
    const size_t room = eg_room_of_choices(&context->caps, &program->list);
    if (room > program->workspace) program->workspace = room;
    return EG_OK;
}

/* The program of a call, or of a list that is none. One compiled anew counts as another. */
static eg_status find_program(eg_context *context, const eg_problem *problem, const eg_op_list *list,
                              bool refused, const eg_program **program) {
    signature key;
    if (problem != NULL) sign_call(&key, context, problem, refused ? RUN_REFUSED : RUN, 0);
    if (problem == NULL) sign_list(&key, context, list, refused ? LIST_REFUSED : LIST);
    entry *found = find(context, &key);
    *program = &found->program;
    if (found->used != 0) return EG_OK;
    if (problem != NULL) eg_lower(problem, &found->program.list);
    if (problem == NULL) found->program.list = *list;
    eg_caps caps = context->caps;
    caps.refused = refused;
    if (problem == NULL) EG_TRY(eg_compile(&caps, &found->program));
    if (problem != NULL) EG_TRY(compile_tuned(context, &caps, problem, &found->program));
    if (problem != NULL) EG_TRY(compare_with_plain(&caps, problem, &found->program));
    found->program.serial = ++context->cache->serial;
    keep_key(context->cache, &key, found);
    return EG_OK;
}

eg_status eg_cache_find(eg_context *context, const eg_problem *problem, bool refused,
                        const eg_program **program) {
    return find_program(context, problem, NULL, refused, program);
}

__attribute__((noinline)) static void forget(eg_context *context, const eg_problem *problem) {
    signature key;
    sign_call(&key, context, problem, RUN, 0);
    entry *seen = find_seen(context, &key);
    if (seen != NULL) seen->used = 0;
}

eg_status eg_cache_keep_choice(eg_context *context, const eg_problem *problem, const eg_choice *choice,
                               const eg_program **program) {
    eg_cache *cache = context->cache;
    const size_t bytes = CHOICES * sizeof *cache->choices;
    eg_problem query = *problem;
    signature key;
    if (cache->choices == NULL) {
        cache->choices = eg_host_alloc(context, bytes);
        if (cache->choices == NULL)
            return eg_fail(EG_ERR_OUT_OF_MEMORY, "no memory for what trials of kernels have found");
        memset(cache->choices, 0, bytes);
    }
    sign_call(&key, context, problem, CHOICE, 0);
    *find_choice(cache, key.hash) = (kept_choice){key.hash, *choice};
    query.addressing = EG_PRESENCE;
    forget(context, &query); /* a plan is to show what runs from now on */
    forget(context, problem);
    return find_program(context, problem, NULL, false, program);
}

eg_status eg_cache_find_groups(eg_context *context, const eg_problem *problem, const eg_groups **groups) {
    signature key;
    sign_call(&key, context, problem, RUN, 0);
    entry *found = find(context, &key);
    if (found->used == 0) {
        EG_TRY(eg_groups_make(context, problem, &found->groups));
        keep_key(context->cache, &key, found);
    }
    *groups = found->groups;
    return EG_OK;
}

bool eg_cache_find_chunks(eg_context *context, const eg_problem *problem, size_t limit, eg_chunks *chunks) {
    signature key;
    sign_call(&key, context, problem, CHUNKS, limit);
    const entry *found = find(context, &key);
    if (found->used == 0) return false;
    *chunks = found->chunks;
    return true;
}

void eg_cache_keep_chunks(eg_context *context, const eg_problem *problem, size_t limit, eg_chunks chunks) {
    signature key;
    sign_call(&key, context, problem, CHUNKS, limit);
    entry *place = find(context, &key);
    keep_key(context->cache, &key, place);
    place->chunks = chunks;
}

/* Rows of all ranks: in the caller's memory, or in what is exchanged. Groups are of those, or of a. */
static void bind_gathered(const eg_problem *problem, eg_call *call) {
    const bool kept = eg_wants(problem, EG_OP_GATHERED);
    const bool of_a = !problem->backward && problem->exchange.parallel == EG_BY_ROWS;
    call->operand[EG_GATHERED] = call->operand[kept ? EG_OP_GATHERED : EG_EXCHANGED];
    for (int i = 0; i < EG_MAX_ROW_GROUPS; i++)
        call->operand[EG_ROW_GROUP + i] = call->operand[of_a ? EG_OP_A : EG_GATHERED];
}

static void bind(const eg_problem *problem, void *workspace, size_t offset, eg_call *call) {
    for (int id = 0; id < EG_OPERANDS; id++) {
        call->operand[id].data = problem->operands[id].data;
        call->operand[id].offset = problem->operands[id].offset;
    }
    call->packed_b = problem->packed_b;
    call->packed_b_up = problem->packed_b_up;
    call->pack_item = 0;
    call->workspace = (eg_address){workspace, offset};
    call->operand[EG_EXCHANGED] = call->workspace;
    call->collectives = NULL;
    if (eg_is_tensor_parallel(problem)) bind_gathered(problem, call);
}

static void bind_buffers(const eg_program *program, eg_call *call) {
    for (int i = 0; i < program->list.buffers; i++)
        call->operand[EG_BUFFER + i] =
            (eg_address){call->workspace.data, call->workspace.offset + program->buffer[i]};
}

void eg_cache_bind(const eg_problem *problem, const eg_program *program, eg_address workspace,
                   eg_call *call) {
    bind(problem, workspace.data, workspace.offset, call);
    bind_buffers(program, call);
}

/* Where it refuses, the one that takes anything. */
static eg_status run(eg_context *context, const eg_program *program, const eg_problem *problem,
                     const eg_op_list *list, eg_call *call) {
    bool refused = false;
    bind_buffers(program, call);
    EG_TRY(context->ops->run(context, program, call, &refused));
    if (!refused) return EG_OK;
    if (call->collectives != NULL) EG_TRY(eg_collectives_begin_again(call->collectives));
    refused = false;
    EG_TRY(find_program(context, problem, list, true, &program));
    bind_buffers(program, call);
    return context->ops->run(context, program, call, &refused);
}

eg_status eg_cache_run(eg_context *context, const eg_program *program, const eg_problem *problem,
                       void *workspace, size_t offset) {
    eg_call call;
    bind(problem, workspace, offset, &call);
    if (problem->comm == NULL) return run(context, program, problem, NULL, &call);
    eg_collectives collectives;
    call.collectives = &collectives;
    eg_problem agreed = *problem;
    EG_TRY(eg_collectives_begin(&collectives, problem->comm, program, &call));
    eg_status status = EG_OK;
    if (eg_is_tensor_parallel(problem) && !problem->exchange.streams) {
        status = eg_collectives_agree(&collectives);
        if (status == EG_OK && !collectives.overlaps && program->list.row_groups > 1) {
            agreed.exchange.order = EG_COMM_ORDER_PLAIN;
            status = find_program(context, &agreed, NULL, false, &program);
        }
    }
    if (status == EG_OK) status = run(context, program, &agreed, NULL, &call);
    return eg_collectives_end(&collectives, status);
}

eg_status eg_cache_run_list(eg_context *context, const eg_op_list *list, eg_call *call) {
    const eg_program *program;
    EG_TRY(find_program(context, NULL, list, false, &program));
    return run(context, program, NULL, list, call);
}
