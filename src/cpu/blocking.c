/* SPDX-License-Identifier: Apache-2.0 */
/* The blocking of a product: its cache blocks and passes, and how it may read its operands; the same of
 * products that read or write a matrix once. Pure. */
#include "blocking.h"

static int64_t at_least_one(int64_t a) { return a > 1 ? a : 1; }

/* ---- Operands read in place --------------------------------------------------------------------- */

/* Read in place, consecutive numbers are a line apart. Where lines are more than NEAR bytes long, each of
 * these numbers is on another page and in another cache set. Of a right operand a row of a micro-panel is
 * read of each line, and two lines on a page are no stream that a prefetcher sees. */
enum { NEAR = 2048 };

static bool divides(int power_of_two, int64_t size) { return (size & (power_of_two - 1)) == 0; }

/* The transpose of d_b: each block lays out its rows of the gradient. */
bool eg_cpu_must_fuse_left(const eg_cpu_kernel *kernel, const eg_op *op) {
    const bool is_gradient =
        op->left.space == EG_TEMPORARY || op->left.id == EG_OP_GRAD || op->left.id == EG_OP_GRAD_UP;
    return eg_cpu_has_dots(kernel) && op->left.transposed && is_gradient;
}

static int64_t batch_of(const eg_op *op) { return op->items > op->summed ? op->items : op->summed; }

bool eg_cpu_is_near(const eg_view *x, bool right) {
    const int64_t line = x->col_stride == 1 ? x->row_stride : x->col_stride, most = right ? NEAR - 1 : NEAR;
    return line <= most && line * (int64_t)eg_size_of(x->dtype) <= most;
}

/* In place, an operand has to be of the compute type, and a right operand's columns have to be neighbours.
 * Micro-kernels do not check where a matrix ends: what is no whole tile or vector there, a block copies. But
 * lines have to be as far apart as whole vectors, or tiles of a transposed left operand: those that lie in
 * two cache lines are read twice, and each is read for many tiles. Of few columns the left operand is read
 * so seldom that a copy takes longer. Dots of bf16 broadcast pairs, which are in two lines seldom. */
static bool can_be_read(const eg_cpu_kernel *kernel, const eg_view *x) {
    return !eg_cpu_is_amx(kernel) && x->space == EG_OPERAND && x->dtype == kernel->compute;
}

bool eg_cpu_may_place_left(const eg_cpu_kernel *kernel, const eg_op *op) {
    enum { FEW_PANELS = 3, LINE = 64 };
    const eg_view *left = &op->left;
    const bool is_read_seldom = op->cols <= FEW_PANELS * (int64_t)kernel->micro.nr;
    if (kernel->pack.bf16_terms == 1) { /* rows of AMX tiles, as they are in memory */
        const bool is_on_lines = left->row_stride * (int64_t)eg_size_of(left->dtype) % LINE == 0;
        return !op->ragged && left->space == EG_OPERAND && left->dtype == kernel->dtype &&
               left->col_stride == 1 && op->rows >= EG_AMX_BLOCK && op->depth >= EG_AMX_BLOCK &&
               (is_on_lines || eg_cpu_has_dots(kernel));
    }
    return can_be_read(kernel, left) &&
           (left->col_stride == 1 ||
            (left->row_stride == 1 && (is_read_seldom || divides(kernel->micro.mr, left->col_stride))));
}

/* Rows that are whole pages apart share few sets of the caches. So a micro-panel of many of them does not stay
 * in L2, and each of many tiles waits for it again. In f64 a copy takes as long as that. */
static bool evicts_itself(const eg_op *op) {
    enum { PAGE = 4096, MANY_K = 64, MANY_ROWS = 256 };
    const eg_view *right = &op->right;
    return right->dtype == EG_F32 && divides(PAGE, right->row_stride * (int64_t)eg_size_of(right->dtype)) &&
           op->depth > MANY_K && op->rows >= MANY_ROWS;
}

bool eg_cpu_may_place_right(const eg_cpu_kernel *kernel, const eg_op *op) {
    return can_be_read(kernel, &op->right) && op->right.col_stride == 1 &&
           divides(kernel->micro.lanes, op->right.row_stride) && !evicts_itself(op);
}

/* ---- Fused packing -------------------------------------------------------------------------------- */

/* Whether a block may pack the right operand itself, one micro-panel at a time just before it multiplies with
 * it. AMX tile blocks: where the call can run again if they do not take a number (y may lie in the residual's
 * memory), and the left operand is not transposed, whose micro-panels belong to several blocks. Micro-panels:
 * not beside a transposed left operand of few k. The smallest chunk of a call in little memory makes such a
 * d_b, and sums it in its own memory. */
