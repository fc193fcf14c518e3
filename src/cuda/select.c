/* CUDA's part of a plan: which kernel row each step takes, and the workspace. Pure: it looks at eg_caps and
 * the problem only. What is chosen may depend on the alignment of the operands; the workspace does not, so
 * that its size can be asked for before the operands are there. */
#include <string.h>

#include "../error.h"
#include "../sizes.h"
#include "device.h"

/* ---- Products ------------------------------------------------------------------------------------- */

eg_cuda_matrix eg_cuda_matrix_of(const eg_problem *p, eg_operand_id id) {
    const eg_operand *x = &p->operands[id];
    if (x->data == NULL) return (eg_cuda_matrix){0};
    return (eg_cuda_matrix){.data = (uint64_t)(uintptr_t)x->data + x->offset,
                            .row_stride = x->row_stride,
                            .col_stride = x->col_stride,
                            .item_stride = x->batch_stride,
                            .dtype = (int32_t)x->dtype};
}

static eg_cuda_matrix transposed(eg_cuda_matrix x) {
    const int64_t stride = x.row_stride;
    x.row_stride = x.col_stride;
    x.col_stride = stride;
    return x;
}

/* Elements from row to row of grad_pre in the workspace: rows start on 16 bytes. */
static int64_t grad_pre_ld(const eg_problem *p) {
    const int64_t each = 16 / (int64_t)eg_dtype_size(p->dtype);
    return eg_ceil_div(p->n, each) * each;
}

/* grad_pre as the products read it: the caller's own, grad itself where act' is 1, or the workspace's. */
static eg_cuda_matrix grad_pre_of(const eg_plan *plan, uint64_t workspace) {
    const eg_problem *p = &plan->problem;
    if (eg_wants(p, EG_OP_GRAD_PRE)) return eg_cuda_matrix_of(p, EG_OP_GRAD_PRE);
    if (p->activation == EG_ACT_NONE) return eg_cuda_matrix_of(p, EG_OP_GRAD);
    if (plan->region[EG_BUFFER_GRAD_PRE].bytes == 0) return (eg_cuda_matrix){0};
    const int64_t ld = grad_pre_ld(p);
    return (eg_cuda_matrix){.data = workspace + plan->region[EG_BUFFER_GRAD_PRE].offset,
                            .row_stride = ld,
                            .col_stride = 1,
                            .item_stride = p->m * ld,
                            .dtype = (int32_t)p->dtype};
}

eg_cuda_matrix eg_cuda_act_grad_out(const eg_plan *plan, uint64_t workspace) {
    const bool written = eg_wants(&plan->problem, EG_OP_GRAD_PRE) || plan->problem.activation != EG_ACT_NONE;
    return written ? grad_pre_of(plan, workspace) : (eg_cuda_matrix){0};
}

/* B, or the copy that eg_pack_b made of it. */
static eg_cuda_matrix b_of(const eg_problem *p) {
    const eg_packed *packed = p->packed_b;
    if (packed == NULL) return eg_cuda_matrix_of(p, EG_OP_B);
    const int64_t ld = (int64_t)packed->transposed.offset; /* see cuda_pack */
    return (eg_cuda_matrix){.data = (uint64_t)(uintptr_t)packed->data,
                            .row_stride = ld,
                            .col_stride = 1,
                            .item_stride = packed->batched ? p->k * ld : 0,
                            .dtype = (int32_t)p->dtype};
}

/* Summands that follow each other in both operands are one longer sum. */
static void join_summands(eg_cuda_gemm *x) {
    if (x->summed <= 1 || x->left.item_stride != x->depth * x->left.col_stride ||
        x->right.item_stride != x->depth * x->right.row_stride)
        return;
    x->depth *= x->summed;
    x->summed = 1;
}

