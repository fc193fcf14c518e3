/* SPDX-License-Identifier: Apache-2.0 */
#include "few_rows_odd.cuh"

EG_FEW_ODD_KERNELS(bf16, true)
