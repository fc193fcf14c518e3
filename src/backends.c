/* The backends this build has: those it lacks are NULL, and eg_open says so. */
#include "backend.h"

#ifndef EG_HAVE_CUDA
const eg_backend_ops *eg_cuda_ops(void) { return NULL; }
#endif

#ifndef EG_HAVE_WEBGPU
const eg_backend_ops *eg_webgpu_ops(void) { return NULL; }
#endif
