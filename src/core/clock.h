/* SPDX-License-Identifier: Apache-2.0 */
#ifndef EG_CLOCK_H
#define EG_CLOCK_H

#include <time.h>

/* Seconds since some moment, at a steady pace: setting the machine's clock does not change it. */
static inline double eg_seconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

#endif
