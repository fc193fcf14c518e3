/* SPDX-License-Identifier: Apache-2.0 */
/* From operations to a CPU program by a kernel row: which operands are packed and how, and the workspace.
 * Pure. */
#include "compile.h"

#include <string.h>

#include "compiler.h"

/* ---- Operations as they are computed ------------------------------------------------------------ */

static bool is_gradient(int id) { return id == EG_OP_GRAD || id == EG_OP_GRAD_UP; }

/* The transposed product, rightᵀ·leftᵀ, whose result is the transpose. The views of its terms stay. */
static void turn(eg_op *op) {
    const eg_view left = op->left;
    const int64_t rows = op->rows;
    op->left = eg_transposed(op->right), op->right = eg_transposed(left), op->out = eg_transposed(op->out);
    op->rows = op->cols, op->cols = rows;
    if (op->axis == EG_AXIS_ROWS) op->axis = EG_AXIS_COLS;
}

/* A column-major result is stored a number at a time, and rows of it may be a page apart. Its transpose is
 * row-major, and the same sums in the same order. A single column without gaps is column-major, too. What an
 * epilogue or a map packs for a product is not transposed for a right operand (a map may go over grad), and a
 * pack of the caller's is for right operands alone, but for a column's. */
static void turn_result(eg_op *op) {
    const bool is_row_major = op->out.row_stride != 1 || (op->out.col_stride == 1 && op->out.cols > 1);
    const bool is_packed_by_others = op->left.space == EG_TEMPORARY || is_gradient(op->left.id);
    const bool is_fixed = op->right.space == EG_PACKED_B || (is_packed_by_others && !op->left.transposed);
    if (op->kind != EG_GEMM || op->out.space != EG_OPERAND || !eg_is_bare(op) || is_row_major || is_fixed)
        return;
    turn(op);
}

/* Whether the matrix is a column of numbers that are neighbours. */
static bool is_column(const eg_view *x) {
    return x->space == EG_OPERAND && x->cols == 1 && x->row_stride == 1 && x->rows > 1;
}

/* A pack is a left operand for products of few rows alone. */
static bool may_be_left(const eg_cpu_kernel *kernel, const eg_op *op) {
    eg_op turned = *op;
    turn(&turned);
    return op->right.space == EG_OPERAND ||
           (op->right.space == EG_PACKED_B && eg_cpu_has_few_rows(kernel, &turned));
}

/* Such a column is as well a row: an epilogue then has whole vectors of it. But a gradient may have been
 * packed by a map, as the operand that it was. */
static bool is_column_throughout(const eg_cpu_kernel *kernel, const eg_op *op) {
    if (op->kind != EG_GEMM || op->ragged || op->accumulate || !is_column(&op->out)) return false;
    if (op->left.space != EG_OPERAND || !may_be_left(kernel, op)) return false;
    if (is_gradient(op->left.id) || is_gradient(op->right.id)) return false;
    for (int i = 0; i < op->terms; i++) {
        const eg_term *term = &op->term[i];
        const bool is_matrix = term->kind == EG_TERM_STORE || term->kind == EG_TERM_ADD;
        if (is_matrix && !is_column(&term->view)) return false;
        if (!is_matrix && term->kind != EG_TERM_SCALE && term->kind != EG_TERM_BIAS &&
            term->kind != EG_TERM_ACT)
            return false;
    }
    return true;
}

/* The bias, a number, is the same for all columns. */
static void turn_column(eg_op *op) {
    turn(op);
    for (int i = 0; i < op->terms; i++) {
        eg_term *term = &op->term[i];
        if (term->kind == EG_TERM_STORE || term->kind == EG_TERM_ADD) term->view = eg_transposed(term->view);
        if (term->kind == EG_TERM_BIAS)
            term->view.cols = op->cols, term->view.col_stride = term->view.row_stride = 0;
    }
}

/* ---- Regions ------------------------------------------------------------------------------------ */

