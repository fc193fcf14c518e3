/* SPDX-License-Identifier: Apache-2.0 */
/* The CPU behind the backend interface. A call has finished when it returns. */
#include <string.h>

#include "compile.h"
#include "core/clock.h"
#include "core/collectives.h"
#include "core/error.h"
#include "cpu.h"
#include "estimate.h"
#include "kernels.h"

static eg_status cpu_open(eg_context *context, const eg_open_info *info) {
    char name[128];
    eg_caps *caps = &context->caps;
    caps->threads = info->threads > 0 ? info->threads : eg_cores_default();
    EG_TRY(eg_cpu_detect(&caps->features));
    eg_cpu_model(name, sizeof name);
    /* An emulated matrix unit costs what a real one does: the host's vector units may be faster. */
    caps->detail = eg_cpu_calibration_by_name((caps->features & EG_CPU_AMX) != 0 ? "Xeon" : name);
    EG_TRY(eg_describe(context, name, eg_cpu_feature_text(caps->features)));
    context->device = eg_threads_make(caps->threads, info, &context->allocator);
    if (context->device != NULL) return EG_OK;
    return eg_fail(EG_ERR_OUT_OF_MEMORY, "no memory for a context");
}

static void cpu_close(eg_context *context) { eg_threads_free(context->device); }

static eg_status cpu_sync(eg_context *context) {
    (void)context;
    return EG_OK;
}

static eg_status cpu_alloc(eg_context *context, size_t bytes, void **memory) {
    *memory = eg_host_alloc(context, bytes);
    return *memory != NULL ? EG_OK : eg_fail(EG_ERR_OUT_OF_MEMORY, "no memory for %zu bytes", bytes);
}

static void cpu_free(eg_context *context, void *memory) { eg_host_free(context, memory); }

static eg_status cpu_upload(eg_context *context, void *memory, size_t offset, const void *host,
                            size_t bytes) {
    (void)context;
    memcpy((char *)memory + offset, host, bytes);
    return EG_OK;
}

static eg_status cpu_download(eg_context *context, void *host, const void *memory, size_t offset,
                              size_t bytes) {
    (void)context;
    memcpy(host, (const char *)memory + offset, bytes);
    return EG_OK;
}

static void run_product(const eg_cpu_run *run, const eg_step *step) {
    switch ((eg_cpu_streams)eg_cpu_detail(step)->streams) {
    case EG_CPU_STREAMS_NONE:
        eg_cpu_gemm(run, step);
        break;
    case EG_CPU_STREAMS_RIGHT:
    case EG_CPU_STREAMS_LEFT:
        eg_cpu_few_rows(run, step);
        break;
    case EG_CPU_STREAMS_RESULT:
        eg_cpu_outer_product(run, step);
        break;
    }
}

void eg_cpu_run_step(const eg_cpu_run *run, const eg_step *step) {
    if (step->op == EG_NO_OP) {
        eg_cpu_pack(run, step);
        return;
    }
    switch (run->list->op[step->op].kind) {
    case EG_GEMM:
        run_product(run, step);
        break;
    case EG_MAP:
    case EG_COPY:
        eg_cpu_map(run, step);
        break;
    case EG_REDUCE:
        eg_cpu_reduce(run, step);
        break;
    case EG_COLLECTIVE:
        break;
    }
}

typedef struct fused_steps {
    int count;
    eg_cpu_part part[EG_CPU_FUSED_STEPS];
} fused_steps;

static void run_fused_block(void *arg, int64_t index, int thread) {
    fused_steps *fused = arg;
    for (int i = 0; i < fused->count; i++) fused->part[i].body(fused->part[i].job, index, thread);
}

/* Steps of the same blocks, block by block: as many as there are from `step` on, of `left`, at least 1. */
static int run_fused(const eg_cpu_run *run, const eg_step *step, int left) {
    fused_steps fused; /* not cleared: that would take longer than a small step */
    eg_cpu_run each = *run;
    fused.count = 0;
    do {
        each.part = &fused.part[fused.count];
        each.part->count = 0;
        eg_cpu_run_step(&each, &step[fused.count]);
        fused.count++;
    } while (fused.count < left && eg_cpu_detail(&step[fused.count])->same_blocks);
    eg_cpu_parallel(run->threads, step->threads, fused.part[0].count, run_fused_block, &fused);
    return fused.count;
}

_Static_assert((int)EG_CPU_WORKS <= (int)EG_CPU_FUSED_STEPS, "a part for each step of a fork");

/* Steps that need nothing of each other, as many as there are from `step` on, of `left`. */
static int run_beside(const eg_cpu_run *run, const eg_step *step, int left) {
    fused_steps all;
    eg_cpu_work work[EG_CPU_WORKS];
    eg_cpu_run each = *run;
    int count = 0, works = 0;
    do {
        each.part = &all.part[works];
        each.part->count = 0;
        eg_cpu_run_step(&each, &step[count]);
        if (each.part->count > 0)
            work[works++] =
                (eg_cpu_work){each.part->body, each.part->job, each.part->count, step[count].threads};
        count++;
    } while (count < left && eg_cpu_detail(&step[count])->same_fork);
    eg_cpu_parallel_all(run->threads, eg_cpu_detail(step)->fork_threads, work, works);
    return count;
}

static bool is_beside_next(const eg_program *program, int step) {
    return step + 1 < program->steps && eg_cpu_detail(&program->step[step + 1])->same_fork;
}

