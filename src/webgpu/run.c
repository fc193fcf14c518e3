/* SPDX-License-Identifier: Apache-2.0 */
/* A program to dispatches: each step is a pass, and each block of a pass a dispatch. A block gets a record of
 * parameters, followed by its part of the bias (so that a pass needs five bindings at most), and bindings
 * that begin at an aligned offset. */
#include <string.h>

#include "core/error.h"
#include "core/sizes.h"
#include "device.h"

/* As struct Walk and struct Params in kernels/common.wgsl. */
typedef struct walk {
    uint32_t base, row, col, depth, item;
} walk;

typedef struct parameters {
    uint32_t rows, cols, depth, chunk, splits, limit, flags, bias_skip;
    walk at[EG_BINDINGS];
    float scale;
    uint32_t spare[3];
} parameters;

_Static_assert(sizeof(parameters) == 128, "the bias follows 32 words");

enum {
    HAS_BIAS = 1,
    BIAS_IS_F16 = 2,
    HAS_EXTRA = 4,
    ACCUMULATE = 8,
    BIAS_BY_ROW = 16,
    PROPAGATE = 32,
    SUMS = 64,
    ADD_SUMS = 128
};

/* The dispatches of a call share one compute pass, since each pass that begins costs time of its own: only a
 * copy from what a dispatch has written ends it. Copies of the bias, which no call writes, are done before
 * it. */
struct eg_webgpu_recording {
    WGPUCommandEncoder ahead, encoder; /* ahead: the copies of the bias, or NULL */
    WGPUComputePassEncoder pass;       /* of `encoder`, that takes the next dispatch; NULL: none is begun */
    unsigned char *params;             /* host copy of the parameter buffer */
    uint64_t capacity, used;
    double work;
    int dispatches;
};

static uint64_t up(uint64_t value, uint64_t unit) { return (value + unit - 1) / unit * unit; }

/* ---- Submitting --------------------------------------------------------------------------------- */

/* What is submitted holds on to its bindings, for which an implementation's memory is bounded: some thousand
 * calls, or one of that many parts, wait for those before. */
static eg_status throttle(eg_webgpu *gpu) {
    enum { MOST = 16384 };
    return gpu->in_flight > MOST ? eg_webgpu_wait(gpu) : EG_OK;
}

static void end_pass(eg_webgpu *gpu) {
    struct eg_webgpu_recording *r = gpu->recording;
    if (r->pass == NULL) return;
    gpu->api.ComputePassEncoderEnd(r->pass);
    gpu->api.ComputePassEncoderRelease(r->pass);
    r->pass = NULL;
}

static WGPUCommandBuffer finish(eg_webgpu *gpu, WGPUCommandEncoder *encoder) {
    WGPUCommandBuffer commands = gpu->api.CommandEncoderFinish(*encoder, NULL);
    gpu->api.CommandEncoderRelease(*encoder);
    *encoder = NULL;
    return commands;
}

static eg_status flush(eg_webgpu *gpu) {
    struct eg_webgpu_recording *r = gpu->recording;
    if (r == NULL || r->encoder == NULL) return EG_OK;
    WGPUCommandBuffer commands[2];
    size_t count = 0;
    end_pass(gpu);
    if (r->ahead != NULL) commands[count++] = finish(gpu, &r->ahead);
    commands[count++] = finish(gpu, &r->encoder);
    /* Before anything is submitted: on an error in a submission wgpu-native aborts. */
    const eg_status status = eg_webgpu_check(gpu, "enqueuing a call");
    if (status == EG_OK) {
        gpu->api.QueueWriteBuffer(gpu->queue, gpu->params.buffer, 0, r->params, (size_t)r->used);
        gpu->api.QueueSubmit(gpu->queue, count, commands);
        gpu->submissions++;
    }
    for (size_t i = 0; i < count; i++) gpu->api.CommandBufferRelease(commands[i]);
    gpu->in_flight += r->dispatches;
    r->used = 0;
    r->work = 0;
    r->dispatches = 0;
    return status == EG_OK ? throttle(gpu) : status;
}

void eg_webgpu_free_recording(eg_webgpu *gpu) {
    struct eg_webgpu_recording *r = gpu->recording;
    if (r == NULL) return;
    if (r->encoder != NULL) {
        end_pass(gpu);
        if (r->ahead != NULL) gpu->api.CommandEncoderRelease(r->ahead);
        gpu->api.CommandEncoderRelease(r->encoder);
        eg_webgpu_check(gpu, "giving up a call");
    }
    eg_host_free(gpu->context, r->params);
    eg_host_free(gpu->context, r);
    gpu->recording = NULL;
}

