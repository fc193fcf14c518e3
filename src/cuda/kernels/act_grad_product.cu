/* SPDX-License-Identifier: Apache-2.0 */
/* A product that waits in the compute type, times act' of the layer below. */
#include "act_grad.cuh"

EG_ACT_GRAD_ENTRY(product_bf16, bf16x8, true)
EG_ACT_GRAD_ENTRY(product_f16, f16x8, true)
EG_ACT_GRAD_ENTRY(product_f32, f32x4, false)
EG_ACT_GRAD_ENTRY(product_f64, f64x2, false)
