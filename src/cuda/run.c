/* SPDX-License-Identifier: Apache-2.0 */
/* Enqueues the steps of a program: each is a kernel, once or for each portion, with the call's addresses. */
#include "core/collectives.h"
#include "core/error.h"
#include "device.h"
#include "gated_maps.h"
#include "hopper.h"
#include "pairs.h"
#include "parameters.h"
#include "partition.h"
#include "whole_sums.h"
#include "takes.h"

typedef struct eg_cuda_run {
    eg_cuda_device *device;
    eg_cuda_binding binding;
    CUstream main;        /* of the call */
    CUstream stream;      /* of the step: main, or the side stream */
    eg_cuda_nodes *nodes; /* NULL: nobody asks for them */
} eg_cuda_run;

/* The nodes of a graph are changed, and nothing is enqueued. */
static bool changes(const eg_cuda_run *run) { return run->nodes != NULL && run->nodes->made != NULL; }

static eg_status note(const eg_cuda_run *run, CUstream stream) {
    return run->nodes != NULL ? eg_cuda_note_node(run->device, run->nodes, stream) : EG_OK;
}

/* With EPIGRAD_CUDA_CHECK every kernel is waited for, so that an error names the kernel that failed. */
static eg_status wait_if_checked(const eg_cuda_run *run, CUstream stream, const char *name) {
    CUstreamCaptureStatus capturing = CU_STREAM_CAPTURE_STATUS_NONE;
    if (!run->device->checked) return EG_OK;
    run->device->driver->cuStreamIsCapturing(stream, &capturing);
    if (capturing != CU_STREAM_CAPTURE_STATUS_NONE) return EG_OK;
    return eg_cuda_check(run->device, run->device->driver->cuStreamSynchronize(stream), name);
}

/* `clusters`, each of so many blocks, may be any number: where the grid is smaller, they make several tiles.
 * On the main stream a kernel is set up while its predecessor drains (order.cuh). */
static eg_status enqueue_clusters(const eg_cuda_run *run, CUstream stream, const eg_cuda_kernel *row,
                                  int64_t clusters, unsigned blocks, int shared, void *parameter) {
    const int index = (int)(row - eg_cuda_kernel_row(0)), overlaps = stream == run->main;
    const int64_t most = 0x7fffffff / blocks;
    CUlaunchAttribute attributes[2] = {{.id = CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION}};
    attributes[0].value.programmaticStreamSerializationAllowed = 1;
    CUlaunchAttribute *cluster = &attributes[overlaps];
    if (blocks > 1) {
        cluster->id = CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION;
        cluster->value.clusterDim.x = blocks, cluster->value.clusterDim.y = cluster->value.clusterDim.z = 1;
    }
    const CUlaunchConfig config = {.gridDimX = (unsigned)(clusters < most ? clusters : most) * blocks,
                                   .gridDimY = 1,
                                   .gridDimZ = 1,
                                   .blockDimX = (unsigned)row->threads,
                                   .blockDimY = 1,
                                   .blockDimZ = 1,
                                   .sharedMemBytes = (unsigned)shared,
                                   .hStream = stream,
                                   .attrs = attributes,
                                   .numAttrs = (unsigned)overlaps + (blocks > 1)};
    void *parameters[] = {parameter};
    CUfunction function = run->device->functions[index];
    if (changes(run)) return eg_cuda_change_kernel(run->device, run->nodes, &config, function, parameters);
    EG_TRY(eg_cuda_check(
        run->device, run->device->driver->cuLaunchKernelEx(&config, function, parameters, NULL), row->name));
    EG_TRY(note(run, stream));
    return wait_if_checked(run, stream, row->name);
}

static eg_status enqueue(const eg_cuda_run *run, CUstream stream, const eg_cuda_kernel *row, int64_t blocks,
                         void *parameter) {
    return enqueue_clusters(run, stream, row, blocks, 1, row->shared, parameter);
}

/* ---- Column sums ---------------------------------------------------------------------------------- */