/* Room for a record of `bytes`, in a submission that `work` more does not make too long. */
static eg_status begin_record(eg_webgpu *gpu, uint64_t bytes, double work) {
    const uint64_t usual = (uint64_t)64 << 10;
    struct eg_webgpu_recording *r = gpu->recording;
    if (r == NULL) {
        r = gpu->recording = eg_host_alloc(gpu->context, sizeof *r);
        if (r == NULL) return eg_fail(EG_ERR_OUT_OF_MEMORY, "no memory to record a call in");
        *r = (struct eg_webgpu_recording){0};
    }
    if (r->used + bytes > r->capacity || r->work + work > gpu->caps.budget) EG_TRY(flush(gpu));
    if (bytes > r->capacity) {
        const uint64_t capacity = bytes > usual ? bytes : usual;
        eg_host_free(gpu->context, r->params);
        r->capacity = 0;
        r->params = eg_host_alloc(gpu->context, (size_t)capacity);
        if (r->params == NULL) return eg_fail(EG_ERR_OUT_OF_MEMORY, "no memory to record a call in");
        memset(r->params, 0, (size_t)capacity);
        EG_TRY(
            eg_webgpu_grow(gpu, &gpu->params, capacity, WGPUBufferUsage_Storage | WGPUBufferUsage_CopyDst));
        r->capacity = capacity;
    }
    if (r->encoder == NULL) {
        eg_webgpu_guard(gpu); /* until it is flushed */
        r->encoder = gpu->api.DeviceCreateCommandEncoder(gpu->device, NULL);
    }
    r->work += work;
    return EG_OK;
}

/* ---- One block ---------------------------------------------------------------------------------- */

typedef struct running {
    eg_webgpu *gpu;
    const eg_call *call;
    const eg_op *op;     /* the step's operation, */
    const eg_term *bias; /* and its bias, or NULL */
} running;

typedef struct bound {
    WGPUBuffer buffer;
    uint64_t offset, bytes;
    uint32_t base; /* elements from the offset to the first */
} bound;

/* The buffer that an operand lies in, and where it begins there. */
static WGPUBuffer buffer_of(const running *r, const eg_webgpu_operand *x, uint64_t *offset) {
    const eg_address *at = &r->call->operand[x->id];
    *offset = (uint64_t)x->offset * eg_dtype_size((eg_dtype)x->dtype);
    switch (x->space) {
    case EG_WEBGPU_OPERAND:
        *offset += at->offset;
        return at->data;
    case EG_WEBGPU_PACKED_B:
        *offset += (uint64_t)(r->call->pack_item * x->item) * eg_dtype_size((eg_dtype)x->dtype);
        return eg_pack_in(r->call, x->id)->data;
    case EG_WEBGPU_WORKSPACE:
        *offset += r->call->workspace.offset;
        return r->call->workspace.data;
    case EG_WEBGPU_SCRATCH:
        return r->gpu->scratch.buffer;
    default:
        return NULL;
    }
}

static bound bind(const running *r, const eg_webgpu_pass *pass, int binding, const eg_webgpu_block *block) {
    const eg_webgpu_operand *x = &pass->at[binding];
    const int64_t window = eg_webgpu_window(pass, binding, block);
    const uint64_t element = eg_dtype_size((eg_dtype)x->dtype), align = r->gpu->caps.align;
    uint64_t offset;
    bound b = {.buffer = buffer_of(r, x, &offset)};
    if (window == 0 || b.buffer == NULL) return (bound){.buffer = r->gpu->dummy, .bytes = 16};
    const uint64_t first = offset + (uint64_t)eg_webgpu_begin(pass, binding, block) * element;
    b.offset = first / align * align;
    b.base = (uint32_t)((first - b.offset) / element);
    b.bytes = up(first - b.offset + (uint64_t)window * element, 4);
    const uint64_t size =
        r->gpu->api.BufferGetSize(b.buffer); /* a column sum's last window may reach past it */
    if (b.offset + b.bytes > size && b.offset < size) b.bytes = size - b.offset;
    return b;
}

