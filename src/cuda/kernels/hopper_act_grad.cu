/* SPDX-License-Identifier: Apache-2.0 */
#include "hopper_act_grad.cuh"

EG_WHOLE_SUMS_ENTRY(bf16, bf16x8, bf16x8)
EG_WHOLE_SUMS_ENTRY(f16, f16x8, f16x8)
EG_WHOLE_SUMS_ENTRY(f32, f32x4, f32x4)
EG_WHOLE_SUMS_ENTRY(product_bf16, bf16x8, f32x4)
EG_WHOLE_SUMS_ENTRY(product_f16, f16x8, f32x4)
EG_WHOLE_SUMS_ENTRY(product_f32, f32x4, f32x4)
