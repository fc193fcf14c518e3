/* SPDX-License-Identifier: Apache-2.0 */
#include "few_rows_fma.cuh"

EG_FEW_FMA_BY_COLUMNS(f32, float, 1, 32, 4, 1)
EG_FEW_FMA_BY_COLUMNS(f32, float, 1, 128, 4, 4)
EG_FEW_FMA_BY_COLUMNS(f32, float, 4, 32, 3, 1)
EG_FEW_FMA_BY_COLUMNS(f32, float, 8, 32, 3, 1)
EG_FEW_FMA_BY_COLUMNS(f32, float, 8, 64, 3, 2)
EG_FEW_FMA_BY_COLUMNS(f32, float, 16, 32, 2, 1)
EG_FEW_FMA_BY_DEPTH(f32, float, 1, 16, 8, 4, 1)
EG_FEW_FMA_BY_DEPTH(f32, float, 1, 64, 8, 4, 4)
EG_FEW_FMA_BY_DEPTH(f32, float, 4, 16, 8, 4, 1)
EG_FEW_FMA_BY_DEPTH(f32, float, 4, 64, 8, 4, 4)
EG_FEW_FMA_BY_DEPTH(f32, float, 8, 16, 8, 3, 1)
EG_FEW_FMA_BY_DEPTH(f32, float, 8, 64, 8, 3, 4)
EG_FEW_FMA_BY_DEPTH(f32, float, 16, 32, 4, 2, 1)
