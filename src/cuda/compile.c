/* SPDX-License-Identifier: Apache-2.0 */
/* From operations to a CUDA program: a kernel row for each operation, and each step's numbers.
 * Pure. The workspace does not depend on the alignment of operands, so that its size can be asked for before
 * they are there. */
#include "compile.h"

#include <math.h>
#include <string.h>

#include "choose.h"
#include "core/error.h"
#include "gated_maps.h"
#include "parameters.h"
#include "partition.h"
#include "takes.h"

/* ---- Kernels -------------------------------------------------------------------------------------- */

/* Whether a product multiplies it, rather than only read it in its epilogue. */
static bool is_multiplied(const eg_op_list *list, int operand) {
    for (int i = 0; i < list->ops; i++) {
        const eg_op *op = &list->op[i];
        if (op->kind != EG_GEMM) continue;
        if (op->left.space == EG_OPERAND && op->left.id == operand) return true;
        if (op->right.space == EG_OPERAND && op->right.id == operand) return true;
    }
    return false;
}

/* Operands whose rows do not begin on 16 bytes, which kernels for vectors and TMA cannot take as they are:
 * all, or those that are multiplied. */
static eg_cuda_program padded_operands(const eg_cuda_compiler *c, bool all) {
    static const eg_operand_id inputs[] = {EG_OP_A,     EG_OP_B,        EG_OP_B_UP,   EG_OP_GRAD,
                                           EG_OP_BELOW, EG_OP_RESIDUAL, EG_OP_GRAD_UP};
    const eg_cuda_binding nowhere = {.program = c->program, .aligned = true};
    eg_cuda_program detail = {0};
    for (size_t i = 0; i < sizeof inputs / sizeof *inputs && detail.pads < EG_CUDA_PADS; i++) {
        const eg_view *view = eg_cuda_read_by_product(c->list, inputs[i]);
        if (view == NULL || eg_size_of(view->dtype) == 8) continue;
        if (c->list->groups > 0) continue; /* a copy would read rows that are of no group */
        const eg_cuda_matrix x = eg_cuda_matrix_of(&nowhere, view);
        if (eg_cuda_is_aligned(&x) || !(all || is_multiplied(c->list, inputs[i]))) continue;
        detail.pad[detail.pads++] = (int8_t)inputs[i];
    }
    return detail;
}

/* With these padded copies. */
static eg_status choose_with(eg_cuda_compiler *c, const eg_cuda_program *padded) {
    const eg_cuda_binding nowhere = {.program = c->program, .aligned = true};
    const eg_cuda_machine machine = eg_cuda_machine_of(c);
    memcpy(c->program->detail, padded, sizeof *padded);
    EG_TRY(eg_cuda_choose_all(c));
    for (int i = 0; i < padded->pads; i++) {
        const eg_cuda_gemm copy = eg_cuda_gemm_of_part(&nowhere, i, EG_CUDA_PAD);
        c->microseconds += eg_cuda_estimate(&machine, eg_cuda_pad_row(c->list->dtype), &copy, -1);
    }
    return EG_OK;
}

/* Which of the ways to pad is that of a rank, by their times; below 0: none. */
static int pads_of_rank(const double *time, int ways, int rank) {
    for (int i = 0; i < ways; i++) {
        int before = 0;
        for (int j = 0; j < ways; j++) before += time[j] < time[i] || (time[j] == time[i] && j < i);
        if (before == rank && time[i] < HUGE_VAL) return i;
    }
    return -1;
}

/* With padded copies, where they save more than they cost, or where the choice says so. */
static eg_status choose_pads(eg_cuda_compiler *c) {
    enum { WAYS = 3 };
    const eg_choice *choice = c->choice;
    const eg_cuda_program none = {0};
    const bool narrow = eg_size_of(c->list->dtype) == 2; /* products that wait are made by vectors and TMA */
    const eg_cuda_program padded[WAYS] = {none, narrow ? padded_operands(c, false) : none,
                                          padded_operands(c, true)};
    double time[WAYS];
    eg_status status = EG_OK;
    c->choice = NULL;
    for (int i = 0; i < WAYS; i++) {
        time[i] = HUGE_VAL;
        if (i > 0 && padded[i].pads == padded[i - 1].pads) continue;
        const eg_status chosen = choose_with(c, &padded[i]);
        if (i == 0) status = chosen;
        if (chosen == EG_OK) time[i] = c->microseconds;
    }
    c->choice = choice;
    const int rank = choice != NULL ? choice->copies : 0, first = pads_of_rank(time, WAYS, 0),
              other = pads_of_rank(time, WAYS, rank);
    if (first < 0) return status;
    c->lacks_copies = other < 0 || !eg_cuda_is_worth_a_trial(time[other], time[first]);
    return choose_with(c, &padded[c->lacks_copies ? first : other]);
}