static void product_pre(const eg_plan *plan, const eg_step *step, uint64_t workspace, eg_cuda_gemm *x) {
    const eg_problem *p = &plan->problem;
    x->rows = p->m, x->cols = p->n, x->depth = p->k;
    x->left = eg_cuda_matrix_of(p, EG_OP_A);
    x->right = b_of(p);
    x->bias = eg_cuda_matrix_of(p, EG_OP_BIAS);
    x->activation = (int32_t)p->activation;
    if (step->epilogue == EG_EPILOGUE_FORWARD) {
        x->out = eg_cuda_matrix_of(p, EG_OP_Y);
        x->second = eg_cuda_matrix_of(p, EG_OP_PRE);
        x->in = eg_cuda_matrix_of(p, EG_OP_RESIDUAL);
        return;
    }
    x->in = eg_cuda_matrix_of(p, EG_OP_GRAD);
    x->out = grad_pre_of(plan, workspace);
    if (eg_wants(p, EG_OP_D_BIAS)) x->sums = workspace + plan->region[EG_BUFFER_SUMS].offset;
}

static void product_d_a(const eg_plan *plan, const eg_step *step, uint64_t workspace, eg_cuda_gemm *x) {
    const eg_problem *p = &plan->problem;
    x->rows = p->m, x->cols = p->k, x->depth = p->n;
    x->left = grad_pre_of(plan, workspace);
    x->right = transposed(b_of(p));
    x->out = eg_cuda_matrix_of(p, EG_OP_D_A);
    if (step->epilogue != EG_EPILOGUE_CHAIN) return;
    x->in = eg_cuda_matrix_of(p, EG_OP_BELOW);
    x->activation = (int32_t)p->below_activation;
    x->source = (int32_t)p->below_source;
    if (eg_wants(p, EG_OP_D_BIAS_BELOW)) x->sums = workspace + plan->region[EG_BUFFER_SUMS_BELOW].offset;
}

static void product_d_b(const eg_plan *plan, uint64_t workspace, eg_cuda_gemm *x) {
    const eg_problem *p = &plan->problem;
    x->rows = p->k, x->cols = p->n, x->depth = p->m;
    x->left = transposed(eg_cuda_matrix_of(p, EG_OP_A));
    x->right = grad_pre_of(plan, workspace);
    x->out = eg_cuda_matrix_of(p, EG_OP_D_B);
    x->accumulate = p->accumulate;
}

eg_cuda_gemm eg_cuda_product(const eg_plan *plan, const eg_step *step, uint64_t workspace) {
    const eg_problem *p = &plan->problem;
    eg_cuda_gemm x = {
        .items = p->batch, .summed = 1, .epilogue = (int32_t)step->epilogue, .propagate = p->propagate};
    switch (step->product) {
    case EG_PRODUCT_PRE:
        product_pre(plan, step, workspace, &x);
        return x;
    case EG_PRODUCT_D_A:
        product_d_a(plan, step, workspace, &x);
        break;
    case EG_PRODUCT_D_B:
        product_d_b(plan, workspace, &x);
        break;
    }
    if (x.out.item_stride == 0) x.items = 1, x.summed = p->batch;
    join_summands(&x);
    return x;
}

eg_cuda_gemm eg_cuda_act_grad_gemm(const eg_plan *plan, uint64_t workspace) {
    const eg_problem *p = &plan->problem;
    eg_cuda_gemm x = {.rows = p->m, .cols = p->n, .items = p->batch, .epilogue = EG_EPILOGUE_ACT_GRAD};
    x.left = eg_cuda_matrix_of(p, EG_OP_SAVED);
    x.in = eg_cuda_matrix_of(p, EG_OP_GRAD);
    x.out = eg_cuda_act_grad_out(plan, workspace);
    if (eg_wants(p, EG_OP_D_BIAS)) x.sums = workspace + plan->region[EG_BUFFER_SUMS].offset;
    x.activation = (int32_t)p->activation;
    x.source = (int32_t)p->source;
    x.propagate = p->propagate;
    return x;
}

int64_t eg_cuda_sum_rows(const eg_cuda_kernel *row) {
    return row->sum_rows > 0 ? row->sum_rows : row->tile_rows;
}

int64_t eg_cuda_tiles(const eg_cuda_kernel *row, eg_cuda_gemm *gemm) {
    gemm->chunks = eg_ceil_div(gemm->rows, eg_cuda_sum_rows(row));
    gemm->tiles =
        gemm->items * eg_ceil_div(gemm->rows, row->tile_rows) * eg_ceil_div(gemm->cols, row->tile_cols);
    return gemm->tiles;
}

