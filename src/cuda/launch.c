/* Enqueues the steps of a plan: each is one kernel, with its parameters built here. */
#include <string.h>

#include "../error.h"
#include "../sizes.h"
#include "device.h"
#include "hopper.h"

typedef struct eg_cuda_run {
    eg_cuda_device *device;
    const eg_plan *plan;
    const eg_problem *problem;
    uint64_t workspace;
    CUstream stream;
    eg_cuda_counts counts;
} eg_cuda_run;

static bool empty(const eg_problem *p) { return p->m == 0 || p->n == 0 || p->batch == 0; }

static int row_index(const eg_cuda_kernel *row) { return (int)(row - eg_cuda_kernel_row(0)); }

/* Where every kernel is to be waited for, so that one that fails is named: EPIGRAD_CUDA_CHECK. */
static eg_status wait_if_checked(const eg_cuda_run *run, CUstream stream, const char *name) {
    CUstreamCaptureStatus capturing = CU_STREAM_CAPTURE_STATUS_NONE;
    if (!run->device->checked) return EG_OK;
    run->device->driver->cuStreamIsCapturing(stream, &capturing);
    if (capturing != CU_STREAM_CAPTURE_STATUS_NONE) return EG_OK;
    return eg_cuda_check(run->device, run->device->driver->cuStreamSynchronize(stream), name);
}

/* `blocks` may be any number: kernels stride over what the grid leaves. On the main stream a kernel is set
 * up while its predecessor drains (order.cuh). */
static eg_status enqueue_on(const eg_cuda_run *run, CUstream stream, const eg_cuda_kernel *row,
                            int64_t blocks, void *parameter) {
    enum { MOST_BLOCKS = 0x7fffffff };
    if (blocks == 0) return EG_OK;
    CUlaunchAttribute overlap = {.id = CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION};
    overlap.value.programmaticStreamSerializationAllowed = 1;
    const CUlaunchConfig config = {.gridDimX = (unsigned)(blocks < MOST_BLOCKS ? blocks : MOST_BLOCKS),
                                   .gridDimY = 1,
                                   .gridDimZ = 1,
                                   .blockDimX = (unsigned)row->threads,
                                   .blockDimY = 1,
                                   .blockDimZ = 1,
                                   .sharedMemBytes = (unsigned)row->shared,
                                   .hStream = stream,
                                   .attrs = &overlap,
                                   .numAttrs = stream == run->stream ? 1 : 0};
    void *parameters[] = {parameter};
    EG_TRY(eg_cuda_check(run->device,
                         run->device->driver->cuLaunchKernelEx(
                             &config, run->device->functions[row_index(row)], parameters, NULL),
                         row->name));
    return wait_if_checked(run, stream, row->name);
}

static eg_status enqueue(const eg_cuda_run *run, const eg_cuda_kernel *row, int64_t blocks, void *parameter) {
    return enqueue_on(run, run->stream, row, blocks, parameter);
}

/* ---- Counts ---------------------------------------------------------------------------------------- */

/* What blocks of a launch tell each other: of a shared pass, then of the cut tiles of each product. None
 * where no step counts. */
static eg_cuda_counts counts_of(const eg_plan *plan, uint64_t workspace) {
    const eg_region *region = &plan->region[EG_BUFFER_COUNTS];
    bool counts = eg_cuda_rest_step(plan) != NULL;
    for (int i = 0; i < plan->steps; i++) counts = counts || plan->step[i].cut > 0;
    if (!counts) return (eg_cuda_counts){0};
    return (eg_cuda_counts){workspace + region->offset, (int64_t)(region->bytes / sizeof(uint32_t))};
}

/* Whether the kernel of the first step sets them to 0 for those that follow. */
static bool first_clears(const eg_plan *plan) {
    const eg_cuda_kernel *row = plan->step[0].kernel;
    return row->family == EG_CUDA_VECTORS || (row->family == EG_CUDA_TMA && plan->step[0].cut == 0);
}

