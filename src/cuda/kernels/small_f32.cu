/* SPDX-License-Identifier: Apache-2.0 */
#include "small_fma.cuh"

EG_SMALL_ENTRY(fma_f32_16x64, small_fma<float, 16, 64, 2, 16, 1, 1>)
EG_SMALL_ENTRY(fma_f32_64x16, small_fma<float, 64, 16, 16, 2, 1, 1>)
EG_SMALL_ENTRY(fma_f32_64x64, small_fma<float, 64, 64, 4, 8, 2, 2>)
EG_SMALL_GROUPED_ENTRY(fma_f32_grouped_16x64, small_fma<float, 16, 64, 2, 16, 1, 1>)
EG_SMALL_GROUPED_ENTRY(fma_f32_grouped_64x64, small_fma<float, 64, 64, 4, 8, 2, 2>)
