/* SPDX-License-Identifier: Apache-2.0 */
/* A context, or the end of the test: skipped where this machine or build lacks the backend. */
#ifndef TESTS_OPEN_H
#define TESTS_OPEN_H

#include <stdio.h>
#include <stdlib.h>

#include "epigrad/epigrad.h"

enum { SKIPPED = 77 };

static inline eg_context *open_or_skip(eg_open_info info) {
    eg_context *context = NULL;
    info.size = sizeof info;
    const eg_status status = eg_open(&info, &context);
    if (status == EG_OK) return context;
    printf("%s: %s\n", eg_status_name(status), eg_last_error());
    exit(status == EG_ERR_UNAVAILABLE ? SKIPPED : EXIT_FAILURE);
}

#endif