bool eg_cpu_may_fuse(const eg_cpu_kernel *kernel, const eg_op *op) {
    const eg_view *right = &op->right;
    const bool shared = batch_of(op) > 1 && !eg_is_batched(right),
               transposed = op->left.transposed && !eg_cpu_must_fuse_left(kernel, op) &&
                            (eg_cpu_is_amx(kernel) || op->depth <= EG_CPU_CHUNK);
    if (op->depth == 0 || transposed || right->space != EG_OPERAND || shared ||
        kernel->blocking.fused_max_rows == 0)
        return false;
    return !eg_cpu_may_refuse(kernel) || eg_term_of(op, EG_TERM_ADD) == NULL;
}

/* AMX tile blocks. A transposed operand is a gradient of weights, which may be accumulated to. */
bool eg_cpu_may_fuse_left(const eg_cpu_kernel *kernel, const eg_op *op) {
    if (!eg_cpu_is_amx(kernel) || op->depth == 0 || op->ragged || op->left.transposed ||
        op->left.space != EG_OPERAND)
        return false;
    return !eg_cpu_may_refuse(kernel) || (!op->accumulate && eg_term_of(op, EG_TERM_ADD) == NULL);
}

/* Dots of bf16: what an operation has made as a left operand is as well a matrix in rows, of blocks. A block
 * that has all rows of the product packs it as a right one, once: so it is written once, and not in both
 * layouts. */
bool eg_cpu_may_turn_made(const eg_cpu_kernel *kernel, const eg_op *op, const eg_cpu_blocks *blocks) {
    return eg_cpu_has_dots(kernel) && op->right.space == EG_TEMPORARY && !op->right.transposed &&
           op->depth > 0 && op->rows <= blocks->mc;
}

/* By dots of bf16, two blocks of k at most, and whole blocks of the result. */
static bool is_little_and_wide(const eg_op *op) {
    return op->depth > 0 && op->depth <= 2 * EG_AMX_BLOCK && op->rows >= EG_AMX_BLOCK &&
           op->cols >= EG_AMX_BLOCK;
}

/* d_b of no more columns than a block has rows is better its transpose, where that is row-major: a is read
 * once, as it lies, and of few columns no vector of sums is part empty. So is d_b of few rows, which outer
 * products then store along its rows. */
bool eg_cpu_may_turn_d_b(const eg_cpu_kernel *kernel, const eg_op *op) {
    return eg_cpu_has_dots(kernel) && op->left.id == EG_OP_A && op->left.space == EG_OPERAND &&
           op->left.transposed && !op->right.transposed && op->items == 1 && op->summed <= 1 &&
           op->depth > 0 && !op->ragged && !op->accumulate &&
           ((op->cols <= kernel->blocking.mc && op->rows >= op->cols) || is_little_and_wide(op));
}

/* A block may pack both operands of a product with lines of numbers, or what has been packed before. Few rows
 * or little depth take longer with it, and the smallest chunks of a call in little memory have no room. */
bool eg_cpu_may_pack_both(const eg_cpu_kernel *kernel, const eg_op *op) {
    const bool in_lines = op->left.col_stride == 1 || op->left.row_stride == 1;
    return kernel->micro.multiply_packed != NULL && op->rows > EG_CPU_CHUNK && op->depth > EG_CPU_CHUNK &&
           !op->ragged && (op->left.space == EG_TEMPORARY || (op->left.space == EG_OPERAND && in_lines));
}

/* Then no other block reads the micro-panel. */
static bool has_all_rows(const eg_cpu_kernel *kernel, const eg_op *op) {
    return op->rows >= 1 && op->rows <= kernel->blocking.fused_max_rows;
}

/* ---- Cache blocks ------------------------------------------------------------------------------- */

/* A thread keeps the accumulators of a block, MC x NC, in its scratch (L2) over the whole depth. For each
 * pass of KC it reads the block's rows of the left operand, MC x KC (L2), and one micro-panel of the right
 * operand, KC x NR (L1 and L2), which all rows use before the next one is fetched. */

/* The result in blocks, which are counted along each row of blocks. */
typedef struct block_grid {
    int64_t mc, nc, row_blocks, col_blocks;
} block_grid;

static block_grid grid_of(const eg_op *x, int64_t mc, int64_t nc) {
    return (block_grid){mc, nc, eg_ceil_div(x->rows, mc), eg_ceil_div(x->cols, nc)};
}

static double blocks_of(const eg_op *x, const block_grid *grid) {
    return (double)x->items * (double)grid->row_blocks * (double)grid->col_blocks;
}

/* The time of a grid, in relative units: the numbers of the result that the busiest thread has, times what a
 * number costs. A thread takes whole rows of blocks, or blocks, of which the last in a row may be narrow. To
 * read a row or column for a block is as much work as to multiply with some 16 of them. And where threads
 * have one block each, all wait for the slowest. */
