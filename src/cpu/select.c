/* The CPU's part of a plan: which kernel row, how the products are cut to fit the caches, and what
 * workspace that takes. Pure: it looks at eg_caps and the problem only. */
#include <string.h>

#include "../error.h"
#include "cpu.h"

const eg_cpu_kernel *eg_cpu_kernel_row(int index) {
#define EG_COUNT(kernel) +1
    enum { ROWS = 0 EG_CPU_KERNELS(EG_COUNT) };
#undef EG_COUNT
    static const eg_cpu_kernel *const rows[ROWS] = {
#define EG_ROW(kernel) &eg_cpu_##kernel,
        EG_CPU_KERNELS(EG_ROW)
#undef EG_ROW
    };
    return index >= 0 && index < ROWS ? rows[index] : NULL;
}

const eg_cpu_kernel *eg_cpu_choose(const eg_caps *caps, eg_dtype compute) {
    for (int i = 0;; i++) {
        const eg_cpu_kernel *row = eg_cpu_kernel_row(i);
        if (row == NULL) return NULL;
        const bool named = caps->only_kernel == NULL || strcmp(caps->only_kernel, row->name) == 0;
        if (named && row->compute == compute && (row->needs & caps->features) == row->needs) return row;
    }
}

static int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }
static int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }
static int64_t at_least_one(int64_t a) { return a > 1 ? a : 1; }

/* ---- Threads ------------------------------------------------------------------------------------ */

/* A step takes as many threads as it has work for: one more for each 2^20 multiply-adds (some 20 us) or for
 * each 2^14 numbers moved. Fewer threads never change the bits. */
static const double multiplies_a_thread = 1 << 20, numbers_a_thread = 1 << 14;

static int threads_for(int threads, double work, double work_a_thread, int64_t units) {
    const double most = work / work_a_thread;
    if (most < threads) threads = (int)most;
    if (units < threads) threads = (int)units;
    return threads > 1 ? threads : 1;
}

/* ---- Cache blocks ------------------------------------------------------------------------------- */

/* A block of the product is held in a thread's scratch (L2) over the whole depth. Against it, kc terms at
 * a time, stand its rows of the left operand (tile_rows x kc, L2) and one panel of the right operand
 * (kc x nr, L1 and L2) that all of those rows use before the next is fetched. */
enum { BLOCK_ROWS = 192, BLOCK_COLS = 480 };

/* `items` results of rows x cols, each the sum of `summed` products of `depth` terms. */
typedef struct extent {
    int64_t items, summed, rows, cols, depth;
} extent;

static extent extent_of(const eg_problem *p, eg_product product) {
    const bool d_a_items = p->operands[EG_OP_D_A].batch_stride != 0,
               d_b_items = p->operands[EG_OP_D_B].batch_stride != 0;
    switch (product) {
    case EG_PRODUCT_PRE:
        return (extent){p->batch, 1, p->m, p->n, p->k};
    case EG_PRODUCT_D_A:
        return (extent){d_a_items ? p->batch : 1, d_a_items ? 1 : p->batch, p->m, p->k, p->n};
    case EG_PRODUCT_D_B:
        return (extent){d_b_items ? p->batch : 1, d_b_items ? 1 : p->batch, p->k, p->n, p->m};
    }
    return (extent){0};
}

static void choose_block(const eg_cpu_kernel *kernel, int threads, const eg_problem *p, eg_step *step) {
    const extent x = extent_of(p, step->product);
    const double work =
        (double)x.items * (double)x.summed * (double)x.rows * (double)x.cols * (double)x.depth;
    const int64_t panels = ceil_div(x.cols, kernel->nr), chunks = ceil_div(x.rows, EG_CPU_CHUNK);
    int64_t strips = ceil_div(panels, BLOCK_COLS / kernel->nr),
            bands = ceil_div(chunks, BLOCK_ROWS / EG_CPU_CHUNK);
    threads = threads_for(threads, work, multiplies_a_thread, INT64_MAX);
    /* Enough blocks to keep every thread busy to the end: rows are cut first, then columns. */
    while (threads > 1 && (double)bands * (double)strips * (double)x.items < 4.0 * threads &&
           (bands < chunks || strips < panels)) {
        if (bands < chunks) {
            bands = least(bands * 2, chunks);
        } else {
            strips = least(strips * 2, panels);
        }
    }
    const double blocks = (double)bands * (double)strips * (double)x.items;
    step->threads =
        blocks < threads ? threads_for(threads, work, multiplies_a_thread, (int64_t)blocks) : threads;
    step->tile_rows = ceil_div(at_least_one(chunks), at_least_one(bands)) * EG_CPU_CHUNK;
    step->tile_cols = ceil_div(at_least_one(panels), at_least_one(strips)) * kernel->nr;
    /* Passes of equal depth, whole panels each. */
    const int64_t passes = ceil_div(x.depth, kernel->kc);
    step->depth = passes > 1 ? ceil_div(ceil_div(x.depth, passes), kernel->nr) * kernel->nr : kernel->kc;
}

