/* SPDX-License-Identifier: Apache-2.0 */
/* From operations to a CPU program: a kernel row for all of them, which operands are packed and how, and the
 * workspace. Pure. */
#include "compile.h"

#include <math.h>
#include <string.h>

#include "core/error.h"
#include "estimate.h"

typedef struct compiler {
    const eg_cpu_kernel *kernel;
    const eg_cpu_calibration *calibration;
    const eg_cpu_costs *costs;
    eg_program *program;
    const eg_op_list *list;
    int threads;                             /* that steps beside the products may take */
    bool is_alone;                           /* what other operations pack does not count */
    int next_region;                         /* free */
    int8_t sums[EG_MAX_TEMPORARIES];         /* regions of column sums */
    eg_cpu_layouts made[EG_MAX_TEMPORARIES]; /* of temporaries: the layouts that products read */
    eg_cpu_layouts packed[EG_NAMES];         /* and of operands */
    eg_cpu_blocks blocks[EG_MAX_OPS];
    eg_cpu_step detail[EG_MAX_OPS];
} compiler;

static const eg_cpu_layouts no_layouts = {EG_CPU_NOWHERE, EG_CPU_NOWHERE, EG_CPU_NOWHERE, EG_CPU_NOWHERE};

static bool has_layouts(const eg_cpu_layouts *x) { return memcmp(x, &no_layouts, sizeof *x) != 0; }

/* ---- How products read their operands ----------------------------------------------------------- */

/* Where the region of a view's packed layout is noted. One copy of a matrix in micro-panels serves it and its
 * transpose as left operands, and itself as a right one. */
static int8_t *layout_of(compiler *c, const eg_view *view, bool right) {
    eg_cpu_layouts *x = view->space == EG_TEMPORARY ? &c->made[view->id] : &c->packed[view->id];
    if (!eg_cpu_is_amx(c->kernel)) return right && view->transposed ? &x->right_t : &x->left;
    if (right) return view->transposed ? &x->right_t : &x->right;
    return view->transposed ? &x->left_t : &x->left;
}

/* In place of a region, until one is added: a packed copy is wanted. */
enum { WANTED = INT8_MAX };

/* Notes that a product reads an operand there; packed, it is wanted in a region. */
static int8_t read_at(compiler *c, const eg_view *view, bool right, int where) {
    if (where == EG_CPU_NOWHERE && eg_is_present(view)) *layout_of(c, view, right) = WANTED;
    return (int8_t)where;
}

/* An operand that one product reads in place and another one packed is read packed by both. */
static void share_layout(compiler *c, const eg_view *view, bool right, int8_t *where) {
    if (!eg_is_present(view) || (*where != EG_CPU_NOWHERE && *where != EG_CPU_IN_PLACE)) return;
    const int8_t region = *layout_of(c, view, right);
    if (region != EG_CPU_NOWHERE) *where = region;
}

/* Whether the values of a map are those that it reads. */
static bool is_unchanged(const eg_op *map) {
    for (int i = 0; i < map->terms; i++) {
        if (map->term[i].kind != EG_TERM_STORE && map->term[i].kind != EG_TERM_COLUMN_SUMS) return false;
    }
    return true;
}

/* Whether a map goes over the operand anyway, once, and may pack it on its way. */
static bool is_mapped(const eg_op_list *list, int id) {
    const eg_op *map = &list->op[0];
    return list->ops > 0 && map->kind == EG_MAP && map->left.id == id &&
           (map->items == 1 || map->left.batch_stride != 0) && is_unchanged(map);
}

/* A column-major result is stored a number at a time, and rows of it may be a page apart. Its transpose is
 * row-major, and the same sums in the same order. What an epilogue or a map packs for a product is not
 * transposed for a right operand (a map may go over grad), and a pack of the caller's is for right operands
 * alone. */