static bool is_aligned(const eg_view *view) { return view->space != EG_OPERAND || view->align >= 16; }

/* Whether kernels can take all operands as if they began where kernels like it best. */
static bool all_are_aligned(const eg_op_list *list) {
    for (int i = 0; i < list->ops; i++) {
        const eg_op *op = &list->op[i];
        if (!is_aligned(&op->left) || !is_aligned(&op->right) || !is_aligned(&op->out)) return false;
        for (int j = 0; j < op->terms; j++) {
            if (!is_aligned(&op->term[j].view)) return false;
        }
    }
    return true;
}

/* What takes memory is decided as if every operand began on 256 bytes: a workspace can be asked for before
 * operands are there. Then kernels are chosen for those that are. */
static eg_status choose(eg_cuda_compiler *c, bool *fits) {
    *fits = true;
    eg_cuda_promise_tails(c);
    c->aligned = true;
    EG_TRY(choose_pads(c));
    *fits = eg_cuda_add_workspace(c);
    c->aligned = false;
    return !*fits || all_are_aligned(c->list) ? EG_OK : eg_cuda_choose_all(c);
}

/* ---- Steps ---------------------------------------------------------------------------------------- */

static eg_cuda_gemm gemm_of(const eg_cuda_compiler *c, int op, eg_cuda_part part) {
    const eg_cuda_binding nowhere = {.program = c->program};
    return eg_cuda_gemm_of_part(&nowhere, op, part);
}

/* By what operation a temporary of column sums is made. */
static int maker_of(const eg_op_list *list, int sums) {
    for (int i = 0; i < list->ops; i++) {
        const eg_term *term = eg_term_of(&list->op[i], EG_TERM_COLUMN_SUMS);
        if (term != NULL && term->view.id == sums) return i;
    }
    return EG_NO_OP;
}

/* The REDUCE of an operation's column sums. */
static int reduce_of(const eg_op_list *list, int maker) {
    const eg_term *sums = eg_term_of(&list->op[maker], EG_TERM_COLUMN_SUMS);
    for (int i = 0; i < list->ops && sums != NULL; i++) {
        if (list->op[i].kind == EG_REDUCE && list->op[i].left.id == sums->view.id) return i;
    }
    return EG_NO_OP;
}

/* In what portions an operation is made, and how many rows of column sums it leaves. */
static eg_cuda_portions portions_of(const eg_cuda_compiler *c, int index, int64_t *sum_rows) {
    const eg_op *op = &c->list->op[index];
    const eg_term *sums = eg_term_of(op, EG_TERM_COLUMN_SUMS);
    const eg_cuda_kernel *row = c->row[index];
    const bool by_chunks = row->family == EG_CUDA_VECTORS || row->family == EG_CUDA_GATED;
    const int64_t rows = by_chunks ? eg_cuda_map_chunks(c->multiprocessors, row, op) : op->rows;
    eg_cuda_portions portions = {op->items, rows, 0};
    *sum_rows = 0;
    if (sums == NULL) return portions;
    const int64_t chunks = eg_cuda_sums_left(c->multiprocessors, row, op);
    portions = eg_cuda_portions_of(c->list, &c->list->temporary[sums->view.id], op->items, rows, chunks,
                                   by_chunks ? 1 : eg_cuda_sum_rows(row));
    *sum_rows = portions.total > 0 ? 1 : op->items * chunks;
    return portions;
}

static const eg_cuda_kernel *product_row(const eg_cuda_compiler *c, int op) {
    return c->product[op] != NULL ? c->product[op] : c->row[op];
}
static eg_cuda_part product_part(const eg_cuda_compiler *c, int op) {
    if (eg_cuda_is_in_chunks(c, op)) return EG_CUDA_CHUNKS;
    return c->product[op] != NULL ? EG_CUDA_PRODUCT : EG_CUDA_WHOLE;
}