/* A matrix as the kernels read it; AMX tile blocks, in micro-panels of either kind. */
static bool matrix_size(const eg_cpu_kernel *kernel, eg_dtype dtype, int64_t rows, int64_t cols,
                        int64_t *count, size_t *element) {
    if (eg_cpu_is_amx(kernel)) {
        const eg_amx_grid grid = eg_amx_grid_of(kernel->pack.bf16_terms, rows, cols);
        int64_t down;
        *element = grid.block_bytes;
        if (__builtin_mul_overflow(grid.rows, grid.row_pitch, count) ||
            __builtin_mul_overflow(grid.cols, grid.col_pitch, &down))
            return false;
        if (down > *count) *count = down;
        return true;
    }
    const eg_panels panels = eg_cpu_panels(kernel, rows, cols);
    *element = eg_size_of(dtype);
    return !__builtin_mul_overflow(panels.stride, panels.panels * kernel->micro.nr, count);
}

bool eg_cpu_matrix_bytes(const eg_cpu_kernel *kernel, eg_dtype dtype, int64_t items, int64_t rows,
                         int64_t cols, size_t *bytes) {
    int64_t count;
    size_t element;
    return matrix_size(kernel, dtype, rows, cols, &count, &element) &&
           !__builtin_mul_overflow(count, items, bytes) && !__builtin_mul_overflow(*bytes, element, bytes) &&
           *bytes <= (size_t)INT64_MAX;
}

static bool add_matrix(eg_cpu_compiler *c, int8_t *region, const char *name, int64_t items, int64_t rows,
                       int64_t cols) {
    int64_t count;
    size_t element;
    if (*region == EG_CPU_NOWHERE) return true;
    *region = (int8_t)c->next_region++;
    return matrix_size(c->kernel, c->kernel->compute, rows, cols, &count, &element) &&
           eg_add_region(c->program, *region, name, count, items, element, 64);
}

/* `x` is [rows, cols] as its caller has it. Transposed micro-panels hold the transpose. */
static bool add_layouts(eg_cpu_compiler *c, eg_cpu_layouts *x, const char *const names[2], int64_t items,
                        int64_t rows, int64_t cols) {
    const bool turn = !eg_cpu_is_amx(c->kernel);
    return add_matrix(c, &x->left, names[0], items, rows, cols) &&
           add_matrix(c, &x->left_t, names[1], items, rows, cols) &&
           add_matrix(c, &x->right, names[0], items, rows, cols) &&
           add_matrix(c, &x->right_t, names[1], items, turn ? cols : rows, turn ? rows : cols);
}

/* A row of nr-padded column sums for each chunk of rows of each item. */
static bool add_sums(eg_cpu_compiler *c, int id) {
    const eg_temporary *x = &c->list->temporary[id];
    int64_t chunks;
    c->sums[id] = (int8_t)c->next_region++;
    return !__builtin_mul_overflow(eg_cpu_chunks(x->rows), x->items, &chunks) &&
           eg_add_region(c->program, c->sums[id], x->name, chunks,
                         eg_ceil_div(x->cols, c->kernel->micro.nr) * c->kernel->micro.nr,
                         eg_size_of(c->kernel->compute), 64);
}

/* ---- Steps -------------------------------------------------------------------------------------- */

/* On `threads`; 0: on the number of least estimated time. `sharing`: microseconds beside what is counted. */
static eg_step *add_step(eg_cpu_compiler *c, int op, const eg_cpu_step *detail, const eg_cpu_counts *counts,
                         double sharing, int64_t units, int threads) {
    const eg_cpu_calibration *calibration = c->calibration;
    const double alone = eg_cpu_estimate(c->costs, counts) + sharing;
    eg_step *step = eg_add_step(c->program, op, c->kernel->name);
    memcpy(step->detail, detail, sizeof *detail);
    step->threads = threads > 0 ? threads : eg_cpu_choose_threads(calibration, c->threads, alone, units);
    step->microseconds = eg_cpu_time_on(calibration, step->threads, alone, units);
    return step;
}