static void turn_result(eg_op *op) {
    const bool is_row_major = op->out.col_stride == 1 || op->out.row_stride != 1;
    const bool is_packed_by_others = op->left.space == EG_TEMPORARY || op->left.id == EG_OP_GRAD;
    const bool is_fixed = op->right.space == EG_PACKED_B || (is_packed_by_others && !op->left.transposed);
    if (op->kind != EG_GEMM || op->out.space != EG_OPERAND || op->terms > 0 || is_row_major || is_fixed)
        return;
    const eg_view left = op->left;
    const int64_t rows = op->rows;
    op->left = eg_transposed(op->right), op->right = eg_transposed(left), op->out = eg_transposed(op->out);
    op->rows = op->cols, op->cols = rows;
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

static bool add_matrix(compiler *c, int8_t *region, const char *name, int64_t items, int64_t rows,
                       int64_t cols) {
    int64_t count;
    size_t element;
    if (*region == EG_CPU_NOWHERE) return true;
    *region = (int8_t)c->next_region++;
    return matrix_size(c->kernel, c->kernel->compute, rows, cols, &count, &element) &&
           eg_add_region(c->program, *region, name, count, items, element, 64);
}

/* `x` is [rows, cols] as its caller has it. Transposed micro-panels hold the transpose. */
static bool add_layouts(compiler *c, eg_cpu_layouts *x, const char *const names[2], int64_t items,
                        int64_t rows, int64_t cols) {
    const bool turn = !eg_cpu_is_amx(c->kernel);
    return add_matrix(c, &x->left, names[0], items, rows, cols) &&
           add_matrix(c, &x->left_t, names[1], items, rows, cols) &&
           add_matrix(c, &x->right, names[0], items, rows, cols) &&
           add_matrix(c, &x->right_t, names[1], items, turn ? cols : rows, turn ? rows : cols);
}

/* A row of nr-padded column sums for each chunk of rows of each item. */
static bool add_sums(compiler *c, int id) {
    const eg_temporary *x = &c->list->temporary[id];
    int64_t chunks;
    c->sums[id] = (int8_t)c->next_region++;
    return !__builtin_mul_overflow(eg_cpu_chunks(x->rows), x->items, &chunks) &&
           eg_add_region(c->program, c->sums[id], x->name, chunks,
                         eg_ceil_div(x->cols, c->kernel->micro.nr) * c->kernel->micro.nr,
                         eg_size_of(c->kernel->compute), 64);
}

/* ---- Steps -------------------------------------------------------------------------------------- */

/* On as many threads as pay, or `threads`. */
static eg_step *add_step(compiler *c, int op, const eg_cpu_step *detail, const eg_cpu_counts *counts,
                         int64_t units, int threads) {
    const eg_cpu_calibration *calibration = c->calibration;
    const double alone = eg_cpu_estimate(c->costs, counts);
    eg_step *step = eg_add_step(c->program, op, c->kernel->name);
    memcpy(step->detail, detail, sizeof *detail);
    step->threads = threads > 0 ? threads : eg_cpu_threads_that_pay(calibration, c->threads, alone, units);
    step->microseconds = eg_cpu_time_on(calibration, step->threads, alone, units);
    return step;
}

static int64_t items_of(const eg_op *op, const eg_view *x) {
    const int64_t batch = op->items > op->summed ? op->items : op->summed;
    return x->batch_stride == 0 ? 1 : batch;
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
};
static const char *const packing[EG_NAMES] = {[EG_OP_A] = "pack a",
                                              [EG_OP_B] = "pack b",
                                              [EG_OP_GRAD] = "pack grad",
                                              [EG_OP_GRAD_PRE] = "pack grad_pre",
                                              [EG_OP_B_UP] = "pack b_up",
                                              [EG_OP_GRAD_UP] = "pack grad_up",
                                              [EG_OP_GRAD_PRE_UP] = "pack grad_pre_up",
                                              [EG_CHUNK_GRADIENT] = "pack grad_pre"};

/* The operand of an operation as its caller has it, rather than as the operation reads it. */
static eg_view as_given(const eg_view *view) { return view->transposed ? eg_transposed(*view) : *view; }

/* An operand is read once, and packed for every product that it is in. */
static bool pack_operand(compiler *c, int op, bool right) {
    const eg_view *view = right ? &c->list->op[op].right : &c->list->op[op].left;
    if (view->space != EG_OPERAND) return true;
    eg_cpu_layouts *wanted = &c->packed[view->id];
    const bool done = !has_layouts(wanted) || (wanted->left != WANTED && wanted->left_t != WANTED &&
                                               wanted->right != WANTED && wanted->right_t != WANTED);
    if (done) return true;
    const eg_view x = as_given(view);
    const int64_t items = items_of(&c->list->op[op], view);
    if (!add_layouts(c, wanted, names[view->id], items, x.rows, x.cols)) return false;
    if (is_mapped(c->list, view->id)) return true;
    const eg_cpu_step detail = {.kernel = c->kernel,
                                .left = EG_CPU_NOWHERE,
                                .right = EG_CPU_NOWHERE,
                                .sums = EG_CPU_NOWHERE,
                                .source = (int8_t)op,
                                .source_is_right = right,
                                .packs = *wanted};
    eg_cpu_counts counts = {{0}};
    eg_cpu_count_pack(c->calibration, c->kernel, &x, items, wanted, &counts);
    eg_step *step = add_step(c, EG_NO_OP, &detail, &counts, INT32_MAX, 0);
    step->what = packing[view->id];
    return true;
}

/* All packing before all else, left operands first. */
static bool pack_operands(compiler *c) {
    for (int right = 0; right < 2; right++) {
        for (int i = 0; i < c->list->ops; i++) {
            if (c->list->op[i].kind == EG_GEMM && !pack_operand(c, i, right)) return false;
        }
    }
    return true;
}

/* Smaller results stay in L2 until they are read. A line that two tiles share is written in two parts, and
 * non-temporal stores of parts are slower than a last-level cache: such results have to be larger. */
enum { KEPT_A_THREAD = 1 << 20, KEPT_IN_PARTS = 16 << 20 }; /* bytes */

static bool is_whole_lines(const eg_view *x) {
    const int64_t distances = (x->row_stride | x->batch_stride) * (int64_t)eg_size_of(x->dtype);
    return x->col_stride == 1 && x->align >= 64 && (distances & 63) == 0;
}

/* A non-temporal store does not read the line first, and evicts nothing from the caches. */
static bool is_non_temporal(const compiler *c, const eg_op *op, int streams, int threads) {
    const bool turns = eg_cpu_is_amx(c->kernel) && op->out.row_stride == 1 && op->out.col_stride != 1;
    const eg_view out = turns ? eg_transposed(op->out) : op->out; /* as it is stored: epilogue.c */
    if (op->terms > 0 || op->accumulate) return false;
    const int64_t bytes = op->items * op->rows * op->cols * (int64_t)eg_size_of(out.dtype);
    const bool by_lines = eg_cpu_is_amx(c->kernel) || out.dtype == c->kernel->compute;
    const bool is_long = op->depth < c->kernel->blocking.non_temporal_below && by_lines;
    const bool in_parts = !eg_cpu_is_amx(c->kernel) && (c->kernel->needs & EG_CPU_AVX512) == 0;
    return (is_long || streams == EG_CPU_STREAMS_RESULT) && is_whole_lines(&out) &&
           eg_div(bytes, threads) > (in_parts ? KEPT_IN_PARTS : KEPT_A_THREAD);
}

static int64_t blocks_of(const eg_op *op, const eg_cpu_blocks *blocks) {
    return op->items * eg_ceil_div(op->rows, blocks->mc) * eg_ceil_div(op->cols, blocks->nc);
}

static void add_product(compiler *c, int index) {
    static const char *const notes[] = {[EG_CPU_STREAMS_RIGHT] = "few rows",
                                        [EG_CPU_STREAMS_LEFT] = "few columns",
                                        [EG_CPU_STREAMS_RESULT] = "outer products"};
    const eg_op *op = &c->list->op[index];
    const eg_cpu_blocks *blocks = &c->blocks[index];
    eg_cpu_step *detail = &c->detail[index];
    const bool is_outer = detail->streams == EG_CPU_STREAMS_RESULT;
    if (detail->streams != EG_CPU_STREAMS_LEFT && !(is_outer && op->left.space == EG_OPERAND))
        share_layout(c, &op->left, false, &detail->left);
    if (detail->streams != EG_CPU_STREAMS_RIGHT && !(is_outer && op->right.space == EG_OPERAND))
        share_layout(c, &op->right, true, &detail->right);
    detail->single_pass = blocks->single_pass;
    detail->non_temporal = is_non_temporal(c, op, detail->streams, blocks->threads);
    eg_cpu_counts counts = {{0}};
    if (is_outer) {
        eg_cpu_count_outer(c->calibration, c->kernel, op, blocks, detail->non_temporal, &detail->packs,
                           &counts);
    } else if (detail->streams != EG_CPU_STREAMS_NONE) {
        eg_cpu_count_few(c->calibration, c->kernel, op, detail->streams, blocks, &detail->packs, &counts);
    } else {
        eg_cpu_count_gemm(c->calibration, c->kernel, op, blocks, detail->left, detail->right, &detail->packs,
                          &counts);
    }
    eg_step *step = add_step(c, index, detail, &counts, blocks_of(op, blocks), blocks->threads);
    step->tile_rows = blocks->mc;
    step->tile_cols = blocks->nc;
    step->k_block = blocks->kc;
    if (detail->right == EG_CPU_FUSED)
        step->note = op->right.space == EG_PACKED_B ? "converts packed b" : "fused packing";
    if (detail->streams != EG_CPU_STREAMS_NONE) step->note = notes[detail->streams];
}

/* A result that goes to other processes in groups of its rows is made in those, each followed by its
 * collective. */
static bool is_sent_in_groups(const compiler *c, int index) {
    if (index + 1 >= c->list->ops || c->list->op[index].kind != EG_GEMM) return false;
    const eg_op *next = &c->list->op[index + 1];
    return next->kind == EG_COLLECTIVE && next->groups > 1 && c->detail[index].streams == EG_CPU_STREAMS_NONE;
}

static void add_collective_step(compiler *c, int index, int group) {
    static const char *const names[] = {
        [EG_ALL_REDUCE] = "all_reduce", [EG_REDUCE_SCATTER] = "reduce_scatter", [EG_FINISH] = "finish"};
    const eg_op *op = &c->list->op[index];
    eg_step *step = eg_add_step(c->program, index, names[op->collective]);
    memcpy(step->detail, &c->detail[index], sizeof c->detail[index]);
    step->group = group;
    if (op->groups > 1) step->rows = eg_rows_of_group(op->rows, op->groups, group);
    step->beside = op->collective != EG_FINISH;
}

static void add_collective(compiler *c, int index) {
    if (index > 0 && is_sent_in_groups(c, index - 1)) return;
    for (int group = 0; group < c->list->op[index].groups; group++) add_collective_step(c, index, group);
}

static void add_product_in_groups(compiler *c, int index) {
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
static bool add_temporaries(compiler *c, int index) {
    const eg_op *op = &c->list->op[index];
    const eg_term *sums = eg_term_of(op, EG_TERM_COLUMN_SUMS);
    eg_cpu_step *detail = &c->detail[index];
    if (op->out.space == EG_TEMPORARY) {
        const eg_temporary *x = &c->list->temporary[op->out.id];
        const char *const both[2] = {x->name, x->name};
        if (!add_layouts(c, &c->made[op->out.id], both, x->items, x->rows, x->cols)) return false;
        detail->packs = c->made[op->out.id];
    } else if (op->kind == EG_MAP && is_mapped(c->list, op->left.id)) {
        detail->packs = c->packed[op->left.id];
    }
    if (sums == NULL) return true;
    const bool fits = add_sums(c, sums->view.id);
    detail->sums = c->sums[sums->view.id];
    return fits;
}

static bool add_operation(compiler *c, int index) {
    const eg_op *op = &c->list->op[index];
    eg_cpu_counts counts = {{0}};
    if (!add_temporaries(c, index)) return false;
    switch (op->kind) {
    case EG_GEMM:
        (is_sent_in_groups(c, index) ? add_product_in_groups : add_product)(c, index);
        break;
    case EG_COLLECTIVE:
        add_collective(c, index);
        break;
    case EG_REDUCE:
        c->detail[index].sums = c->sums[op->left.id];
        eg_cpu_count_reduce(op, &counts);
        add_step(c, index, &c->detail[index], &counts, eg_ceil_div(op->cols, c->kernel->micro.nr), 0);
        break;
    case EG_MAP:
    case EG_COPY:
        eg_cpu_count_map(c->calibration, c->kernel, op, &c->detail[index].packs, &counts);
        add_step(c, index, &c->detail[index], &counts, eg_cpu_units(c->kernel, op), 0);
        break;
    }
    return true;
}

/* For each thread of the step with most: spare tiles, a block's tiles, and with fused packing a micro-panel.
 */
static bool add_scratch(compiler *c) {
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
        } else if (step->tile_rows > 0) {
            need = eg_cpu_block_tiles(kernel, step->tile_rows, step->tile_cols, detail->single_pass) *
                   kernel->micro.mr * kernel->micro.nr;
        }
        if (detail->right == EG_CPU_FUSED)
            need +=
                step->k_block * kernel->micro.nr * (eg_cpu_is_amx(kernel) ? kernel->pack.bf16_terms : 2) / 2;
        if (need > most) most = need;
    }
    most += EG_CPU_SPARE_TILES * (int64_t)kernel->micro.mr * kernel->micro.nr;
    const eg_cpu_program detail = {.scratch = (size_t)most * eg_size_of(kernel->compute)};
    memcpy(c->program->detail, &detail, sizeof detail);
    return eg_add_region(c->program, EG_CPU_SCRATCH, "scratch", threads, most, eg_size_of(kernel->compute),
                         64);
}

