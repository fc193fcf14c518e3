/* SPDX-License-Identifier: Apache-2.0 */
/* Estimates say which ways to make a call come into question; trials, which of them is best. One decision
 * after the other is tried, the whole call each time, since a kernel's time depends on what runs before it.
 */
#include "tune.h"

#include <math.h>
#include <string.h>

#include "cache.h"
#include "choice.h"
#include "error.h"
#include "overlap.h"

/* ---- Candidates ----------------------------------------------------------------------------------- */

enum { ALGORITHMS = 16, CANDIDATES = 40, TURNS = 5 };

typedef struct candidate {
    eg_choice choice;
    eg_program program;
    void *recording;           /* eg_backend_ops.record */
    double time[TURNS], least; /* microseconds */
    int times;
    bool is_out;
} candidate;

static bool is_same(const eg_program *a, const eg_program *b) {
    if (a->steps != b->steps || memcmp(a->detail, b->detail, sizeof a->detail) != 0) return false;
    for (int i = 0; i < a->steps; i++) {
        if (memcmp(a->step[i].detail, b->step[i].detail, sizeof a->step[i].detail) != 0) return false;
    }
    return true;
}

/* ---- Operands of trials ---------------------------------------------------------------------------- */

/* Sets of operands take turns, so that a call finds its own in memory, as in a network, where other layers
 * have had the caches since. Small ones would stay there in a network, too. */
enum { SETS = 16, LINE = 256 };

/* On the heap: it is more than 1 MB. */
typedef struct trials {
    eg_context *context;
    const eg_program *program; /* of the estimates */
    eg_problem set[SETS];
    eg_call call[SETS]; /* of the candidate that is recorded */
    int sets;
    eg_address workspace;
    void *memory; /* what the sets have for themselves */
    candidate candidate[CANDIDATES];
    int candidates;
} trials;

static const char *begin_of(const eg_operand *x) { return (const char *)x->data + x->offset; }

static size_t place_of(const eg_operand *x) { return (uintptr_t)begin_of(x) % LINE; }

/* The first of the operands that begin where this one does. They stay together: an output may be an input's
 * memory. */
static int first_of(const eg_problem *problem, int id) {
    int first = 0;
    while (problem->operands[first].data == NULL ||
           begin_of(&problem->operands[first]) != begin_of(&problem->operands[id]))
        first++;
    return first;
}

/* Bytes of the memory that begins with an operand, the first of those there; 0: it is none. */
static size_t extent_of(const eg_problem *problem, int id, bool *is_written) {
    size_t most = 0;
    *is_written = false;
    if (problem->operands[id].data == NULL || first_of(problem, id) != id) return 0;
    for (int other = id; other < EG_OPERANDS; other++) {
        const eg_operand *x = &problem->operands[other];
        if (x->data == NULL || begin_of(x) != begin_of(&problem->operands[id])) continue;
        const size_t bytes = eg_extent(problem, x);
        if (bytes > most) most = bytes;
        *is_written = *is_written || other >= EG_OP_Y;
    }
    return most;
}

/* With what is before it in its line: a copy begins in a line where the operand does. */
static size_t room_of(const eg_problem *problem, int id, bool *is_written) {
    const size_t bytes = extent_of(problem, id, is_written);
    return bytes > 0 ? (place_of(&problem->operands[id]) + bytes + LINE - 1) / LINE * LINE : 0;
}

/* A set whose operands are at `to`, all of them or what is written, and what follows it. Inputs are copied:
 * how long a product takes depends on its numbers, by the power that they take. */