static bool read_from_output(const eg_webgpu_pass *pass, const bound *bounds, int binding) {
    return !eg_webgpu_writes(pass, binding) && bounds[binding].buffer == bounds[EG_OUT].buffer;
}

/* A buffer that the pass writes cannot be read in it: what is read is copied first. */
static eg_status part_from_output(eg_webgpu *gpu, const eg_webgpu_pass *pass, bound *bounds) {
    uint64_t need = 0, at[EG_BINDINGS] = {0};
    for (int i = 0; i < EG_OUT; i++) {
        if (!read_from_output(pass, bounds, i)) continue;
        at[i] = need;
        need += up(bounds[i].bytes, 256);
    }
    if (need == 0) return EG_OK;
    end_pass(gpu);
    EG_TRY(eg_webgpu_grow(gpu, &gpu->mirror, need, WGPUBufferUsage_Storage | WGPUBufferUsage_CopyDst));
    for (int i = 0; i < EG_OUT; i++) {
        if (!read_from_output(pass, bounds, i)) continue;
        gpu->api.CommandEncoderCopyBufferToBuffer(gpu->recording->encoder, bounds[i].buffer, bounds[i].offset,
                                                  gpu->mirror.buffer, at[i], bounds[i].bytes);
        bounds[i].buffer = gpu->mirror.buffer;
        bounds[i].offset = at[i];
    }
    return EG_OK;
}

static uint32_t stride(int64_t count, int64_t each) { return count > 1 ? (uint32_t)each : 0; }

static walk walk_of(const eg_webgpu_pass *pass, int binding, const eg_webgpu_block *block, const bound *b) {
    const eg_webgpu_operand *x = &pass->at[binding];
    return (walk){.base = b->base,
                  .row = stride(block->rows, x->row),
                  .col = stride(block->cols, x->col),
                  .depth = stride(eg_webgpu_writes(pass, binding) ? pass->splits : block->depth, x->depth),
                  .item = stride(block->items, x->item)};
}

/* ---- The variant -------------------------------------------------------------------------------- */

static bool fours(int64_t count, int64_t each) { return count <= 1 || each % 4 == 0; }

/* Aligned fours along the dimension of stride `along` and extent `count`. */
static bool aligned(const bound *b, int64_t along, int64_t count) {
    return along == 1 && count % 4 == 0 && count > 0 && b->base % 4 == 0 && b->bytes % 4 == 0;
}

static bool reads_fours(const eg_webgpu_operand *x, const bound *b, const eg_webgpu_block *block,
                        int64_t across, int64_t lines, bool *along_depth) {
    if (block->depth == 0 || !fours(block->items, x->item)) return false;
    *along_depth = aligned(b, x->depth, block->depth) && fours(lines, across);
    return *along_depth || (aligned(b, across, lines) && fours(block->depth, x->depth));
}

/* The same of what the epilogue reads and writes, along the columns. */
static bool rows_of_fours(const eg_webgpu_pass *pass, int binding, const bound *b,
                          const eg_webgpu_block *block) {
    const eg_webgpu_operand *x = &pass->at[binding];
    if (!eg_webgpu_is_present(x)) return true;
    return aligned(b, x->col, block->cols) && fours(block->rows, x->row) && fours(block->items, x->item) &&
           (binding != EG_OUT || fours(pass->splits, x->depth));
}

static eg_webgpu_variant variant_of(const eg_webgpu_pass *pass, const eg_webgpu_block *block,
                                    const bound *bounds) {
    const eg_webgpu_operand *left = &pass->at[EG_LEFT], *right = &pass->at[EG_RIGHT];
    eg_webgpu_variant v = {.kernel = pass->kernel};
    for (int i = 0; i < EG_BINDINGS; i++) v.dtype[i] = pass->at[i].dtype == EG_F16 ? EG_F16 : EG_F32;
    if (pass->kernel->shape == EG_SHAPE_COLUMN_SUM) return v;
    v.epilogue = pass->epilogue;
    v.activation = pass->activation;
    v.of_y = pass->of_y;
    v.sums = pass->sums;
    v.sums_by_row = pass->sums_by_row;
    if (pass->kernel->shape != EG_SHAPE_PRODUCT || pass->kernel->depth == 1) return v;
    v.vec4 = reads_fours(left, &bounds[EG_LEFT], block, left->row, block->rows, &v.left_along_depth) &&
             reads_fours(right, &bounds[EG_RIGHT], block, right->col, block->cols, &v.right_along_depth) &&
             rows_of_fours(pass, EG_OUT, &bounds[EG_OUT], block) &&
             (pass->sums || rows_of_fours(pass, EG_EXTRA, &bounds[EG_EXTRA], block));
    if (!v.vec4) v.left_along_depth = left->depth == 1, v.right_along_depth = right->depth == 1;
    return v;
}