static void choose_threads(int threads, const eg_problem *p, eg_step *step) {
    const double m = (double)p->m, k = (double)p->k, n = (double)p->n, batch = (double)p->batch;
    double numbers = 0;
    switch (step->kind) {
    case EG_STEP_PACK:
        numbers = batch * (step->buffer == EG_BUFFER_A ? m * k : k * n);
        break;
    case EG_STEP_ACT_GRAD:
        numbers = batch * m * n;
        break;
    case EG_STEP_COLUMN_SUM:
        numbers = batch * m / EG_CPU_CHUNK * (step->buffer == EG_BUFFER_SUMS ? n : k);
        break;
    case EG_STEP_GEMM:
        return;
    }
    step->threads = threads_for(threads, numbers, numbers_a_thread, INT64_MAX);
}

/* ---- Workspace ---------------------------------------------------------------------------------- */

static bool add_panels(eg_plan *plan, eg_buffer_id id, const eg_cpu_kernel *kernel, int64_t items,
                       int64_t rows, int64_t cols) {
    int64_t count;
    const eg_panels panels = eg_cpu_panels(kernel, rows, cols);
    if (__builtin_mul_overflow(panels.rows, panels.panels * kernel->nr, &count)) return false;
    return eg_plan_region(plan, id, count, items, eg_dtype_size(kernel->compute), 64);
}

static int64_t items_of(const eg_problem *p, eg_operand_id id) {
    return p->operands[id].batch_stride == 0 && p->batch > 0 ? 1 : p->batch;
}

static bool add_packed(eg_plan *plan, const eg_cpu_kernel *kernel, eg_buffer_id id) {
    const eg_problem *p = &plan->problem;
    switch (id) {
    case EG_BUFFER_A:
        return add_panels(plan, id, kernel, items_of(p, EG_OP_A), p->m, p->k);
    case EG_BUFFER_B:
        return add_panels(plan, id, kernel, items_of(p, EG_OP_B), p->k, p->n);
    case EG_BUFFER_BT:
        return add_panels(plan, id, kernel, items_of(p, EG_OP_B), p->n, p->k);
    default:
        return false;
    }
}

/* A row of nr-padded column sums for each chunk of rows of each item. */
static bool add_sums(eg_plan *plan, const eg_cpu_kernel *kernel, eg_buffer_id id, int64_t cols) {
    int64_t chunks;
    if (__builtin_mul_overflow(eg_cpu_chunks(plan->problem.m), plan->problem.batch, &chunks)) return false;
    return eg_plan_region(plan, id, chunks, ceil_div(cols, kernel->nr) * kernel->nr,
                          eg_dtype_size(kernel->compute), 64);
}

/* grad_pre is kept where a product will read it. */
static bool keeps_grad_pre(const eg_problem *p) { return eg_wants(p, EG_OP_D_A) || eg_wants(p, EG_OP_D_B); }

static bool add_workspace(eg_plan *plan, const eg_cpu_kernel *kernel) {
    const eg_problem *p = &plan->problem;
    int64_t scratch = 0;
    int threads = 1;
    for (int i = 0; i < plan->steps; i++) {
        const eg_step *step = &plan->step[i];
        if (step->kind == EG_STEP_PACK && !add_packed(plan, kernel, step->buffer)) return false;
        /* The accumulators of a block, and four tiles for its epilogue. */
        const int64_t need = step->kind == EG_STEP_GEMM ? step->tile_rows * step->tile_cols : 0;
        if (need > scratch) scratch = need;
        if (step->threads > threads) threads = step->threads;
    }
    scratch += 4 * (int64_t)kernel->mr * kernel->nr;
    if (p->backward && keeps_grad_pre(p) &&
        !add_panels(plan, EG_BUFFER_GRAD_PRE, kernel, p->batch, p->m, p->n)) {
        return false;
    }
    if (eg_wants(p, EG_OP_D_BIAS) && !add_sums(plan, kernel, EG_BUFFER_SUMS, p->n)) return false;
    if (eg_wants(p, EG_OP_D_BIAS_BELOW) && !add_sums(plan, kernel, EG_BUFFER_SUMS_BELOW, p->k)) return false;
    return eg_plan_region(plan, EG_BUFFER_SCRATCH, threads, scratch, eg_dtype_size(kernel->compute), 64);
}

eg_status eg_cpu_select(const eg_caps *caps, eg_plan *plan) {
    const eg_problem *p = &plan->problem;
    const eg_cpu_kernel *kernel = eg_cpu_choose(caps, p->compute);
    if (kernel == NULL) {
        return eg_fail(EG_ERR_UNSUPPORTED, "no kernel \"%s\" computes in %s on this processor",
                       caps->only_kernel ? caps->only_kernel : "", eg_dtype_name(p->compute));
    }
    for (int i = 0; i < plan->steps; i++) {
        eg_step *step = &plan->step[i];
        step->kernel = kernel;
        step->name = kernel->name;
        if (step->kind == EG_STEP_GEMM) {
            choose_block(kernel, caps->threads, p, step);
        } else {
            choose_threads(caps->threads, p, step);
        }
    }
    if (add_workspace(plan, kernel)) return EG_OK;
    return eg_fail(EG_ERR_OUT_OF_MEMORY,
                   "the workspace of M=%lld K=%lld N=%lld batch=%lld is larger than memory can be",
                   (long long)p->m, (long long)p->k, (long long)p->n, (long long)p->batch);
}
