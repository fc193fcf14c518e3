/* SPDX-License-Identifier: Apache-2.0 */
/* Estimated times. Constants are those of calibration.c, fitted by tools/calibrate_cpu.py to recorded times. */
#include "estimate.h"

/* ---- Memory ------------------------------------------------------------------------------------- */

static double numbers_of(const eg_view *x, int64_t items) {
    if (!eg_is_present(x)) return 0;
    return (double)x->rows * (double)x->cols * (double)(eg_is_batched(x) ? items : 1);
}

/* A temporary holds numbers of the compute type, or like a pack bf16 terms. */
static double bytes_each(const eg_cpu_kernel *row, const eg_view *x) {
    if (x->space == EG_OPERAND || (x->space == EG_PACKED_B && !eg_cpu_is_amx(row)))
        return (double)eg_size_of(x->dtype);
    return row->pack.bf16_terms > 0 ? 2 * row->pack.bf16_terms : (double)eg_size_of(row->compute);
}

static int64_t batch_of(const eg_op *op) { return op->items > op->summed ? op->items : op->summed; }

/* The part of some bytes that is not found in L2, where `all` are touched in turn. */
static double far_part(const eg_cpu_calibration *calibration, double all) {
    return all / (all + calibration->l2);
}

/* ---- Epilogues ---------------------------------------------------------------------------------- */

/* Of the exponentials and divisions of gelu. */
static double weight_of(eg_activation activation) {
    switch (activation) {
    case EG_ACT_NONE:
        return 0;
    case EG_ACT_RELU:
        return 0.1;
    default:
        return 1;
    }
}

static int layouts_of(const eg_cpu_layouts *packs) {
    return (packs->left != EG_CPU_NOWHERE) + (packs->left_t != EG_CPU_NOWHERE) +
           (packs->right != EG_CPU_NOWHERE) + (packs->right_t != EG_CPU_NOWHERE);
}

/* Vectors of a last, narrow micro-panel; the matrix unit has tiles of 16 columns too. */
static double whole_vectors(const eg_cpu_kernel *row, int64_t cols) {
    const int64_t lanes = eg_cpu_is_amx(row) ? row->micro.nr / 2 : row->micro.lanes;
    return (double)(eg_ceil_div(cols, lanes) * lanes);
}

/* Everything that happens to the numbers of a result; returns the bytes that it reads and writes. */
static double count_result(const eg_cpu_kernel *row, const eg_op *op, const eg_cpu_layouts *packs,
                           eg_cpu_counts *counts) {
    const double numbers = (double)op->items * (double)op->rows * whole_vectors(row, op->cols);
    double bytes = 0;
    if (op->out.space == EG_OPERAND) {
        counts->of[op->out.col_stride == 1 ? EG_CPU_COST_STORE : EG_CPU_COST_STORE_TURNED] += numbers;
        if (op->accumulate) counts->of[EG_CPU_COST_SECOND] += numbers;
        bytes += numbers_of(&op->out, op->items) * bytes_each(row, &op->out);
    }
    counts->of[EG_CPU_COST_RESULT] += numbers * layouts_of(packs);
    for (int i = 0; i < op->terms; i++) {
        const eg_term *term = &op->term[i];
        switch (term->kind) {
        case EG_TERM_SCALE:
        case EG_TERM_BIAS:
            counts->of[EG_CPU_COST_FORWARD] += 0.1 * numbers;
            break;
        case EG_TERM_ACT:
            counts->of[EG_CPU_COST_FORWARD] += weight_of(term->activation) * numbers;
            break;
        case EG_TERM_STORE:
        case EG_TERM_ADD:
        case EG_TERM_TIMES:
            counts->of[EG_CPU_COST_SECOND] += numbers;
            break;
        case EG_TERM_GRAD_AT_VALUE:
            counts->of[EG_CPU_COST_SECOND] += numbers;
            counts->of[EG_CPU_COST_GRAD] += weight_of(term->activation) * numbers;
            break;
        case EG_TERM_GRAD_AT_SAVED:
            counts->of[EG_CPU_COST_SECOND] += numbers;
            counts->of[EG_CPU_COST_CHAIN] += weight_of(term->activation) * numbers;
            break;
        case EG_TERM_COLUMN_SUMS:
            counts->of[EG_CPU_COST_SUM] += numbers;
            break;
        }
        if (term->view.space == EG_OPERAND)
            bytes += numbers_of(&term->view, op->items) * bytes_each(row, &term->view);
    }
    return bytes;
}