/* ---- Dispatching -------------------------------------------------------------------------------- */

static parameters parameters_of(const eg_webgpu_pass *pass, const eg_webgpu_block *block,
                                const bound *bounds) {
    const bool sums = pass->kernel->shape == EG_SHAPE_COLUMN_SUM;
    const int64_t limit = sums ? pass->limit - block->row * pass->chunk : 0;
    const bool first = (pass->sums_by_row ? block->col : block->row) == 0;
    parameters p = {
        .rows = (uint32_t)block->rows,
        .cols = (uint32_t)block->cols,
        .depth = (uint32_t)block->depth,
        .chunk = (uint32_t)(sums || pass->splits > 1 ? pass->chunk : block->depth),
        .splits = (uint32_t)pass->splits,
        .scale = 1,
        .limit = (uint32_t)(limit < UINT32_MAX ? limit : UINT32_MAX),
        .flags = (eg_webgpu_is_present(&pass->at[EG_EXTRA]) && !pass->sums ? HAS_EXTRA : 0U) |
                 (pass->accumulate ? ACCUMULATE : 0U) | (pass->propagate ? PROPAGATE : 0U) |
                 (pass->sums && first ? SUMS : 0U) | (pass->add_sums ? ADD_SUMS : 0U),
    };
    for (int i = 0; i < EG_BINDINGS; i++) p.at[i] = walk_of(pass, i, block, &bounds[i]);
    return p;
}

/* Where the block's part of the bias lies: whole words, with an f16 perhaps to be skipped. */
typedef struct bias_part {
    WGPUBuffer buffer;
    uint64_t offset, bytes;
    uint32_t skip;
} bias_part;

static bias_part bias_of(const running *r, const eg_webgpu_pass *pass, const eg_webgpu_block *block) {
    if (!pass->bias) return (bias_part){0};
    const eg_view *bias = &r->bias->view;
    const eg_address *at = &r->call->operand[bias->id];
    const uint64_t element = eg_dtype_size(bias->dtype);
    const int64_t first = bias->offset + (pass->bias_by_row ? block->row : block->col),
                  count = pass->bias_by_row ? block->rows : block->cols;
    const uint64_t begin = at->offset + (uint64_t)first * element, word = begin / 4 * 4;
    return (bias_part){.buffer = at->data,
                       .offset = word,
                       .bytes = up(begin - word + (uint64_t)count * element, 4),
                       .skip = (uint32_t)((begin - word) / element)};
}

static void encode(eg_webgpu *gpu, WGPUComputePipeline pipeline, WGPUBindGroupLayout layout,
                   const WGPUBindGroupEntry *entries, size_t count, const uint32_t *groups) {
    struct eg_webgpu_recording *r = gpu->recording;
    WGPUBindGroup group = gpu->api.DeviceCreateBindGroup(
        gpu->device, &(WGPUBindGroupDescriptor){.layout = layout, .entryCount = count, .entries = entries});
    if (r->pass == NULL) r->pass = gpu->api.CommandEncoderBeginComputePass(r->encoder, NULL);
    gpu->api.ComputePassEncoderSetPipeline(r->pass, pipeline);
    gpu->api.ComputePassEncoderSetBindGroup(r->pass, 0, group, 0, NULL);
    gpu->api.ComputePassEncoderDispatchWorkgroups(r->pass, groups[0], groups[1], groups[2]);
    r->dispatches++;
    gpu->api.BindGroupRelease(group);
}

static size_t entries_of(const eg_webgpu_pass *pass, const bound *bounds, WGPUBindGroupEntry *entries) {
    const eg_webgpu_shape shape = pass->kernel->shape;
    size_t count = 0;
    for (uint32_t i = 0; i < EG_BINDINGS; i++) {
        if (i == EG_RIGHT && shape != EG_SHAPE_PRODUCT) continue;
        if (i == EG_EXTRA && shape == EG_SHAPE_COLUMN_SUM) continue;
        entries[count++] = (WGPUBindGroupEntry){.binding = i + 1,
                                                .buffer = bounds[i].buffer,
                                                .offset = bounds[i].offset,
                                                .size = bounds[i].bytes};
    }
    return count;
}

