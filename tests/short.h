/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_SHORT_H
#define TESTS_SHORT_H

#include <stdbool.h>
#include <stdlib.h>

/* EPIGRAD_TEST_SHORT is set where every instruction is slow, under sanitizers and emulators: fewer cases
 * then, and with a number above 1 so many times fewer. */
static inline bool short_run(void) {
    const char *value = getenv("EPIGRAD_TEST_SHORT");
    return value != NULL && *value != '\0';
}

/* From one of the cases that are computed to the next: 1, or of a short run `step` or more. A step should be no
 * multiple of what the cases are counted by: twos, threes and fours. */
static inline int short_step(int step) {
    const char *value = getenv("EPIGRAD_TEST_SHORT");
    if (value == NULL || *value == '\0') return 1;
    const int times = atoi(value);
    return times > 1 ? step * times + 2 : step;
}

#endif