static const char *const names[EG_NAMES][2] = {
    [EG_OP_A] = {"a", "a transposed"},
    [EG_OP_B] = {"b", "b transposed"},
    [EG_OP_GRAD] = {"grad", "grad transposed"},
    [EG_OP_GRAD_PRE] = {"grad_pre", "grad_pre transposed"},
    [EG_OP_B_UP] = {"b_up", "b_up transposed"},
    [EG_OP_GRAD_UP] = {"grad_up", "grad_up transposed"},
    [EG_OP_GRAD_PRE_UP] = {"grad_pre_up", "grad_pre_up transposed"},
    [EG_CHUNK_GRADIENT] = {"grad_pre", "grad_pre transposed"},
    [EG_GATHERED] = {"gathered", "gathered transposed"},
    [EG_ROW_GROUP] = {"group 1", "group 1 transposed"},
    [EG_ROW_GROUP + 1] = {"group 2", "group 2 transposed"},
    [EG_ROW_GROUP + 2] = {"group 3", "group 3 transposed"},
    [EG_ROW_GROUP + 3] = {"group 4", "group 4 transposed"},
    [EG_BUFFER] = {"gradient", "gradient transposed"}, /* dense_maps.c: no other buffer is a factor */
    [EG_BUFFER + 1] = {"gradient", "gradient transposed"},
    [EG_BUFFER + 2] = {"gradient", "gradient transposed"},
};
_Static_assert(EG_MAX_BUFFERS == 3, "each buffer has a name");
static const char *const packing[EG_NAMES] = {[EG_OP_A] = "pack a",
                                              [EG_OP_B] = "pack b",
                                              [EG_OP_GRAD] = "pack grad",
                                              [EG_OP_GRAD_PRE] = "pack grad_pre",
                                              [EG_OP_B_UP] = "pack b_up",
                                              [EG_OP_GRAD_UP] = "pack grad_up",
                                              [EG_OP_GRAD_PRE_UP] = "pack grad_pre_up",
                                              [EG_CHUNK_GRADIENT] = "pack grad_pre",
                                              [EG_GATHERED] = "pack gathered",
                                              [EG_ROW_GROUP] = "pack group 1",
                                              [EG_ROW_GROUP + 1] = "pack group 2",
                                              [EG_ROW_GROUP + 2] = "pack group 3",
                                              [EG_ROW_GROUP + 3] = "pack group 4",
                                              [EG_BUFFER] = "pack gradient",
                                              [EG_BUFFER + 1] = "pack gradient",
                                              [EG_BUFFER + 2] = "pack gradient"};

/* Threads that read the same part of what is packed for a product: those of its blocks along the other side.
 */
static int64_t readers_of(const eg_cpu_compiler *c, int op, bool right) {
    const eg_cpu_blocks *blocks = &c->blocks[op];
    const eg_op *product = &c->list->op[op];
    return eg_least(blocks->threads,
                    right ? eg_ceil_div(product->rows, blocks->mc) : eg_ceil_div(product->cols, blocks->nc));
}

/* An operand is read once, and packed for every product that it is in. */
static bool pack_operand(eg_cpu_compiler *c, int op, bool right) {
    const eg_view *view = right ? &c->list->op[op].right : &c->list->op[op].left;
    if (view->space != EG_OPERAND) return true;
    eg_cpu_layouts *wanted = &c->packed[view->id];
    const bool done =
        !eg_cpu_has_layouts(wanted) || (wanted->left != EG_CPU_WANTED && wanted->left_t != EG_CPU_WANTED &&
                                        wanted->right != EG_CPU_WANTED && wanted->right_t != EG_CPU_WANTED);
    if (done) return true;
    const eg_view x = eg_cpu_as_given(view);
    const int64_t items = eg_cpu_items_of(&c->list->op[op], view);
    if (!add_layouts(c, wanted, names[view->id], items, x.rows, x.cols)) return false;
    if (eg_cpu_is_mapped(c->list, view->id)) return true;
    const eg_cpu_step detail = {.kernel = c->kernel,
                                .left = EG_CPU_NOWHERE,
                                .right = EG_CPU_NOWHERE,
                                .sums = EG_CPU_NOWHERE,
                                .source = (int8_t)op,
                                .source_is_right = right,
                                .packs = *wanted};
    eg_cpu_counts counts = {{0}};
    eg_cpu_count_pack(c->calibration, c->kernel, &x, items, wanted, &counts);
    const double sharing =
        eg_cpu_sharing_time(c->calibration, c->kernel, &x, items, readers_of(c, op, right));
    eg_step *step = add_step(c, EG_NO_OP, &detail, &counts, sharing, INT32_MAX, 0);
    step->what = packing[view->id];
    return true;
}

/* Whether the operand of a product is not there when the call begins: it arrives from other ranks, or a map
 * makes it. */