/* ---- Choosing a row ------------------------------------------------------------------------------- */

/* Rows or columns of 16-byte vectors: what the copy engine and the library's fast kernels want. */
static bool aligned(const eg_cuda_matrix *x) {
    if (x->data == 0) return true;
    const int64_t each = 16 / (int64_t)eg_dtype_size((eg_dtype)x->dtype);
    const int64_t ld = x->col_stride == 1 ? x->row_stride : x->col_stride;
    return x->data % 16 == 0 && ld % each == 0 && x->item_stride % each == 0 &&
           (x->col_stride == 1 || x->row_stride == 1);
}

static bool row_major(const eg_cuda_matrix *x) { return x->data == 0 || x->col_stride == 1; }

/* Coordinates of the copy engine are 32-bit. */
static bool small(const eg_cuda_gemm *x) {
    const int64_t most = 1LL << 31;
    return x->rows < most - 512 && x->cols < most - 512 && x->depth < most - 512 && x->items < most &&
           x->summed < most;
}

static bool copies(const eg_cuda_gemm *x) {
    return (x->depth == 0 || x->summed == 0) && x->bias.data == 0 && x->activation == EG_ACT_NONE &&
           x->second.data == 0 && x->out.data != 0 && x->in.data != 0;
}

bool eg_cuda_takes(const eg_cuda_kernel *row, const eg_cuda_gemm *x) {
    const uint32_t takes = row->takes;
    if ((row->epilogues >> x->epilogue & 1U) == 0) return false;
    if (row->family != EG_CUDA_STRIDED && (x->depth == 0 || x->summed == 0)) return false;
    if ((takes & EG_CUDA_ALIGNED) != 0 && !(aligned(&x->left) && aligned(&x->right) && aligned(&x->in) &&
                                            aligned(&x->out) && aligned(&x->second)))
        return false;
    if ((takes & EG_CUDA_ROW_STORES) != 0 &&
        !(row_major(&x->in) && row_major(&x->out) && row_major(&x->second)))
        return false;
    if ((takes & EG_CUDA_LEFT_ROWS) != 0 && x->left.col_stride != 1) return false;
    if ((takes & EG_CUDA_LEFT_COLS) != 0 && x->left.row_stride != 1) return false;
    if ((takes & EG_CUDA_RIGHT_ROWS) != 0 && x->right.col_stride != 1) return false;
    if ((takes & EG_CUDA_RIGHT_COLS) != 0 && x->right.row_stride != 1) return false;
    if ((takes & EG_CUDA_SMALL) != 0 && !small(x)) return false;
    if ((takes & EG_CUDA_COPY) != 0 && !copies(x)) return false;
    if ((takes & EG_CUDA_RELAY) != 0 && x->cols % 8 != 0) return false;
    if ((takes & EG_CUDA_NO_SECOND) != 0 && x->second.data != 0) return false;
    return (takes & EG_CUDA_NO_REDUCTION) == 0 || x->summed <= 1;
}

/* What a device and a layer allow, whatever the operands are like. */
static bool allows(const eg_caps *caps, const eg_problem *p, const eg_cuda_kernel *row, const eg_step *step) {
    if (row->kind != step->kind || row->compute != p->compute) return false;
    if (row->dtype != EG_DTYPE_DEFAULT && row->dtype != p->dtype) return false;
    if ((row->needs & caps->features) != row->needs) return false;
    if (step->kind == EG_STEP_GEMM && (row->epilogues >> step->epilogue & 1U) == 0) return false;
    return p->math != EG_MATH_STRICT || (row->takes & EG_CUDA_MATRIX_UNIT) == 0;
}

/* A name restricts the steps of the kind that it is a row of. */
static bool named(const eg_caps *caps, const eg_cuda_kernel *row) {
    if (caps->only_kernel == NULL || strcmp(caps->only_kernel, row->name) == 0) return true;
    const eg_cuda_kernel *other;
    for (int i = 0; (other = eg_cuda_kernel_row(i)) != NULL; i++) {
        if (strcmp(caps->only_kernel, other->name) == 0) return other->kind != row->kind;
    }
    return false;
}