/* ---- Products ----------------------------------------------------------------------------------- */

/* A narrow last micro-panel loads as many numbers of the left operand as a whole one, but fewer vectors. */
static double width_of_rest(const eg_cpu_kernel *row, int64_t cols) {
    const double narrow = 0.6; /* a tile block of the matrix unit with half its columns */
    if (cols == 0) return 0;
    if (eg_cpu_is_amx(row)) return 2 * cols <= row->micro.nr ? narrow : 1;
    const double vectors = (double)eg_ceil_div(cols, row->micro.lanes),
                 all = (double)row->micro.nr / row->micro.lanes;
    return (1 + vectors) / (1 + all);
}

enum { PAGE = 4096 };

/* Whether an operand in place has lines at multiples of `pitch` bytes. Where that is a page, they share a set
 * of L1, and a few of L2: of `many` such lines, what was read or prefetched is evicted before it is read
 * again. */
static bool is_evicted(const eg_view *x, int where, int64_t many, int64_t pitch) {
    const int64_t line = x->col_stride == 1 ? x->row_stride : x->col_stride,
                  lines = x->col_stride == 1 ? x->rows : x->cols;
    return where == EG_CPU_IN_PLACE && lines >= many && (line * (int64_t)eg_size_of(x->dtype)) % pitch == 0;
}

/* A tile of a transposed left operand takes a piece of as many lines as it has k, and the next tile takes the
 * next piece. Two sets of L1 have room for some of them, and all sets for most: beside the micro-panel the
 * lines are as many as L1 has. */
static double left_evicted(const eg_view *x, int where) {
    enum { L1_WAYS = 16 };
    const double of_two_sets = 0.2, of_all_sets = 0.1;
    if (where != EG_CPU_IN_PLACE || x->col_stride == 1) return 0;
    if (is_evicted(x, where, L1_WAYS, PAGE)) return 1;
    return is_evicted(x, where, 2 * L1_WAYS, PAGE / 2) ? of_two_sets : of_all_sets;
}

/* Of so many numbers of the operand. */
static double widened(const eg_cpu_kernel *row, const eg_view *x, double numbers) {
    return !eg_cpu_is_amx(row) && x->space != EG_TEMPORARY && x->dtype != row->compute ? numbers : 0;
}

static bool is_turned(const eg_view *x) { return x->col_stride != 1; }

/* A micro-panel's row of a right operand in place, in whole cache lines: how many times its own bytes. Its
 * neighbour comes for the rest when the line is gone. */
static double whole_lines(const eg_cpu_kernel *row, const eg_view *x) {
    enum { LINE = 64 };
    const int64_t bytes = row->micro.nr * (int64_t)eg_size_of(x->dtype);
    return (double)(eg_ceil_div(bytes, LINE) * LINE) / (double)bytes;
}

