/* SPDX-License-Identifier: Apache-2.0 */
/* The kernel table. */
#ifndef EG_CPU_KERNELS_H
#define EG_CPU_KERNELS_H

#include "step.h"

/* Row `index` of the table, NULL past the end. */
const eg_cpu_kernel *eg_cpu_kernel_row(int index);

/* Whether a row serves these operations. */
bool eg_cpu_serves(const eg_caps *caps, const eg_cpu_kernel *row, const eg_op_list *list);

/* The first row that serves these operations, of those for the matrix unit or of the others; NULL: none. */
const eg_cpu_kernel *eg_cpu_first_row(const eg_caps *caps, const eg_op_list *list, bool is_amx);

int eg_cpu_index_of(const eg_cpu_kernel *kernel);

/* The same processor as if it had no matrix unit: its kernels take any numbers. */
eg_caps eg_cpu_caps_without_amx(const eg_caps *caps);

/* The form of a pack for a row; NULL: nothing that it could read. */
const eg_cpu_form *eg_cpu_form_of(const eg_packed *packed, const eg_cpu_kernel *kernel);

#endif