static bool vectors(const eg_plan *plan, const eg_cuda_kernel *row) {
    const eg_problem *p = &plan->problem;
    const eg_cuda_matrix grad = eg_cuda_matrix_of(p, EG_OP_GRAD), saved = eg_cuda_matrix_of(p, EG_OP_SAVED);
    const eg_cuda_matrix out = eg_cuda_act_grad_out(plan, 0);
    return p->n % (row->tile_cols / 32) == 0 && row_major(&grad) && row_major(&saved) && row_major(&out) &&
           aligned(&grad) && aligned(&saved) && aligned(&out);
}

/* Whether a product with grad_pre may make its last rows: those of one item, from the step before it, with
 * room for the sums of all chunks and for the counts. An empty product makes nothing. */
static bool makes_rest(const eg_plan *plan, const eg_step *step, const eg_cuda_gemm *x) {
    const eg_problem *p = &plan->problem;
    const eg_cuda_kernel *first = plan->step[0].kernel;
    if (step != &plan->step[1] || step->product != EG_PRODUCT_D_A || first->family != EG_CUDA_VECTORS)
        return false;
    if (x->rows == 0 || x->cols == 0 || x->depth == 0) return false;
    const int64_t chunks = eg_ceil_div(p->m, EG_CUDA_REST_CHUNK), parts_of_chunk = eg_ceil_div(p->n, 256);
    return p->activation != EG_ACT_NONE && x->items == 1 && x->summed == 1 &&
           chunks < INT32_MAX / parts_of_chunk && eg_cuda_portions_of(plan, p->n, 1, chunks, 1).total == 0 &&
           eg_cuda_pass_counts(plan) > 0 && plan->region[EG_BUFFER_COUNTS].bytes > 0;
}

/* Whether that kernel may make d_b as well, and in tiles as deep as it needs. */
static bool pools(const eg_plan *plan, const eg_cuda_kernel *row) {
    const eg_problem *p = &plan->problem;
    const int64_t least = EG_CUDA_POOL_STRIPS * (int64_t)row->depth;
    const eg_step d_b = {.kind = EG_STEP_GEMM, .product = EG_PRODUCT_D_B, .epilogue = EG_EPILOGUE_STORE};
    eg_cuda_kernel of_d_b = *row;
    of_d_b.takes &= ~(EG_CUDA_LEFT_ROWS | EG_CUDA_RIGHT_COLS);
    of_d_b.takes |= EG_CUDA_LEFT_COLS | EG_CUDA_RIGHT_ROWS;
    if (!eg_wants(p, EG_OP_D_B) || p->batch > 1 || p->m < least || p->n < least) return false;
    const eg_cuda_gemm x = eg_cuda_product(plan, &d_b, 0);
    return eg_cuda_takes(&of_d_b, &x);
}

static bool fits(const eg_plan *plan, const eg_cuda_kernel *row, const eg_step *step, const eg_cuda_gemm *x) {
    if (row->family == EG_CUDA_POOL && !pools(plan, row)) return false;
    if (step->kind == EG_STEP_ACT_GRAD) return row->family != EG_CUDA_VECTORS || vectors(plan, row);
    if (step->kind != EG_STEP_GEMM) return true;
    return eg_cuda_takes(row, x) && ((row->takes & EG_CUDA_REST) == 0 || makes_rest(plan, step, x));
}

static int multiprocessors_of(const eg_caps *caps) {
    return ((const eg_cuda_caps *)caps->detail)->multiprocessors;
}

/* How a row that cuts the last tiles of a product does so: wherever it can, if it is asked for by name. Not
 * where the workspace has no room, nor in portions, which would all count in the same place. */
static eg_cuda_cut cut_of(const eg_caps *caps, const eg_plan *plan, const eg_cuda_kernel *row,
                          const eg_cuda_gemm *x, double *saved) {
    const int multiprocessors = multiprocessors_of(caps);
    const bool by_name = caps->only_kernel != NULL && strcmp(caps->only_kernel, row->name) == 0;
    const int64_t sum_rows = eg_cuda_sum_rows(row);
    *saved = 0;
    if ((row->takes & EG_CUDA_CUT) == 0 || plan->region[EG_BUFFER_COUNTS].bytes == 0 ||
        plan->region[EG_BUFFER_SCRATCH].bytes < eg_cuda_cut_bytes(multiprocessors) ||
        eg_cuda_portions_of(plan, x->cols, x->items, x->rows, sum_rows).total > 0)
        return (eg_cuda_cut){0};
    return eg_cuda_cut_of(multiprocessors, row, x, by_name, saved);
}

