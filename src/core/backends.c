/* SPDX-License-Identifier: Apache-2.0 */
/* The backends, by their table; those that this build lacks are NULL, and eg_open says so. */
#include "backend.h"

#ifndef EG_HAVE_CUDA
const eg_backend_ops *eg_cuda_ops(void) { return NULL; }
#endif

#ifndef EG_HAVE_WEBGPU
const eg_backend_ops *eg_webgpu_ops(void) { return NULL; }
#endif

const eg_backend_ops *eg_backend_find(eg_backend backend) {
    switch (backend) {
#define EG_ROW(NAME, name)                                                                                   \
    case EG_BACKEND_##NAME:                                                                                  \
        return eg_##name##_ops();
        EG_BACKEND_TABLE(EG_ROW)
#undef EG_ROW
    }
    return NULL;
}

const char *eg_backend_name(eg_backend backend) {
    switch (backend) {
#define EG_ROW(NAME, name)                                                                                   \
    case EG_BACKEND_##NAME:                                                                                  \
        return #name;
        EG_BACKEND_TABLE(EG_ROW)
#undef EG_ROW
    }
    return "unknown";
}
