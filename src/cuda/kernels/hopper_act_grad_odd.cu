/* SPDX-License-Identifier: Apache-2.0 */
#include "hopper_act_grad.cuh"
#include "numbers.cuh"

EG_WHOLE_SUMS_ENTRY(odd_bf16, bf16x1, bf16x1)
EG_WHOLE_SUMS_ENTRY(odd_f16, f16x1, f16x1)
EG_WHOLE_SUMS_ENTRY(odd_f32, f32x1, f32x1)
EG_WHOLE_SUMS_ENTRY(odd_product_bf16, bf16x1, f32x1)
EG_WHOLE_SUMS_ENTRY(odd_product_f16, f16x1, f32x1)
EG_WHOLE_SUMS_ENTRY(odd_product_f32, f32x1, f32x1)
