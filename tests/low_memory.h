/* SPDX-License-Identifier: Apache-2.0 */
/* Problems whose calls are run in chunks, without operands: of them only the sizes are needed. */
#ifndef LOW_MEMORY_H
#define LOW_MEMORY_H

#include "support.h"

#include "core/low_memory.h"
#include "core/validate.h"

enum { TOO_LITTLE = 3 }; /* bytes of workspace */
#define MIB ((size_t)1 << 20)

/* A processor that nobody has to have. */
static inline eg_caps cpu(int threads) { return (eg_caps){.backend = EG_BACKEND_CPU, .threads = threads}; }

typedef struct sizes {
    int64_t m, k, n, batch;
    eg_dtype dtype;
    bool shared_b, summed_d_a, wide;
} sizes;

static inline eg_matrix mark(int64_t rows, int64_t cols, bool shared) {
    return (eg_matrix){.data = (void *)(uintptr_t)64, .batch_stride = shared ? 0 : rows * cols};
}

/* Recomputes; every output is wanted. */
static inline eg_problem problem_of(const sizes *s) {
    const eg_layer layer = {.size = sizeof layer,
                            .m = s->m,
                            .k = s->k,
                            .n = s->n,
                            .batch = s->batch,
                            .dtype = s->dtype,
                            .activation = EG_ACT_GELU};
    const eg_dtype wide = s->wide ? EG_F32 : EG_DTYPE_DEFAULT;
    eg_backward_args args = {.size = sizeof args,
                             .a = mark(s->m, s->k, false),
                             .b = mark(s->k, s->n, s->shared_b),
                             .bias.data = (void *)(uintptr_t)64,
                             .grad = mark(s->m, s->n, false),
                             .d_a = mark(s->m, s->k, s->summed_d_a),
                             .d_b = mark(s->k, s->n, s->shared_b),
                             .d_bias = {.data = (void *)(uintptr_t)64, .dtype = wide}};
    args.d_b.dtype = wide;
    eg_problem problem;
    assert_ok(eg_validate_backward(EG_PRESENCE, &layer, &args, &problem));
    return problem;
}

/* What the refusal of a limit says would be enough. */
static inline size_t limit_named(void) {
    return (size_t)strtoull(strstr(eg_last_error(), "at least ") + 9, NULL, 10);
}

static inline size_t least_limit(const eg_caps *caps, const eg_problem *problem) {
    eg_low_memory chunks;
    assert_status(eg_low_memory_make(caps, problem, TOO_LITTLE, &chunks), EG_ERR_ARGUMENT);
    assert_non_null(strstr(eg_last_error(), "workspace_limit is 3; expected at least "));
    return limit_named();
}

static inline void print(const eg_low_memory *call, char *text, size_t capacity) {
    eg_text out = {text, capacity};
    eg_low_memory_print(call, &out);
}

#endif
