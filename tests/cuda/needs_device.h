/* SPDX-License-Identifier: Apache-2.0 */
/* What tests that need an NVIDIA device begin with. */
#ifndef TESTS_CUDA_NEEDS_DEVICE_H
#define TESTS_CUDA_NEEDS_DEVICE_H

#include "support.h"

/* 0, or 77: there is no device, or none with this kernel. */
static inline int status_without(const char *kernel) {
    const eg_open_info info = {.size = sizeof info, .backend = EG_BACKEND_CUDA, .kernel = kernel};
    eg_context *context = NULL;
    if (eg_open(&info, &context) != EG_OK) {
        printf("%s\n", eg_last_error());
        return 77;
    }
    eg_close(context);
    return 0;
}

#endif