static eg_cuda_pair pair_of(const eg_cuda_compiler *c, int first, eg_cuda_pair_ops *ops) {
    const eg_cuda_binding nowhere = {.program = c->program};
    eg_cuda_find_pair(c->list, first, ops);
    return eg_cuda_pair_of(&nowhere, ops);
}

/* What an operation is to its persistent kernel, which makes it first of all that it makes; false: it is
 * none. */
static bool is_persistent(const eg_cuda_compiler *c, int op, eg_cuda_gemm *x) {
    eg_cuda_pair_ops ops;
    if (c->pair[op] != NULL) {
        const eg_cuda_pair pair = pair_of(c, op, &ops);
        *x = eg_cuda_like_pair(&pair);
        return true;
    }
    if ((c->paired >> op & 1U) != 0 || c->list->op[op].kind == EG_COLLECTIVE) return false;
    if (product_row(c, op)->family != EG_CUDA_TMA) return false;
    *x = gemm_of(c, op, product_part(c, op));
    return true;
}

static bool has_tail(const eg_cuda_compiler *c, int op, const eg_cuda_gemm *x) {
    double saved;
    return eg_cuda_choose_tail(c, product_row(c, op), x, &saved).tiles > 0;
}

/* Whether blocks of any launch tell each other something: what they count by is to begin at 0. */
static bool counts(const eg_cuda_compiler *c) {
    eg_cuda_gemm x;
    for (int i = 0; i < c->list->ops; i++) {
        if (is_persistent(c, i, &x) && has_tail(c, i, &x)) return true;
    }
    return false;
}

static eg_step *add_step(const eg_cuda_compiler *c, int op, const eg_cuda_step *detail) {
    const eg_cuda_kernel *row = detail->kernel;
    eg_step *step = eg_add_step(c->program, op, row->name);
    step->tile_rows = row->tile_rows, step->tile_cols = row->tile_cols, step->k_block = row->k_block;
    if (row->family == EG_CUDA_LIBRARY) c->program->may_refuse = true;
    memcpy(step->detail, detail, sizeof *detail);
    return step;
}

/* The REDUCE of an operation whose column sums are one row, which is the result then; 0: none. */
static int8_t reduce_at_once(const eg_cuda_compiler *c, int op) {
    const int reduce = reduce_of(c->list, op);
    int64_t sum_rows;
    if (reduce == EG_NO_OP) return 0;
    if (c->list->groups > 0) return 0;
    const eg_cuda_portions portions = portions_of(c, op, &sum_rows);
    return portions.total == 0 && sum_rows == 1 ? (int8_t)reduce : 0;
}

static void add_portions(const eg_cuda_compiler *c, int op, eg_step *step, eg_cuda_step *detail) {
    detail->reduce = reduce_at_once(c, op);
    if (detail->reduce != 0) {
        step->also |= 1U << detail->reduce;
        memcpy(step->detail, detail, sizeof *detail);
    }
    if (detail->portions.total == 0) return;
    detail->sum_kernel = c->row[reduce_of(c->list, op)];
    step->after_each = detail->sum_kernel->name;
    const bool by_chunks = detail->kernel->family == EG_CUDA_VECTORS;
    step->launches = eg_cuda_launches_of(&detail->portions, c->list->op[op].items,
                                         by_chunks ? detail->portions.rows : c->list->op[op].rows);
    memcpy(step->detail, detail, sizeof *detail);
}

/* Each product has counters of its own. */
static eg_cuda_tail tail_of(const eg_cuda_compiler *c, int op, const eg_cuda_gemm *x) {
    const int64_t each = eg_cuda_tail_counters(c->multiprocessors);
    double saved;
    eg_cuda_tail tail = eg_cuda_choose_tail(c, product_row(c, op), x, &saved);
    if (tail.tiles > 0) tail.counter = (int32_t)(eg_cuda_products_before(c->list, op) * each);
    return tail;
}

/* What a persistent kernel is told beside its operands. */
static void take_tiles(const eg_cuda_compiler *c, int op, const eg_cuda_gemm *x, bool clears,
                       eg_cuda_step *detail) {
    const eg_cuda_kernel *row = detail->kernel;
    detail->tail = tail_of(c, op, x);
    detail->tma_cols = eg_cuda_tma_cols(row, x);
    detail->clears = clears && detail->tail.tiles == 0;
    if (c->left_sums && op == 1) detail->left_reduce = (int8_t)reduce_of(c->list, 0);
}

