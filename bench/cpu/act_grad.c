/* SPDX-License-Identifier: Apache-2.0 */
/* The element-wise pass of act_grad.h: the instruction set, the threads, the column sums. */
#include "act_grad.h"

#include <omp.h>
#include <stdlib.h>
#include <string.h>

typedef struct isa {
    act_grad_rows *f32, *f64, *bf16;
    round_rows *round;
} isa;

#define ISA_ROW(isa)                                                                                         \
    { act_grad_f32_##isa, act_grad_f64_##isa, act_grad_bf16_##isa, round_bf16_##isa }

static isa best_isa(void) {
    const isa base = ISA_ROW(base);
#if defined(__x86_64__)
    const isa v3 = ISA_ROW(v3), v4 = ISA_ROW(v4);
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vl") &&
        __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512bw"))
        return v4;
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) return v3;
#endif
    return base;
}

static act_grad_rows *rows_of(dtype type) {
    const isa best = best_isa();
    return type == F64 ? best.f64 : type == F32 ? best.f32 : best.bf16;
}

/* Each thread's column sums, kept from call to call. */
static char *sums_of(int threads, size_t each) {
    static char *sums;
    static size_t bytes;
    if (bytes < (size_t)threads * each) {
        big_free(sums);
        bytes = (size_t)threads * each;
        sums = big_alloc(bytes);
    }
    return sums;
}

static uint16_t bf16(float x) {
    uint16_t rounded;
    best_isa().round(1, &rounded, &x);
    return rounded;
}

/* d_bias[begin, end) */
static void add_sums(const problem *p, int threads, const char *sums, size_t each, void *d_bias,
                     int64_t begin, int64_t end) {
    for (int64_t j = begin; j < end; j++) {
        double total = 0;
        for (int t = 0; t < threads; t++) {
            const void *row = sums + (size_t)t * each;
            total += p->type == F64 ? ((const double *)row)[j] : (double)((const float *)row)[j];
        }
        if (p->type == F64) ((double *)d_bias)[j] = total;
        if (p->type == F32) ((float *)d_bias)[j] = (float)total;
        if (p->type == BF16) ((uint16_t *)d_bias)[j] = bf16((float)total);
    }
}

void act_grad(const problem *p, const void *pre, const operands *x, void *grad_pre) {
    act_grad_rows *const rows = rows_of(p->type);
    const size_t stored = dtype_size(p->type), real = p->type == F64 ? 8 : 4;
    const size_t each = ((size_t)p->n * real + 127) / 128 * 128;
    const int most = omp_get_max_threads(), threads = p->m * p->n < 1 << 14 ? 1 : most;
    char *const sums = sums_of(most, each);
#pragma omp parallel num_threads(threads)
    {
        const int t = omp_get_thread_num(), team = omp_get_num_threads();
        const int64_t first = p->m * t / team, last = p->m * (t + 1) / team;
        const size_t skip = (size_t)(first * p->n);
        memset(sums + (size_t)t * each, 0, each);
        rows(last - first, p->n, (const char *)pre + skip * real, x->bias,
             (const char *)x->grad + skip * stored, (char *)grad_pre + skip * stored,
             sums + (size_t)t * each);
#pragma omp barrier
        add_sums(p, team, sums, each, x->d_bias, p->n * t / team, p->n * (t + 1) / team);
    }
}

void round_to_bf16(uint16_t *to, const float *from, int64_t count) {
    round_rows *const round = best_isa().round;
#pragma omp parallel
    {
        const int t = omp_get_thread_num(), team = omp_get_num_threads();
        const int64_t first = count * t / team, last = count * (t + 1) / team;
        round(last - first, to + first, from + first);
    }
}
