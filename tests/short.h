/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_SHORT_H
#define TESTS_SHORT_H

#include <stdbool.h>
#include <stdlib.h>

/* EPIGRAD_TEST_SHORT is set where every instruction is slow, under sanitizers and emulators: fewer cases
 * then. */
static inline bool short_run(void) {
    const char *value = getenv("EPIGRAD_TEST_SHORT");
    return value != NULL && *value != '\0';
}

#endif