/* ---- Ways --------------------------------------------------------------------------------------- */

/* A way of a product to read its operands, and what follows from it. */
typedef struct way {
    int left, right; /* EG_CPU_NOWHERE: packed, if there is one */
    eg_cpu_streams streams;
    eg_cpu_blocks blocks;
    double time; /* microseconds, with what has to be packed for it; below 0: none yet */
} way;

/* Microseconds to pack an operand for a product, beside what is packed of it already, or of the product
 * alone. */
static double packing_time(compiler *c, const eg_op *op, bool right, int threads) {
    const eg_view *view = right ? &op->right : &op->left;
    if (view->space != EG_OPERAND) return 0;
    if (!c->is_alone && *layout_of(c, view, right) != EG_CPU_NOWHERE) return 0;
    const bool transposed = view->transposed && (right || eg_cpu_is_amx(c->kernel));
    const eg_cpu_layouts wanted = {.left = EG_CPU_NOWHERE,
                                   .left_t = EG_CPU_NOWHERE,
                                   .right = transposed ? EG_CPU_NOWHERE : WANTED,
                                   .right_t = transposed ? WANTED : EG_CPU_NOWHERE};
    const eg_view x = as_given(view);
    eg_cpu_counts counts = {{0}};
    eg_cpu_count_pack(c->calibration, c->kernel, &x, items_of(op, view), &wanted, &counts);
    if (!c->is_alone && (has_layouts(&c->packed[view->id]) || is_mapped(c->list, view->id)))
        /* it is read anyway */
        counts.of[EG_CPU_COST_STEP] = counts.of[EG_CPU_COST_READ] = 0;
    return eg_cpu_time_on(c->calibration, threads, eg_cpu_estimate(c->costs, &counts), INT32_MAX);
}