/* Waves of clusters of two blocks that a product takes; the last whole, but for what cutting it saves. */
static double tma_waves(const eg_caps *caps, const eg_plan *plan, const eg_cuda_kernel *row,
                        const eg_cuda_gemm *x, double *tiles, double *saved) {
    const int clusters = multiprocessors_of(caps) / EG_CUDA_CLUSTER;
    *tiles = (double)eg_ceil_div(x->rows, 2 * (int64_t)row->tile_rows) *
             (double)eg_ceil_div(x->cols, row->tile_cols) * (double)x->items;
    const double whole = (double)(int64_t)((*tiles + clusters - 1) / clusters);
    cut_of(caps, plan, row, x, saved);
    return whole - *saved;
}

/* Below, the library is faster at a product. */
static double least_flops(int multiprocessors) { return 1.5e8 * multiprocessors; }

/* Where cublasLt can do a plain product too, it is measured faster: on small ones, on those of short sums, on
 * those that leave some of ours' last wave empty, and on those of sums not too long that fill four to eight
 * waves with tiles of 128 x 128 (lt_prefer). */
static bool library_wins(int multiprocessors, const eg_cuda_gemm *x, double fill) {
    const double least_fill = 0.9, least_fill_128 = 0.95;
    const int64_t most_short = 2048, least_long = 8192;
    const double flops = 2.0 * (double)x->rows * (double)x->cols * (double)x->depth * (double)x->items;
    const double waves = (double)eg_ceil_div(x->rows, 128) * (double)eg_ceil_div(x->cols, 128) *
                         (double)x->items / multiprocessors;
    const double whole = (double)(int64_t)(waves + 0.999);
    if (flops < least_flops(multiprocessors) || x->depth <= most_short || fill < least_fill) return true;
    return x->depth < least_long && whole >= 4 && whole <= 8 && waves >= least_fill_128 * whole;
}

/* Whether the rest of the pass fits under the products. These take K / 540 times as long as it does alone,
 * and beside them it is about a quarter as fast; the first wave has no rows to wait for, and hides none. */
static bool hides_rest(const eg_cuda_gemm *x, double waves, double fill) {
    const int64_t least_cols = 2048;
    const double least_waves = 3, least_fill = 0.85;
    return x->cols >= least_cols && waves >= least_waves && fill >= least_fill;
}

/* Of a row that finishes a tile beside the products of the next: what that saves, as a part of its time. An
 * epilogue takes as long as ten strips of the depth; with few of them it does not fit, and there is no gain.
 */
static double hidden(const eg_cuda_kernel *row, const eg_cuda_gemm *x, double waves) {
    const double epilogue = 10, least_strips = 32;
    const double strips = (double)eg_ceil_div(x->depth, row->depth) * (double)x->summed;
    return strips < least_strips || waves <= 1 ? 0 : epilogue / (strips + epilogue);
}

/* Its time in tiles of one column, with what narrow tiles cost in loads. */
static double tma_cost(const eg_caps *caps, const eg_plan *plan, const eg_cuda_kernel *row,
                       const eg_cuda_gemm *x) {
    const double slow = 2e15, never = 3e15;
    const int multiprocessors = multiprocessors_of(caps);
    double tiles, saved;
    const double waves = tma_waves(caps, plan, row, x, &tiles, &saved), cost = waves * (row->tile_cols + 16);
    const int clusters = multiprocessors / EG_CUDA_CLUSTER;
    const double fill = tiles / (waves * clusters);
    const bool plain = x->epilogue == EG_EPILOGUE_STORE && x->summed <= 1;
    if (row->family == EG_CUDA_POOL) return eg_cuda_pool_pays(multiprocessors, &plan->problem) ? -1 : never;
    if ((row->takes & EG_CUDA_REST) != 0) return hides_rest(x, waves, fill) ? 0 : never;
    if ((row->takes & EG_CUDA_RELAY) != 0) {
        const double part = hidden(row, x, waves);
        return part > 0 ? cost * (1 - part) : never;
    }
    if ((row->takes & EG_CUDA_CUT) != 0 && saved <= 0) return never;
    return plain && library_wins(multiprocessors, x, fill) ? slow + cost : cost;
}

