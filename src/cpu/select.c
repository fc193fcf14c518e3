/* The CPU's part of a plan: which kernel row, how the products are cut to fit the caches, and what
 * workspace that takes. Pure: it looks at eg_caps and the problem only. */
#include <limits.h>
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

/* ---- The kernel --------------------------------------------------------------------------------- */

/* The row the caller named, if any, whatever its size. Of f32 a number becomes six of bf16 before it is
 * multiplied: that pays by how often it is, in layers of any shape. Measured: docs/cpu.md. */
static bool pays(const eg_caps *caps, const eg_cpu_kernel *row, const eg_problem *p) {
    if (caps->only_kernel != NULL) return true;
    if (row->one_panel && (p->k != row->nr || p->n != row->nr)) return false;
    const double m = (double)p->m, k = (double)p->k, n = (double)p->n, batch = (double)p->batch;
    const double b = p->operands[EG_OP_B].batch_stride != 0 ? batch : 1, work = batch * m * k * n;
    const double uses = work < 2 * row->thread_work ? row->uses_alone : row->uses;
    return work >= row->least && work >= uses * (batch * m * (k + n) + b * k * n);
}

static bool serves(const eg_cpu_kernel *row, const eg_problem *p) {
    if (row->compute != p->compute || !(row->maths & EG_CPU_MATH(p->math))) return false;
    if (row->dtype != EG_DTYPE_DEFAULT && row->dtype != p->dtype) return false;
    /* Sums of cells have room for so many terms. */
    return row->terms == 0 || (p->k <= EG_CELL_DEEPEST && p->n <= EG_CELL_DEEPEST &&
                               (double)p->m * (double)p->batch <= (double)EG_CELL_DEEPEST);
}

const eg_cpu_kernel *eg_cpu_choose(const eg_caps *caps, const eg_problem *p) {
    for (int i = 0;; i++) {
        const eg_cpu_kernel *row = eg_cpu_kernel_row(i);
        if (row == NULL) return NULL;
        const bool named = caps->only_kernel == NULL || strcmp(caps->only_kernel, row->name) == 0;
        if (named && (row->needs & caps->features) == row->needs && serves(row, p) && pays(caps, row, p)) {
            return row;
        }
    }
}

static int64_t at_least_one(int64_t a) { return a > 1 ? a : 1; }

/* ---- Threads ------------------------------------------------------------------------------------ */

/* A step takes as many threads as it has work for: waking one, and waiting for the last, costs some
 * microseconds on a quiet machine and many more beside busy neighbours. The bits are the same for any number
 * of them. */
static const double numbers_a_thread = 1 << 15; /* moved or summed */

static int at_most(int threads, double most) { return most < threads ? (int)most : threads; }

/* What a step gains by two or three threads it soon loses by having any. From FOUR on, less work each will
 * do. Measured: docs/cpu.md. */
static int threads_for(int threads, double work, double work_a_thread, int64_t units) {
    enum { FOUR = 4 };
    threads = at_most(threads, (double)units);
    const int many = at_most(threads, FOUR * work / work_a_thread);
    threads = many >= FOUR ? many : at_most(threads, work / work_a_thread);
    return threads > 1 ? threads : 1;
}

/* ---- Operands where they are -------------------------------------------------------------------- */

/* A copy pays by how often it is read: FEW or SOME times. Without one, numbers that are read one after the
 * other lie a line apart, and beyond NEAR bytes each is on a page, and in a cache set, with few others.
 * Measured: docs/cpu.md. */
enum { FEW = 32, SOME = 128, NEAR = 2048 };

/* Heights of tiles and lengths of vectors are powers of two. */
static bool divides(int power, int64_t size) { return (size & (power - 1)) == 0; }

static bool is_read_often(const eg_problem *p, const eg_operand *x, int64_t reads, int64_t few) {
    return reads > few || (x->batch_stride == 0 && p->batch > few) ||
           (x->batch_stride == 0 && p->batch * reads > few);
}

/* Whether a product reads A or B where its caller has it. It has to be of the kernel's type and in whole
 * tiles and vectors, which kernels read without a look at where the matrix ends; and the right operand's
 * columns have to be neighbours. */
