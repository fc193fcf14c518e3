/* The CPU behind the backend interface. A call has finished when it returns. */
#include <string.h>

#include "../clock.h"
#include "../error.h"
#include "cpu.h"

static eg_status cpu_open(eg_context *context, const eg_open_info *info) {
    char name[128];
    eg_caps *caps = &context->caps;
    caps->packs = true;
    caps->threads = info->threads > 0 ? info->threads : eg_cpu_cores();
    EG_TRY(eg_cpu_detect(&caps->features));
    eg_cpu_model(name, sizeof name);
    context->name = eg_host_text(context, name);
    context->features = eg_host_text(context, eg_cpu_feature_text(caps->features));
    if (context->name == NULL || context->features == NULL)
        return eg_fail(EG_ERR_OUT_OF_MEMORY, "no memory for a context");
    return EG_OK;
}

static void cpu_close(eg_context *context) { (void)context; }

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

/* The scratch is as many shares as the step with most threads needs. */
static size_t scratch_share(const eg_plan *plan) {
    int threads = 1;
    for (int i = 0; i < plan->steps; i++) {
        if (plan->step[i].threads > threads) threads = plan->step[i].threads;
    }
    return plan->region[EG_BUFFER_SCRATCH].bytes / (size_t)threads;
}

/* False if a kernel met numbers it cannot take. What has been written by then, it will write again: outputs
 * that are accumulated are touched after everything has been split. */
static bool run_plan(const eg_plan *plan, char *workspace) {
    bool refused = false;
    const eg_cpu_run run = {.plan = plan,
                            .problem = &plan->problem,
                            .workspace = workspace,
                            .scratch = scratch_share(plan),
                            .refused = &refused};
    for (int i = 0; i < plan->steps && !refused; i++) {
        const eg_step *step = &plan->step[i];
        switch (step->kind) {
        case EG_STEP_PACK:
            eg_cpu_pack(&run, step);
            break;
        case EG_STEP_GEMM:
            eg_cpu_gemm(&run, step);
            break;
        case EG_STEP_ACT_GRAD:
            eg_cpu_act_grad(&run, step);
            break;
        case EG_STEP_COLUMN_SUM:
            eg_cpu_column_sum(&run, step);
            break;
        }
    }
    return !refused;
}

/* Whether the plan's kernels can do without a way back. */
static bool is_safe(const eg_plan *plan) {
    const eg_problem *p = &plan->problem;
    const eg_operand *grad = &p->operands[EG_OP_GRAD], *grad_pre = &p->operands[EG_OP_GRAD_PRE];
    if (p->packed_b != NULL && p->packed_b->outside_cells) return false;
    return grad_pre->data == NULL || /* in place, grad would be lost */
           eg_begin(p, grad_pre->data, grad_pre->offset) != eg_begin(p, grad->data, grad->offset);
}

/* Kernels that split numbers refuse what has no split: infinities, NaN and magnitudes past 2^26. The call is
 * then made by the kernels that take anything. */
static eg_status cpu_launch(eg_context *context, const eg_plan *plan, void *workspace, size_t offset) {
    char *at = (char *)workspace + offset;
    const eg_cpu_kernel *kernel = plan->steps > 0 ? plan->step[0].kernel : NULL;
    if (kernel == NULL || kernel->terms < 2) {
        run_plan(plan, at);
        return EG_OK;
    }
    if (is_safe(plan) && run_plan(plan, at)) return EG_OK;
    const eg_caps any = eg_cpu_caps_without_cells(&context->caps);
    eg_plan other;
    EG_TRY(eg_plan_make(&any, &plan->problem, &other));
    run_plan(&other, at);
    return EG_OK;
}

/* ---- Packed operands ---------------------------------------------------------------------------- */

/* Adds B and its transpose in the form of the context's choice to a pack. */
static eg_status pack_size(const eg_caps *caps, const eg_problem *problem, size_t before, eg_plan *plan) {
    *plan = (eg_plan){.problem = *problem, .workspace = before};
    plan->step[plan->steps++] = (eg_step){.kind = EG_STEP_PACK,
                                          .operand = EG_OP_B,
                                          .products = EG_FOR(EG_PRODUCT_PRE) | EG_FOR(EG_PRODUCT_D_A)};
    return eg_cpu_select(caps, plan);
}

