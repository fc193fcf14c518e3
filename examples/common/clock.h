/* SPDX-License-Identifier: Apache-2.0 */
#ifndef EXAMPLES_CLOCK_H
#define EXAMPLES_CLOCK_H

#include <time.h>

/* Seconds, from some moment on. */
static inline double now(void) {
    struct timespec t;
    timespec_get(&t, TIME_UTC);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

#endif