/* All of a product, or a part of it: what finishes a product is a map that takes any strides. */
static void add_product(const eg_cuda_compiler *c, int op, eg_cuda_part part, bool clears) {
    const bool alone = part == EG_CUDA_PRODUCT || part == EG_CUDA_CHUNKS;
    const eg_cuda_kernel *row = alone ? c->product[op] : c->row[op];
    const eg_cuda_gemm x = gemm_of(c, op, part);
    eg_cuda_step detail = {.kernel = row, .part = (uint8_t)part, .op = (int8_t)op};
    int64_t sum_rows;
    if (!alone) detail.portions = portions_of(c, op, &sum_rows);
    if (row->family == EG_CUDA_VECTORS)
        detail.map_chunks = eg_cuda_map_chunks(c->multiprocessors, row, &c->list->op[op]);
    if (row->family == EG_CUDA_TMA) take_tiles(c, op, &x, clears, &detail);
    if (row->family == EG_CUDA_SPLIT || row->family == EG_CUDA_TMA_SPLIT || row->family == EG_CUDA_STREAMED) {
        const eg_cuda_machine machine = eg_cuda_machine_of(c);
        detail.splits = (uint8_t)eg_cuda_splits_of(&machine, row, &x);
    }
    if (row->family == EG_CUDA_LIBRARY && c->choice != NULL) detail.algorithm = c->choice->algorithm[op];
    eg_step *step = add_step(c, alone ? EG_NO_OP : op, &detail);
    if (alone) step->kind = EG_GEMM;
    if (part == EG_CUDA_PRODUCT) step->what = x.bias.data != 0 ? "product alone + bias" : "product alone";
    if (part == EG_CUDA_CHUNKS) step->what = "products of chunks";
    if (part == EG_CUDA_FINISH) step->kind = EG_MAP;
    step->tail = detail.tail.tiles;
    if (detail.left_reduce != 0) step->also |= 1U << detail.left_reduce;
    if (detail.splits > 1) step->splits = detail.splits;
    step->microseconds = eg_cuda_time_of(c, row, &x, op);
    if (detail.tail.tiles > 0 && op == 0) step->microseconds -= eg_cuda_machine_of(c).calibration->clear;
    if (!alone) add_portions(c, op, step, &detail);
}

static void add_sum_of_chunks(const eg_cuda_compiler *c, int op) {
    const eg_cuda_step detail = {.kernel = c->row[op], .part = EG_CUDA_ADD_UP, .op = (int8_t)op};
    const eg_cuda_gemm x = gemm_of(c, op, EG_CUDA_WHOLE);
    const eg_cuda_machine machine = eg_cuda_machine_of(c);
    eg_step *step = add_step(c, op, &detail);
    step->kind = EG_REDUCE;
    step->microseconds =
        eg_cuda_estimate_sums(&machine, c->row[op], eg_cuda_depth_chunks(&x), x.rows * x.cols);
}

static void add_map(const eg_cuda_compiler *c, int op, bool clears) {
    const eg_cuda_gemm x = gemm_of(c, op, EG_CUDA_WHOLE);
    eg_cuda_step detail = {.kernel = c->row[op], .op = (int8_t)op};
    int64_t sum_rows;
    detail.portions = portions_of(c, op, &sum_rows);
    if (c->row[op]->family == EG_CUDA_VECTORS) {
        detail.map_chunks = eg_cuda_map_chunks(c->multiprocessors, c->row[op], &c->list->op[op]);
        detail.clears = clears;
    }
    eg_step *step = add_step(c, op, &detail);
    step->microseconds = eg_cuda_time_of(c, c->row[op], &x, op);
    add_portions(c, op, step, &detail);
}

/* Three maps at once, the first of which is `first`. Chunks are those of an operation with sums. */
static void add_gated(const eg_cuda_compiler *c, int first) {
    const eg_cuda_binding nowhere = {.program = c->program};
    eg_cuda_gated_ops ops;
    eg_cuda_find_gated(c->list, first, &ops);
    const eg_cuda_gated x = eg_cuda_gated_of(&nowhere, &ops);
    const int chunked = x.sums_up != 0 ? ops.up : ops.gate;
    const eg_cuda_machine machine = eg_cuda_machine_of(c);
    const eg_cuda_step detail = {
        .kernel = c->row[first],
        .op = (int8_t)first,
        .map_chunks = eg_cuda_map_chunks(c->multiprocessors, c->row[first], &c->list->op[chunked])};
    eg_step *step = add_step(c, ops.up, &detail);
    step->also |= 1U << ops.gate;
    step->microseconds = eg_cuda_estimate_gated(&machine, c->row[first], &x);
}

