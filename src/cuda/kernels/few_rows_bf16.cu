/* SPDX-License-Identifier: Apache-2.0 */
#include "few_rows.cuh"

EG_FEW_KERNELS(bf16, true)