static eg_status clear_counts(const eg_cuda_run *run) {
    const eg_cuda_counts *all = &run->counts;
    if (all->count == 0 || first_clears(run->plan)) return EG_OK;
    return eg_cuda_check(run->device,
                         run->device->driver->cuMemsetD32Async(all->data, 0, (size_t)all->count, run->stream),
                         "cuMemsetD32Async");
}

/* ---- The element-wise pass ------------------------------------------------------------------------- */

/* x from an item and a row of it on. */
static eg_cuda_matrix from(eg_cuda_matrix x, int64_t item, int64_t row) {
    if (x.data == 0) return x;
    x.data += (uint64_t)(item * x.item_stride + row * x.row_stride) * eg_dtype_size((eg_dtype)x.dtype);
    return x;
}

static eg_cuda_act_grad act_grad_of(const eg_cuda_run *run) {
    const eg_problem *p = run->problem;
    const int multiprocessors = run->device->caps.multiprocessors;
    const uint64_t sums = run->workspace + run->plan->region[EG_BUFFER_SUMS].offset;
    return (eg_cuda_act_grad){.grad = eg_cuda_matrix_of(p, EG_OP_GRAD),
                              .saved = eg_cuda_matrix_of(p, EG_OP_SAVED),
                              .out = eg_cuda_act_grad_out(run->plan, run->workspace),
                              .sums = eg_wants(p, EG_OP_D_BIAS) ? sums : 0,
                              .counts = run->counts,
                              .rows = eg_cuda_head(multiprocessors, run->plan),
                              .cols = p->n,
                              .items = p->batch,
                              .chunks = eg_cuda_chunks(multiprocessors, run->plan),
                              .activation = (int32_t)p->activation,
                              .source = (int32_t)p->source,
                              .propagate = p->propagate};
}

/* The rows after those, and their sums after those. */
static eg_cuda_act_grad rest_of(const eg_cuda_run *run) {
    eg_cuda_act_grad x = act_grad_of(run);
    x.grad = from(x.grad, 0, x.rows);
    x.saved = from(x.saved, 0, x.rows);
    x.out = from(x.out, 0, x.rows);
    if (x.sums != 0) x.sums += (uint64_t)(x.chunks * x.cols) * sizeof(float);
    x.rows = run->problem->m - x.rows;
    x.chunks = eg_cuda_rest_chunks(run->device->caps.multiprocessors, run->plan);
    return x;
}

/* d_bias, or that of the layer below, from the sums of rows that a step has left. */
static eg_cuda_column_sum sum_of(const eg_cuda_run *run, eg_buffer_id buffer) {
    const eg_problem *p = run->problem;
    eg_cuda_column_sum sum =
        eg_cuda_last_sum(run->device->caps.multiprocessors, run->plan, run->workspace, buffer);
    sum.out = eg_cuda_matrix_of(p, buffer == EG_BUFFER_SUMS ? EG_OP_D_BIAS : EG_OP_D_BIAS_BELOW);
    sum.accumulate = p->accumulate;
    if (empty(p)) sum.rows = 0;
    return sum;
}

/* ---- Products ------------------------------------------------------------------------------------- */

/* The last row for a step takes any product. */
static const eg_cuda_kernel *fallback(const eg_problem *p) {
    const eg_cuda_kernel *row, *last = NULL;
    for (int i = 0; (row = eg_cuda_kernel_row(i)) != NULL; i++) {
        if (row->kind == EG_STEP_GEMM && row->compute == p->compute && row->family == EG_CUDA_STRIDED)
            last = row;
    }
    return last;
}

