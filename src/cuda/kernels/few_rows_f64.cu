/* SPDX-License-Identifier: Apache-2.0 */
#include "few_rows_fma.cuh"

EG_FEW_FMA_BY_COLUMNS(f64, double, 1, 16, 3, 1)
EG_FEW_FMA_BY_COLUMNS(f64, double, 1, 64, 3, 4)
EG_FEW_FMA_BY_COLUMNS(f64, double, 4, 16, 3, 1)
EG_FEW_FMA_BY_COLUMNS(f64, double, 8, 16, 2, 1)
EG_FEW_FMA_BY_DEPTH(f64, double, 1, 16, 8, 3, 1)
EG_FEW_FMA_BY_DEPTH(f64, double, 1, 64, 8, 3, 4)
EG_FEW_FMA_BY_DEPTH(f64, double, 4, 16, 8, 2, 1)
EG_FEW_FMA_BY_DEPTH(f64, double, 4, 64, 8, 2, 4)
