/* SPDX-License-Identifier: Apache-2.0 */
/* The parameter of the kernels that make two products of a gated unit at once. */
#ifndef EG_CUDA_PAIR_H
#define EG_CUDA_PAIR_H

#include "kernels.h"

/* Two products of one shape, of the unit's gate and of its other half. What is done with them is said by the
 * row (table.h):
 *
 *   forward   p = left · gate.right + gate.bias,  q = left · up.right + up.bias;  gate.second = p and
 *             up.second = q, where present;  up.out = act(p) * q. gate.gemm.cols is that of both.
 *   chain     acc = left · right;  up.out = acc * act(gate.in), gate.out = acc * up.in * act'(gate.in);  sums
 *             of both. Only gate's product is made.
 *   sum       gate.gemm.summed is 2: gate.out = the sum of both (+ gate.out, where it accumulates)
 */
typedef struct eg_cuda_hopper_pair {
    eg_cuda_hopper gate, up;
} eg_cuda_hopper_pair;

#endif
