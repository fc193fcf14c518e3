/* SPDX-License-Identifier: Apache-2.0 */
#ifndef EG_CLOCK_H
#define EG_CLOCK_H

#include <time.h>

/* The time now; differences of it are what counts. */
static inline double eg_seconds(void) {
    struct timespec now;
    timespec_get(&now, TIME_UTC);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

#endif