/* Each product has counts of its own, the last of all. */
static eg_cuda_cut cut_of(const eg_cuda_run *run, const eg_step *step, const eg_cuda_gemm *x) {
    const int multiprocessors = run->device->caps.multiprocessors;
    const int64_t each = eg_cuda_cut_counts(multiprocessors) / EG_PRODUCTS;
    const int64_t before = run->counts.count - (EG_PRODUCTS - (int64_t)step->product) * each;
    double saved;
    if (step->cut == 0) return (eg_cuda_cut){0};
    eg_cuda_cut cut = eg_cuda_cut_of(multiprocessors, step->kernel, x, true, &saved);
    cut.sums = run->workspace + run->plan->region[EG_BUFFER_SCRATCH].offset;
    cut.counts = run->counts.data + (uint64_t)before * sizeof(uint32_t);
    return cut;
}

static eg_status launch_tiles(const eg_cuda_run *run, const eg_step *step, const eg_cuda_kernel *row,
                              eg_cuda_gemm gemm) {
    const int64_t tiles = eg_cuda_tiles(row, &gemm);
    if (row->family == EG_CUDA_STRIDED) return enqueue(run, row, tiles, &gemm);
    eg_cuda_hopper hopper = {.gemm = gemm, .high = eg_cuda_high(run->plan), .cut = cut_of(run, step, &gemm)};
    int64_t blocks = 0;
    if (step == &run->plan->step[0] && first_clears(run->plan)) hopper.counts = run->counts;
    if ((row->takes & EG_CUDA_REST) != 0) hopper.rest = rest_of(run);
    EG_TRY(eg_cuda_hopper_prepare(run->device, row, &hopper, &blocks));
    return enqueue(run, row, blocks, &hopper);
}

static eg_status prepare_pooled(const eg_cuda_run *run, const eg_cuda_kernel *row, eg_product product,
                                eg_cuda_hopper *hopper) {
    const eg_step step = {.kind = EG_STEP_GEMM, .product = product, .epilogue = EG_EPILOGUE_STORE};
    int64_t blocks;
    hopper->gemm = eg_cuda_product(run->plan, &step, run->workspace);
    hopper->high = eg_cuda_high(run->plan);
    return eg_cuda_hopper_prepare(run->device, row, hopper, &blocks);
}

/* Both products and d_bias. */
static eg_status launch_pool(const eg_cuda_run *run, const eg_cuda_kernel *row) {
    const int multiprocessors = run->device->caps.multiprocessors;
    const int64_t last = eg_cuda_pass_counts(run->plan) - 1;
    eg_cuda_pool pool = {.next_tile = run->counts.data + (uint64_t)last * sizeof(uint32_t),
                         .passers = eg_cuda_passers(multiprocessors, run->problem)};
    EG_TRY(prepare_pooled(run, row, EG_PRODUCT_D_B, &pool.d_b));
    EG_TRY(prepare_pooled(run, row, EG_PRODUCT_D_A, &pool.d_a));
    pool.d_a.rest = rest_of(run);
    if (eg_wants(run->problem, EG_OP_D_BIAS)) pool.sum = sum_of(run, EG_BUFFER_SUMS);
    return enqueue(run, row, multiprocessors / EG_CUDA_CLUSTER * EG_CUDA_CLUSTER, &pool);
}

/* Some items and rows of a product's result. */
static eg_cuda_gemm portion_of(const eg_cuda_gemm *whole, int64_t item, int64_t items, int64_t row,
                               int64_t rows) {
    eg_cuda_gemm x = *whole;
    x.items = items, x.rows = rows;
    x.left = from(x.left, item, row);
    x.right = from(x.right, item, 0);
    x.out = from(x.out, item, row);
    x.second = from(x.second, item, row);
    x.in = from(x.in, item, row);
    return x;
}

/* By the kernel that the plan has for its last sum: there is one where there are sums. */
static eg_status sum_columns(const eg_cuda_run *run, CUstream stream, eg_cuda_column_sum sum) {
    const eg_step *step = run->plan->step;
    while (step->kind != EG_STEP_COLUMN_SUM) step++;
    const eg_cuda_kernel *row = step->kernel;
    return enqueue_on(run, stream, row, eg_ceil_div(sum.cols, row->tile_cols), &sum);
}

