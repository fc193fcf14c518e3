/* SPDX-License-Identifier: Apache-2.0 */
/* The element-wise middle of the backward pass, for the peers that are matrix products only. */
#ifndef BENCH_CPU_ACT_GRAD_H
#define BENCH_CPU_ACT_GRAD_H

#include "worker.h"

/* grad_pre = grad * gelu'(pre + bias), d_bias = its column sums: one pass, shared out by rows among OpenMP's
 * threads. pre is f64 for F64 and f32 else; grad_pre may be pre where the types agree. */
void act_grad(const problem *p, const void *pre, const operands *x, void *grad_pre);

/* f32 to bf16, to nearest even, by all threads: for libraries whose bf16 products end in f32. */
void round_to_bf16(uint16_t *to, const float *from, int64_t count);

/* ---- Between act_grad.c and act_grad_rows.c, which is compiled once for each instruction set ---- */

typedef void act_grad_rows(int64_t rows, int64_t n, const void *pre, const void *bias, const void *grad,
                           void *grad_pre, void *sums);
typedef void round_rows(int64_t count, uint16_t *to, const float *from);

#define ACT_GRAD_DECLARE(isa)                                                                                \
    act_grad_rows act_grad_f32_##isa, act_grad_f64_##isa, act_grad_bf16_##isa;                               \
    round_rows round_bf16_##isa

ACT_GRAD_DECLARE(base);
ACT_GRAD_DECLARE(v3); /* x86-64-v3: AVX2, FMA */
ACT_GRAD_DECLARE(v4); /* x86-64-v4: AVX-512 */

#endif