static bool reads_in_place(const eg_cpu_kernel *kernel, const eg_problem *p, eg_operand_id id,
                           eg_product product) {
    const eg_operand *x = &p->operands[id];
    if (kernel->terms > 0 || x->dtype != kernel->compute) return false;
    const int64_t line = x->col_stride == 1 ? x->row_stride : x->col_stride;
    const bool near = line <= NEAR && line * (int64_t)eg_size_of(x->dtype) <= NEAR;
    if (id == EG_OP_A) {
        return near && !is_read_often(p, x, p->n, SOME) && divides(kernel->mr, p->m) &&
               divides(kernel->mr, p->k);
    }
    const bool pre = product == EG_PRODUCT_PRE;
    return !is_read_often(p, x, p->m, near ? SOME : FEW) && (pre ? x->col_stride : x->row_stride) == 1 &&
           divides(kernel->lanes, pre ? p->n : p->k);
}

/* Whether a block may lay out B for itself, a panel at a time just before it is used: a panel, if a copy of
 * all B is too large for L2; cells, if the call can be made anew should B have numbers without cells (y may
 * lie where residual was). */
static bool may_pack_as_it_goes(const eg_cpu_kernel *kernel, const eg_problem *p, eg_product product) {
    enum { LARGE = 512 << 10 };
    const bool shared = p->batch > 1 && p->operands[EG_OP_B].batch_stride == 0;
    if (product == EG_PRODUCT_D_B || p->packed_b != NULL || shared || kernel->only_from == INT_MAX)
        return false;
    if (kernel->terms > 0) return kernel->terms == 1 || !eg_wants(p, EG_OP_RESIDUAL);
    return (double)p->k * (double)p->n * (double)eg_size_of(kernel->compute) > LARGE &&
           !reads_in_place(kernel, p, EG_OP_B, product);
}

/* It does where no other block reads the panel. */
static bool has_all_rows(const eg_cpu_kernel *kernel, const eg_problem *p) {
    return p->m >= kernel->only_from && p->m <= kernel->only_rows;
}

/* And cells, where several do, if all bands together take a quarter of the threads' time for it: what one
 * core lays out comes to the others line by line. Measured: docs/cpu.md. */
static bool is_worth_it(const eg_cpu_kernel *kernel, const eg_problem *p, int threads, int64_t bands) {
    enum { SMALL = 1 << 20 };
    return kernel->terms > 0 && threads >= 4 * bands && (double)p->k * (double)p->n <= SMALL;
}

/* ---- Cache blocks ------------------------------------------------------------------------------- */

/* A block of the product is held in a thread's scratch (L2) over the whole depth. Against it, kc terms at
 * a time, stand its rows of the left operand (tile_rows x kc, L2) and one panel of the right operand
 * (kc x nr, L1 and L2) that all of those rows use before the next is fetched. */

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

/* The result cut into blocks, which are counted along each band. */
typedef struct cut {
    int64_t tile_rows, tile_cols, bands, strips;
} cut;

static cut cut_of(const extent *x, int64_t tile_rows, int64_t tile_cols) {
    return (cut){tile_rows, tile_cols, eg_ceil_div(x->rows, tile_rows), eg_ceil_div(x->cols, tile_cols)};
}

static double blocks_of(const extent *x, const cut *cut) {
    return (double)x->items * (double)cut->bands * (double)cut->strips;
}

/* Numbers of the result that a thread has at most: it takes whole bands, or blocks, of which the last in a
 * band may be narrow. */
static double longest_share(const extent *x, const cut *cut, int threads) {
    const int64_t bands = eg_ceil_div(x->items * cut->bands, threads),
                  blocks = eg_ceil_div(x->items * cut->bands * cut->strips, threads);
    return (double)cut->tile_rows * (double)eg_least(bands * x->cols, blocks * cut->tile_cols);
}

/* What a number of the result costs, as a factor: to read a row or column for a block is as much work as to
 * multiply with some 16 of them. And where threads have one block each, all wait for the slowest. */
static double cost_of(const extent *x, const cut *cut, int threads) {
    const double read = 16, alone = 1.25;
    return (1 + read / (double)cut->tile_rows + read / (double)cut->tile_cols) *
           (blocks_of(x, cut) < 2.0 * threads ? alone : 1);
}

/* Blocks that come out even; where each thread has many, they do anyway. */
static cut even_cut(const eg_cpu_kernel *kernel, const extent *x, int threads, cut largest) {
    enum { MANY = 24 };
    cut best = largest;
    double least = 0;
    for (int64_t rows = largest.tile_rows; rows > 0; rows -= EG_CPU_CHUNK) {
        for (int64_t cols = largest.tile_cols; cols > 0; cols -= kernel->nr) {
            const cut cut = cut_of(x, rows, cols);
            if (blocks_of(x, &cut) > MANY * threads) break;
            const double time = longest_share(x, &cut, threads) * cost_of(x, &cut, threads);
            if (least == 0 || time < least) least = time, best = cut;
        }
    }
    return best;
}