/* Blocks of other rows read the right operand again, and those of other columns the left one. */
static void count_gemm_bytes(const eg_cpu_calibration *calibration, const eg_cpu_kernel *row, const eg_op *op,
                             const eg_cpu_blocks *blocks, int left, int right, const eg_cpu_layouts *packs,
                             eg_cpu_counts *counts) {
    enum { MANY = 256 };
    const double row_blocks = (double)eg_ceil_div(op->rows, blocks->mc),
                 col_blocks = (double)eg_ceil_div(op->cols, blocks->nc);
    const double of_left = numbers_of(&op->left, batch_of(op)) * bytes_each(row, &op->left),
                 of_right = numbers_of(&op->right, batch_of(op)) * bytes_each(row, &op->right);
    const double of_result = count_result(row, op, packs, counts);
    const double far = far_part(calibration, of_left + of_right + of_result);
    const bool is_scattered = (right == EG_CPU_IN_PLACE || right == EG_CPU_FUSED) &&
                              !eg_cpu_packs_both(row, left) && !eg_cpu_is_near(&op->right, true);
    const double of_lines = right == EG_CPU_IN_PLACE && is_scattered ? whole_lines(row, &op->right) : 1;
    const eg_cpu_cost of_byte = is_scattered                     ? EG_CPU_COST_SCATTERED
                                : op->right.space == EG_PACKED_B ? EG_CPU_COST_PACK_FAR
                                                                 : EG_CPU_COST_FAR;
    counts->of[of_byte] += of_right * of_lines * row_blocks * far;
    counts->of[EG_CPU_COST_FAR] += of_left * col_blocks * far;
    counts->of[EG_CPU_COST_WRITTEN] += of_result * far;
    if (is_evicted(&op->right, right, MANY, PAGE)) counts->of[EG_CPU_COST_EVICTED] += of_right * far;
}

void eg_cpu_count_gemm(const eg_cpu_calibration *calibration, const eg_cpu_kernel *row, const eg_op *op,
                       const eg_cpu_blocks *blocks, int left, int right, const eg_cpu_layouts *packs,
                       eg_cpu_counts *counts) {
    const int64_t mr = row->micro.mr, nr = row->micro.nr;
    const double summed = (double)eg_greatest(1, (double)op->summed), products = (double)op->items * summed;
    const double passes = eg_greatest(1, (double)eg_ceil_div(op->depth, blocks->kc)) * products;
    const double row_blocks = (double)eg_ceil_div(op->rows, blocks->mc),
                 col_blocks = (double)eg_ceil_div(op->cols, blocks->nc);
    const double tiles_down = (double)eg_ceil_div(op->rows, mr);
    const int64_t some_rows = row->micro.rows_at_once, some_depth = row->micro.depth_at_once;
    const double whole_tiles = (double)(eg_ceil_div(op->rows, some_rows) * some_rows) / (double)mr;
    const int64_t whole_panels = op->cols / nr;
    const double width = (double)whole_panels + width_of_rest(row, op->cols % nr);
    const int64_t depth = eg_ceil_div(op->depth, some_depth) * some_depth;
    const double k = products * whole_tiles * width * (double)depth;
    counts->of[EG_CPU_COST_STEP] += 1;
    counts->of[EG_CPU_COST_BLOCK] += passes * row_blocks * col_blocks;
    counts->of[EG_CPU_COST_TILE] += passes * tiles_down * (double)eg_ceil_div(op->cols, nr);
    const bool packs_both = eg_cpu_packs_both(row, left);
    counts->of[packs_both ? EG_CPU_COST_PACKED_K : EG_CPU_COST_K] += k;
    if (left == EG_CPU_IN_PLACE)
        counts->of[eg_cpu_is_near(&op->left, false) ? EG_CPU_COST_LEFT_NEAR : EG_CPU_COST_LEFT_FAR] += k;
    if (right == EG_CPU_IN_PLACE)
        counts->of[eg_cpu_is_near(&op->right, true) ? EG_CPU_COST_RIGHT_NEAR : EG_CPU_COST_RIGHT_FAR] += k;
    if (packs_both) {
        counts->of[EG_CPU_COST_PACKED_LEFT] += products * col_blocks * (double)op->rows * (double)op->depth;
        counts->of[EG_CPU_COST_WIDEN] +=
            widened(row, &op->left, products * col_blocks * (double)op->rows * (double)op->depth);
    } else if (left == EG_CPU_FUSED) {
        const double packed = products * col_blocks * (double)op->rows * (double)op->depth;
        counts->of[EG_CPU_COST_READ] += packed;
        counts->of[is_turned(&op->left) ? EG_CPU_COST_PACK_TURNED : EG_CPU_COST_PACK] += packed;
    }
    if (right == EG_CPU_FUSED)
        counts->of[op->right.space == EG_OPERAND && is_turned(&op->right) ? EG_CPU_COST_FUSE_TURNED
                                                                          : EG_CPU_COST_FUSE] +=
            products * row_blocks * (double)op->depth * (double)op->cols;
    if (!eg_cpu_is_amx(row) && op->out.space == EG_OPERAND && op->out.dtype != row->compute)
        counts->of[EG_CPU_COST_NARROW] += (double)op->items * (double)op->rows * (double)op->cols;
    if (right == EG_CPU_FUSED)
        counts->of[EG_CPU_COST_WIDEN] +=
            widened(row, &op->right, products * row_blocks * (double)op->depth * (double)op->cols);
    counts->of[EG_CPU_COST_LEFT_EVICTED] += left_evicted(&op->left, left) * k;
    count_gemm_bytes(calibration, row, op, blocks, left, right, packs, counts);
}