static eg_status sum_columns(const eg_cuda_run *run, CUstream stream, const eg_cuda_kernel *row,
                             eg_cuda_column_sum sum) {
    const int64_t groups = sum.ends != 0 ? sum.groups : 1;
    return enqueue(run, stream, row, groups * eg_ceil_div(sum.cols, row->tile_cols), &sum);
}

/* Adds the sums of a portion, which are `rows` rows, to the total of the portions before it. */
static eg_status sum_portion(const eg_cuda_run *run, const eg_cuda_step *detail, uint64_t sums, int64_t cols,
                             int64_t rows, bool first) {
    if (detail->portions.total == 0) return EG_OK;
    eg_cuda_column_sum sum =
        eg_cuda_portion_sum_of(sums, cols, detail->portions.total, run->binding.program->list.compute);
    sum.rows = rows;
    sum.accumulate = !first;
    return sum_columns(run, run->main, detail->sum_kernel, sum);
}

/* ---- Products ------------------------------------------------------------------------------------- */

static eg_cuda_gemm gemm_of_step(const eg_cuda_binding *binding, const eg_step *step) {
    const eg_cuda_step *detail = eg_cuda_detail(step);
    eg_cuda_gemm x = eg_cuda_gemm_of_part(binding, detail->op, (eg_cuda_part)detail->part);
    eg_cuda_take_total(binding, detail, &x.total, &x.add_to_total);
    return x;
}

static eg_cuda_hopper hopper_of(const eg_cuda_run *run, const eg_cuda_step *detail, const eg_cuda_gemm *x) {
    const eg_cuda_tail *tail = &detail->tail;
    eg_cuda_hopper hopper = {.gemm = *x, .tma_cols = detail->tma_cols};
    if (tail->tiles > 0) {
        hopper.tail = (eg_cuda_stream_k){.sums = eg_cuda_region_of(&run->binding, EG_CUDA_SCRATCH),
                                         .counts = eg_cuda_counters_of(&run->binding).data +
                                                   (uint64_t)tail->counter * sizeof(uint32_t),
                                         .tiles = tail->tiles,
                                         .helpers = tail->helpers,
                                         .owner_k_blocks = tail->owner_k_blocks};
    }
    if (detail->clears) hopper.counts = eg_cuda_counters_of(&run->binding);
    if (detail->left_reduce != 0) {
        const eg_op *reduce = &run->binding.program->list.op[detail->left_reduce];
        hopper.left_sums = eg_cuda_matrix_of(&run->binding, &reduce->out);
        hopper.add_to_left_sums = reduce->accumulate;
    }
    return hopper;
}

/* The code of a persistent kernel says itself how large its clusters are. */
static unsigned blocks_of_cluster(const eg_cuda_kernel *row, int splits) {
    if (row->family != EG_CUDA_TMA_SPLIT) return 1;
    return (unsigned)(eg_cuda_cluster_tiles(row) * (splits > 1 ? splits : 1));
}

static eg_status run_tiles(const eg_cuda_run *run, const eg_cuda_step *detail, eg_cuda_gemm gemm) {
    const eg_cuda_kernel *row = detail->kernel;
    const int64_t tiles = eg_cuda_count_tiles(row, &gemm);
    gemm.multiprocessors = run->device->caps.multiprocessors;
    gemm.wrong = run->device->wrong_at;
    if (row->family == EG_CUDA_STRIDED)
        return enqueue(run, run->stream, row, eg_cuda_blocks_of(row, &gemm), &gemm);
    gemm.splits = detail->splits;
    if ((row->family == EG_CUDA_TMA_SPLIT || row->family == EG_CUDA_STREAMED) && gemm.accumulate != 0)
        gemm.in = gemm.out;
    if (row->family == EG_CUDA_SPLIT || row->family == EG_CUDA_STREAMED)
        return enqueue_clusters(run, run->stream, row, tiles, detail->splits, row->shared, &gemm);
    eg_cuda_hopper hopper = hopper_of(run, detail, &gemm);
    int64_t blocks = 0;
    EG_TRY(eg_cuda_hopper_prepare(run->device, row, &hopper, &blocks));
    hopper.gemm = eg_cuda_in_vectors(row, (eg_cuda_part)detail->part, &hopper.gemm);
    return enqueue_clusters(run, run->main, row, blocks, blocks_of_cluster(row, detail->splits),
                            eg_cuda_shared_of(row, &hopper.gemm, detail->splits), &hopper);
}

