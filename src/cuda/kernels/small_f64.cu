/* SPDX-License-Identifier: Apache-2.0 */
#include "small_fma.cuh"

EG_SMALL_ENTRY(fma_f64_16x64, small_fma<double, 16, 64, 2, 16, 1, 1>)
EG_SMALL_ENTRY(fma_f64_64x16, small_fma<double, 64, 16, 16, 2, 1, 1>)
