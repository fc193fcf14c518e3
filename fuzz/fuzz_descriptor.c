/* SPDX-License-Identifier: Apache-2.0 */
/* Any layer and any arguments: planned whatever they say, and run where every operand is small, on buffers
 * that end with their last element, so that the address sanitizer sees one touched outside. */
#include <stdbool.h>
#include <stdint.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "epigrad/epigrad.h"

static void require(bool condition) {
    if (!condition) abort();
}

/* ---- Choices, drawn from the fuzzed bytes ------------------------------------------------------- */

typedef struct source {
    const uint8_t *at;
    size_t left;
} source;

/* 0 once the bytes are used up. */
static unsigned next(source *s) {
    if (s->left == 0) return 0;
    s->left--;
    return *s->at++;
}

static unsigned choose(source *s, unsigned count) { return next(s) % count; }

/* Seldom anything but 0 to count - 1. */
static int choose_enum(source *s, int count) {
    static const int wrong[] = {-1, 99, INT32_MAX, INT32_MIN};
    const unsigned byte = next(s);
    return byte >= 252 ? wrong[byte - 252] : (int)(byte % (unsigned)count);
}

static int64_t choose_size(source *s) {
    static const int64_t rare[] = {-1, INT64_MIN, INT64_MAX, INT64_C(1) << 31, INT64_C(1) << 62, 3000000000};
    static const int64_t sizes[] = {1, 2, 3, 4, 5, 7, 8, 9, 13, 16, 17, 31, 33, 48, 49, 0};
    const unsigned byte = next(s);
    return byte >= 250 ? rare[byte - 250] : sizes[byte % 16];
}

static int64_t choose_stride(source *s, int64_t dense) {
    const int64_t choices[] = {
        0, dense, dense, (int64_t)((uint64_t)dense + 1), (int64_t)((uint64_t)dense + 5), 1, -1, INT64_MAX};
    return choices[choose(s, 8)];
}

/* ---- Operands ----------------------------------------------------------------------------------- */

enum { MAX_BUFFERS = 48, LARGEST = 1 << 18 };

typedef struct operands {
    source *source;
    const eg_layer *layer;
    void *buffers[MAX_BUFFERS];
    int count;
    bool small; /* every operand so far can be run on */
} operands;

/* Elements from the first to the last, or -1 where there is no such number or it is large. */
static int64_t extent(int64_t rows, int64_t cols, int64_t batch, const eg_matrix *m) {
    const int64_t lines = m->layout == EG_COL_MAJOR ? cols : rows,
                  length = m->layout == EG_COL_MAJOR ? rows : cols;
    const int64_t ld = m->ld == 0 ? length : m->ld;
    if (rows < 0 || cols < 0 || batch < 0 || ld < 0 || m->batch_stride < 0) return -1;
    const int64_t matrices = batch == 0 ? 1 : batch; /* as the header has it */
    if (rows == 0 || cols == 0) return 0;
    const __int128 last = (__int128)(lines - 1) * ld + (__int128)(matrices - 1) * m->batch_stride + length;
    return last <= LARGEST ? (int64_t)last : -1;
}

/* Memory for an operand that can be run on; a mere mark for one that can only be planned. */
static void *buffer_for(operands *o, const eg_matrix *m, int64_t elements) {
    static char mark[64];
    const eg_dtype dtype = m->dtype != EG_DTYPE_DEFAULT          ? m->dtype
                           : o->layer->dtype != EG_DTYPE_DEFAULT ? o->layer->dtype
                                                                 : EG_F32;
    const size_t element = eg_dtype_size(dtype);
    if (elements < 0 || element == 0 || m->offset > LARGEST) {
        o->small = false;
        return mark;
    }
    const size_t bytes = m->offset + (size_t)elements * element;
    char *buffer = malloc(bytes > 0 ? bytes : 1);
    require(buffer != NULL && o->count < MAX_BUFFERS);
    for (size_t i = 0; i < bytes; i++) buffer[i] = (char)(i * 37 + bytes);
    o->buffers[o->count++] = buffer;
    return buffer;
}