static bool comes_late(const eg_op_list *list, int index, bool right) {
    const eg_view *view = right ? &list->op[index].right : &list->op[index].left;
    if (eg_arrives(view)) return true;
    for (int i = 0; i < index && view->space == EG_OPERAND; i++) {
        const eg_op *op = &list->op[i];
        if (op->out.space == EG_OPERAND && op->out.id == view->id) return true;
    }
    return false;
}

/* All packing before all else, left operands first; but what comes late is packed when it is there. */
static bool pack_operands(eg_cpu_compiler *c) {
    for (int right = 0; right < 2; right++) {
        for (int i = 0; i < c->list->ops; i++) {
            if (c->list->op[i].kind != EG_GEMM || comes_late(c->list, i, right)) continue;
            if (!pack_operand(c, i, right)) return false;
        }
    }
    return true;
}

static bool pack_late(eg_cpu_compiler *c, int index) {
    return (!comes_late(c->list, index, false) || pack_operand(c, index, false)) &&
           (!comes_late(c->list, index, true) || pack_operand(c, index, true));
}

static void add_product(eg_cpu_compiler *c, int index) {
    static const char *const notes[] = {[EG_CPU_STREAMS_RIGHT] = "few rows",
                                        [EG_CPU_STREAMS_LEFT] = "few columns",
                                        [EG_CPU_STREAMS_RESULT] = "outer products"};
    const eg_op *op = &c->list->op[index];
    const eg_cpu_blocks *blocks = &c->blocks[index];
    eg_cpu_step *detail = &c->detail[index];
    const bool is_outer = detail->streams == EG_CPU_STREAMS_RESULT;
    if (detail->streams != EG_CPU_STREAMS_LEFT && !(is_outer && op->left.space == EG_OPERAND))
        eg_cpu_share_layout(c, &op->left, false, &detail->left);
    if (detail->streams != EG_CPU_STREAMS_RIGHT && !(is_outer && op->right.space == EG_OPERAND))
        eg_cpu_share_layout(c, &op->right, true, &detail->right);
    if (op->right.space == EG_TEMPORARY && detail->right == EG_CPU_FUSED)
        detail->made_blocks = c->made[op->right.id].left;
    if (op->left.space == EG_TEMPORARY && detail->left == EG_CPU_FUSED)
        detail->made_blocks = c->made[op->left.id].left;
    detail->single_pass = blocks->single_pass;
    detail->copies_ends = eg_cpu_is_amx(c->kernel) && detail->left == EG_CPU_IN_PLACE &&
                          (op->rows % EG_AMX_BLOCK != 0 || op->depth % EG_AMX_BLOCK != 0);
    detail->non_temporal = eg_cpu_is_non_temporal(c, op, detail->streams, blocks->threads);
    if (is_outer) detail->part = (int32_t)eg_cpu_outer_part(c->kernel, op);
    eg_cpu_counts counts = {{0}};
    if (is_outer) {
        eg_cpu_count_outer(c->calibration, c->kernel, op, blocks, detail->non_temporal, &detail->packs,
                           &counts);
    } else if (detail->streams != EG_CPU_STREAMS_NONE) {
        eg_cpu_count_few(c->calibration, c->kernel, op, detail->streams, blocks, &detail->packs, &counts);
    } else {
        eg_cpu_count_gemm(c->calibration, c->kernel, op, blocks,
                          detail->packs_both ? EG_CPU_FUSED : detail->left, detail->right, &detail->packs,
                          &counts);
    }
    eg_step *step = add_step(c, index, detail, &counts, 0, eg_cpu_count_blocks(op, blocks), blocks->threads);
    step->tile_rows = blocks->mc;
    step->tile_cols = blocks->nc;
    step->k_block = blocks->kc;
    if (detail->left == EG_CPU_FUSED) step->note = "fused packing";
    if (detail->right == EG_CPU_FUSED)
        step->note = op->right.space == EG_PACKED_B ? "converts packed b" : "fused packing";
    if (detail->packs_both) step->note = "packs both operands";
    if (detail->streams != EG_CPU_STREAMS_NONE) step->note = notes[detail->streams];
}

/* A result that goes to other processes in groups of its rows is made in those, each followed by its
 * collective. */
