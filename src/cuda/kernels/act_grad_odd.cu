/* SPDX-License-Identifier: Apache-2.0 */
#include "act_grad.cuh"
#include "numbers.cuh"

EG_ACT_GRAD_ENTRY(odd_bf16, bf16x1, bf16x1)
EG_ACT_GRAD_ENTRY(odd_f16, f16x1, f16x1)
EG_ACT_GRAD_ENTRY(odd_f32, f32x1, f32x1)
EG_ACT_GRAD_ENTRY(odd_product_bf16, bf16x1, f32x1)
EG_ACT_GRAD_ENTRY(odd_product_f16, f16x1, f32x1)
EG_ACT_GRAD_ENTRY(odd_product_f32, f32x1, f32x1)