void eg_cpu_count_few(const eg_cpu_calibration *calibration, const eg_cpu_kernel *row, const eg_op *op,
                      eg_cpu_streams streams, const eg_cpu_blocks *blocks, const eg_cpu_layouts *packs,
                      eg_cpu_counts *counts) {
    const bool by_columns = streams == EG_CPU_STREAMS_LEFT, as_tiles = by_columns && eg_cpu_has_tiles(row);
    const eg_view streamed = by_columns ? eg_transposed(op->left) : op->right;
    const int64_t rows = by_columns ? op->cols : op->rows, cols = by_columns ? op->rows : op->cols;
    const double products = (double)op->items * eg_greatest(1, (double)op->summed);
    const double of_streamed = numbers_of(&streamed, batch_of(op)) * bytes_each(row, &streamed);
    const double of_result = count_result(row, op, packs, counts),
                 far = far_part(calibration, of_streamed + of_result);
    counts->of[EG_CPU_COST_STEP] += 1;
    if (streamed.space != EG_PACKED_B && (eg_cpu_is_amx(row) || is_turned(&streamed))) {
        const int64_t lanes = eg_cpu_is_amx(row) ? EG_AMX_BLOCK : row->micro.lanes;
        const double vectors = products * (double)cols * (double)eg_ceil_div(op->depth, lanes);
        counts->of[EG_CPU_COST_DOT] += vectors;
        /* after the first tile block of rows, the vectors are in L2 */
        counts->of[EG_CPU_COST_DOT_ROW] +=
            vectors * (double)(as_tiles ? eg_cpu_whole_panels(row, rows) - EG_AMX_BLOCK : rows);
        if (!as_tiles)
            counts->of[EG_CPU_COST_DOT_SUM] +=
                products * (double)cols * (double)rows * (double)eg_ceil_div(op->depth, blocks->kc);
    } else {
        const double k = products * (double)op->depth * whole_vectors(row, cols) / row->micro.nr;
        counts->of[EG_CPU_COST_FEW] += k;
        counts->of[EG_CPU_COST_FEW_ROW] += k * (double)rows;
    }
    if (by_columns && !as_tiles) /* its sums are transposed, a number at a time */
        counts->of[EG_CPU_COST_STORE_TURNED] += (double)op->items * (double)rows * (double)cols;
    if (eg_cpu_is_amx(row)) { /* its tiles are configured, and the few rows laid out */
        const double times = products * (double)eg_ceil_div(cols, by_columns ? blocks->mc : blocks->nc);
        counts->of[EG_CPU_COST_BLOCK] += times;
        if (!by_columns || !eg_cpu_packs_few_columns(row, op))
            counts->of[EG_CPU_COST_PACK] += times * (double)rows * (double)op->depth;
    }
    counts->of[as_tiles ? EG_CPU_COST_TILE : EG_CPU_COST_FEW_TILE] +=
        (double)op->items * (double)eg_ceil_div(op->rows, row->micro.mr) *
        (double)eg_ceil_div(op->cols, row->micro.nr);
    counts->of[EG_CPU_COST_WIDEN] += widened(row, &streamed, products * (double)op->depth * (double)cols);
    counts->of[EG_CPU_COST_FEW_FAR] += of_streamed * far;
    counts->of[EG_CPU_COST_FAR] += of_result * far;
}