static bool is_one_pass(const extent *x, int64_t kc) { return x->summed <= 1 && x->depth <= kc; }

/* Where no sums wait for the next pass, there is room for more rows of the left operand. */
static int64_t most_rows(const eg_cpu_kernel *kernel, const eg_problem *p, const extent *x,
                         eg_product product) {
    if (may_pack_as_it_goes(kernel, p, product) && has_all_rows(kernel, p)) return kernel->only_rows;
    if (!is_one_pass(x, kernel->whole_kc) || x->depth < 1) return kernel->block_rows;
    const int64_t rows = kernel->block_left / x->depth / EG_CPU_CHUNK * EG_CPU_CHUNK;
    return rows > kernel->block_rows ? rows : kernel->block_rows;
}

/* Fewer, where a block lays out B for itself. Where passes end is seen in the bits: so for panels it counts
 * that one could, not that it does, which a packed B would change. Cells are summed in runs, whatever a pass.
 */
static int64_t terms_of_pass(const eg_cpu_kernel *kernel, const eg_problem *p, const extent *x, bool packs) {
    const bool only = kernel->terms > 0 ? packs : has_all_rows(kernel, p);
    if (only && kernel->only_kc > 0) return kernel->only_kc;
    return is_one_pass(x, kernel->whole_kc) ? kernel->whole_kc : kernel->kc;
}

/* Passes of equal depth. */
static int64_t depth_of_passes(const eg_cpu_kernel *kernel, const extent *x, int64_t most) {
    const int64_t passes = eg_ceil_div(x->depth, most);
    return passes > 1 ? eg_ceil_div(eg_ceil_div(x->depth, passes), kernel->run) * kernel->run : most;
}

static void choose_block(const eg_cpu_kernel *kernel, int threads, const eg_problem *p, eg_step *step) {
    const extent x = extent_of(p, step->product);
    const double work =
        (double)x.items * (double)x.summed * (double)x.rows * (double)x.cols * (double)x.depth;
    const int64_t panels = at_least_one(eg_ceil_div(x.cols, kernel->nr)),
                  chunks = at_least_one(eg_ceil_div(x.rows, EG_CPU_CHUNK));
    const int64_t strips = at_least_one(eg_ceil_div(panels, kernel->block_cols / kernel->nr)),
                  bands = at_least_one(
                      eg_ceil_div(chunks, most_rows(kernel, p, &x, step->product) / EG_CPU_CHUNK));
    threads = threads_for(threads, work, kernel->thread_work, INT64_MAX);
    cut cut = cut_of(&x, eg_ceil_div(chunks, bands) * EG_CPU_CHUNK, eg_ceil_div(panels, strips) * kernel->nr);
    if (threads > 1) cut = even_cut(kernel, &x, threads, cut);
    const double blocks = blocks_of(&x, &cut);
    step->tile_rows = cut.tile_rows, step->tile_cols = cut.tile_cols;
    step->threads =
        blocks < threads ? threads_for(threads, work, kernel->thread_work, (int64_t)blocks) : threads;
    const bool all = step->tile_rows >= p->m && has_all_rows(kernel, p);
    step->packs = may_pack_as_it_goes(kernel, p, step->product) &&
                  (all || is_worth_it(kernel, p, step->threads, cut.bands));
    step->depth = depth_of_passes(kernel, &x, terms_of_pass(kernel, p, &x, step->packs));
    step->one_pass = is_one_pass(&x, step->depth);
}

