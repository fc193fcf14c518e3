/* SPDX-License-Identifier: Apache-2.0 */
#include "act_grad.cuh"

EG_ACT_GRAD_ENTRY(bf16, bf16x8, bf16x8)
EG_ACT_GRAD_ENTRY(f16, f16x8, f16x8)
EG_ACT_GRAD_ENTRY(f32, f32x4, f32x4)
EG_ACT_GRAD_ENTRY(f64, f64x2, f64x2)
