/* SPDX-License-Identifier: Apache-2.0 */
/* epigrad::linear and epigrad::linear_backward as kernels of torch's dispatcher, without Python on their way.
 */
#ifndef EG_PYTHON_TORCH_OPERATORS_H
#define EG_PYTHON_TORCH_OPERATORS_H

#include <stdbool.h>

/* Registers them for the CPU and CUDA; false, and nothing done, where torch lacks the C interface
 * (before 2.10). The libraries are torch's, by their paths, which are loaded; the second may not be there. */
bool eg_py_torch_register(const char *cpu_library, const char *cuda_library);

#endif