static double time_of(const eg_op *x, const block_grid *grid, int threads) {
    const double read = 16, one_block = 1.25;
    const int64_t row_blocks = eg_ceil_div(x->items * grid->row_blocks, threads),
                  blocks = eg_ceil_div(x->items * grid->row_blocks * grid->col_blocks, threads);
    const double numbers = (double)grid->mc * (double)eg_least(row_blocks * x->cols, blocks * grid->nc);
    const double cost = (1 + read / (double)grid->mc + read / (double)grid->nc) *
                        (blocks_of(x, grid) < 2.0 * threads ? one_block : 1);
    return numbers * cost;
}

/* Blocks are of so many rows or a multiple: whole chunks of column sums. A result of the caller's without
 * such sums may be in smaller blocks, so that some sixty rows and a few micro-panels are enough for many
 * threads. */
static int64_t rows_of_unit(const eg_op *x) {
    enum { ROWS = 32 }; /* a multiple of every mr and of the rows of every epilogue */
    const bool is_whole = x->kind != EG_GEMM || x->out.space != EG_OPERAND || x->out.id >= EG_OPERANDS ||
                          eg_term_of(x, EG_TERM_COLUMN_SUMS) != NULL;
    return is_whole ? EG_CPU_CHUNK : ROWS;
}

/* Blocks that divide evenly among the threads. Where each thread has many, any blocks do. */
static block_grid even_grid(const eg_cpu_kernel *kernel, const eg_op *x, int threads, block_grid largest) {
    enum { MANY = 24 };
    block_grid best = largest;
    double least = 0;
    for (int64_t mc = largest.mc; mc > 0; mc -= rows_of_unit(x)) {
        for (int64_t nc = largest.nc; nc > 0; nc -= kernel->micro.nr) {
            const block_grid grid = grid_of(x, mc, nc);
            if (blocks_of(x, &grid) > MANY * threads) break;
            const double time = time_of(x, &grid, threads);
            if (least == 0 || time < least) least = time, best = grid;
        }
    }
    return best;
}

/* ---- Passes ------------------------------------------------------------------------------------- */

static bool is_single_pass(const eg_op *x, int64_t kc) { return x->summed <= 1 && x->depth <= kc; }

/* A single pass leaves no accumulators in L2, and so room for more rows of the left operand. */
static int64_t largest_mc(const eg_cpu_kernel *kernel, const eg_op *x, bool fused) {
    const eg_blocking *blocking = &kernel->blocking;
    if (fused && has_all_rows(kernel, x)) return blocking->fused_max_rows;
    if (!is_single_pass(x, blocking->kc_single_pass) || x->depth < 1) return blocking->mc;
    const int64_t rows = blocking->max_left / x->depth / EG_CPU_CHUNK * EG_CPU_CHUNK;
    return rows > blocking->mc ? rows : blocking->mc;
}

/* Few rows read a micro-panel of the right operand so often that it had better stay in L1, if the depth is
 * many passes of that. */
static bool has_short_passes(const eg_cpu_kernel *kernel, const eg_op *op) {
    enum { MANY = 4 };
    return op->rows > EG_CPU_CHAINED_ROWS && op->cols >= kernel->micro.nr &&
           op->rows * (int64_t)eg_size_of(kernel->compute) <= EG_CPU_STREAMED_BYTES &&
           op->depth > MANY * (int64_t)kernel->blocking.kc_few && kernel->blocking.kc_few > 0;
}

/* The largest KC, which is less with fused packing. The bits depend on where passes end. So with micro-panels
 * it counts that packing could be fused, not that it is: a packed b must not change the bits. AMX tile blocks
 * are summed in runs, and their bits do not depend on passes. */
static int64_t largest_kc(const eg_cpu_kernel *kernel, const eg_op *x, bool fused) {
    const eg_blocking *blocking = &kernel->blocking;
    const bool could_fuse = eg_cpu_is_amx(kernel) ? fused : has_all_rows(kernel, x) && !x->left.transposed;
    if (could_fuse && has_short_passes(kernel, x)) return blocking->kc_few;
    if (could_fuse && blocking->kc_fused > 0) return blocking->kc_fused;
    return is_single_pass(x, blocking->kc_single_pass) ? blocking->kc_single_pass : blocking->kc;
}

/* KC of passes of equal depth. */
static int64_t even_kc(const eg_cpu_kernel *kernel, const eg_op *x, int64_t most) {
    const int64_t passes = eg_ceil_div(x->depth, most), multiple = kernel->blocking.kc_multiple;
    return passes > 1 ? eg_ceil_div(eg_ceil_div(x->depth, passes), multiple) * multiple : most;
}

/* ---- The blocks ----------------------------------------------------------------------------------- */

