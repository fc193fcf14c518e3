/* Enqueues the steps of a plan: each is one kernel, with its parameters built here. */
#include <string.h>

#include "../error.h"
#include "device.h"
#include "hopper.h"

typedef struct eg_cuda_run {
    eg_cuda_device *device;
    const eg_plan *plan;
    const eg_problem *problem;
    uint64_t workspace;
    CUstream stream;
} eg_cuda_run;

static int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

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

static eg_status launch_gemm(const eg_cuda_run *run, const eg_step *step) {
    const eg_cuda_kernel *row = step->kernel;
    eg_cuda_gemm gemm = eg_cuda_product(run->plan, step, run->workspace);
    gemm.multiprocessors = run->device->caps.multiprocessors;
    if (gemm.rows == 0 || gemm.cols == 0 || gemm.items == 0) return EG_OK;
    if (row->family == EG_CUDA_LIBRARY) {
        const eg_region *scratch = &run->plan->region[EG_BUFFER_SCRATCH];
        bool done = false;
        EG_TRY(eg_cuda_lt_gemm(run->device, &gemm, run->problem->math, run->workspace + scratch->offset,
                               scratch->bytes, run->stream, &done));
        if (done) return wait_if_checked(run, run->stream, row->name);
        row = fallback(run->problem);
    }
    const int64_t tiles = eg_cuda_tiles(row, &gemm);
    if (row->family != EG_CUDA_TMA) return enqueue(run, row, tiles, &gemm);
    eg_cuda_hopper hopper = {.gemm = gemm};
    int64_t blocks = 0;
    EG_TRY(eg_cuda_hopper_prepare(run->device, row, &hopper, &blocks));
    return enqueue(run, row, blocks, &hopper);
}

/* ---- The element-wise steps ------------------------------------------------------------------------ */

static eg_status launch_act_grad(const eg_cuda_run *run, const eg_step *step) {
    const eg_problem *p = run->problem;
    const eg_cuda_kernel *row = step->kernel;
    const uint64_t sums =
        eg_wants(p, EG_OP_D_BIAS) ? run->workspace + run->plan->region[EG_BUFFER_SUMS].offset : 0;
    if (p->m == 0 || p->n == 0 || p->batch == 0) return EG_OK;
    if (row->family == EG_CUDA_STRIDED) {
        eg_cuda_gemm gemm = {.rows = p->m, .cols = p->n, .items = p->batch, .epilogue = EG_EPILOGUE_ACT_GRAD};
        gemm.left = eg_cuda_matrix_of(p, EG_OP_SAVED);
        gemm.in = eg_cuda_matrix_of(p, EG_OP_GRAD);
        gemm.out = eg_cuda_act_grad_out(run->plan, run->workspace);
        gemm.sums = sums;
        gemm.activation = (int32_t)p->activation;
        gemm.source = (int32_t)p->source;
        gemm.propagate = p->propagate;
        return enqueue(run, row, eg_cuda_tiles(row, &gemm), &gemm);
    }
    eg_cuda_act_grad x = {.grad = eg_cuda_matrix_of(p, EG_OP_GRAD),
                          .saved = eg_cuda_matrix_of(p, EG_OP_SAVED),
                          .out = eg_cuda_act_grad_out(run->plan, run->workspace),
                          .sums = sums,
                          .rows = p->m,
                          .cols = p->n,
                          .items = p->batch,
                          .chunks = ceil_div(p->m, step->tile_rows),
                          .chunk_rows = step->tile_rows,
                          .activation = (int32_t)p->activation,
                          .source = (int32_t)p->source,
                          .propagate = p->propagate};
    return enqueue(run, row, x.items * x.chunks * ceil_div(x.cols, row->tile_cols), &x);
}

/* The rows of sums are those of the step that made them. */
static int64_t chunk_rows(const eg_plan *plan, eg_buffer_id buffer) {
    const eg_epilogue epilogue = buffer == EG_BUFFER_SUMS ? EG_EPILOGUE_ACT_GRAD : EG_EPILOGUE_CHAIN;
    for (int i = 0; i < plan->steps; i++) {
        const eg_step *step = &plan->step[i];
        if (step->kind == EG_STEP_ACT_GRAD && buffer == EG_BUFFER_SUMS) return step->tile_rows;
        if (step->kind == EG_STEP_GEMM && step->epilogue == epilogue) return eg_cuda_sum_rows(step->kernel);
    }
    return 1;
}

static eg_status launch_column_sum(const eg_cuda_run *run, const eg_step *step, CUstream stream) {
    const eg_problem *p = run->problem;
    const eg_cuda_kernel *row = step->kernel;
    const bool below = step->buffer == EG_BUFFER_SUMS_BELOW;
    eg_cuda_column_sum x = {.sums = run->workspace + run->plan->region[step->buffer].offset,
                            .out = eg_cuda_matrix_of(p, below ? EG_OP_D_BIAS_BELOW : EG_OP_D_BIAS),
                            .rows = p->batch * ceil_div(p->m, chunk_rows(run->plan, step->buffer)),
                            .cols = below ? p->k : p->n,
                            .accumulate = p->accumulate};
    return enqueue_on(run, stream, row, ceil_div(x.cols, row->tile_cols), &x);
}

/* ---- A call ---------------------------------------------------------------------------------------- */

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

/* The short sum of d_bias runs on a stream of its own beside the products, which leave room for it: after
 * them it would cost its whole length. */
static eg_status launch_beside(const eg_cuda_run *run, const eg_step *sum) {
    EG_TRY(follow(run, run->stream, run->device->side, run->device->fork));
    return launch_column_sum(run, sum, run->device->side);
}

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
    const eg_cuda_run run = {
        .device = device, .plan = plan, .problem = &plan->problem, .workspace = workspace, .stream = stream};
    const eg_step *sum = find_column_sum(plan);
    bool beside = false;
    eg_cuda_name_kernels(device, plan);
    for (int i = 0; i < plan->steps; i++) {
        const eg_step *step = &plan->step[i];
        if (step == sum && beside) continue;
        EG_TRY(launch_step(&run, step));
        /* The first step of a backward call makes the sums; products follow it. */
        if (i == 0 && sum != NULL && sum != &plan->step[1]) {
            EG_TRY(launch_beside(&run, sum));
            beside = true;
        }
    }
    return beside ? follow(&run, device->side, stream, device->join) : EG_OK;
}