double eg_cpu_bytes_stored(const eg_op *op) {
    const eg_term *stored = eg_term_of(op, EG_TERM_STORE);
    double bytes = numbers_of(&op->out, op->items) * (double)eg_size_of(op->out.dtype);
    if (stored != NULL)
        bytes += numbers_of(&stored->view, op->items) * (double)eg_size_of(stored->view.dtype);
    return bytes;
}

void eg_cpu_count_outer(const eg_cpu_calibration *calibration, const eg_cpu_kernel *row, const eg_op *op,
                        const eg_cpu_blocks *blocks, bool non_temporal, const eg_cpu_layouts *packs,
                        eg_cpu_counts *counts) {
    const double by_rows = 0.7; /* of what an activation takes tile by tile, measured on a Zen 5 */
    /* as recorded: each part of the columns was a block, which laid out the left operand anew */
    eg_cpu_blocks parts = *blocks;
    parts.nc = eg_cpu_outer_part(row, op);
    const double row_blocks = (double)op->items * (double)eg_ceil_div(op->rows, blocks->mc),
                 col_blocks = (double)eg_ceil_div(op->cols, parts.nc);
    const double left = col_blocks * (double)op->items * (double)op->rows * (double)op->depth,
                 right = row_blocks * (double)op->cols * (double)op->depth;
    eg_cpu_counts tiles = {{0}};
    eg_cpu_count_gemm(calibration, row, op, &parts, EG_CPU_TO_PACK, EG_CPU_TO_PACK, packs, &tiles);
    tiles.of[EG_CPU_COST_OUTER] = tiles.of[EG_CPU_COST_TILE];
    tiles.of[EG_CPU_COST_TILE] = 0;
    const bool is_stored = eg_cpu_outer_stores_sums(op);
    if (non_temporal) tiles.of[EG_CPU_COST_STREAM] = eg_cpu_bytes_stored(op);
    if (!non_temporal)
        tiles.of[is_stored ? EG_CPU_COST_OUTER_FAR : EG_CPU_COST_FAR] += tiles.of[EG_CPU_COST_WRITTEN];
    tiles.of[EG_CPU_COST_WRITTEN] = 0;
    if (eg_cpu_outer_acts_by_rows(row, op) && !is_stored) {
        tiles.of[EG_CPU_COST_OUTER_STORE] = tiles.of[EG_CPU_COST_STORE];
        tiles.of[EG_CPU_COST_OUTER_FAR] += tiles.of[EG_CPU_COST_FAR];
        tiles.of[EG_CPU_COST_STORE] = tiles.of[EG_CPU_COST_FAR] = tiles.of[EG_CPU_COST_NARROW] = 0;
        tiles.of[EG_CPU_COST_FORWARD] *= by_rows;
    }
    if (is_stored) {
        tiles.of[EG_CPU_COST_OUTER_STORE] = tiles.of[EG_CPU_COST_STORE];
        tiles.of[EG_CPU_COST_STORE] = tiles.of[EG_CPU_COST_NARROW] = tiles.of[EG_CPU_COST_FORWARD] = 0;
        if (eg_cpu_has_dots(row)) tiles.of[EG_CPU_COST_SECOND] = 0;
    }
    for (int i = 0; i < EG_CPU_COSTS; i++) counts->of[i] += tiles.of[i];
    if (op->left.space == EG_OPERAND)
        counts->of[op->left.col_stride != 1 ? EG_CPU_COST_FUSE_TURNED : EG_CPU_COST_FUSE] += left;
    if (op->right.space == EG_OPERAND)
        counts->of[is_turned(&op->right) ? EG_CPU_COST_FUSE_TURNED : EG_CPU_COST_FUSE] += right;
}

/* ---- The rest ----------------------------------------------------------------------------------- */