static eg_matrix choose_matrix(operands *o, int64_t rows, int64_t cols, bool usual) {
    static const size_t offsets[] = {0, 0, 0, 0, 0, 8, 16, 4, 1, SIZE_MAX};
    source *s = o->source;
    const unsigned style = next(s);
    if (style < (usual ? 8 : 128)) return (eg_matrix){0}; /* absent */
    eg_matrix m = {.layout = style & 1 ? EG_COL_MAJOR : EG_ROW_MAJOR};
    const int64_t length = m.layout == EG_COL_MAJOR ? rows : cols,
                  lines = m.layout == EG_COL_MAJOR ? cols : rows;
    if (style & 2) m.ld = choose_stride(s, length);
    int64_t dense = 0;
    if (__builtin_mul_overflow(lines, m.ld == 0 ? length : m.ld, &dense)) dense = INT64_MAX;
    m.batch_stride = style & 4 ? choose_stride(s, dense) : dense;
    if (style & 8) m.offset = offsets[choose(s, 10)];
    if (style & 16) m.dtype = (eg_dtype)choose_enum(s, 5);
    if (style & 32 && choose(s, 16) == 0) m.layout = (eg_layout)choose_enum(s, 3);
    const int64_t groups = o->layer->groups, items = groups > 0 ? groups : o->layer->batch;
    const int64_t elements = extent(rows, cols, items, &m);
    const bool shared = o->count > 0 && (style & 64) != 0 && choose(s, 8) == 0;
    m.data = buffer_for(o, &m, elements);
    if (shared) { /* memory that another operand has too: to be refused, unless it happens to fit */
        o->small = false;
        m.data = o->buffers[choose(s, (unsigned)o->count)];
    }
    return m;
}

static eg_vector choose_vector(operands *o, int64_t elements, bool usual) {
    eg_matrix m = choose_matrix(o, 1, elements, usual);
    if (m.data == NULL) return (eg_vector){0};
    const int64_t groups = o->layer->groups;
    m.ld = 0;
    m.batch_stride = groups > 0 ? elements : 0;
    m.layout = EG_ROW_MAJOR;
    m.data = buffer_for(o, &m, extent(1, elements, groups > 0 ? groups : 1, &m));
    return (eg_vector){.data = m.data, .offset = m.offset, .dtype = m.dtype};
}

static void free_operands(operands *o) {
    for (int i = 0; i < o->count; i++) free(o->buffers[i]);
}

/* ---- Descriptors -------------------------------------------------------------------------------- */

enum { PAGE = 4096 }; /* how much longer a newer caller's struct may be, as the header has it */

static size_t choose_struct_size(source *s, size_t right) {
    const size_t wrong[] = {right + PAGE + 1, right + PAGE, SIZE_MAX, right + 16, 0, right - 1};
    const unsigned byte = next(s);
    return byte >= 250 ? wrong[byte - 250] : right;
}

static bool too_long(size_t size, size_t known) { return size > known && size - known > PAGE; }

/* The struct in memory of its own: all that its `size` says where that may be read, else no more than the
 * library knows, so that the address sanitizer sees a byte read past it. Now and then a newer field is set.
 */
static void *choose_memory(source *s, const void *known, size_t bytes, size_t size) {
    const size_t room = size > bytes && !too_long(size, bytes) ? size : bytes;
    unsigned char *memory = calloc(1, room);
    require(memory != NULL);
    memcpy(memory, known, bytes);
    if (room > bytes && choose(s, 4) == 0) memory[room - 1] = 1;
    return memory;
}

static eg_layer choose_layer(source *s) {
    eg_layer layer = {.size = choose_struct_size(s, sizeof layer)};
    layer.m = choose_size(s);
    layer.k = choose_size(s);
    layer.n = choose_size(s);
    const unsigned batch = next(s);
    layer.batch = batch < 128 ? 1 : batch < 250 ? (int64_t)(batch % 5) : choose_size(s);
    layer.dtype = (eg_dtype)choose_enum(s, 5);
    layer.activation = (eg_activation)choose_enum(s, 12);
    layer.math = (eg_math)choose_enum(s, 3);
    layer.nonfinite = (eg_nonfinite)choose_enum(s, 2);
    static const double scales[] = {0, 0, 0, 0.125, -3, 1e300, (double)NAN, 1e-300};
    const unsigned scale = next(s);
    layer.scale = scales[scale % (sizeof scales / sizeof *scales)];
    if (scale >= 192) layer.groups = scale < 248 ? 1 + scale / 8 % 8 : choose_size(s);
    if (layer.groups > 0 && scale % 8 != 0) layer.batch = 0;
    return layer;
}