/* Two products by one launch. */
static eg_status run_pair(const eg_cuda_run *run, const eg_step *step) {
    const eg_cuda_step *detail = eg_cuda_detail(step);
    eg_cuda_pair_ops ops;
    eg_cuda_find_pair(&run->binding.program->list, detail->op, &ops);
    eg_cuda_pair x = eg_cuda_pair_of(&run->binding, &ops);
    eg_cuda_hopper_pair both;
    int64_t blocks;
    eg_cuda_count_tiles(detail->kernel, &x.gate);
    eg_cuda_count_tiles(detail->kernel, &x.up);
    both.gate = hopper_of(run, detail, &x.gate), both.up = hopper_of(run, detail, &x.up);
    EG_TRY(eg_cuda_hopper_prepare_pair(run->device, detail->kernel, &both, &blocks));
    return enqueue(run, run->main, detail->kernel, blocks, &both);
}

/* In portions whose column sums the workspace has room for. */
static eg_status run_gemm(const eg_cuda_run *run, const eg_step *step) {
    const eg_cuda_step *detail = eg_cuda_detail(step);
    const eg_cuda_portions *by = &detail->portions;
    const eg_cuda_gemm x = gemm_of_step(&run->binding, step);
    if (step->launches == 1) return run_tiles(run, detail, x);
    for (int64_t item = 0; item < x.items; item += by->items) {
        for (int64_t first = 0; first < x.rows; first += by->rows) {
            const int64_t items = eg_least(by->items, x.items - item),
                          rows = eg_least(by->rows, x.rows - first);
            EG_TRY(run_tiles(run, detail, eg_cuda_part_of(&x, item, items, first, rows)));
            EG_TRY(sum_portion(run, detail, x.sums, x.cols, items * eg_cuda_sums_of(detail->kernel, rows),
                               item == 0 && first == 0));
        }
    }
    return EG_OK;
}

static eg_status run_library(const eg_cuda_run *run, const eg_step *step) {
    const eg_program *program = run->binding.program;
    const eg_cuda_gemm x = gemm_of_step(&run->binding, step);
    EG_TRY(eg_cuda_lt_enqueue(run->device, &x, program->list.math, eg_cuda_detail(step)->algorithm,
                              eg_cuda_region_of(&run->binding, EG_CUDA_SCRATCH),
                              program->region[EG_CUDA_SCRATCH].bytes, run->main));
    return wait_if_checked(run, run->main, step->kernel);
}

/* ---- Maps ----------------------------------------------------------------------------------------- */

/* A cluster for every few columns, of which it has all rows. */
static eg_status run_whole_sums(const eg_cuda_run *run, const eg_cuda_kernel *row, eg_cuda_act_grad x) {
    const int blocks = eg_whole_sums_blocks(x.rows);
    x.chunks = blocks;
    return enqueue_clusters(run, run->stream, row, eg_ceil_div(x.cols, row->tile_cols), (unsigned)blocks,
                            row->shared, &x);
}

