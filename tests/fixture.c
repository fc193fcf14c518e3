/* SPDX-License-Identifier: Apache-2.0 */
#include "fixture.h"

#include "number.h"

enum { POISON = 0xff, ALIGN = 64 };

/* Hands out pieces of the memory; on the first pass, with none, it only counts. */
typedef struct arena {
    unsigned char *memory;
    size_t used;
    eg_dtype dtype;
    oracle_random random;
} arena;

static void *piece(arena *from, int64_t count, bool output) {
    const size_t begin = from->used;
    from->used += ((size_t)count * eg_dtype_size(from->dtype) / ALIGN + 1) * ALIGN;
    if (from->memory == NULL) return NULL;
    for (int64_t i = 0; i < count && !output; i++) {
        oracle_put(from->memory + begin, (size_t)i, from->dtype, oracle_random_unit(&from->random));
    }
    return from->memory + begin;
}

static eg_matrix matrix(arena *from, const eg_layer *layer, int64_t rows, int64_t cols, bool output) {
    return (eg_matrix){.data = piece(from, layer->batch * rows * cols, output), .batch_stride = rows * cols};
}

static eg_vector vector(arena *from, int64_t count, bool output) {
    return (eg_vector){.data = piece(from, count, output)};
}

static void give_inputs(fixture *f, arena *from) {
    const eg_layer *l = &f->layer;
    f->forward.a = f->backward.a = matrix(from, l, l->m, l->k, false);
    f->forward.b = f->backward.b = matrix(from, l, l->k, l->n, false);
    f->forward.bias = f->backward.bias = vector(from, l->n, false);
    f->backward.grad = matrix(from, l, l->m, l->n, false);
    f->saved = matrix(from, l, l->m, l->n, false);
    f->below = matrix(from, l, l->m, l->k, false);
    if (l->activation == EG_ACT_NONE) f->forward.residual = matrix(from, l, l->m, l->n, false);
}

static void give_outputs(fixture *f, arena *from) {
    const eg_layer *l = &f->layer;
    f->forward.y = matrix(from, l, l->m, l->n, true);
    f->forward.pre = matrix(from, l, l->m, l->n, true);
    f->backward.d_a = matrix(from, l, l->m, l->k, true);
    f->backward.d_b = matrix(from, l, l->k, l->n, true);
    f->backward.d_bias = vector(from, l->n, true);
    f->backward.grad_pre = matrix(from, l, l->m, l->n, true);
    f->d_bias_below = vector(from, l->k, true);
}

void fixture_make(fixture *f, eg_layer layer) {
    *f = (fixture){.layer = layer};
    f->layer.size = sizeof(eg_layer);
    f->forward.size = sizeof(eg_forward_args);
    f->backward.size = sizeof(eg_backward_args);
    const eg_dtype dtype = layer.dtype == EG_DTYPE_DEFAULT ? EG_F32 : layer.dtype;
    arena counted = {.dtype = dtype};
    give_inputs(f, &counted);
    const size_t inputs = counted.used;
    give_outputs(f, &counted);

    f->bytes = counted.used;
    f->output_bytes = counted.used - inputs;
    f->memory = aligned_alloc(ALIGN, f->bytes);
    assert_non_null(f->memory);
    f->outputs = f->memory + inputs;
    memset(f->memory, POISON, f->bytes);
    arena real = {.memory = f->memory, .dtype = dtype, .random = {1}};
    give_inputs(f, &real);
    give_outputs(f, &real);
}

void fixture_free(fixture *f) { free(f->memory); }

void fixture_set_source(fixture *f, eg_source source) {
    f->backward.source = source;
    f->backward.pre = source == EG_SOURCE_PRE ? f->saved : (eg_matrix){0};
    f->backward.y = source == EG_SOURCE_Y ? f->saved : (eg_matrix){0};
}

void fixture_poison(fixture *f) { memset(f->outputs, POISON, f->output_bytes); }

bool fixture_untouched(const fixture *f) {
    for (size_t i = 0; i < f->output_bytes; i++) {
        if (f->outputs[i] != POISON) return false;
    }
    return true;
}

eg_layer small_layer(void) {
    return (eg_layer){
        .size = sizeof(eg_layer), .m = 5, .k = 7, .n = 6, .batch = 2, .activation = EG_ACT_GELU};
}