static eg_status make_set(const trials *t, const eg_problem *theirs, bool all, char **to, eg_problem *set) {
    *set = *theirs;
    for (int id = 0; id < EG_OPERANDS; id++) {
        const eg_operand *x = &theirs->operands[id];
        bool is_written;
        if (x->data == NULL) continue;
        const int first = first_of(theirs, id);
        if (first < id) {
            set->operands[id].data = set->operands[first].data;
            set->operands[id].offset = set->operands[first].offset;
            continue;
        }
        const size_t bytes = extent_of(theirs, id, &is_written);
        if (!all && !is_written) continue;
        set->operands[id].data = *to + place_of(x);
        set->operands[id].offset = 0;
        *to += room_of(theirs, id, &is_written);
        if (!is_written)
            EG_TRY(t->context->ops->copy(t->context, set->operands[id].data, begin_of(x), bytes));
    }
    return EG_OK;
}

/* The first set has the caller's inputs. Others have copies: fewer where the bytes between the elements of
 * one are no memory, as where a batch stride leads from one allocation to another. */
static eg_status fill_sets(trials *t, const eg_problem *problem) {
    const eg_message message = eg_message_get();
    const int most = t->sets;
    char *to = t->memory;
    EG_TRY(make_set(t, problem, false, &to, &t->set[0]));
    for (t->sets = 1; t->sets < most; t->sets++) {
        if (make_set(t, problem, true, &to, &t->set[t->sets]) == EG_OK) continue;
        eg_message_put(&message);
        break;
    }
    return EG_OK;
}

/* Trials leave what the caller has as it is, also where a call adds to it. */
static eg_status make_sets(trials *t, const eg_problem *problem) {
    const size_t caches = 3 * t->context->caps.caches;
    size_t all = 0, written = 0;
    for (int id = 0; id < EG_OPERANDS; id++) {
        bool is_written;
        const size_t room = room_of(problem, id, &is_written);
        if (__builtin_add_overflow(all, room, &all)) return EG_ERR_OUT_OF_MEMORY;
        written += is_written ? room : 0;
    }
    t->sets = 1;
    while (t->sets < SETS && (size_t)t->sets * all < caches) t->sets++;
    EG_TRY(t->context->ops->alloc(t->context, written + (size_t)(t->sets - 1) * all, &t->memory));
    return fill_sets(t, problem);
}

/* ---- Trials --------------------------------------------------------------------------------------- */

static eg_status record(trials *t, candidate *x) {
    for (int i = 0; i < t->sets; i++) eg_cache_bind(&t->set[i], &x->program, t->workspace, &t->call[i]);
    EG_TRY(t->context->ops->record(t->context, &x->program, t->call, t->sets, &x->recording));
    x->is_out = x->recording == NULL;
    return EG_OK;
}

/* Who takes so many times as long as another at its best is out. */
static void drop_the_slow(trials *t, double times) {
    double least = HUGE_VAL;
    for (int i = 0; i < t->candidates; i++) {
        if (t->candidate[i].least < least) least = t->candidate[i].least;
    }
    for (int i = 0; i < t->candidates; i++)
        t->candidate[i].is_out = t->candidate[i].is_out || t->candidate[i].least > times * least;
}

/* The median. */
static double time_of(const candidate *x) {
    double sorted[TURNS];
    for (int i = 0; i < x->times; i++) {
        int at = i;
        for (; at > 0 && sorted[at - 1] > x->time[i]; at--) sorted[at] = sorted[at - 1];
        sorted[at] = x->time[i];
    }
    return x->is_out || x->times == 0 ? HUGE_VAL : sorted[x->times / 2];
}

static eg_status take_turn(trials *t, double *spent) {
    for (int i = 0; i < t->candidates; i++) {
        candidate *x = &t->candidate[i];
        double microseconds = 0;
        if (x->is_out) continue;
        EG_TRY(t->context->ops->replay(t->context, x->recording, &microseconds));
        x->time[x->times++] = microseconds;
        if (microseconds < x->least) x->least = microseconds;
        *spent += microseconds * t->sets;
    }
    return EG_OK;
}

/* In turns, since the device's clock changes. Of long calls, those that are close after two turns take more:
 * noise would choose between them. The first candidate stays where the best gains little. */