/* Rows of vectors, in portions of items. Without rows there may still be counters to clear. */
static eg_status run_vectors(const eg_cuda_run *run, const eg_step *step) {
    const eg_cuda_step *detail = eg_cuda_detail(step);
    const eg_cuda_kernel *row = detail->kernel;
    const eg_cuda_act_grad all = eg_cuda_act_grad_of(&run->binding, step->op, detail);
    if ((row->takes & EG_CUDA_WHOLE_SUMS) != 0) return run_whole_sums(run, row, all);
    for (int64_t item = 0; item < all.items; item += detail->portions.items) {
        eg_cuda_act_grad x = all;
        x.wrong = run->device->wrong_at;
        x.items = eg_least(detail->portions.items, all.items - item);
        x.grad = eg_cuda_from(all.grad, item, 0);
        x.saved = eg_cuda_from(all.saved, item, 0);
        x.out = eg_cuda_from(all.out, item, 0);
        const int64_t chunks = x.items * x.chunks, blocks = chunks * eg_ceil_div(x.cols, row->tile_cols);
        EG_TRY(enqueue(run, run->stream, row, blocks > 0 ? blocks : 1, &x));
        EG_TRY(sum_portion(run, detail, all.sums, all.cols, chunks, item == 0));
    }
    return EG_OK;
}

/* Both gradients of a gated unit. */
static eg_status run_gated(const eg_cuda_run *run, const eg_step *step) {
    const eg_cuda_step *detail = eg_cuda_detail(step);
    eg_cuda_gated_ops ops;
    eg_cuda_find_gated(&run->binding.program->list, detail->op, &ops);
    eg_cuda_gated x = eg_cuda_gated_of(&run->binding, &ops);
    x.wrong = run->device->wrong_at;
    x.chunks = detail->map_chunks;
    const int64_t blocks = x.items * x.chunks * eg_ceil_div(x.cols, detail->kernel->tile_cols);
    return enqueue(run, run->stream, detail->kernel, blocks, &x);
}

/* ---- A call --------------------------------------------------------------------------------------- */

/* Events are captured like kernels, and become edges of the graph, which stay as they are. */
static eg_status record(const eg_cuda_run *run, CUevent event, CUstream stream) {
    if (changes(run)) return EG_OK;
    return eg_cuda_check(run->device, run->device->driver->cuEventRecord(event, stream), "cuEventRecord");
}

static eg_status wait_for(const eg_cuda_run *run, CUevent event, CUstream stream) {
    if (changes(run)) return EG_OK;
    return eg_cuda_check(run->device, run->device->driver->cuStreamWaitEvent(stream, event, 0),
                         "cuStreamWaitEvent");
}

/* The stream `later` continues when what is on `earlier` now is done. */
static eg_status follow(const eg_cuda_run *run, CUstream earlier, CUstream later, CUevent event) {
    EG_TRY(record(run, event, earlier));
    return wait_for(run, event, later);
}

/* A sum that runs beside the next steps has a stream of its own. */
static eg_status run_reduce(const eg_cuda_run *run, const eg_step *step) {
    const eg_cuda_step *detail = eg_cuda_detail(step);
    if (detail->part == EG_CUDA_ADD_UP)
        return sum_columns(run, run->stream, detail->kernel, eg_cuda_chunk_sum_of(&run->binding, step->op));
    if (detail->waits) EG_TRY(wait_for(run, run->device->fork, run->stream));
    return sum_columns(run, run->stream, detail->kernel,
                       eg_cuda_column_sum_of(&run->binding, step->op, detail));
}

static eg_status clear_counters(const eg_cuda_run *run, const eg_step *step) {
    const eg_cuda_counts all = eg_cuda_counters_of(&run->binding);
    return eg_cuda_check(run->device,
                         run->device->driver->cuMemsetD32Async(all.data, 0, (size_t)all.count, run->main),
                         step->kernel);
}

/* On the side stream, so that it goes on beside the products; they are waited for at the end. */
static eg_status run_collective(const eg_cuda_run *run, const eg_step *step) {
    eg_collectives *collectives = run->binding.call->collectives;
    const eg_program *program = run->binding.program;
    const bool ends = program->list.op[step->op].collective == EG_FINISH;
    if (ends && collectives->overlaps) EG_TRY(follow(run, run->device->side, run->main, run->device->join));
    if (ends || !collectives->overlaps) return eg_collectives_step(collectives, program, step, run->main);
    EG_TRY(follow(run, run->main, run->device->side, run->device->fork));
    return eg_collectives_step(collectives, program, step, run->device->side);
}