/* Microseconds of a product by a way on one thread. */
static double product_time(const compiler *c, const eg_op *op, const way *x) {
    eg_cpu_counts counts = {{0}};
    eg_cpu_count_gemm(c->calibration, c->kernel, op, &x->blocks, x->left, x->right, &no_layouts, &counts);
    return eg_cpu_estimate(c->costs, &counts);
}

/* On as many threads as pay, which may have other blocks. */
static void try_way(compiler *c, const eg_op *op, int left, int right, int most_threads, way *best) {
    const bool fused = right == EG_CPU_FUSED;
    const int64_t units = eg_cpu_units(c->kernel, op);
    way x = {.left = left, .right = right, .blocks = eg_cpu_blocks_of(c->kernel, 1, op, fused)};
    double alone = product_time(c, op, &x);
    const int threads = eg_cpu_threads_that_pay(c->calibration, most_threads, alone, units);
    if (threads > 1) {
        x.blocks = eg_cpu_blocks_of(c->kernel, threads, op, fused);
        alone = product_time(c, op, &x);
    }
    x.time = eg_cpu_time_on(c->calibration, x.blocks.threads, alone, blocks_of(op, &x.blocks));
    if (left == EG_CPU_NOWHERE) x.time += packing_time(c, op, false, x.blocks.threads);
    if (right == EG_CPU_NOWHERE) x.time += packing_time(c, op, true, x.blocks.threads);
    if (best->time < 0 || x.time < best->time) *best = x;
}