static bool is_fused_with_next(const eg_program *program, int step) {
    return step + 1 < program->steps && eg_cpu_detail(&program->step[step + 1])->same_blocks;
}

/* A kernel that splits numbers into bf16 terms refuses infinities, NaN and magnitudes above 2^26. Another
 * program then writes again what has been written by then. Outputs that are accumulated to are touched only
 * after everything has been split. */
static eg_status run_steps(eg_context *context, const eg_program *program, const eg_call *call,
                           bool *refused) {
    eg_cpu_run run = {.program = program,
                      .list = &program->list,
                      .call = call,
                      .threads = context->device,
                      .refused = refused,
                      .scratch_bytes = eg_cpu_scratch_bytes(program)};
    if (program->steps > 0) run.scratch = eg_cpu_region(&run, EG_CPU_SCRATCH);
    for (int i = 0; i < program->steps && !*refused; i++) {
        const eg_step *step = &program->step[i];
        if (step->kind == EG_COLLECTIVE) {
            EG_TRY(eg_collectives_step(call->collectives, program, step, NULL));
        } else if (is_fused_with_next(program, i)) {
            i += run_fused(&run, step, program->steps - i) - 1;
        } else if (is_beside_next(program, i)) {
            i += run_beside(&run, step, program->steps - i) - 1;
        } else {
            eg_cpu_run_step(&run, step);
        }
    }
    return EG_OK;
}

/* What is sent to other processes goes on while the steps run. */
static eg_status cpu_run(eg_context *context, const eg_program *program, const eg_call *call, bool *refused) {
    if (call->collectives == NULL) return run_steps(context, program, call, refused);
    eg_cpu_call_between(eg_collectives_progress, call->collectives);
    const eg_status status = run_steps(context, program, call, refused);
    eg_cpu_call_between(NULL, NULL);
    return status;
}

static eg_status cpu_pack(eg_context *context, const eg_problem *problem, eg_packed *packed) {
    size_t bytes = 0;
    if (packed->data == NULL) {
        EG_TRY(eg_cpu_plan_pack(&context->caps, problem, packed, &bytes));
        EG_TRY(cpu_alloc(context, bytes, &packed->data));
    }
    return eg_cpu_fill_pack(context, problem, packed);
}

static bool cpu_kernel_info(const eg_caps *caps, int index, eg_kernel_info *info) {
    const eg_cpu_kernel *row = eg_cpu_kernel_row(index);
    if (row == NULL) return false;
    *info = (eg_kernel_info){.name = row->name,
                             .compute = row->compute,
                             .usable = (row->needs & caps->features) == row->needs,
                             .needs = eg_cpu_needs_text(row->needs),
                             .tile = strrchr(row->name, '_') + 1};
    return true;
}

/* ---- The peak ----------------------------------------------------------------------------------- */

typedef struct peak_job {
    const eg_cpu_kernel *kernel;
    int64_t turns;
    double done; /* operations of the first thread: all do as many */
} peak_job;

static void run_peak(void *arg, int64_t index, int thread) {
    (void)thread;
    peak_job *job = arg;
    const double done = job->kernel->micro.peak(job->turns);
    if (index == 0) job->done = done;
}

/* More threads than cores would only take turns on them. */
static int peak_threads(const eg_context *context) {
    const int threads = context->caps.threads, cores = eg_cores_available();
    return threads < cores ? threads : cores;
}

/* The best of several short runs, so that a short disturbance does not count. Runs grow until they take a few
 * milliseconds, because their length is not known before. */
static eg_status cpu_measure_peak(eg_context *context, eg_dtype dtype, double *gflops) {
    const double least = 0.002, all = 0.03; /* seconds: of a run, of all of them */
    const int threads = peak_threads(context);
    eg_op_list large = {.ops = 1, .dtype = dtype, .compute = dtype == EG_F64 ? EG_F64 : EG_F32};
    large.op[0] =
        (eg_op){.kind = EG_GEMM, .items = 1, .rows = 4096, .cols = 4096, .depth = 4096, .summed = 1};
    peak_job job = {.kernel = eg_cpu_choose(&context->caps, &large), .turns = 12500};
    if (job.kernel == NULL)
        return eg_fail(EG_ERR_UNSUPPORTED, "no kernel computes in %s", eg_dtype_name(dtype));
    *gflops = 0;
    const double start = eg_seconds();
    while (eg_seconds() - start < all) {
        const double begin = eg_seconds();
        eg_cpu_parallel(context->device, threads, threads, run_peak, &job);
        const double run = eg_seconds() - begin;
        const double rate = 2e-9 * job.done * threads / run;
        if (rate > *gflops) *gflops = rate;
        if (run < least) job.turns *= 2;
    }
    return EG_OK;
}

const eg_backend_ops *eg_cpu_ops(void) {
    static const eg_backend_ops ops = {
        .open = cpu_open,
        .close = cpu_close,
        .sync = cpu_sync,
        .alloc = cpu_alloc,
        .free = cpu_free,
        .upload = cpu_upload,
        .download = cpu_download,
        .compile = eg_cpu_compile,
        .run = cpu_run,
        .plan_groups = eg_cpu_plan_groups,
        .run_groups = eg_cpu_run_groups,
        .pack = cpu_pack,
        .plan_pack = eg_cpu_plan_pack,
        .kernel_info = cpu_kernel_info,
        .measure_peak = cpu_measure_peak,
    };
    return &ops;
}