eg_cpu_blocks eg_cpu_blocks_of(const eg_cpu_kernel *kernel, int threads, const eg_op *x, bool fused) {
    const int64_t nr = kernel->micro.nr;
    const int64_t panels = at_least_one(eg_ceil_div(x->cols, nr)),
                  chunks = at_least_one(eg_ceil_div(x->rows, EG_CPU_CHUNK));
    const int64_t col_blocks = at_least_one(eg_ceil_div(panels, kernel->blocking.nc / nr)),
                  row_blocks = at_least_one(eg_ceil_div(chunks, largest_mc(kernel, x, fused) / EG_CPU_CHUNK));
    block_grid grid =
        grid_of(x, eg_ceil_div(chunks, row_blocks) * EG_CPU_CHUNK, eg_ceil_div(panels, col_blocks) * nr);
    if (threads > 1) grid = even_grid(kernel, x, threads, grid);
    eg_cpu_blocks out = {.mc = grid.mc, .nc = grid.nc, .threads = threads};
    const double blocks = blocks_of(x, &grid);
    if (blocks < threads) out.threads = blocks > 1 ? (int)blocks : 1;
    out.kc = even_kc(kernel, x, largest_kc(kernel, x, fused));
    out.single_pass = is_single_pass(x, out.kc);
    return out;
}

/* Higher and wider than others, so that many tiles read what is packed: to copy a line from L2 to L2 took 10
 * to 13 cycles, in which the units make 160 to 200 multiply-adds of f32. */
eg_cpu_blocks eg_cpu_packed_blocks(const eg_cpu_kernel *kernel, int threads, const eg_op *x) {
    enum { BAND = EG_CPU_PACKED_ROWS, BANDS = 4, PANELS = 18 };
    const int64_t nr = kernel->micro.nr, panels = at_least_one(eg_ceil_div(x->cols, nr)),
                  chunks = at_least_one(eg_ceil_div(x->rows, EG_CPU_CHUNK));
    const int64_t col_blocks = eg_ceil_div(panels, PANELS),
                  row_blocks = eg_ceil_div(chunks * EG_CPU_CHUNK, BANDS * (int64_t)BAND);
    block_grid grid =
        grid_of(x, eg_ceil_div(chunks, row_blocks) * EG_CPU_CHUNK, eg_ceil_div(panels, col_blocks) * nr);
    eg_cpu_blocks out = eg_cpu_blocks_of(kernel, 1, x, false);
    if (threads > 1) grid = even_grid(kernel, x, threads, grid);
    out.mc = grid.mc, out.nc = grid.nc, out.threads = threads;
    if (blocks_of(x, &grid) < threads) out.threads = (int)blocks_of(x, &grid);
    return out;
}

int64_t eg_cpu_units(const eg_cpu_kernel *kernel, const eg_op *x) {
    const double units = (double)x->items * (double)eg_ceil_div(x->rows, rows_of_unit(x)) *
                         (double)eg_ceil_div(x->cols, kernel->micro.nr);
    return units < INT32_MAX ? (int64_t)units : INT32_MAX;
}

/* ---- Few rows and few columns: few_rows.c -------------------------------------------------------------- */

/* Rows of the result in a block of few columns: whole tiles, micro-panels and chunks of column sums. The few
 * columns are laid out for each. */
enum { ROWS_A_BLOCK = 192 };

/* Whether the product's operand can be streamed: its rows or its columns are contiguous, and no other item of
 * the batch reads it again. */
static bool can_be_streamed(const eg_op *op, const eg_view *x) {
    const int64_t batch = op->items > op->summed ? op->items : op->summed;
    return x->space == EG_OPERAND && (x->col_stride == 1 || x->row_stride == 1) &&
           (batch == 1 || eg_is_batched(x));
}

/* The k of a left operand have to be neighbours: where they may not be, each block lays them out. */
static bool is_gathered(const eg_view *left) { return left->transposed; }

/* The matrix unit streams numbers of its row's own type alone, whose k are neighbours. */
static bool is_streamable(const eg_cpu_kernel *kernel, const eg_op *op, const eg_view *x, int64_t k_stride) {
    return can_be_streamed(op, x) && (!eg_cpu_is_amx(kernel) || (x->dtype == kernel->dtype && k_stride == 1));
}

/* The matrix unit has room for a tile block of rows. Of more than others have, it is to keep the bits of the
 * tile loop, which a single pass does. So do chains of multiply-adds, which for some more rows may be faster
 * than tiles; but where there are few columns too, whose sums may be in another order, those are the choice.
 */
static int64_t most_rows(const eg_cpu_kernel *kernel, const eg_op *op) {
    if (eg_cpu_is_amx(kernel) && op->summed <= 1 && op->depth <= EG_AMX_FEW_DEPTH) return EG_AMX_BLOCK;
    if (is_gathered(&op->left)) return eg_least(EG_CPU_FEW_ROWS, kernel->micro.nr);
    const bool has_chains = op->right.space == EG_PACKED_B || op->right.col_stride == 1;
    return has_chains && !eg_cpu_is_amx(kernel) && op->cols > EG_CPU_FEW_ROWS ? EG_CPU_CHAINED_ROWS
                                                                              : EG_CPU_FEW_ROWS;
}