/* Two products with all that is done with them. */
static void add_pair(const eg_cuda_compiler *c, int first, bool clears) {
    eg_cuda_pair_ops ops;
    const eg_cuda_pair x = pair_of(c, first, &ops);
    const eg_cuda_gemm like = eg_cuda_like_pair(&x);
    eg_cuda_step detail = {.kernel = c->pair[first], .part = EG_CUDA_WHOLE, .op = (int8_t)first};
    take_tiles(c, first, &like, clears, &detail);
    detail.tma_cols = eg_cuda_tma_cols(detail.kernel, &x.up);
    const int named = ops.kind == EG_CUDA_PAIR_CHAIN ? ops.maps.gate : ops.up;
    eg_step *step = add_step(c, named, &detail);
    step->also = ops.ops & ~(1U << named);
    step->kind = EG_GEMM;
    step->tail = detail.tail.tiles;
    if (detail.left_reduce != 0) step->also |= 1U << detail.left_reduce;
    step->microseconds = eg_cuda_time_of_pair(c, c->pair[first], &x, first);
    if (detail.tail.tiles > 0 && first == 0) step->microseconds -= eg_cuda_machine_of(c).calibration->clear;
}

/* Whether the maps of a gated unit are made with this one. No two units follow each other. */
static bool is_first_of_gated(const eg_cuda_compiler *c, int op) {
    eg_cuda_gated_ops ops;
    return eg_cuda_find_gated(c->list, op, &ops);
}

static void add_pads(const eg_cuda_compiler *c) {
    static const char *const what[EG_OPERANDS] = {[EG_OP_A] = "pad a",
                                                  [EG_OP_B] = "pad b",
                                                  [EG_OP_GRAD] = "pad grad",
                                                  [EG_OP_BELOW] = "pad chain.saved",
                                                  [EG_OP_RESIDUAL] = "pad residual",
                                                  [EG_OP_B_UP] = "pad b_up",
                                                  [EG_OP_GRAD_UP] = "pad grad_up"};
    const eg_cuda_program *program = eg_cuda_program_of(c->program);
    const eg_cuda_machine machine = eg_cuda_machine_of(c);
    for (int i = 0; i < program->pads; i++) {
        const eg_cuda_gemm x = gemm_of(c, i, EG_CUDA_PAD);
        const eg_cuda_step detail = {.kernel = eg_cuda_pad_row(c->list->dtype),
                                     .part = EG_CUDA_PAD,
                                     .op = (int8_t)i,
                                     .portions = {x.items, x.rows, 0}};
        eg_step *step = add_step(c, EG_NO_OP, &detail);
        step->what = what[program->pad[i]];
        step->microseconds = eg_cuda_estimate(&machine, detail.kernel, &x, -1);
    }
}

/* Whether a step before makes an operation at the same time as its own. */
static bool is_made(const eg_cuda_compiler *c, int op) {
    for (int i = 0; i < c->program->steps; i++) {
        if ((c->program->step[i].also >> op & 1U) != 0) return true;
    }
    return false;
}

static eg_step *add_reduce(const eg_cuda_compiler *c, int op) {
    const eg_op *reduce = &c->list->op[op];
    const int maker = maker_of(c->list, reduce->left.id);
    eg_cuda_step detail = {.kernel = c->row[op]};
    if (maker != EG_NO_OP && reduce->depth > 0) detail.portions = portions_of(c, maker, &detail.sum_rows);
    detail.chunk_rows = maker != EG_NO_OP ? eg_cuda_sum_rows(c->row[maker]) : 1;
    const eg_cuda_machine machine = eg_cuda_machine_of(c);
    eg_step *step = add_step(c, op, &detail);
    const int64_t groups = c->list->groups > 0 ? c->list->groups : 1;
    step->microseconds =
        eg_cuda_estimate_sums(&machine, c->row[op], detail.sum_rows / groups, reduce->cols * groups);
    return step;
}

static void add_clearing(const eg_cuda_compiler *c) {
    const eg_cuda_step detail = {.kernel = NULL, .clears = true};
    eg_step *step = eg_add_step(c->program, EG_NO_OP, "cuMemsetD32Async");
    step->what = "clear counters";
    step->microseconds = eg_cuda_machine_of(c).calibration->clear;
    memcpy(step->detail, &detail, sizeof detail);
}