static bool is_sent_in_groups(const eg_cpu_compiler *c, int index) {
    if (index + 1 >= c->list->ops || c->list->op[index].kind != EG_GEMM) return false;
    const eg_op *next = &c->list->op[index + 1];
    return next->kind == EG_COLLECTIVE && next->groups > 1 && c->detail[index].streams == EG_CPU_STREAMS_NONE;
}

static void add_collective_step(eg_cpu_compiler *c, int index, int group) {
    static const char *const names[] = {[EG_ALL_REDUCE] = "all_reduce",
                                        [EG_REDUCE_SCATTER] = "reduce_scatter",
                                        [EG_ALL_GATHER] = "all_gather",
                                        [EG_FINISH] = "finish"};
    const eg_op *op = &c->list->op[index];
    eg_step *step = eg_add_step(c->program, index, names[op->collective]);
    memcpy(step->detail, &c->detail[index], sizeof c->detail[index]);
    step->group = group;
    if (op->groups > 1) step->rows = eg_rows_of_group(op->rows, op->groups, group);
    step->beside = op->collective != EG_FINISH;
}

static void add_collective(eg_cpu_compiler *c, int index) {
    if (index > 0 && is_sent_in_groups(c, index - 1)) return;
    for (int group = 0; group < c->list->op[index].groups; group++) add_collective_step(c, index, group);
}

static void add_product_in_groups(eg_cpu_compiler *c, int index) {
    const int groups = c->list->op[index + 1].groups;
    add_product(c, index);
    const eg_step whole = c->program->step[--c->program->steps];
    for (int group = 0; group < groups; group++) {
        eg_step *step = &c->program->step[c->program->steps++];
        *step = whole;
        step->rows = eg_rows_of_group(c->list->op[index].rows, groups, group);
        step->microseconds = whole.microseconds / groups;
        add_collective_step(c, index + 1, group);
    }
}

/* What an operation makes for others: its result packed, and its column sums. */
static bool add_temporaries(eg_cpu_compiler *c, int index) {
    const eg_op *op = &c->list->op[index];
    const eg_term *sums = eg_term_of(op, EG_TERM_COLUMN_SUMS);
    eg_cpu_step *detail = &c->detail[index];
    if (op->out.space == EG_TEMPORARY) {
        const eg_temporary *x = &c->list->temporary[op->out.id];
        const char *const both[2] = {x->name, x->name};
        if (!add_layouts(c, &c->made[op->out.id], both, x->items, x->rows, x->cols)) return false;
        detail->packs = c->made[op->out.id];
    } else if (op->kind == EG_MAP && eg_cpu_is_mapped(c->list, op->left.id)) {
        detail->packs = c->packed[op->left.id];
    }
    if (sums == NULL) return true;
    const bool fits = add_sums(c, sums->view.id);
    detail->sums = c->sums[sums->view.id];
    return fits;
}

static bool add_operation(eg_cpu_compiler *c, int index) {
    const eg_op *op = &c->list->op[index];
    eg_cpu_counts counts = {{0}};
    if (!add_temporaries(c, index)) return false;
    switch (op->kind) {
    case EG_GEMM:
        if (!pack_late(c, index)) return false;
        (is_sent_in_groups(c, index) ? add_product_in_groups : add_product)(c, index);
        break;
    case EG_COLLECTIVE:
        add_collective(c, index);
        break;
    case EG_REDUCE:
        c->detail[index].sums = c->sums[op->left.id];
        eg_cpu_count_reduce(op, &counts);
        add_step(c, index, &c->detail[index], &counts, 0, eg_ceil_div(op->cols, c->kernel->micro.nr), 0);
        break;
    case EG_MAP:
    case EG_COPY:
        eg_cpu_count_map(c->calibration, c->kernel, op, &c->detail[index].packs, &counts);
        add_step(c, index, &c->detail[index], &counts, 0, eg_cpu_units(c->kernel, op), 0);
        break;
    }
    return true;
}

/* What a block of a product packs for itself: a micro-panel of the right operand, and rows of the left one.
 */