/* An operand is packed where nothing else is possible. */
static int ways_of_left(const compiler *c, const eg_op *op, int ways[2]) {
    const eg_cpu_way only = c->calibration->left;
    int count = 0;
    if (eg_cpu_may_place_left(c->kernel, op) && only != EG_CPU_PACKED) ways[count++] = EG_CPU_IN_PLACE;
    if (count == 0 || only != EG_CPU_PLACED) ways[count++] = EG_CPU_NOWHERE;
    return count;
}

/* Fused packing may refuse a number late, but not when other ranks have begun to add up. */
static int ways_of_right(const compiler *c, const eg_op *op, int ways[3]) {
    const eg_cpu_way only = c->calibration->right;
    int count = 0;
    if (op->right.space == EG_PACKED_B)
        return ways[0] = eg_cpu_widens_pack(c->kernel, &op->right) ? EG_CPU_FUSED : EG_CPU_FROM_PACK, 1;
    if (eg_cpu_may_place_right(c->kernel, op) && (only == EG_CPU_ANY_WAY || only == EG_CPU_PLACED))
        ways[count++] = EG_CPU_IN_PLACE;
    const bool late = c->list->exchanged > 0 && eg_cpu_may_refuse(c->kernel);
    if (!late && eg_cpu_may_fuse(c->kernel, op) && (only == EG_CPU_ANY_WAY || only == EG_CPU_FUSES))
        ways[count++] = EG_CPU_FUSED;
    if (count == 0 || only == EG_CPU_ANY_WAY) ways[count++] = EG_CPU_NOWHERE;
    return count;
}

