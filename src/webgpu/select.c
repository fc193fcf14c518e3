/* WebGPU's part of a plan: the kernel of each step, the splits of its depth, and the workspace. Pure: it
 * looks at eg_caps and the problem only. */
#include <string.h>

#include "../error.h"
#include "../sizes.h"
#include "pass.h"

static bool usable(const eg_caps *caps, const eg_webgpu_kernel *kernel) {
    const eg_webgpu_caps *device = caps->detail;
    return kernel->invocations <= device->invocations && kernel->memory <= device->memory &&
           (caps->only_kernel == NULL || strcmp(caps->only_kernel, kernel->name) == 0);
}

static int64_t tiles_of(const eg_webgpu_kernel *kernel, int64_t rows, int64_t cols) {
    return eg_ceil_div(rows, kernel->rows) * eg_ceil_div(cols, kernel->cols);
}

static const eg_webgpu_kernel *only_kernel(const eg_caps *caps) {
    const eg_webgpu_kernel *row;
    for (int i = 0; (row = eg_webgpu_kernel_row(i)) != NULL; i++) {
        if (usable(caps, row)) return row;
    }
    return NULL;
}

/* The larger the tile the fewer the loads, which are what a product costs on a processor; but a large tile
 * takes seconds to compile, which a small product never earns back. */
static const eg_webgpu_kernel *on_processor(double work) {
    const double large = 1 << 24;
    return eg_webgpu_kernel_row(work < large ? EG_ROW_direct_16x32 : EG_ROW_direct_16x128);
}

/* A large tile costs little a term and much to begin and to end. */
static bool suits_deep(const eg_caps *caps, int64_t items, int64_t rows, int64_t cols, int64_t depth) {
    enum { DEEP = 1024 };
    const eg_webgpu_caps *device = caps->detail;
    const eg_webgpu_kernel *row = eg_webgpu_kernel_row(device->deep);
    return depth >= DEEP && usable(caps, row) &&
           items * tiles_of(row, rows, cols) * row->invocations >= device->fill;
}

/* On a GPU the tuned kernel where it fills the device, split along the depth if need be; else the first
 * smaller one that does. */
static const eg_webgpu_kernel *choose(const eg_caps *caps, int64_t items, int64_t rows, int64_t cols,
                                      int64_t depth) {
    const eg_webgpu_caps *device = caps->detail;
    const eg_webgpu_kernel *best = NULL;
    if (caps->only_kernel != NULL) return only_kernel(caps);
    if (device->cpu) return on_processor((double)items * (double)rows * (double)cols * (double)depth);
    for (int i = suits_deep(caps, items, rows, cols, depth) ? device->deep : device->shallow;; i++) {
        const eg_webgpu_kernel *row = eg_webgpu_kernel_row(i);
        if (row == NULL) return best;
        if (!usable(caps, row)) continue;
        if (best != NULL && row->memory == 0) return best;
        best = row;
        const int64_t parts = depth / device->part > 1 ? depth / device->part : 1;
        if (items * tiles_of(row, rows, cols) * parts * row->invocations >= device->fill) return best;
    }
}

/* Enough parts to fill the device four times over, so that its last groups do not run alone for long, if they
 * fit in the scratch that can be bound. */
static int64_t choose_chunk(const eg_webgpu_caps *device, const eg_webgpu_kernel *kernel, int64_t items,
                            int64_t rows, int64_t cols, int64_t depth) {
    const int64_t most = ((int64_t)1 << 28) < (int64_t)(device->binding - device->align)
                             ? (int64_t)1 << 28
                             : (int64_t)(device->binding - device->align);
    const int64_t threads = items * tiles_of(kernel, rows, cols) * kernel->invocations;
    int64_t parts = 1;
    if (threads > 0 && threads < device->fill)
        parts = eg_least(4 * device->fill / threads, depth / device->part);
    const double each = 4.0 * (double)items * (double)rows * (double)cols;
    if (each * (double)parts > (double)most) parts = (int64_t)((double)most / each);
    if (parts <= 1) return depth > 0 ? depth : 1;
    return eg_ceil_div(eg_ceil_div(depth, parts), 16) * 16;
}

