/* SPDX-License-Identifier: Apache-2.0 */
/* From operations to a CPU program, and from b to a pack. */
#ifndef EG_CPU_COMPILE_H
#define EG_CPU_COMPILE_H

#include "step.h"

/* Instead of a number of threads: one, or those of a large machine, to compare kernel rows by the estimated
 * time. */
enum { EG_CPU_TRIAL = -1, EG_CPU_TRIAL_OF_MANY = -16 };
/* By that row, on so many threads at most; false where no memory could hold the workspace. */
bool eg_cpu_compile_for(const eg_caps *caps, const eg_cpu_kernel *kernel, int threads, eg_program *program);

/* Bytes of `items` packed matrices [rows, cols], in micro-panels of that type or in AMX tile blocks; false
 * where no memory could hold them. */
bool eg_cpu_matrix_bytes(const eg_cpu_kernel *kernel, eg_dtype dtype, int64_t items, int64_t rows,
                         int64_t cols, size_t *bytes);

/* ---- By the best row (choose.c) ----------------------------------------------------------------- */

eg_status eg_cpu_compile(const eg_caps *caps, eg_program *program);

/* The row that computes these operations, and reads their packed b; NULL: none. */
const eg_cpu_kernel *eg_cpu_choose(const eg_caps *caps, const eg_op_list *list);
eg_status eg_cpu_no_kernel(const eg_caps *caps, const eg_op_list *list); /* sets the error */

/* ---- Packs (packed.c) --------------------------------------------------------------------------- */

eg_status eg_cpu_plan_pack(const eg_caps *caps, const eg_problem *problem, eg_packed *packed, size_t *bytes);
eg_status eg_cpu_fill_pack(eg_context *context, const eg_problem *problem, eg_packed *packed);

#endif