/* The tallest layer on this B that a kernel for cells takes. */
static eg_problem tallest(const eg_problem *problem) {
    eg_problem tall = *problem;
    tall.m = problem->batch > 1 ? EG_CELL_DEEPEST / problem->batch : EG_CELL_DEEPEST;
    return tall;
}

/* B and its transpose, side by side; in both forms, where calls may use either (their size decides, and
 * what is in A). */
typedef struct pack_plans {
    eg_plan panels, cells;
    bool both;
    size_t bytes;
} pack_plans;

static eg_status plan_packs(const eg_caps *caps, const eg_problem *problem, pack_plans *plans) {
    const eg_problem tall = tallest(problem);
    const eg_caps any = eg_cpu_caps_without_cells(caps);
    EG_TRY(pack_size(&any, problem, 0, &plans->panels));
    EG_TRY(pack_size(caps, &tall, plans->panels.workspace, &plans->cells));
    const eg_cpu_kernel *kernel = plans->cells.step[0].kernel;
    plans->both = kernel->terms > 0;
    plans->bytes = plans->both ? plans->cells.workspace : plans->panels.workspace;
    return EG_OK;
}

static eg_status cpu_pack(eg_context *context, const eg_problem *problem, eg_packed *packed) {
    pack_plans plans;
    EG_TRY(plan_packs(&context->caps, problem, &plans));
    if (packed->data == NULL) EG_TRY(cpu_alloc(context, plans.bytes, &packed->data));
    packed->forward = plans.panels.region[EG_BUFFER_B];
    packed->transposed = plans.panels.region[EG_BUFFER_BT];
    run_plan(&plans.panels, packed->data);
    if (plans.both) {
        packed->forward_cells = plans.cells.region[EG_BUFFER_B];
        packed->transposed_cells = plans.cells.region[EG_BUFFER_BT];
        packed->outside_cells = !run_plan(&plans.cells, packed->data);
    }
    return EG_OK;
}

static eg_status cpu_pack_bytes(const eg_caps *caps, const eg_problem *problem, size_t *bytes) {
    pack_plans plans;
    EG_TRY(plan_packs(caps, problem, &plans));
    *bytes = plans.bytes;
    return EG_OK;
}

static eg_status cpu_kernel_info(const eg_caps *caps, int index, eg_kernel_info *info) {
    const eg_cpu_kernel *row = eg_cpu_kernel_row(index);
    if (row == NULL)
        return eg_fail(EG_ERR_ARGUMENT, "index is %d; expected a row of the kernel table", index);
    *info = (eg_kernel_info){.name = row->name,
                             .compute = row->compute,
                             .usable = (row->needs & caps->features) == row->needs,
                             .needs = eg_cpu_needs_text(row->needs),
                             .tile = strrchr(row->name, '_') + 1};
    return EG_OK;
}

/* ---- The peak ----------------------------------------------------------------------------------- */

typedef struct spin_job {
    const eg_cpu_kernel *kernel;
    int64_t turns;
    double done[4096];
} spin_job;

static void spin(void *arg, int64_t index, int thread) {
    (void)thread;
    spin_job *job = arg;
    job->done[index] = job->kernel->spin(job->turns);
}

/* The best of several short runs, so that a moment's disturbance does not count. */
static eg_status cpu_measure_peak(eg_context *context, eg_dtype dtype, double *gflops) {
    enum { RUNS = 8 };
    const int threads = context->caps.threads;
    const eg_problem large = {.m = 4096,
                              .k = 4096,
                              .n = 4096,
                              .batch = 1,
                              .dtype = dtype,
                              .compute = dtype == EG_F64 ? EG_F64 : EG_F32};
    spin_job job = {.kernel = eg_cpu_choose(&context->caps, &large), .turns = 400000};
    if (job.kernel == NULL)
        return eg_fail(EG_ERR_UNSUPPORTED, "no kernel computes in %s", eg_dtype_name(dtype));
    *gflops = 0;
    for (int run = 0; run < RUNS; run++) {
        const double begin = eg_seconds();
        eg_cpu_parallel(threads, threads, threads, spin, &job);
        const double rate = 2e-9 * job.done[0] * threads / (eg_seconds() - begin);
        if (rate > *gflops) *gflops = rate;
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
        .select = eg_cpu_select,
        .launch = cpu_launch,
        .pack = cpu_pack,
        .pack_bytes = cpu_pack_bytes,
        .kernel_info = cpu_kernel_info,
        .measure_peak = cpu_measure_peak,
    };
    return &ops;
}
