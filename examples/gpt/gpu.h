/* SPDX-License-Identifier: Apache-2.0 */
/* The CUDA driver, as far as it is needed to run kernels.cu: loaded at run time, so that the program starts
 * on machines that have none. */
#ifndef GPT_GPU_H
#define GPT_GPU_H

#include "kernels.h"

/* Loads the kernels onto the first GPU. */
void gpu_open(void);
void gpu_close(void);

/* Enqueues a kernel on the default stream, where a context of epigrad's puts its calls as well. `args` are
 * copied. */
void gpu_launch(kernel kernel, int blocks_x, int blocks_y, void *args);

#endif
