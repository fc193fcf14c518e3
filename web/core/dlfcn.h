/* SPDX-License-Identifier: Apache-2.0 */
/* wasm has no shared libraries. The WebGPU backend looks for one all the same: webgpu.c answers that it is
 * there, and hands out the page's WebGPU under the names of webgpu.h. */
#ifndef WEB_DLFCN_H
#define WEB_DLFCN_H

enum { RTLD_NOW = 0, RTLD_LOCAL = 0 };

void *dlopen(const char *name, int mode);
void *dlsym(void *library, const char *name);
const char *dlerror(void);

#endif