/* Lower is better: products of ours where they are faster than the library's, the library, products of ours
 * where they are not, and last the rows that take more, in the table's order. All are exact below 2^53. */
static double cost_of(const eg_caps *caps, const eg_plan *plan, const eg_cuda_kernel *row,
                      const eg_step *step, const eg_cuda_gemm *x, int index) {
    if (step->kind != EG_STEP_GEMM || row->family == EG_CUDA_STRIDED) return 4e15 + index;
    if (row->family == EG_CUDA_BOXES) return 3e15 + index;
    if (row->family == EG_CUDA_LIBRARY) return 1e15 + index;
    return tma_cost(caps, plan, row, x);
}

static void take_row(const eg_cuda_kernel *row, eg_step *step) {
    step->kernel = row;
    step->name = row->name;
    step->tile_rows = row->tile_rows;
    step->tile_cols = row->tile_cols;
    step->depth = row->depth;
}

static eg_status choose(const eg_caps *caps, eg_plan *plan, eg_step *step) {
    const eg_problem *p = &plan->problem;
    const eg_cuda_kernel *row, *best = NULL;
    eg_cuda_gemm x = {0};
    double least = 0;
    if (step->kind == EG_STEP_GEMM) x = eg_cuda_product(plan, step, 0);
    for (int i = 0; (row = eg_cuda_kernel_row(i)) != NULL; i++) {
        if (!allows(caps, p, row, step) || !named(caps, row) || !fits(plan, row, step, &x)) continue;
        const double cost = cost_of(caps, plan, row, step, &x, i);
        if (best == NULL || cost < least) best = row, least = cost;
    }
    if (best == NULL) {
        return eg_fail(EG_ERR_UNSUPPORTED, "kernel \"%s\" cannot do a step of this call in %s",
                       caps->only_kernel != NULL ? caps->only_kernel : "any", eg_dtype_name(p->dtype));
    }
    take_row(best, step);
    if (step->kind == EG_STEP_GEMM) step->cut = cut_of(caps, plan, best, &x, &least).tiles;
    return EG_OK;
}

/* ---- Workspace ------------------------------------------------------------------------------------ */

static bool add_sums(eg_plan *plan, eg_buffer_id id, int64_t cols) {
    int64_t rows;
    return eg_cuda_sums_rows(plan, cols, &rows) &&
           eg_plan_region(plan, id, rows, cols, eg_dtype_size(plan->problem.compute), 256);
}

static double flops_of(const eg_problem *p) {
    return 2.0 * (double)p->m * (double)p->k * (double)p->n * (double)p->batch;
}

/* The library splits long sums of small results: room for that, as far as it pays. Large layers of 16 bits
 * are mostly ours, and have memory to save. */
static int64_t library_scratch(const eg_plan *plan) {
    const eg_problem *p = &plan->problem;
    const double flops = flops_of(p);
    const bool large =
        eg_dtype_size(p->dtype) == 2 && flops >= 2e10 && (double)p->k * (double)p->n >= 1 << 23;
    return flops < 1e6 ? 0 : (flops < 1e9 || large ? 4 << 20 : 32 << 20);
}

static bool may_use_library(const eg_caps *caps, const eg_plan *plan) {
    for (int i = 0; i < plan->steps; i++) {
        const eg_step *step = &plan->step[i];
        if (step->kind == EG_STEP_GEMM && step->epilogue == EG_EPILOGUE_STORE &&
            (caps->features & EG_CUDA_LT) != 0)
            return true;
    }
    return false;
}

/* Whether products may be large enough for their last tiles to be cut: small ones are the library's, and
 * pieces are not to take half as much room as grad_pre. By name all are. */