static bool has_collectives(const eg_op_list *list) {
    for (int i = 0; i < list->ops; i++) {
        if (list->op[i].kind == EG_COLLECTIVE) return true;
    }
    return false;
}

/* The sums of an operation that are added up on the side stream, where they cost nothing beside the products
 * that follow; EG_NO_OP: there are none. */
static int reduce_beside(const eg_cuda_compiler *c, int maker) {
    const int reduce = reduce_of(c->list, maker);
    if (reduce == EG_NO_OP || is_made(c, reduce) || !eg_cuda_has_product_after(c->list, maker))
        return EG_NO_OP;
    const bool waited_for = has_collectives(c->list) && reduce == maker + 1; /* on that stream */
    return waited_for ? EG_NO_OP : reduce;
}

static void add_reduce_beside(const eg_cuda_compiler *c, int reduce, bool waits) {
    eg_step *step = add_reduce(c, reduce);
    eg_cuda_step detail = *eg_cuda_detail(step);
    detail.waits = waits;
    step->beside = true;
    memcpy(step->detail, &detail, sizeof detail);
}

/* What comes next on the side stream begins where the last step ends, also if it is enqueued later. */
static void fork_here(const eg_cuda_compiler *c) {
    eg_step *step = &c->program->step[c->program->steps - 1];
    eg_cuda_step detail = *eg_cuda_detail(step);
    detail.forks = true;
    memcpy(step->detail, &detail, sizeof detail);
}

/* Whole: an engine of a stream has no part of the device's time to give back while a product is made in
 * groups. */
static void add_collective(const eg_cuda_compiler *c, int op) {
    static const char *const names[] = {[EG_ALL_REDUCE] = "all_reduce",
                                        [EG_REDUCE_SCATTER] = "reduce_scatter",
                                        [EG_ALL_GATHER] = "all_gather",
                                        [EG_FINISH] = "finish"};
    const eg_collective_kind kind = c->list->op[op].collective;
    const eg_cuda_step detail = {.kernel = NULL};
    eg_step *step = eg_add_step(c->program, op, names[kind]);
    step->beside = kind != EG_FINISH;
    memcpy(step->detail, &detail, sizeof detail);
}

/* Whether the first operation may clear the counters of later ones. */
static bool first_clears(const eg_cuda_compiler *c) {
    eg_cuda_gemm x;
    if (c->list->op[0].kind == EG_COLLECTIVE) return false;
    return product_row(c, 0)->family == EG_CUDA_VECTORS || (is_persistent(c, 0, &x) && !has_tail(c, 0, &x));
}

/* Whether the first operation only sums columns of an operand, so that no product waits for it. */
static bool sums_aside(const eg_cuda_compiler *c) {
    const eg_op_list *list = c->list;
    int64_t sum_rows;
    return list->ops > 0 && !has_collectives(list) && list->op[0].kind == EG_MAP &&
           !eg_is_present(&list->op[0].out) && eg_cuda_has_product_after(list, 0) &&
           reduce_of(list, 0) != EG_NO_OP && c->row[0]->family != EG_CUDA_GATED &&
           portions_of(c, 0, &sum_rows).total == 0;
}

/* The products have the device first: blocks of a map would hold up theirs, while the sums find room where
 * the first product has few tiles left. So they come before what waits for it. */
static void add_sums_aside(const eg_cuda_compiler *c) {
    add_map(c, 0, false);
    c->program->step[c->program->steps - 1].beside = true;
    const int reduce = reduce_beside(c, 0); /* which the map may have made */
    if (reduce != EG_NO_OP) add_reduce_beside(c, reduce, false);
}

/* Whether the kernel of the second operation makes the first one, too, and in no more time. */
static bool makes_left_sums(const eg_cuda_compiler *c) {
    const eg_op *map = &c->list->op[0];
    const eg_cuda_machine machine = eg_cuda_machine_of(c);
    return sums_aside(c) && !counts(c) && c->product[1] == NULL &&
           eg_cuda_makes_left_sums(c->list, c->row[1]) &&
           eg_cuda_estimate_left_sums(&machine, map->rows, map->cols) < c->cost[1];
}