/* The kernel for few rows or columns, which reads the other operand once, where it is. */
static void try_few(compiler *c, const eg_op *op, eg_cpu_streams streams, int most_threads, way *best) {
    const bool in_place = eg_cpu_few_rows_read_in_place(c->kernel, &op->left);
    way x = {.streams = streams,
             .left = in_place || streams == EG_CPU_STREAMS_LEFT ? EG_CPU_IN_PLACE : EG_CPU_NOWHERE,
             .right = op->right.space == EG_PACKED_B    ? EG_CPU_FROM_PACK
                      : op->right.space == EG_TEMPORARY ? EG_CPU_NOWHERE
                                                        : EG_CPU_IN_PLACE};
    eg_cpu_counts counts = {{0}};
    x.blocks = streams == EG_CPU_STREAMS_LEFT ? eg_cpu_few_columns_blocks(c->kernel, 1, op)
                                              : eg_cpu_few_rows_blocks(c->kernel, 1, op);
    eg_cpu_count_few(c->calibration, c->kernel, op, streams, &x.blocks, &no_layouts, &counts);
    const double alone = eg_cpu_estimate(c->costs, &counts);
    const int threads =
        eg_cpu_threads_that_pay(c->calibration, most_threads, alone, eg_cpu_units(c->kernel, op));
    x.blocks = streams == EG_CPU_STREAMS_LEFT ? eg_cpu_few_columns_blocks(c->kernel, threads, op)
                                              : eg_cpu_few_rows_blocks(c->kernel, threads, op);
    x.time = eg_cpu_time_on(c->calibration, threads, alone, blocks_of(op, &x.blocks));
    if (x.left == EG_CPU_NOWHERE) x.time += packing_time(c, op, false, threads);
    if (best->time < 0 || x.time < best->time) *best = x;
}