static eg_status run_block(void *arg, const eg_webgpu_pass *pass, const eg_webgpu_block *block) {
    const running *r = arg;
    eg_webgpu *gpu = r->gpu;
    WGPUComputePipeline pipeline;
    WGPUBindGroupLayout layout;
    WGPUBindGroupEntry entries[1 + EG_BINDINGS];
    bound bounds[EG_BINDINGS];
    for (int i = 0; i < EG_BINDINGS; i++) bounds[i] = bind(r, pass, i, block);
    const eg_webgpu_variant variant = variant_of(pass, block, bounds);
    EG_TRY(eg_webgpu_pipeline_of(gpu, &variant, &pipeline, &layout));

    const bias_part bias = bias_of(r, pass, block);
    const uint64_t bytes = up(sizeof(parameters) + bias.bytes + 4, gpu->caps.align);
    const double work = (double)block->items * (double)block->rows * (double)block->cols *
                        (double)(block->depth > 0 ? block->depth : 1);
    EG_TRY(begin_record(gpu, bytes, work));
    struct eg_webgpu_recording *recording = gpu->recording;
    parameters p = parameters_of(pass, block, bounds);
    p.bias_skip = bias.skip;
    if (pass->scaled) p.scale = (float)eg_scale_of(r->op);
    if (bias.buffer != NULL) {
        p.flags |= HAS_BIAS | (r->bias->view.dtype == EG_F16 ? BIAS_IS_F16 : 0U) |
                   (pass->bias_by_row ? BIAS_BY_ROW : 0U);
        if (recording->ahead == NULL)
            recording->ahead = gpu->api.DeviceCreateCommandEncoder(gpu->device, NULL);
        gpu->api.CommandEncoderCopyBufferToBuffer(recording->ahead, bias.buffer, bias.offset,
                                                  gpu->params.buffer, recording->used + sizeof p, bias.bytes);
    }
    memcpy(recording->params + recording->used, &p, sizeof p);
    entries[0] = (WGPUBindGroupEntry){.buffer = gpu->params.buffer, .offset = recording->used, .size = bytes};
    recording->used += bytes;
    EG_TRY(part_from_output(gpu, pass, bounds));

    const eg_webgpu_kernel *kernel = pass->kernel;
    const uint32_t groups[3] = {(uint32_t)eg_ceil_div(block->cols, kernel->cols),
                                (uint32_t)eg_ceil_div(block->rows, kernel->rows),
                                (uint32_t)(block->items * pass->splits)};
    encode(gpu, pipeline, layout, entries, 1 + entries_of(pass, bounds, entries + 1), groups);
    return EG_OK;
}

static eg_status run_steps(eg_webgpu *gpu, const eg_program *program, const eg_call *call) {
    const WGPUFlags usable = WGPUBufferUsage_Storage | WGPUBufferUsage_CopySrc | WGPUBufferUsage_CopyDst;
    running r = {.gpu = gpu, .call = call};
    EG_TRY(eg_webgpu_grow(gpu, &gpu->scratch, program->region[EG_WEBGPU_SCRATCH_REGION].bytes, usable));
    for (int i = 0; i < program->steps; i++) {
        const eg_step *step = &program->step[i];
        r.op = &program->list.op[step->op];
        r.bias = eg_term_of(r.op, EG_TERM_BIAS);
        EG_TRY(eg_webgpu_each_block(&gpu->caps, eg_webgpu_detail(step), run_block, &r));
    }
    return flush(gpu);
}

eg_status eg_webgpu_run(eg_webgpu *gpu, const eg_program *program, const eg_call *call, const char *doing) {
    EG_TRY(eg_webgpu_ready(gpu));
    const uint64_t before = gpu->submissions;
    eg_webgpu_guard(gpu);
    eg_status status = run_steps(gpu, program, call);
    if (status != EG_OK) eg_webgpu_free_recording(gpu);
    const eg_status device = eg_webgpu_check(gpu, doing);
    if (status == EG_OK) status = device;
    if (status == EG_ERR_OUT_OF_MEMORY &&
        gpu->submissions != before) /* after which outputs are not as before */
        return eg_fail(EG_ERR_DEVICE, "memory ran out while %s, when a part had been submitted", doing);
    return status;
}