/* Ends of groups: often in order. */
static eg_offsets choose_offsets(operands *o) {
    const int64_t groups = o->layer->groups, m = o->layer->m;
    const eg_matrix row = {.dtype = EG_F32};
    const bool given = groups > 0 ? next(o->source) < 250 : next(o->source) >= 250;
    if (!given) return (eg_offsets){.data = NULL};
    int32_t *ends = buffer_for(o, &row, extent(1, groups > 0 ? groups : 1, 1, &row));
    const unsigned style = next(o->source);
    for (int64_t i = 0; o->small && i < groups; i++) {
        const unsigned byte = style < 160 ? 0 : next(o->source);
        const int64_t even = m / groups * (i + 1), end = byte < 128 ? even : (int64_t)byte - 130;
        ends[i] = (int32_t)(style < 80 ? m : end);
    }
    return (eg_offsets){.data = ends};
}

static eg_forward_args choose_forward(operands *o) {
    const eg_layer *l = o->layer;
    eg_forward_args args = {.size = choose_struct_size(o->source, sizeof args)};
    args.a = choose_matrix(o, l->m, l->k, true);
    args.b = choose_matrix(o, l->k, l->n, true);
    args.bias = choose_vector(o, l->n, false);
    args.residual = choose_matrix(o, l->m, l->n, false);
    args.y = choose_matrix(o, l->m, l->n, true);
    args.pre = choose_matrix(o, l->m, l->n, false);
    args.offsets = choose_offsets(o);
    if (choose(o->source, 4) == 0) return args;
    args.b_up = choose_matrix(o, l->k, l->n, true);
    args.bias_up = choose_vector(o, l->n, false);
    args.pre_up = choose_matrix(o, l->m, l->n, args.pre.data != NULL);
    return args;
}

static void choose_chain_up(operands *o, eg_chain_up *chain) {
    const eg_layer *l = o->layer;
    chain->saved = choose_matrix(o, l->m, l->k, true);
    chain->d_up = choose_matrix(o, l->m, l->k, true);
    chain->y = choose_matrix(o, l->m, l->k, false);
    chain->d_bias = choose_vector(o, l->k, false);
}

static void choose_gated(operands *o, eg_backward_args *args) {
    const eg_layer *l = o->layer;
    args->b_up = choose_matrix(o, l->k, l->n, true);
    args->bias_up = choose_vector(o, l->n, false);
    if (args->source != EG_SOURCE_RECOMPUTE) args->pre_up = choose_matrix(o, l->m, l->n, true);
    if (choose(o->source, 4) == 1) args->grad_up = choose_matrix(o, l->m, l->n, true);
    args->d_b_up = choose_matrix(o, l->k, l->n, false);
    args->d_bias_up = choose_vector(o, l->n, false);
    args->grad_pre_up = choose_matrix(o, l->m, l->n, false);
}

static eg_backward_args choose_backward(operands *o) {
    const eg_layer *l = o->layer;
    source *s = o->source;
    eg_backward_args args = {.size = choose_struct_size(s, sizeof args)};
    args.source = (eg_source)choose_enum(s, 3);
    args.accumulate = choose_enum(s, 2);
    args.a = choose_matrix(o, l->m, l->k, true);
    args.b = choose_matrix(o, l->k, l->n, true);
    args.bias = choose_vector(o, l->n, false);
    args.grad = choose_matrix(o, l->m, l->n, true);
    args.pre = choose_matrix(o, l->m, l->n, true);
    args.y = choose_matrix(o, l->m, l->n, true);
    if (args.source == EG_SOURCE_RECOMPUTE && choose(s, 16) != 0) args.pre = args.y = (eg_matrix){0};
    args.d_a = choose_matrix(o, l->m, l->k, false);
    args.d_b = choose_matrix(o, l->k, l->n, false);
    args.d_bias = choose_vector(o, l->n, false);
    args.grad_pre = choose_matrix(o, l->m, l->n, false);
    if (choose(s, 4) == 0) {
        args.chain.saved = choose_matrix(o, l->m, l->k, true);
        args.chain.source = (eg_source)choose_enum(s, 3);
        args.chain.activation = (eg_activation)choose_enum(s, 12);
        args.chain.d_bias = choose_vector(o, l->k, false);
        if (choose(s, 4) == 1) choose_chain_up(o, &args.chain_up);
    }
    if (choose(s, 4) > 1) choose_gated(o, &args);
    if (choose(s, 4) == 1) args.residual = choose_matrix(o, l->m, l->k, true);
    if (choose(s, 4) == 1) args.accumulate_into = choose(s, 256);
    args.offsets = choose_offsets(o);
    return args;
}

/* ---- Calls -------------------------------------------------------------------------------------- */

enum { MAX_CONTEXTS = 32 };
static eg_context *contexts[MAX_CONTEXTS]; /* the first chooses among all kernels */
static int context_count;