static void choose_threads(const eg_cpu_kernel *kernel, int threads, const eg_problem *p, eg_step *step) {
    const double m = (double)p->m, k = (double)p->k, n = (double)p->n, batch = (double)p->batch;
    double numbers = 0;
    switch (step->kind) {
    case EG_STEP_PACK:
        numbers = batch * (step->operand == EG_OP_A ? m * k : k * n) * (1 + kernel->terms); /* and split */
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

/* ---- Steps that are not needed ------------------------------------------------------------------------ */

/* The products of the plan that need no copy of a pack's operand. */
static unsigned without_pack(const eg_plan *plan, const eg_cpu_kernel *kernel, const eg_step *pack) {
    unsigned products = 0;
    for (int i = 0; i < plan->steps; i++) {
        const eg_step *step = &plan->step[i];
        if (step->kind == EG_STEP_GEMM && (pack->products & EG_FOR(step->product)) &&
            ((step->packs && pack->operand == EG_OP_B) ||
             reads_in_place(kernel, &plan->problem, pack->operand, step->product)))
            products |= EG_FOR(step->product);
    }
    const bool all = products == pack->products;
    return pack->operand == EG_OP_A && !all ? 0 : products; /* both products read one copy of A */
}

static void skip_packs(eg_plan *plan, const eg_cpu_kernel *kernel) {
    int kept = 0;
    for (int i = 0; i < plan->steps; i++) {
        eg_step *step = &plan->step[i];
        if (step->kind == EG_STEP_PACK) step->products &= ~without_pack(plan, kernel, step);
        if (step->kind == EG_STEP_PACK && step->products == 0) continue;
        if (kept < i) plan->step[kept] = *step;
        kept++;
    }
    plan->steps = kept;
}

/* ---- Workspace ---------------------------------------------------------------------------------- */

/* A matrix as the kernels read it; cells, in strips of either kind. */
static bool add_matrix(eg_plan *plan, eg_buffer_id id, const eg_cpu_kernel *kernel, int64_t items,
                       int64_t rows, int64_t cols) {
    int64_t count;
    if (kernel->terms > 0) {
        const eg_cell_grid grid = eg_cell_grid_of(kernel->terms, rows, cols);
        int64_t down;
        if (__builtin_mul_overflow(grid.rows, grid.across, &count) ||
            __builtin_mul_overflow(grid.cols, grid.down, &down))
            return false;
        if (down > count) count = down;
        return eg_plan_region(plan, id, count, items, grid.cell, 64);
    }
    const eg_panels panels = eg_cpu_panels(kernel, rows, cols);
    return !__builtin_mul_overflow(panels.apart, panels.panels * kernel->nr, &count) &&
           eg_plan_region(plan, id, count, items, eg_size_of(kernel->compute), 64);
}

static int64_t items_of(const eg_problem *p, eg_operand_id id) {
    return p->operands[id].batch_stride == 0 && p->batch > 0 ? 1 : p->batch;
}

/* Panels of A serve both of its products; otherwise each product has a copy of its own. */
static bool add_packed(eg_plan *plan, const eg_cpu_kernel *kernel, const eg_step *step) {
    const eg_problem *p = &plan->problem;
    const int64_t items = items_of(p, step->operand);
    const bool pre = step->products & EG_FOR(EG_PRODUCT_PRE);
    if (step->operand == EG_OP_A) {
        const bool d_b = step->products & EG_FOR(EG_PRODUCT_D_B), one = kernel->terms == 0;
        return (!(pre || one) || add_matrix(plan, EG_BUFFER_A, kernel, items, p->m, p->k)) &&
               (!d_b || one || add_matrix(plan, EG_BUFFER_AT, kernel, items, p->m, p->k));
    }
    const bool d_a = step->products & EG_FOR(EG_PRODUCT_D_A);
    return (!pre || add_matrix(plan, EG_BUFFER_B, kernel, items, p->k, p->n)) &&
           (!d_a || add_matrix(plan, EG_BUFFER_BT, kernel, items, p->n, p->k));
}

/* grad_pre is kept where a product will read it. */
static bool add_grad_pre(eg_plan *plan, const eg_cpu_kernel *kernel) {
    const eg_problem *p = &plan->problem;
    const bool d_a = eg_wants(p, EG_OP_D_A), d_b = eg_wants(p, EG_OP_D_B), one = kernel->terms == 0;
    return (!(d_a || (d_b && one)) || add_matrix(plan, EG_BUFFER_GRAD_PRE, kernel, p->batch, p->m, p->n)) &&
           (!d_b || one || add_matrix(plan, EG_BUFFER_GRAD_PRE_T, kernel, p->batch, p->m, p->n));
}

/* A row of nr-padded column sums for each chunk of rows of each item. */
static bool add_sums(eg_plan *plan, const eg_cpu_kernel *kernel, eg_buffer_id id, int64_t cols) {
    int64_t chunks;
    if (__builtin_mul_overflow(eg_cpu_chunks(plan->problem.m), plan->problem.batch, &chunks)) return false;
    return eg_plan_region(plan, id, chunks, eg_ceil_div(cols, kernel->nr) * kernel->nr,
                          eg_size_of(kernel->compute), 64);
}

static bool add_workspace(eg_plan *plan, const eg_cpu_kernel *kernel) {
    const eg_problem *p = &plan->problem;
    int64_t scratch = 0;
    int threads = 1;
    for (int i = 0; i < plan->steps; i++) {
        const eg_step *step = &plan->step[i];
        if (step->kind == EG_STEP_PACK && !add_packed(plan, kernel, step)) return false;
        /* The sums of a block, or tiles that take turns, and perhaps a panel. */
        int64_t need =
            step->kind == EG_STEP_GEMM ? eg_cpu_held_tiles(kernel, step) * kernel->mr * kernel->nr : 0;
        if (step->packs) need += step->depth * kernel->nr * (kernel->terms > 0 ? kernel->terms : 2) / 2;
        if (need > scratch) scratch = need;
        if (step->threads > threads) threads = step->threads;
    }
    scratch += EG_CPU_SPARE_TILES * (int64_t)kernel->mr * kernel->nr;
    if (p->backward && !add_grad_pre(plan, kernel)) return false;
    if (eg_wants(p, EG_OP_D_BIAS) && !add_sums(plan, kernel, EG_BUFFER_SUMS, p->n)) return false;
    if (eg_wants(p, EG_OP_D_BIAS_BELOW) && !add_sums(plan, kernel, EG_BUFFER_SUMS_BELOW, p->k)) return false;
    return eg_plan_region(plan, EG_BUFFER_SCRATCH, threads, scratch, eg_size_of(kernel->compute), 64);
}

eg_caps eg_cpu_caps_without_cells(const eg_caps *caps) {
    eg_caps any = *caps;
    any.features &= ~(uint32_t)EG_CPU_AMX;
    for (int i = 0; eg_cpu_kernel_row(i) != NULL && any.only_kernel != NULL; i++) {
        const eg_cpu_kernel *row = eg_cpu_kernel_row(i);
        if (row->terms > 0 && strcmp(row->name, any.only_kernel) == 0) any.only_kernel = NULL;
    }
    return any;
}

/* Threads that a product of the plan has; the others would lay out for it what is then in their caches. */
static int most_threads(const eg_plan *plan, int threads) {
    int most = 0;
    for (int i = 0; i < plan->steps; i++) {
        const eg_step *step = &plan->step[i];
        if (step->kind == EG_STEP_GEMM && step->threads > most) most = step->threads;
    }
    return most > 0 ? most : threads;
}

/* Cuts the steps for a kernel, and adds their workspace to the plan's. */
static eg_status select_kernel(const eg_caps *caps, const eg_cpu_kernel *kernel, eg_plan *plan) {
    const eg_problem *p = &plan->problem;
    plan->threads = caps->threads;
    for (int i = 0; i < plan->steps; i++) {
        eg_step *step = &plan->step[i];
        step->kernel = kernel;
        step->name = kernel->name;
        if (step->kind == EG_STEP_GEMM) choose_block(kernel, caps->threads, p, step);
    }
    const int most = most_threads(plan, caps->threads);
    for (int i = 0; i < plan->steps; i++) choose_threads(kernel, most, p, &plan->step[i]);
    skip_packs(plan, kernel);
    return add_workspace(plan, kernel) ? EG_OK : eg_plan_too_large(p);
}

/* A call that a kernel refuses is made anew by another, in the same workspace: it has room for both. */
static eg_status select_both(const eg_caps *caps, const eg_cpu_kernel *kernel, eg_plan *plan) {
    const eg_caps any = eg_cpu_caps_without_cells(caps);
    eg_plan other = *plan;
    EG_TRY(select_kernel(&any, eg_cpu_choose(&any, &plan->problem), &other));
    EG_TRY(select_kernel(caps, kernel, plan));
    if (other.workspace > plan->workspace) plan->workspace = other.workspace;
    return EG_OK;
}

eg_status eg_cpu_select(const eg_caps *caps, eg_plan *plan) {
    const eg_cpu_kernel *kernel = eg_cpu_choose(caps, &plan->problem);
    if (kernel == NULL) {
        return eg_fail(EG_ERR_UNSUPPORTED, "kernel \"%s\" does not compute %s with this layer.math here",
                       caps->only_kernel ? caps->only_kernel : "", eg_dtype_name(plan->problem.dtype));
    }
    return kernel->terms > 1 ? select_both(caps, kernel, plan) : select_kernel(caps, kernel, plan);
}
