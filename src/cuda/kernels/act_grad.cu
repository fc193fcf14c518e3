/* SPDX-License-Identifier: Apache-2.0 */
#include "act_grad.cuh"

EG_ACT_GRAD_ENTRY(bf16, bf16x8, false)
EG_ACT_GRAD_ENTRY(f16, f16x8, false)
EG_ACT_GRAD_ENTRY(f32, f32x4, false)
EG_ACT_GRAD_ENTRY(f64, f64x2, false)