bool eg_cpu_has_few_rows(const eg_cpu_kernel *kernel, const eg_op *op) {
    const int64_t most = most_rows(kernel, op);
    return kernel->micro.few_rows != NULL && op->rows <= most && op->depth > 0 &&
           !eg_cpu_must_fuse_left(kernel, op) &&
           (op->right.space == EG_PACKED_B || is_streamable(kernel, op, &op->right, op->right.row_stride));
}

/* The matrix unit reads some tile blocks of columns, which stay in L2, in the time in which the left operand
 * arrives from memory. As with rows, a single pass keeps the bits. */
static int64_t most_columns(const eg_cpu_kernel *kernel, const eg_op *op) {
    enum { BLOCKS = 4, OF_L2 = 1 << 20, BYTES = 2 };
    if (!eg_cpu_has_tiles(kernel) || op->summed > 1 || op->depth > EG_AMX_FEW_DEPTH)
        return eg_least(EG_CPU_FEW_ROWS, kernel->micro.nr);
    const int64_t blocks = OF_L2 / (EG_AMX_BLOCK * BYTES * at_least_one(op->depth));
    return eg_least(BLOCKS, at_least_one(blocks)) * EG_AMX_BLOCK;
}

bool eg_cpu_packs_few_columns(const eg_cpu_kernel *kernel, const eg_op *op) {
    return op->right.space == EG_OPERAND && op->cols > EG_CPU_FEW_ROWS && eg_cpu_is_amx(kernel);
}

bool eg_cpu_has_few_columns(const eg_cpu_kernel *kernel, const eg_op *op) {
    return kernel->micro.few_rows != NULL && op->cols <= most_columns(kernel, op) &&
           op->rows > EG_CPU_FEW_ROWS && op->depth > 0 &&
           is_streamable(kernel, op, &op->left, op->left.col_stride);
}

bool eg_cpu_few_rows_read_in_place(const eg_cpu_kernel *kernel, const eg_view *left) {
    return left->space == EG_OPERAND && (eg_cpu_is_amx(kernel) || is_gathered(left) ||
                                         (left->dtype == kernel->compute && left->col_stride == 1));
}

/* How many of `all` columns, or rows, a block has: a multiple of `unit`, at most `most`, so that the busiest
 * thread has the fewest. More blocks have to save a twentieth of that. Among equals the longest block where
 * `longer`; else two blocks a thread, so that the others wait less for a thread that comes late. */
static int64_t balanced_block(int64_t all, int threads, int64_t unit, int64_t most, bool longer) {
    enum { TRIED = 4, BLOCKS_A_THREAD = 2 };
    most = eg_least(most, eg_ceil_div(all, unit) * unit);
    if (threads < 2) return most;
    int64_t best = most;
    double least = 0;
    const int64_t fewest = eg_ceil_div(all, most * threads);
    for (int64_t blocks = fewest; blocks < fewest + TRIED; blocks++) {
        const int64_t each = eg_ceil_div(eg_ceil_div(all, blocks * threads), unit) * unit,
                      part = eg_least(each, most),
                      busiest = eg_ceil_div(eg_ceil_div(all, part), threads) * part;
        const bool is_as_good = !longer && blocks == BLOCKS_A_THREAD && (double)busiest <= least;
        if (least > 0 && !is_as_good && (double)busiest > 0.95 * least) continue;
        best = part, least = (double)busiest;
    }
    return best;
}

/* Whether a block may begin between micro-panels: what is no matrix of the caller's is made of those. */
static bool may_split_panels(const eg_op *op) {
    return op->out.space == EG_OPERAND && eg_term_of(op, EG_TERM_COLUMN_SUMS) == NULL;
}

/* Columns of a pack that a block has: micro-panels, or where there are too few for the threads a vector of one. */
static int64_t few_rows_packed_cols(const eg_cpu_kernel *kernel, const eg_op *op, int threads) {
    enum { STREAMS = 4 };
    const int64_t nr = kernel->micro.nr;
    if (may_split_panels(op) && 2 * eg_ceil_div(op->cols, nr) <= threads) return kernel->micro.lanes;
    return balanced_block(op->cols, threads, nr, STREAMS * nr, false);
}

/* On the matrix unit each block lays out the few rows anew, so blocks are wide. Else, where columns are
 * neighbours, a block has a LONG piece of each row, of whole cache lines, as far as the sums of all rows stay
 * in L2; those of one row stay in L1. Where they are not, it is one micro-panel, whose columns are read from
 * end to end, or some of SHORT columns, or more where each block lays out the left operand; from a pack some,
 * as a core reads several streams of memory faster than one. */