/* The sums of a portion, from their buffer to its row of totals. */
static eg_cuda_column_sum to_total(const eg_cuda_run *run, uint64_t sums, int64_t cols, int64_t total) {
    const eg_dtype compute = run->problem->compute;
    const uint64_t to = sums + (uint64_t)(total * cols) * eg_dtype_size(compute);
    return (eg_cuda_column_sum){
        .sums = sums, .out = {.data = to, .col_stride = 1, .dtype = (int32_t)compute}, .cols = cols};
}

/* A kernel that makes column sums of its result, in portions that there is room for the sums of. */
static eg_status launch_summed(const eg_cuda_run *run, const eg_step *step, const eg_cuda_kernel *row,
                               const eg_cuda_gemm *x) {
    const int64_t chunk = eg_cuda_sum_rows(row);
    const eg_cuda_portions by = eg_cuda_portions_of(run->plan, x->cols, x->items, x->rows, chunk);
    if (x->sums == 0 || by.total == 0) return launch_tiles(run, step, row, *x);
    eg_cuda_column_sum sum = to_total(run, x->sums, x->cols, by.total);
    for (int64_t item = 0; item < x->items; item += by.items) {
        for (int64_t first = 0; first < x->rows; first += by.rows) {
            const int64_t items = eg_least(by.items, x->items - item),
                          rows = eg_least(by.rows, x->rows - first);
            EG_TRY(launch_tiles(run, step, row, portion_of(x, item, items, first, rows)));
            sum.rows = items * eg_ceil_div(rows, chunk);
            EG_TRY(sum_columns(run, run->stream, sum));
            sum.accumulate = true;
        }
    }
    return EG_OK;
}

static eg_status launch_gemm(const eg_cuda_run *run, const eg_step *step) {
    const eg_cuda_kernel *row = step->kernel;
    eg_cuda_gemm gemm = eg_cuda_product(run->plan, step, run->workspace);
    gemm.multiprocessors = run->device->caps.multiprocessors;
    if (gemm.rows == 0 || gemm.cols == 0 || gemm.items == 0) return EG_OK;
    if (row->family == EG_CUDA_POOL)
        return step == eg_cuda_rest_step(run->plan) ? launch_pool(run, row) : EG_OK;
    if (row->family == EG_CUDA_LIBRARY) {
        const eg_region *scratch = &run->plan->region[EG_BUFFER_SCRATCH];
        bool done = false;
        EG_TRY(eg_cuda_lt_gemm(run->device, &gemm, run->problem->math, run->workspace + scratch->offset,
                               scratch->bytes, run->stream, &done));
        if (done) return wait_if_checked(run, run->stream, row->name);
        row = fallback(run->problem);
    }
    return launch_summed(run, step, row, &gemm);
}

/* ---- The element-wise step ------------------------------------------------------------------------- */

/* Rows of vectors, in portions of items. */
static eg_status launch_vectors(const eg_cuda_run *run, const eg_cuda_kernel *row) {
    const eg_cuda_act_grad all = act_grad_of(run);
    eg_cuda_portions by = eg_cuda_portions_of(run->plan, all.cols, all.items, all.chunks, 1);
    if (all.sums == 0) by = (eg_cuda_portions){.items = all.items};
    eg_cuda_column_sum sum = to_total(run, all.sums, all.cols, by.total);
    for (int64_t item = 0; item < all.items; item += by.items) {
        eg_cuda_act_grad x = all;
        x.items = eg_least(by.items, all.items - item);
        x.grad = from(all.grad, item, 0);
        x.saved = from(all.saved, item, 0);
        x.out = from(all.out, item, 0);
        sum.rows = x.items * x.chunks;
        const int64_t blocks = sum.rows * eg_ceil_div(x.cols, row->tile_cols);
        EG_TRY(enqueue(run, row, blocks > 0 ? blocks : x.counts.count != 0, &x));
        if (by.total > 0) EG_TRY(sum_columns(run, run->stream, sum));
        sum.accumulate = true;
    }
    return EG_OK;
}

