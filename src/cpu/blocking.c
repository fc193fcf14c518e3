/* SPDX-License-Identifier: Apache-2.0 */
/* The blocking of a product: its cache blocks and passes, and how it may read its operands. Pure. */
#include "compile.h"

static int64_t at_least_one(int64_t a) { return a > 1 ? a : 1; }

/* ---- Operands read in place --------------------------------------------------------------------- */

/* Read in place, consecutive numbers are a line apart. Where lines are more than NEAR bytes long, each of
 * these numbers is on another page and in another cache set. */
enum { NEAR = 2048 };

static bool divides(int power_of_two, int64_t size) { return (size & (power_of_two - 1)) == 0; }

static int64_t batch_of(const eg_op *op) { return op->items > op->summed ? op->items : op->summed; }

bool eg_cpu_is_near(const eg_view *x) {
    const int64_t line = x->col_stride == 1 ? x->row_stride : x->col_stride;
    return line <= NEAR && line * (int64_t)eg_size_of(x->dtype) <= NEAR;
}

/* In place, an operand has to be of the compute type, and a right operand's columns have to be neighbours.
 * Micro-kernels do not check where a matrix ends: what is no whole tile or vector there, a block copies. But
 * lines have to be as far apart as whole vectors, or tiles of a transposed left operand: those that lie in
 * two cache lines are read twice, and each is read for many tiles. */
static bool can_be_read(const eg_cpu_kernel *kernel, const eg_view *x) {
    return !eg_cpu_is_amx(kernel) && x->space == EG_OPERAND && x->dtype == kernel->compute;
}

bool eg_cpu_may_place_left(const eg_cpu_kernel *kernel, const eg_op *op) {
    const eg_view *left = &op->left;
    if (kernel->pack.bf16_terms == 1) /* rows of AMX tiles, as they are in memory */
        return !op->ragged && left->space == EG_OPERAND && left->dtype == kernel->dtype &&
               left->col_stride == 1 && divides(EG_AMX_BLOCK, op->rows) && divides(EG_AMX_BLOCK, op->depth);
    return can_be_read(kernel, left) &&
           (left->col_stride == 1 || (left->row_stride == 1 && divides(kernel->micro.mr, left->col_stride)));
}

bool eg_cpu_may_place_right(const eg_cpu_kernel *kernel, const eg_op *op) {
    return can_be_read(kernel, &op->right) && op->right.col_stride == 1 &&
           divides(kernel->micro.lanes, op->right.row_stride);
}

/* ---- Fused packing -------------------------------------------------------------------------------- */

/* Whether a block may pack the right operand itself, one micro-panel at a time just before it multiplies with
 * it. AMX tile blocks: where the call can run again if they do not take a number; y may lie in the residual's
 * memory. Not where the left operand is transposed: its micro-panels belong to several blocks. */
bool eg_cpu_may_fuse(const eg_cpu_kernel *kernel, const eg_op *op) {
    const eg_view *right = &op->right;
    const bool shared = batch_of(op) > 1 && !eg_is_batched(right);
    if (op->depth == 0 || op->left.transposed || right->space != EG_OPERAND || shared ||
        kernel->blocking.fused_max_rows == 0)
        return false;
    return !eg_cpu_may_refuse(kernel) || eg_term_of(op, EG_TERM_ADD) == NULL;
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

/* Blocks that divide evenly among the threads. Where each thread has many, any blocks do. */
static block_grid even_grid(const eg_cpu_kernel *kernel, const eg_op *x, int threads, block_grid largest) {
    enum { MANY = 24 };
    block_grid best = largest;
    double least = 0;
    for (int64_t mc = largest.mc; mc > 0; mc -= EG_CPU_CHUNK) {
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

/* The largest KC, which is less with fused packing. The bits depend on where passes end. So with micro-panels
 * it counts that packing could be fused, not that it is: a packed b must not change the bits. AMX tile blocks
 * are summed in runs, and their bits do not depend on passes. */
static int64_t largest_kc(const eg_cpu_kernel *kernel, const eg_op *x, bool fused) {
    const eg_blocking *blocking = &kernel->blocking;
    const bool could_fuse = eg_cpu_is_amx(kernel) ? fused : has_all_rows(kernel, x) && !x->left.transposed;
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

int64_t eg_cpu_units(const eg_cpu_kernel *kernel, const eg_op *x) {
    const double units = (double)x->items * (double)eg_ceil_div(x->rows, EG_CPU_CHUNK) *
                         (double)eg_ceil_div(x->cols, kernel->micro.nr);
    return units < INT32_MAX ? (int64_t)units : INT32_MAX;
}