/* Bytes of a number in a packed layout. */
static double packed_size(const eg_cpu_kernel *row) {
    return row->pack.bf16_terms > 0 ? 2 * row->pack.bf16_terms : (double)eg_size_of(row->compute);
}

double eg_cpu_sharing_time(const eg_cpu_calibration *calibration, const eg_cpu_kernel *row, const eg_view *x,
                           int64_t items, int64_t readers) {
    return 1e-3 * calibration->shared * (double)(readers - 1) * packed_size(row) * (double)x->rows *
           (double)x->cols * (double)items;
}

/* A column-major x is read as its row-major transpose: see pack.c. */
void eg_cpu_count_pack(const eg_cpu_calibration *calibration, const eg_cpu_kernel *row, const eg_view *x,
                       int64_t items, const eg_cpu_layouts *packs, eg_cpu_counts *counts) {
    const double numbers = (double)x->rows * (double)x->cols * (double)items;
    const bool turned = x->row_stride == 1 && x->col_stride != 1;
    const int plain = (packs->left != EG_CPU_NOWHERE) + (packs->right != EG_CPU_NOWHERE),
              transposed = (packs->left_t != EG_CPU_NOWHERE) + (packs->right_t != EG_CPU_NOWHERE);
    const double bytes = numbers * (bytes_each(row, x) + packed_size(row) * (plain + transposed));
    counts->of[EG_CPU_COST_STEP] += 1;
    counts->of[EG_CPU_COST_READ] += numbers;
    counts->of[EG_CPU_COST_WIDEN] += widened(row, x, numbers);
    counts->of[EG_CPU_COST_PACK] += numbers * (turned ? transposed : plain);
    counts->of[EG_CPU_COST_PACK_TURNED] += numbers * (turned ? plain : transposed);
    counts->of[EG_CPU_COST_FAR] += bytes * far_part(calibration, bytes);
}

void eg_cpu_count_map(const eg_cpu_calibration *calibration, const eg_cpu_kernel *row, const eg_op *op,
                      const eg_cpu_layouts *packs, eg_cpu_counts *counts) {
    const double of_left = numbers_of(&op->left, op->items) * bytes_each(row, &op->left);
    const double bytes = of_left + count_result(row, op, packs, counts);
    counts->of[EG_CPU_COST_STEP] += 1;
    counts->of[EG_CPU_COST_MAP] += (double)op->items * (double)op->rows * whole_vectors(row, op->cols);
    counts->of[EG_CPU_COST_FAR] += bytes * far_part(calibration, bytes);
}

void eg_cpu_count_reduce(const eg_op *op, eg_cpu_counts *counts) {
    counts->of[EG_CPU_COST_STEP] += 1;
    counts->of[EG_CPU_COST_REDUCE] += (double)eg_ceil_div(op->depth, EG_CPU_CHUNK) * (double)op->cols;
}

double eg_cpu_estimate(const eg_cpu_costs *costs, const eg_cpu_counts *counts) {
    double nanoseconds = 0;
    for (int i = 0; i < EG_CPU_COSTS; i++) nanoseconds += costs->of[i] * counts->of[i];
    return 1e-3 * nanoseconds;
}

/* ---- Threads ------------------------------------------------------------------------------------ */

/* The last round of parts may leave threads idle. */
double eg_cpu_time_on(const eg_cpu_calibration *calibration, int threads, double alone, int64_t units) {
    if (threads <= 1 || units <= 1) return alone;
    const double rounds = (double)eg_ceil_div(units, threads);
    return alone * rounds / (double)units + calibration->fork + calibration->join * threads;
}

int eg_cpu_choose_threads(const eg_cpu_calibration *calibration, int most, double alone, int64_t units) {
    const double margin = 1.3; /* an estimate may be off by as much, and threads by a wake-up */
    int best = 1;
    double least = alone / margin;
    if (units < most) most = (int)units;
    for (int threads = 2; threads <= most; threads++) {
        const double time = eg_cpu_time_on(calibration, threads, alone, units);
        if (time < least) best = threads, least = time;
    }
    return best;
}