static int64_t few_rows_cols(const eg_cpu_kernel *kernel, const eg_op *op, int threads) {
    enum { SUMS = 16384, LONG = 4096, SHORT = 32 << 10, AMX_PANELS = 16, LINE = 64, DOTS = 8 };
    const int64_t nr = kernel->micro.nr, size = (int64_t)eg_size_of(op->right.dtype);
    if (eg_cpu_is_amx(kernel)) return balanced_block(op->cols, threads, nr, AMX_PANELS * nr, false);
    if (op->right.space == EG_PACKED_B) return few_rows_packed_cols(kernel, op, threads);
    if (op->right.col_stride != 1) {
        const int64_t bytes = nr * op->depth * size;
        const int64_t least = is_gathered(&op->left) ? ROWS_A_BLOCK / nr : 1,
                      some = SHORT / at_least_one(bytes);
        return balanced_block(op->cols, threads, may_split_panels(op) ? DOTS : nr,
                              nr * (some > least ? some : least), false);
    }
    const int64_t most = at_least_one(eg_least(LONG, SUMS / op->rows) / nr) * nr;
    const int64_t cols =
        balanced_block(op->cols, threads, may_split_panels(op) ? LINE / at_least_one(size) : nr, most, true);
    return cols > nr ? cols : nr;
}

/* The k of a pass: those of the left operand, which every column reads, stay in L2. Long passes read columns
 * as long streams of memory. Where sums are chains of multiply-adds, passes are those of the tile loop, which
 * has the same bits. */
static int64_t pass_of(const eg_cpu_kernel *kernel, const eg_op *op, int64_t rows, bool dots) {
    if (!dots && !eg_cpu_is_amx(kernel)) return eg_cpu_blocks_of(kernel, 1, op, false).kc;
    enum { OF_L2 = 64 << 10 };
    const int64_t size = (int64_t)eg_size_of(kernel->compute), all = OF_L2 / (size > 0 ? size : 1);
    const int64_t nr = kernel->micro.nr, of_row = all / (rows > 0 ? rows : 1);
    const int64_t most = eg_cpu_is_amx(kernel) ? EG_AMX_FEW_DEPTH : of_row;
    const int64_t passes = eg_ceil_div(op->depth, most);
    return eg_ceil_div(eg_ceil_div(op->depth, passes), nr) * nr;
}

eg_cpu_blocks eg_cpu_few_rows_blocks(const eg_cpu_kernel *kernel, int threads, const eg_op *op) {
    const bool dots = op->right.space == EG_OPERAND && op->right.col_stride != 1;
    return (eg_cpu_blocks){.mc = op->rows,
                           .nc = few_rows_cols(kernel, op, threads),
                           .kc = pass_of(kernel, op, op->rows, dots),
                           .threads = threads,
                           .single_pass = true};
}

/* Each block lays out the few columns: on several threads blocks are smaller only to be even. */
eg_cpu_blocks eg_cpu_few_columns_blocks(const eg_cpu_kernel *kernel, int threads, const eg_op *op) {
    const bool any = threads > 1 && !eg_cpu_is_amx(kernel) && may_split_panels(op);
    return (eg_cpu_blocks){.mc = any ? balanced_block(op->rows, threads, kernel->micro.nr, ROWS_A_BLOCK, true)
                                     : ROWS_A_BLOCK,
                           .nc = op->cols,
                           .kc = pass_of(kernel, op, op->cols, op->left.row_stride != 1),
                           .threads = threads,
                           .single_pass = true};
}

/* Numbers of the left operand in a pass, by groups of nr k; AMX tile blocks as so many. */
static int64_t gathered_numbers(const eg_cpu_kernel *kernel, int64_t rows, int64_t depth) {
    if (eg_cpu_is_amx(kernel))
        return eg_ceil_div(depth, EG_AMX_BLOCK) * EG_AMX_TERM_BYTES / (int64_t)sizeof(float);
    return rows * eg_ceil_div(depth, kernel->micro.nr) * kernel->micro.nr;
}

int64_t eg_cpu_few_rows_scratch(const eg_cpu_kernel *kernel, const eg_step *step) {
    const eg_cpu_step *detail = eg_cpu_detail(step);
    const bool by_columns = detail->streams == EG_CPU_STREAMS_LEFT;
    const int64_t rows = by_columns ? step->tile_cols : step->tile_rows;
    const int64_t cols = by_columns && !eg_cpu_has_tiles(kernel)
                             ? step->tile_cols
                             : eg_cpu_whole_panels(kernel, step->tile_cols);
    const bool packed = by_columns && rows > EG_CPU_FEW_ROWS && detail->right >= 0;
    return 2 * step->tile_rows * cols + (packed ? 0 : gathered_numbers(kernel, rows, step->k_block));
}