static int64_t packed_by_block(const eg_cpu_kernel *kernel, const eg_step *step) {
    const eg_cpu_step *detail = eg_cpu_detail(step);
    const int64_t mr = kernel->micro.mr, nr = kernel->micro.nr, panel = step->k_block * nr;
    if (eg_cpu_is_amx(kernel))
        return (detail->right == EG_CPU_FUSED ? panel * kernel->pack.bf16_terms / 2 : 0) +
               (detail->left == EG_CPU_FUSED ? eg_cpu_left_numbers(kernel, step->tile_rows, step->k_block)
                : detail->copies_ends        ? eg_cpu_left_ends(kernel, step->tile_rows, step->k_block)
                                             : 0);
    if (detail->packs_both)
        return (detail->right == EG_CPU_FUSED ? step->k_block * step->tile_cols : 0) +
               eg_ceil_div(eg_least(EG_CPU_PACKED_ROWS, step->tile_rows), mr) * mr *
                   eg_ceil_div(step->k_block, nr) * nr;
    return (detail->right == EG_CPU_FUSED || detail->right == EG_CPU_IN_PLACE ? panel : 0) +
           (detail->left == EG_CPU_IN_PLACE ? mr * eg_ceil_div(step->k_block, nr) * nr : 0);
}

/* For each thread of the step with most: spare tiles, a block's tiles, and what it packs for itself. */
static bool add_scratch(eg_cpu_compiler *c) {
    const eg_cpu_kernel *kernel = c->kernel;
    int64_t most = 0;
    int threads = 1;
    for (int i = 0; i < c->program->steps; i++) {
        const eg_step *step = &c->program->step[i];
        const eg_cpu_step *detail = eg_cpu_detail(step);
        int64_t need = 0;
        if (step->threads > threads) threads = step->threads;
        if (detail->streams == EG_CPU_STREAMS_RESULT) {
            need = eg_cpu_outer_scratch(kernel, step);
        } else if (detail->streams != EG_CPU_STREAMS_NONE) {
            need = eg_cpu_few_rows_scratch(kernel, step);
        } else if (step->kind == EG_GEMM) {
            need = eg_cpu_block_tiles(kernel, step->tile_rows, step->tile_cols, detail->single_pass) *
                       kernel->micro.mr * kernel->micro.nr +
                   packed_by_block(kernel, step);
        }
        if (need > most) most = need;
    }
    most += eg_cpu_spare_numbers(kernel);
    const eg_cpu_program detail = {.scratch = (size_t)most * eg_size_of(kernel->compute)};
    memcpy(c->program->detail, &detail, sizeof detail);
    return eg_add_region(c->program, EG_CPU_SCRATCH, "scratch", threads, most, eg_size_of(kernel->compute),
                         64);
}

/* ---- Programs ----------------------------------------------------------------------------------- */

bool eg_cpu_compile_for(const eg_caps *caps, const eg_cpu_kernel *kernel, int threads, eg_program *program) {
    eg_cpu_compiler c = {.kernel = kernel,
                         .calibration = eg_cpu_calibration_of(caps),
                         .program = program,
                         .list = &program->list,
                         .is_trial = threads < 0,
                         .next_region = EG_CPU_FIRST_FREE};
    if (threads < 0) threads = -threads;
    for (int i = 0; i < EG_NAMES; i++) c.packed[i] = eg_cpu_no_layouts;
    for (int i = 0; i < EG_MAX_TEMPORARIES; i++) c.made[i] = eg_cpu_no_layouts;
    c.costs = eg_cpu_costs_of(c.calibration, kernel);
    program->may_refuse = eg_cpu_may_refuse(kernel);
    for (int i = 0; i < program->list.ops; i++) {
        eg_op *op = &program->list.op[i];
        if (program->list.exchanged == 0 && is_column_throughout(kernel, op)) {
            turn_column(op);
        } else if (!eg_cpu_is_amx(kernel) ||
                   (program->list.exchanged == 0 && eg_cpu_may_turn_d_b(kernel, op))) {
            turn_result(op);
        }
    }
    if (!eg_cpu_make_dense(kernel, program)) return false;
    eg_cpu_choose_ways(&c, threads);
    if (!pack_operands(&c)) return false;
    for (int i = 0; i < c.list->ops; i++) {
        if (!add_operation(&c, i)) return false;
    }
    if (c.list->ops > 0 && !add_scratch(&c)) return false;
    eg_cpu_fuse_blocks(program);
    eg_cpu_share_forks(program);
    return true;
}