/* The ways that read an operand once. */
static void try_few_ways(compiler *c, const eg_op *op, int threads, way *best) {
    if (eg_cpu_has_few_rows(c->kernel, op)) try_few(c, op, EG_CPU_STREAMS_RIGHT, threads, best);
    if (eg_cpu_has_few_columns(c->kernel, op)) try_few(c, op, EG_CPU_STREAMS_LEFT, threads, best);
}

/* Both operands in L1. */
static void try_outer(compiler *c, const eg_op *op, int most_threads, way *best) {
    way x = {.streams = EG_CPU_STREAMS_RESULT,
             .left = op->left.space == EG_OPERAND ? EG_CPU_IN_PLACE : EG_CPU_NOWHERE,
             .right = op->right.space == EG_OPERAND ? EG_CPU_IN_PLACE : EG_CPU_NOWHERE};
    eg_cpu_counts counts = {{0}};
    x.blocks = eg_cpu_outer_blocks(c->kernel, 1, op);
    eg_cpu_count_outer(c->calibration, c->kernel, op, &x.blocks, is_non_temporal(c, op, x.streams, 1),
                       &no_layouts, &counts);
    const double alone = eg_cpu_estimate(c->costs, &counts);
    const int64_t units = blocks_of(op, &x.blocks);
    const int threads = eg_cpu_threads_that_pay(c->calibration, most_threads, alone, units);
    x.blocks = eg_cpu_outer_blocks(c->kernel, threads, op);
    x.time = eg_cpu_time_on(c->calibration, threads, alone, units);
    if (best->time < 0 || x.time < best->time) *best = x;
}

/* Those of the tile loop, and outer products, which all have the same bits. */
static void try_tile_ways(compiler *c, const eg_op *op, int threads, way *best) {
    const eg_cpu_way only = c->calibration->left;
    int left[2] = {EG_CPU_NOWHERE}, right[3] = {EG_CPU_NOWHERE}, lefts = 1, rights = 1;
    if (eg_cpu_has_little_depth(c->kernel, op) && (only == EG_CPU_ANY_WAY || only == EG_CPU_OUTER)) {
        try_outer(c, op, threads, best);
        if (only == EG_CPU_OUTER) return;
    }
    if (op->depth > 0) lefts = ways_of_left(c, op, left), rights = ways_of_right(c, op, right);
    for (int i = 0; i < lefts * rights; i++)
        try_way(c, op, left[i / rights], right[i % rights], threads, best);
}

/* Whether the product reads an operand once. Its sums may then be in another order, so the threads and the
 * other operations of the call have no say in it. */
static bool is_streamed(compiler *c, const eg_op *op) {
    const eg_cpu_way left = c->calibration->left, right = c->calibration->right;
    const bool is_asked_for = left == EG_CPU_STREAMS || right == EG_CPU_STREAMS;
    way few = {.time = -1}, tiles = few;
    if (!is_asked_for && (left != EG_CPU_ANY_WAY || right != EG_CPU_ANY_WAY)) return false;
    c->is_alone = true;
    try_few_ways(c, op, 1, &few);
    if (few.time >= 0) try_tile_ways(c, op, 1, &tiles);
    c->is_alone = false;
    return few.time >= 0 && (is_asked_for || few.time < tiles.time);
}