static eg_status run_step(const eg_cuda_run *run, const eg_step *step) {
    if (step->kind == EG_COLLECTIVE) return run_collective(run, step);
    if (eg_cuda_detail(step)->kernel == NULL) return clear_counters(run, step);
    switch (eg_cuda_detail(step)->kernel->family) {
    case EG_CUDA_LIBRARY:
        return run_library(run, step);
    case EG_CUDA_STRIDED:
    case EG_CUDA_SPLIT:
    case EG_CUDA_STREAMED:
    case EG_CUDA_TMA:
    case EG_CUDA_TMA_SPLIT:
    case EG_CUDA_TMA_TILES:
        return run_gemm(run, step);
    case EG_CUDA_PAIR:
        return run_pair(run, step);
    case EG_CUDA_VECTORS:
        return run_vectors(run, step);
    case EG_CUDA_GATED:
        return run_gated(run, step);
    case EG_CUDA_SUMS:
        return run_reduce(run, step);
    }
    return EG_OK;
}

bool eg_cuda_library_takes(eg_cuda_device *device, const eg_program *program, const eg_call *call) {
    const eg_cuda_binding binding = {.program = program, .call = call};
    for (int i = 0; i < program->steps && program->may_refuse; i++) {
        const eg_step *step = &program->step[i];
        const eg_cuda_kernel *row = eg_cuda_detail(step)->kernel;
        if (row == NULL || row->family != EG_CUDA_LIBRARY) continue;
        const eg_cuda_gemm x = gemm_of_step(&binding, step);
        if (!eg_cuda_lt_takes(device, &x, program->list.math, eg_cuda_detail(step)->algorithm,
                              program->region[EG_CUDA_SCRATCH].bytes))
            return false;
    }
    return true;
}

void eg_cuda_name_kernels(eg_cuda_device *device, const eg_program *program) {
    device->names = program->steps;
    for (int i = 0; i < program->steps; i++) device->name[i] = program->step[i].kernel;
}

/* Before anything is enqueued: a call that fails has written nothing. */
static eg_status load_kernels(eg_cuda_device *device, const eg_program *program) {
    for (int i = 0; i < program->steps; i++) {
        const eg_cuda_step *detail = eg_cuda_detail(&program->step[i]);
        if (program->step[i].kind == EG_COLLECTIVE) continue;
        if (detail->kernel != NULL) EG_TRY(eg_cuda_load_row(device, detail->kernel));
        if (detail->sum_kernel != NULL) EG_TRY(eg_cuda_load_row(device, detail->sum_kernel));
    }
    return EG_OK;
}

eg_status eg_cuda_enqueue(eg_cuda_device *device, const eg_program *program, const eg_call *call,
                          CUstream stream, eg_cuda_nodes *nodes) {
    eg_cuda_run run = {
        .device = device, .binding = {.program = program, .call = call}, .main = stream, .nodes = nodes};
    bool beside = false, forks = false;
    EG_TRY(load_kernels(device, program));
    eg_cuda_name_kernels(device, program);
    for (int i = 0; i < program->steps; i++)
        forks = forks || (program->step[i].beside && program->step[i].kind == EG_MAP);
    for (int i = 0; i < program->steps; i++) {
        const eg_step *step = &program->step[i];
        /* A map on the side stream waits for no product, but for the padded copies, of which it reads one. */
        if (forks && eg_cuda_detail(step)->part != EG_CUDA_PAD) {
            EG_TRY(follow(&run, stream, device->side, device->fork));
            forks = false, beside = true;
        }
        run.stream = step->beside ? device->side : stream;
        EG_TRY(run_step(&run, step));
        if (eg_cuda_detail(step)->forks) EG_TRY(record(&run, device->fork, stream));
        beside = beside || (step->beside && step->kind != EG_COLLECTIVE);
    }
    return beside ? follow(&run, device->side, stream, device->join) : EG_OK;
}