static eg_status choose_gemm(const eg_caps *caps, const eg_problem *p, eg_step *step) {
    const eg_webgpu_caps *device = caps->detail;
    int64_t rows = p->m, cols = p->n, depth = p->k, items = p->batch;
    const eg_operand *summed = NULL;
    if (step->product == EG_PRODUCT_D_A) cols = p->k, depth = p->n, summed = &p->operands[EG_OP_D_A];
    if (step->product == EG_PRODUCT_D_B) rows = p->k, depth = p->m, summed = &p->operands[EG_OP_D_B];
    if (summed != NULL && summed->batch_stride == 0) items = 1;
    const eg_webgpu_kernel *kernel = choose(caps, items, rows, cols, depth);
    if (kernel == NULL) {
        return eg_fail(EG_ERR_UNSUPPORTED, "no kernel \"%s\" runs on this device",
                       caps->only_kernel ? caps->only_kernel : "");
    }
    step->kernel = kernel;
    step->name = kernel->name;
    step->tile_rows = kernel->rows;
    step->tile_cols = kernel->cols;
    step->depth = choose_chunk(device, kernel, items, rows, cols, depth);
    return EG_OK;
}

static eg_status check_dtype(const eg_caps *caps, eg_dtype dtype) {
    const eg_webgpu_caps *device = caps->detail;
    if (dtype == EG_F64 || dtype == EG_BF16) {
        return eg_fail(EG_ERR_UNSUPPORTED,
                       "the layer's dtype is %s; WebGPU has f32 and, on some devices, f16",
                       eg_dtype_name(dtype));
    }
    if (dtype == EG_F16 && !device->f16) {
        return eg_fail(EG_ERR_UNSUPPORTED, "the layer's dtype is f16; this device has no shader-f16");
    }
    return EG_OK;
}

static bool keeps_grad_pre(const eg_problem *p) {
    const bool used = eg_wants(p, EG_OP_D_A) || eg_wants(p, EG_OP_D_B) || eg_wants(p, EG_OP_D_BIAS);
    const bool given = eg_wants(p, EG_OP_GRAD_PRE) && p->dtype == EG_F32;
    return p->backward && p->activation != EG_ACT_NONE && used && !given;
}

static bool add_sums(const eg_webgpu_caps *device, eg_plan *plan, eg_buffer_id id, int64_t cols) {
    int64_t parts;
    return eg_webgpu_sum_parts(device, plan, id, &parts) && eg_plan_region(plan, id, parts, cols, 4, 256);
}

static bool add_workspace(const eg_webgpu_caps *device, eg_plan *plan) {
    const eg_problem *p = &plan->problem;
    if (eg_wants(p, EG_OP_D_BIAS)) { /* in the scratch, at its beginning */
        if (!add_sums(device, plan, EG_BUFFER_SUMS, p->n)) return false;
        plan->workspace = 0;
    }
    int64_t rows;
    if (__builtin_mul_overflow(p->m, p->batch, &rows)) return false;
    if (keeps_grad_pre(p) && !eg_plan_region(plan, EG_BUFFER_GRAD_PRE, rows, p->n, 4, 256)) return false;
    if (eg_wants(p, EG_OP_D_BIAS_BELOW) && !add_sums(device, plan, EG_BUFFER_SUMS_BELOW, p->k)) return false;
    for (int i = 0; i < plan->steps; i++) {
        eg_webgpu_passes passes;
        if (eg_webgpu_lower(device, plan, &plan->step[i], &passes) != EG_OK) return false;
        if (passes.scratch > plan->region[EG_BUFFER_SCRATCH].bytes)
            plan->region[EG_BUFFER_SCRATCH] = (eg_region){0, passes.scratch};
    }
    return true;
}

eg_status eg_webgpu_select(const eg_caps *caps, eg_plan *plan) {
    const eg_problem *p = &plan->problem;
    EG_TRY(check_dtype(caps, p->dtype));
    for (int i = 0; i < plan->steps; i++) {
        eg_step *step = &plan->step[i];
        if (step->kind == EG_STEP_GEMM) EG_TRY(choose_gemm(caps, p, step));
        if (step->kind == EG_STEP_ACT_GRAD) step->name = eg_webgpu_finish.name;
        if (step->kind == EG_STEP_COLUMN_SUM) step->name = eg_webgpu_column_kernel(caps->detail)->name;
    }
    return add_workspace(caps->detail, plan) ? EG_OK : eg_plan_too_large(p);
}