/* ---- Little depth: outer_product.c --------------------------------------------------------------------- */

/* A vector of a term, such as `pre`, lies like one of the result. */
static bool lies_alike(const eg_term *term, const eg_view *out) {
    return term->view.space == EG_OPERAND && term->view.col_stride == 1 && out->col_stride == 1 &&
           term->view.dtype == out->dtype;
}

static bool stores_sums(const eg_op *op, bool with_pre) {
    for (int i = 0; i < op->terms; i++) {
        const eg_term *term = &op->term[i];
        const bool is_plain = term->activation == EG_ACT_NONE || term->activation == EG_ACT_RELU;
        if (term->kind != EG_TERM_BIAS && !(term->kind == EG_TERM_ACT && is_plain) &&
            !(with_pre && term->kind == EG_TERM_STORE && lies_alike(term, &op->out)))
            return false;
    }
    return !op->accumulate && op->out.space == EG_OPERAND;
}

bool eg_cpu_stores_sums(const eg_op *op) { return stores_sums(op, false); }

bool eg_cpu_outer_stores_sums(const eg_op *op) { return stores_sums(op, true); }

/* Without masks, rows are whole vectors of the compute type. With masks, those of 30 and 50 columns took up to 1.17
 * of the tile loop's time; bf16, whose rounding costs most, up to 1.7 of that of its own row. */
bool eg_cpu_outer_acts_by_rows(const eg_cpu_kernel *kernel, const eg_op *op) {
    enum { SHORT = 64 };
    const bool masks = (kernel->needs & EG_CPU_AVX512) != 0;
    if (kernel->micro.outer == NULL || eg_cpu_has_dots(kernel) || op->terms == 0 || op->accumulate ||
        op->out.space != EG_OPERAND || op->out.col_stride != 1)
        return false;
    if (masks && (op->cols < SHORT || op->out.dtype == EG_BF16)) return false;
    if (!masks && (op->out.dtype != kernel->compute || !divides(kernel->micro.lanes, op->cols))) return false;
    for (int i = 0; i < op->terms; i++) {
        const eg_term *term = &op->term[i];
        const bool is_matrix = term->kind == EG_TERM_STORE || term->kind == EG_TERM_ADD;
        if (term->kind != EG_TERM_BIAS && term->kind != EG_TERM_ACT &&
            !(is_matrix && lies_alike(term, &op->out)))
            return false;
    }
    return true;
}

bool eg_cpu_is_whole_lines(const eg_view *x) {
    const uint64_t distances =
        (uint64_t)(x->row_stride | x->batch_stride | x->outer.stride) * eg_size_of(x->dtype);
    return x->col_stride == 1 && x->align >= 64 && (distances & 63) == 0;
}

static bool is_in_numbers(const eg_view *x) {
    return x->col_stride == 1 && x->align >= (int)eg_size_of(x->dtype);
}

bool eg_cpu_outer_copies(const eg_cpu_kernel *kernel, const eg_op *op) {
    const eg_term *stored = eg_term_of(op, EG_TERM_STORE);
    const eg_view *pre = stored != NULL ? &stored->view : &op->out;
    const bool half_lines = (kernel->needs & EG_CPU_AVX512) == 0,
               whole = eg_cpu_is_whole_lines(&op->out) && eg_cpu_is_whole_lines(pre);
    return eg_cpu_outer_stores_sums(op) && op->depth < kernel->blocking.copied_below && whole == half_lines &&
           op->out.dtype == kernel->compute && is_in_numbers(&op->out) && is_in_numbers(pre);
}

/* Up to so many k, whole micro-panels of every row still fit the right operand's part of L1. The tile loop is
 * as fast beyond 48, but for large results of a transposed left operand: there it waits for each line. */
static int64_t most_depth(const eg_op *op) {
    enum { LARGE = 1 << 16 };
    return op->left.transposed && op->cols > 0 && op->rows >= eg_ceil_div(LARGE, op->cols) ? 64 : 48;
}

/* Dots of bf16 of up to two blocks of k, which store bf16 row by row. d_b has whole blocks: of less of one the
 * tile loop, or f32, is the faster. */
static bool has_outer_dots(const eg_cpu_kernel *kernel, const eg_op *op) {
    const bool in_rows =
        op->out.space == EG_OPERAND && op->out.dtype == kernel->dtype && op->out.col_stride == 1;
    return eg_cpu_has_dots(kernel) && in_rows && op->depth > 0 && op->depth <= 2 * EG_AMX_BLOCK &&
           op->summed <= 1 && !op->ragged && eg_cpu_outer_stores_sums(op) &&
           (op->left.transposed ? is_little_and_wide(op) : op->right.space != EG_TEMPORARY);
}

/* An activation of a large result, which is not made row by row: outer products of AVX-512 take 1.1 to 1.4 of the
 * tiles' time for it, on four processors' recordings. */
