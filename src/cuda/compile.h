/* SPDX-License-Identifier: Apache-2.0 */
/* From operations to a CUDA program. */
#ifndef EG_CUDA_COMPILE_H
#define EG_CUDA_COMPILE_H

#include "core/backend.h"

eg_status eg_cuda_compile(const eg_caps *caps, eg_program *program);

#endif