static eg_status launch_act_grad(const eg_cuda_run *run, const eg_step *step) {
    const eg_cuda_kernel *row = step->kernel;
    if (empty(run->problem)) return EG_OK;
    if (row->family == EG_CUDA_VECTORS) return launch_vectors(run, row);
    const eg_cuda_gemm gemm = eg_cuda_act_grad_gemm(run->plan, run->workspace);
    return launch_summed(run, step, row, &gemm);
}

static eg_status launch_column_sum(const eg_cuda_run *run, const eg_step *step, CUstream stream) {
    const eg_cuda_kernel *row = step->kernel;
    if (row->family == EG_CUDA_POOL) return EG_OK;
    return sum_columns(run, stream, sum_of(run, step->buffer));
}

/* ---- Beside the products --------------------------------------------------------------------------- */

/* The stream `later` goes on when what `earlier` has now is done. Events are captured like kernels. */
static eg_status follow(const eg_cuda_run *run, CUstream earlier, CUstream later, CUevent event) {
    const eg_cuda_driver *driver = run->device->driver;
    EG_TRY(eg_cuda_check(run->device, driver->cuEventRecord(event, earlier), "cuEventRecord"));
    return eg_cuda_check(run->device, driver->cuStreamWaitEvent(later, event, 0), "cuStreamWaitEvent");
}

static const eg_step *find_column_sum(const eg_plan *plan) {
    for (int i = 0; i < plan->steps; i++) {
        const eg_step *step = &plan->step[i];
        if (step->kind == EG_STEP_COLUMN_SUM && step->buffer == EG_BUFFER_SUMS) return step;
    }
    return NULL;
}

/* A sum that runs on its own stream beside the products, which leave room for it: after them it would cost
 * its whole length. */
static eg_status launch_beside(const eg_cuda_run *run, const eg_step *sum) {
    EG_TRY(follow(run, run->stream, run->device->side, run->device->fork));
    return launch_column_sum(run, sum, run->device->side);
}

/* ---- A call ---------------------------------------------------------------------------------------- */

static eg_status launch_step(const eg_cuda_run *run, const eg_step *step) {
    switch (step->kind) {
    case EG_STEP_PACK: /* the kernels read operands as they are */
        return EG_OK;
    case EG_STEP_GEMM:
        return launch_gemm(run, step);
    case EG_STEP_ACT_GRAD:
        return launch_act_grad(run, step);
    case EG_STEP_COLUMN_SUM:
        return launch_column_sum(run, step, run->stream);
    }
    return EG_OK;
}

void eg_cuda_name_kernels(eg_cuda_device *device, const eg_plan *plan) {
    device->names = plan->steps;
    for (int i = 0; i < plan->steps; i++) device->name[i] = plan->step[i].name;
}

eg_status eg_cuda_enqueue(eg_cuda_device *device, const eg_plan *plan, uint64_t workspace, CUstream stream) {
    const eg_cuda_run run = {.device = device,
                             .plan = plan,
                             .problem = &plan->problem,
                             .workspace = workspace,
                             .stream = stream,
                             .counts = counts_of(plan, workspace)};
    const eg_step *sum = find_column_sum(plan), *rest = eg_cuda_rest_step(plan);
    const eg_step *maker = rest != NULL ? rest : &plan->step[0];
    bool beside = false;
    eg_cuda_name_kernels(device, plan);
    EG_TRY(clear_counts(&run));
    for (int i = 0; i < plan->steps; i++) {
        const eg_step *step = &plan->step[i];
        if (step == sum && beside) continue;
        EG_TRY(launch_step(&run, step));
        if (step == maker && sum != NULL && sum != step + 1 && !eg_cuda_pools(plan)) { /* products follow */
            EG_TRY(launch_beside(&run, sum));
            beside = true;
        }
    }
    return beside ? follow(&run, device->side, stream, device->join) : EG_OK;
}