static bool may_cut(const eg_caps *caps, const eg_plan *plan) {
    const eg_problem *p = &plan->problem;
    const int multiprocessors = multiprocessors_of(caps);
    const double grad_pre = 2.0 * (double)p->m * (double)p->n * (double)p->batch;
    return caps->only_kernel != NULL || (flops_of(p) >= least_flops(multiprocessors) &&
                                         grad_pre >= 2.0 * (double)eg_cuda_cut_bytes(multiprocessors));
}

/* Room for the library, for pieces of tiles, and for the counts of those and of a pass that two kernels
 * share. */
static bool add_scratch(const eg_caps *caps, eg_plan *plan) {
    const eg_problem *p = &plan->problem;
    const int multiprocessors = multiprocessors_of(caps);
    const bool hopper = (caps->features & EG_CUDA_SM90A) != 0 && eg_dtype_size(p->dtype) == 2;
    const bool shares = p->backward && eg_wants(p, EG_OP_D_A) && plan->step[0].kind == EG_STEP_ACT_GRAD;
    const bool cuts = hopper && may_cut(caps, plan);
    const int64_t library = may_use_library(caps, plan) ? library_scratch(plan) : 0;
    const int64_t pieces = cuts ? (int64_t)eg_cuda_cut_bytes(multiprocessors) : 0;
    const int64_t bytes = pieces > library ? pieces : library;
    const int64_t counts =
        (hopper && shares ? eg_cuda_pass_counts(plan) : 0) + (cuts ? eg_cuda_cut_counts(multiprocessors) : 0);
    return (bytes == 0 || eg_plan_region(plan, EG_BUFFER_SCRATCH, 1, bytes, 1, 256)) &&
           (counts == 0 || eg_plan_region(plan, EG_BUFFER_COUNTS, counts, 1, sizeof(uint32_t), 256));
}

/* grad_pre, and 64 MiB at most beside it (but for a d_bias of a million columns). */
static bool add_workspace(const eg_caps *caps, eg_plan *plan) {
    const eg_problem *p = &plan->problem;
    const bool products = eg_wants(p, EG_OP_D_A) || eg_wants(p, EG_OP_D_B);
    int64_t rows;
    if (p->backward && products && p->activation != EG_ACT_NONE && !eg_wants(p, EG_OP_GRAD_PRE)) {
        if (__builtin_mul_overflow(p->m, p->batch, &rows)) return false;
        if (!eg_plan_region(plan, EG_BUFFER_GRAD_PRE, rows, grad_pre_ld(p), eg_dtype_size(p->dtype), 256))
            return false;
    }
    if (eg_wants(p, EG_OP_D_BIAS) && !add_sums(plan, EG_BUFFER_SUMS, p->n)) return false;
    if (eg_wants(p, EG_OP_D_BIAS_BELOW) && !add_sums(plan, EG_BUFFER_SUMS_BELOW, p->k)) return false;
    return add_scratch(caps, plan);
}

/* Where act' is 1 and neither grad_pre nor d_bias is wanted, the element-wise step has nothing to do. */
static void drop_idle_steps(eg_plan *plan) {
    const eg_problem *p = &plan->problem;
    if (p->activation != EG_ACT_NONE || eg_wants(p, EG_OP_GRAD_PRE) || eg_wants(p, EG_OP_D_BIAS)) return;
    int kept = 0;
    for (int i = 0; i < plan->steps; i++) {
        if (plan->step[i].kind != EG_STEP_ACT_GRAD) plan->step[kept++] = plan->step[i];
    }
    plan->steps = kept;
}

/* A saved pre without d_a, d_b or grad_pre still makes d_bias, with no grad_pre written anywhere. */
eg_status eg_cuda_select(const eg_caps *caps, eg_plan *plan) {
    drop_idle_steps(plan);
    if (!add_workspace(caps, plan)) return eg_plan_too_large(&plan->problem);
    for (int i = 0; i < plan->steps; i++) {
        if (eg_cuda_pools(plan)) {
            take_row(eg_cuda_rest_step(plan)->kernel, &plan->step[i]);
        } else {
            EG_TRY(choose(caps, plan, &plan->step[i]));
        }
    }
    return EG_OK;
}