static void choose_way(compiler *c, int index, int threads) {
    const eg_op *op = &c->list->op[index];
    way best = {.time = -1};
    if (is_streamed(c, op)) {
        try_few_ways(c, op, threads, &best);
    } else {
        try_tile_ways(c, op, threads, &best);
    }
    c->blocks[index] = best.blocks;
    if (op->depth == 0) return;
    c->detail[index].streams = (uint8_t)best.streams;
    c->detail[index].left = read_at(c, &op->left, false, best.left);
    c->detail[index].right = read_at(c, &op->right, true, best.right);
}

/* Other steps take no more threads than the products: what others pack would be in the wrong caches. */
static void choose_ways(compiler *c, int threads) {
    int most = 0;
    for (int i = 0; i < c->list->ops; i++) {
        c->detail[i] = (eg_cpu_step){.kernel = c->kernel,
                                     .left = EG_CPU_NOWHERE,
                                     .right = EG_CPU_NOWHERE,
                                     .sums = EG_CPU_NOWHERE,
                                     .packs = no_layouts};
        if (c->list->op[i].kind != EG_GEMM) continue;
        choose_way(c, i, threads);
        if (c->blocks[i].threads > most) most = c->blocks[i].threads;
    }
    c->threads = most > 0 ? most : threads;
}

/* ---- Programs ----------------------------------------------------------------------------------- */

static bool compile_for(const eg_caps *caps, const eg_cpu_kernel *kernel, int threads, eg_program *program) {
    compiler c = {.kernel = kernel,
                  .calibration = eg_cpu_calibration_of(caps),
                  .program = program,
                  .list = &program->list,
                  .next_region = EG_CPU_FIRST_FREE};
    for (int i = 0; i < EG_NAMES; i++) c.packed[i] = no_layouts;
    for (int i = 0; i < EG_MAX_TEMPORARIES; i++) c.made[i] = no_layouts;
    c.costs = eg_cpu_costs_of(c.calibration, kernel);
    program->may_refuse = eg_cpu_may_refuse(kernel);
    for (int i = 0; i < program->list.ops && !eg_cpu_is_amx(kernel); i++) turn_result(&program->list.op[i]);
    choose_ways(&c, threads);
    if (!pack_operands(&c)) return false;
    for (int i = 0; i < c.list->ops; i++) {
        if (!add_operation(&c, i)) return false;
    }
    return c.list->ops == 0 || add_scratch(&c);
}

/* B as if the caller had it row by row: packed or not, and whatever its layout, a layer takes the same row.
 * But not of few rows: to read B is all their time. */
static void put_b_in_rows(eg_op_list *list) {
    for (int i = 0; i < list->ops; i++) {
        eg_view *x = &list->op[i].right;
        const bool is_b = x->id == EG_OP_B || x->id == EG_OP_B_UP;
        if (list->op[i].kind != EG_GEMM || !is_b || x->space == EG_TEMPORARY) continue;
        if (list->op[i].rows <= EG_CPU_FEW_ROWS) continue;
        x->space = EG_OPERAND;
        x->dtype = list->dtype;
        x->row_stride = x->transposed ? 1 : x->cols;
        x->col_stride = x->transposed ? x->rows : 1;
    }
}

double eg_cpu_time_alone(const eg_caps *caps, const eg_cpu_kernel *row, const eg_op_list *list) {
    double time = 0;
    eg_program program = {.list = *list};
    put_b_in_rows(&program.list);
    if (!compile_for(caps, row, 1, &program)) return HUGE_VAL;
    for (int i = 0; i < program.steps; i++) time += program.step[i].microseconds;
    return time;
}

eg_status eg_cpu_no_kernel(const eg_caps *caps, const eg_op_list *list) {
    return eg_fail(EG_ERR_UNSUPPORTED, "kernel \"%s\" does not compute %s with this layer.math here",
                   caps->only_kernel ? caps->only_kernel : "", eg_dtype_name(list->dtype));
}

eg_status eg_cpu_compile(const eg_caps *caps, eg_program *program) {
    const eg_cpu_kernel *kernel = eg_cpu_choose(caps, &program->list);
    if (kernel == NULL) return eg_cpu_no_kernel(caps, &program->list);
    return compile_for(caps, kernel, caps->threads, program) ? EG_OK : eg_too_large(&program->list);
}