static bool has_large_activation(const eg_cpu_kernel *kernel, const eg_op *op) {
    enum { LARGE = 1 << 15 };
    return (kernel->needs & EG_CPU_AVX512) != 0 && eg_term_of(op, EG_TERM_ACT) != NULL &&
           !eg_cpu_outer_stores_sums(op) && !eg_cpu_outer_acts_by_rows(kernel, op) && op->cols > 0 &&
           op->rows >= eg_ceil_div(LARGE, op->cols);
}

bool eg_cpu_has_little_depth(const eg_cpu_kernel *kernel, const eg_op *op) {
    if (eg_cpu_has_dots(kernel)) return has_outer_dots(kernel, op);
    return !eg_cpu_is_amx(kernel) && !has_large_activation(kernel, op) && op->depth > 0 &&
           op->depth <= most_depth(op) && op->summed <= 1 &&
           !(op->out.space == EG_OPERAND && op->out.col_stride != 1);
}

/* Whole micro-panels, and whole cache lines of the result. */
int64_t eg_cpu_outer_part(const eg_cpu_kernel *kernel, const eg_op *op) {
    enum { LINE = 64, OF_L1 = 24 << 10 };
    const int64_t nr = kernel->micro.nr;
    const int64_t most = eg_cpu_has_dots(kernel) ? nr * (OF_L1 / eg_cpu_outer_dots_bytes(op->depth))
                                                 : eg_cpu_some_of_l1(kernel) / op->depth;
    int64_t whole = nr;
    while (op->out.space == EG_OPERAND && whole * (int64_t)eg_size_of(op->out.dtype) % LINE != 0) whole += nr;
    return eg_least(most > whole ? most / whole * whole : whole, eg_cpu_whole_panels(kernel, op->cols));
}

/* A block lays out its part of both operands. So it is high where no sums of chunks are wanted, and as wide
 * as leaves each thread some blocks: to lay out the left operand anew for every part of the columns took up
 * to a fifth of the time. */
eg_cpu_blocks eg_cpu_outer_blocks(const eg_cpu_kernel *kernel, int threads, const eg_op *op) {
    enum { MOST = 4 * EG_CPU_CHUNK, BLOCKS_A_THREAD = 4 };
    const int64_t part = eg_cpu_outer_part(kernel, op), parts = eg_ceil_div(op->cols, part);
    const double enough = BLOCKS_A_THREAD * (double)threads, across = (double)op->items * (double)parts;
    const bool by_rows = eg_cpu_outer_stores_sums(op) || eg_cpu_outer_acts_by_rows(kernel, op);
    int64_t rows = by_rows ? MOST : EG_CPU_CHUNK, wide = parts;
    while (rows > EG_CPU_CHUNK && across * (double)eg_ceil_div(op->rows, rows) < enough) rows /= 2;
    const double blocks = across * (double)eg_ceil_div(op->rows, rows);
    if (threads > 1 && blocks < enough * (double)parts) wide = (int64_t)(blocks / enough);
    eg_cpu_blocks out = {.mc = rows,
                         .nc = part * at_least_one(wide),
                         .kc = op->depth,
                         .threads = threads,
                         .single_pass = true};
    const double all =
        (double)op->items * (double)eg_ceil_div(op->rows, out.mc) * (double)eg_ceil_div(op->cols, out.nc);
    if (all < threads) out.threads = (int)all;
    return out;
}

/* Whole tiles of rows, and micro-panels of k; but a transposed one is laid out as whole micro-panels of rows.
 */
int64_t eg_cpu_outer_left_numbers(const eg_cpu_kernel *kernel, int64_t rows, int64_t depth) {
    return rows * eg_ceil_div(depth, kernel->micro.nr) * kernel->micro.nr;
}

int64_t eg_cpu_outer_scratch(const eg_cpu_kernel *kernel, const eg_step *step) {
    const int64_t nr = kernel->micro.nr, part = eg_cpu_detail(step)->part;
    if (eg_cpu_has_dots(kernel)) {
        const int64_t blocks = (1 + eg_ceil_div(step->tile_rows, nr)) *
                               eg_ceil_div(step->k_block, EG_AMX_BLOCK) * EG_AMX_TERM_BYTES;
        const int64_t right = eg_ceil_div(part, nr) * eg_cpu_outer_dots_bytes(step->k_block);
        return part + (blocks + right) / (int64_t)sizeof(float);
    }
    const int64_t rows = step->tile_cols > part ? step->tile_rows + nr : EG_CPU_CHUNK;
    return eg_cpu_epilogue_rows(kernel) * nr + step->k_block * part + part +
           2 * kernel->micro.mr * nr * EG_CPU_OUTER_PANELS +
           eg_cpu_outer_left_numbers(kernel, rows, step->k_block);
}
