/* SPDX-License-Identifier: Apache-2.0 */
/* A product that waits in f32, times act' of the layer below. Of f64, map.cu is as fast. */
#include "act_grad.cuh"

EG_ACT_GRAD_ENTRY(product_bf16, bf16x8, f32x4)
EG_ACT_GRAD_ENTRY(product_f16, f16x8, f32x4)
EG_ACT_GRAD_ENTRY(product_f32, f32x4, f32x4)
