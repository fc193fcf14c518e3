/* SPDX-License-Identifier: Apache-2.0 */
/* An example's one way to fail: say why in words and leave. A library would hand the status on instead.
 * EXAMPLE is its name, which the build gives. */
#ifndef EXAMPLES_MUST_H
#define EXAMPLES_MUST_H

#include <epigrad/epigrad.h>
#include <stdio.h>
#include <stdlib.h>

enum { EXIT_USAGE = 2, EXIT_UNAVAILABLE = 3 };

/* Every fallible call of epigrad returns a status; eg_last_error() says in one line what was wrong. */
static inline void must(eg_status status) {
    if (status == EG_OK) return;
    fprintf(stderr, EXAMPLE ": %s (%s)\n", eg_last_error(), eg_status_name(status));
    exit(status == EG_ERR_UNAVAILABLE ? EXIT_UNAVAILABLE : EXIT_FAILURE);
}

/* Host memory, set to zero. */
static inline void *must_alloc(size_t count, size_t size) {
    void *memory = calloc(count ? count : 1, size);
    if (memory) return memory;
    fprintf(stderr, EXAMPLE ": out of memory\n");
    exit(EXIT_FAILURE);
}

#endif
