/* SPDX-License-Identifier: Apache-2.0 */
/* Steps that need nothing of each other, such as d_a, d_b and d_bias, begin and end together: one fork and
 * join instead of one each, and a thread that is through with its part of the first goes on with the next.
 * The bits are those of one step after the other. Pure. */
#include "compiler.h"
#include "threads.h"

/* What a step reads or writes, by numbers: operands, then temporaries, then regions. */
enum { FIRST_TEMPORARY = EG_NAMES, FIRST_REGION = FIRST_TEMPORARY + EG_MAX_TEMPORARIES };
typedef struct places {
    uint64_t bits[2];
} places;
_Static_assert(FIRST_REGION + EG_MAX_REGIONS <= 128, "places have a bit each");

static void add(places *x, int number) { x->bits[number / 64] |= (uint64_t)1 << number % 64; }

static bool share(const places *x, const places *y) {
    return ((x->bits[0] & y->bits[0]) | (x->bits[1] & y->bits[1])) != 0;
}

static void add_region(places *x, int region) {
    if (region >= 0 && region < EG_MAX_REGIONS) add(x, FIRST_REGION + region);
}

static void add_view(places *x, const eg_view *view) {
    if (view->space == EG_OPERAND) add(x, eg_cpu_memory_of(view->id));
    if (view->space == EG_TEMPORARY) add(x, FIRST_TEMPORARY + view->id);
}

typedef struct access {
    places reads, writes;
    bool accumulates;
} access;

static void add_operation(access *x, const eg_op *op) {
    add_view(&x->reads, &op->left);
    add_view(&x->reads, &op->right);
    add_view(&x->writes, &op->out);
    for (int i = 0; i < op->terms; i++) {
        const eg_term *term = &op->term[i];
        const bool is_written = term->kind == EG_TERM_STORE || term->kind == EG_TERM_COLUMN_SUMS;
        add_view(is_written ? &x->writes : &x->reads, &term->view);
    }
    x->accumulates = op->accumulate;
}

static access access_of(const eg_program *program, const eg_step *step) {
    const eg_cpu_step *detail = eg_cpu_detail(step);
    const eg_cpu_layouts *packs = &detail->packs;
    access x = {.accumulates = false};
    add_region(&x.reads, detail->left);
    add_region(&x.reads, detail->right);
    add_region(&x.writes, packs->left), add_region(&x.writes, packs->left_t);
    add_region(&x.writes, packs->right), add_region(&x.writes, packs->right_t);
    add_region(step->kind == EG_REDUCE ? &x.reads : &x.writes, detail->sums);
    if (step->op != EG_NO_OP) {
        add_operation(&x, &program->list.op[step->op]);
    } else {
        const eg_op *op = &program->list.op[detail->source];
        add_view(&x.reads, detail->source_is_right ? &op->right : &op->left);
    }
    return x;
}

static bool depends(const access *x, const access *y) {
    return share(&x->reads, &y->writes) || share(&x->writes, &y->reads) || share(&x->writes, &y->writes);
}

static bool is_fused(const eg_program *program, int at) {
    return eg_cpu_detail(&program->step[at])->same_blocks ||
           (at + 1 < program->steps && eg_cpu_detail(&program->step[at + 1])->same_blocks);
}

/* What a kernel refuses is found before anything is added to an output. */
static bool may_join(const eg_program *program, int first, int at) {
    if (is_fused(program, at)) return false;
    const access x = access_of(program, &program->step[at]);
    for (int i = first; i < at; i++) {
        const access before = access_of(program, &program->step[i]);
        if (depends(&x, &before)) return false;
        if (program->may_refuse && (x.accumulates || before.accumulates)) return false;
    }
    return true;
}

/* Names that stand for the memory of others: of calls in chunks, over processes, or in place. */
static bool has_aliases(const eg_op_list *list) {
    places named = {{0}};
    for (int i = 0; i < list->ops; i++) {
        access x = {.accumulates = false};
        add_operation(&x, &list->op[i]);
        for (int j = 0; j < 2; j++) named.bits[j] |= x.reads.bits[j] | x.writes.bits[j];
    }
    for (int id = EG_OPERANDS; id < EG_BUFFER; id++) {
        if ((named.bits[id / 64] >> id % 64 & 1) != 0) return true;
    }
    return list->in_place || list->exchanged > 0;
}

static int most_threads(const eg_program *program, int first, int count) {
    int most = 1;
    for (int i = first; i < first + count; i++) {
        if (program->step[i].threads > most) most = program->step[i].threads;
    }
    return most;
}

/* As many as all steps together take, of those that have scratch. Steps for one thread each are for one. */
static int threads_of(const eg_program *program, int first, int count) {
    const int most = most_threads(program, 0, program->steps);
    int all = 0;
    for (int i = first; i < first + count; i++) all += program->step[i].threads;
    if (most_threads(program, first, count) == 1) return 1;
    return all < most ? all : most;
}

static eg_cpu_step *detail_of(eg_step *step) { return (eg_cpu_step *)step->detail; }

void eg_cpu_share_forks(eg_program *program) {
    if (has_aliases(&program->list)) return;
    for (int first = 0, at; first < program->steps; first = at) {
        at = first + 1;
        if (is_fused(program, first)) continue;
        while (at < program->steps && at - first < EG_CPU_WORKS && may_join(program, first, at)) at++;
        const int threads = threads_of(program, first, at - first);
        if (threads == 1) continue; /* one after the other, as they are */
        detail_of(&program->step[first])->fork_threads = threads;
        for (int i = first + 1; i < at; i++) detail_of(&program->step[i])->same_fork = true;
    }
}