static eg_status run_trials(trials *t, int *best) {
    const double most = 20e3, little = 0.985, at_first = 1.4, then = 1.15, close = 1.05, close_most = 80e3;
    double spent = 0;
    *best = 0;
    for (int i = 0; i < t->candidates; i++) EG_TRY(record(t, &t->candidate[i]));
    for (int turn = 0; turn < TURNS && (turn < 2 || spent < close_most); turn++) {
        EG_TRY(take_turn(t, &spent));
        drop_the_slow(t, turn == 0 ? at_first : spent < most ? then : close);
    }
    for (int i = 1; i < t->candidates; i++) {
        const double bound = *best == 0 ? little * time_of(&t->candidate[0]) : time_of(&t->candidate[*best]);
        if (time_of(&t->candidate[i]) < bound) *best = i;
    }
    return EG_OK;
}

static void forget_recordings(const trials *t) {
    for (int i = 0; i < t->candidates; i++) t->context->ops->forget(t->context, t->candidate[i].recording);
}

/* Whether a candidate is to be tried: it fits, and is none of the others. */
static bool is_new(const trials *t, const candidate *x) {
    if (x->program.workspace > t->program->workspace) return false;
    for (int i = 0; i < t->candidates; i++) {
        if (is_same(&t->candidate[i].program, &x->program)) return false;
    }
    return true;
}

/* Adds the candidate of a choice; false where there is no such program. */
static bool add_candidate(trials *t, const eg_choice *choice) {
    if (t->candidates == CANDIDATES) return false;
    candidate *x = &t->candidate[t->candidates];
    x->choice = *choice, x->recording = NULL, x->times = 0, x->is_out = false, x->least = HUGE_VAL;
    if (!eg_compile_choice(&t->context->caps, &t->program->list, choice, &x->program)) return false;
    t->candidates += is_new(t, x);
    return true;
}

/* The first is that of the choice so far. */
static void add_candidates(trials *t, eg_choice choice, int index) {
    const eg_decision open = eg_decision_of(&choice, index);
    t->candidates = 0;
    for (*open.rank = 0; *open.rank < EG_RANKS && add_candidate(t, &choice); ++*open.rank) {
        if (open.algorithm == NULL) continue;
        for (*open.algorithm = 1; *open.algorithm < ALGORITHMS && add_candidate(t, &choice);)
            ++*open.algorithm;
        *open.algorithm = 0;
    }
}

static eg_status decide(trials *t, eg_choice *choice) {
    for (int i = 0; i < eg_decisions_of(&t->program->list); i++) {
        int best = 0;
        add_candidates(t, *choice, i);
        if (t->candidates < 2) continue;
        const eg_status status = run_trials(t, &best);
        forget_recordings(t);
        if (status != EG_OK) return status;
        *choice = t->candidate[best].choice;
    }
    return EG_OK;
}

static eg_status try_all(trials *t, const eg_problem *problem, eg_choice *choice) {
    EG_TRY(make_sets(t, problem));
    return decide(t, choice);
}

/* Where there is no memory for trials, or for more of them, what is chosen so far stays. */
eg_status eg_tune(eg_context *context, const eg_problem *problem, eg_address workspace,
                  const eg_program **program) {
    eg_choice choice = {0};
    if (!context->ops->may_time(context)) return EG_OK;
    const eg_message message = eg_message_get();
    trials *t = eg_host_alloc(context, sizeof *t);
    eg_status status = EG_ERR_OUT_OF_MEMORY;
    if (t != NULL) {
        t->context = context, t->program = *program, t->workspace = workspace;
        t->memory = NULL;
        status = try_all(t, problem, &choice);
        if (t->memory != NULL) context->ops->free(context, t->memory);
        eg_host_free(context, t);
    }
    if (status != EG_OK && status != EG_ERR_OUT_OF_MEMORY) return status;
    if (status == EG_ERR_OUT_OF_MEMORY) eg_message_put(&message);
    return eg_cache_keep_choice(context, problem, &choice, program);
}