static void open_context(const char *kernel) {
    const eg_open_info info = {.size = sizeof info, .threads = 1, .kernel = kernel};
    require(context_count < MAX_CONTEXTS);
    require(eg_open(&info, &contexts[context_count++]) == EG_OK);
}

static void open_contexts(void) {
    open_context(NULL);
    eg_kernel_info kernel = {.size = sizeof kernel};
    for (int i = 0; eg_get_kernel_info(contexts[0], i, &kernel) == EG_OK; i++) {
        if (kernel.usable) open_context(kernel.name);
    }
}

static eg_context *choose_context(source *s) {
    if (context_count == 0) open_contexts();
    const unsigned byte = next(s);
    return contexts[byte < 64 ? 0 : byte % (unsigned)context_count];
}

/* A call, of whose two structs one is there. */
typedef struct call {
    eg_layer *layer;
    eg_forward_args *forward;
    eg_backward_args *backward;
} call;

static bool may_pass(const call *c) {
    const bool args = c->backward != NULL ? too_long(c->backward->size, sizeof *c->backward)
                                          : too_long(c->forward->size, sizeof *c->forward);
    return !args && !too_long(c->layer->size, sizeof *c->layer);
}

static eg_status plan(eg_context *context, const call *c, size_t *bytes) {
    char text[256];
    const eg_status status = c->backward != NULL
                                 ? eg_backward_workspace(context, c->layer, c->backward, bytes)
                                 : eg_forward_workspace(context, c->layer, c->forward, bytes);
    const eg_status again = c->backward != NULL
                                ? eg_backward_plan(context, c->layer, c->backward, text, sizeof text)
                                : eg_forward_plan(context, c->layer, c->forward, text, sizeof text);
    require(status == again);
    require(status != EG_OK || may_pass(c));
    require(status == EG_OK || eg_last_error()[0] != '\0');
    return status;
}

/* Exactly the workspace that was asked for, or, to be refused, less. */
static void run(eg_context *context, source *s, const call *c, size_t bytes) {
    const bool own = choose(s, 2) == 0, less = choose(s, 8) == 0 && bytes > 0;
    if (bytes > (64U << 20)) return;
    eg_workspace workspace = {.bytes = less ? bytes - 1 : bytes};
    if (own && posix_memalign(&workspace.data, 64, bytes > 0 ? bytes : 64) != 0) abort();
    if (c->backward != NULL) c->backward->workspace = workspace;
    if (c->forward != NULL) c->forward->workspace = workspace;
    const eg_status status = c->backward != NULL ? eg_backward(context, c->layer, c->backward)
                                                 : eg_forward(context, c->layer, c->forward);
    require(status != EG_OK || !(own && less));
    free(workspace.data);
}

/* A pack of this b, used by a layer that may have changed since. */
static eg_packed *choose_pack(eg_context *context, source *s, const call *c) {
    eg_packed *packed = NULL;
    const unsigned style = next(s);
    if (style < 192) return NULL;
    const eg_matrix *b = c->backward != NULL ? &c->backward->b : &c->forward->b;
    if (eg_pack_b(context, c->layer, b, &packed) != EG_OK) return NULL;
    if (c->backward != NULL) c->backward->packed_b = packed;
    if (c->forward != NULL) c->forward->packed_b = packed;
    if (style & 1) c->layer->dtype = (eg_dtype)choose_enum(s, 5);
    return packed;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    source s = {data, size};
    eg_context *context = choose_context(&s);
    const bool backward = choose(&s, 2) == 1;
    const eg_layer layer = choose_layer(&s);
    operands o = {.source = &s, .layer = &layer, .small = true};
    call c = {.layer = choose_memory(&s, &layer, sizeof layer, layer.size)};
    if (backward) {
        const eg_backward_args args = choose_backward(&o);
        c.backward = choose_memory(&s, &args, sizeof args, args.size);
    } else {
        const eg_forward_args args = choose_forward(&o);
        c.forward = choose_memory(&s, &args, sizeof args, args.size);
    }

    size_t bytes = 0;
    eg_packed *packed = o.small ? choose_pack(context, &s, &c) : NULL;
    const eg_status status = plan(context, &c, &bytes);
    /* A layer that changed after its operands were made may honestly need more than they have. */
    const bool changed = c.layer->dtype != layer.dtype;
    if (status == EG_OK && o.small && !changed) run(context, &s, &c, bytes);
    eg_packed_free(context, packed);
    free_operands(&o);
    free(c.layer);
    free(c.forward);
    free(c.backward);
    return 0;
}