/* The steps of an operation that is made by itself. */
static void add_op(const eg_cuda_compiler *c, int op, bool clears) {
    switch (c->list->op[op].kind) {
    case EG_GEMM:
    case EG_COPY:
        add_product(c, op, product_part(c, op), clears);
        if (eg_cuda_is_in_chunks(c, op)) {
            add_sum_of_chunks(c, op);
        } else if (c->product[op] != NULL) {
            add_product(c, op, EG_CUDA_FINISH, false);
        }
        break;
    case EG_MAP:
        if (c->row[op]->family != EG_CUDA_GATED) {
            add_map(c, op, clears);
        } else if (is_first_of_gated(c, op)) {
            add_gated(c, op);
        }
        break;
    case EG_REDUCE:
        if (!is_made(c, op)) add_reduce(c, op);
        break;
    case EG_COLLECTIVE:
        add_collective(c, op);
        break;
    }
}

/* Sums come behind the product after the one that made them: blocks of a product that find some
 * multiprocessors taken go to the others, where two then take turns. */
static void add_steps(const eg_cuda_compiler *c) {
    const bool counting = c->list->ops > 0 && counts(c);
    bool aside = !counting && sums_aside(c), added[EG_MAX_OPS] = {false};
    int sums[EG_MAX_OPS], count = 0;
    if (c->left_sums) aside = false, added[0] = true;
    if (aside) added[0] = true, added[reduce_of(c->list, 0)] = true;
    if (counting && !first_clears(c)) add_clearing(c);
    add_pads(c);
    for (int i = 0; i < c->list->ops; i++) {
        if (added[i]) continue;
        const bool clears = counting && i == 0;
        if (c->pair[i] != NULL) {
            add_pair(c, i, clears);
        } else if ((c->paired >> i & 1U) == 0) {
            add_op(c, i, clears);
        }
        if (c->list->op[i].kind == EG_REDUCE || c->list->op[i].kind == EG_COLLECTIVE) continue;
        const int reduce = reduce_beside(c, i);
        if (reduce != EG_NO_OP) fork_here(c), added[reduce] = true;
        if (c->list->op[i].kind == EG_GEMM) {
            if (aside) add_sums_aside(c), aside = false;
            for (int j = 0; j < count; j++) add_reduce_beside(c, sums[j], true);
            count = 0;
        }
        if (reduce == EG_NO_OP) continue;
        if (has_collectives(c->list)) {
            add_reduce_beside(c, reduce, true);
        } else {
            sums[count++] = reduce;
        }
    }
}

static uint64_t name_of(const eg_view *view) {
    return view->space == EG_OPERAND ? (uint64_t)1 << view->id : 0;
}

static void note_names(const eg_op_list *list, eg_program *program) {
    eg_cuda_program detail = *eg_cuda_program_of(program);
    for (int i = 0; i < list->ops; i++) {
        const eg_op *op = &list->op[i];
        detail.names |= name_of(&op->left) | name_of(&op->right) | name_of(&op->out);
        for (int j = 0; j < op->terms; j++) detail.names |= name_of(&op->term[j].view);
    }
    for (int i = 0; i < list->temporaries; i++) detail.names |= name_of(&list->temporary[i].same);
    if (list->groups > 0) detail.names |= (uint64_t)1 << EG_OP_OFFSETS;
    memcpy(program->detail, &detail, sizeof detail);
}

/* Whether the choice asks for an algorithm of the library for a product that is not the library's. */
static bool lacks_algorithm(const eg_cuda_compiler *c) {
    for (int i = 0; i < c->list->ops && c->choice != NULL; i++) {
        const eg_cuda_kernel *row = c->list->op[i].kind == EG_GEMM ? product_row(c, i) : NULL;
        if (c->choice->algorithm[i] > 0 && (row == NULL || row->family != EG_CUDA_LIBRARY)) return true;
    }
    return false;
}

eg_status eg_cuda_compile(const eg_caps *caps, eg_program *program) {
    eg_cuda_compiler c = {.caps = caps,
                          .multiprocessors = ((const eg_cuda_caps *)caps->detail)->multiprocessors,
                          .program = program,
                          .list = &program->list,
                          .choice = caps->choice};
    bool fits;
    EG_TRY(choose(&c, &fits));
    if (!fits) return eg_too_large(&program->list);
    c.left_sums = makes_left_sums(&c);
    add_steps(&c);
    note_names(c.list, program);
    program->lacks = program->lacks || c.lacks_copies || lacks_algorithm(&c);
    return EG_OK;
}
