/* SPDX-License-Identifier: Apache-2.0 */
/* What a command line may be wrong in. */
#ifndef EXAMPLES_ARGUMENTS_H
#define EXAMPLES_ARGUMENTS_H

#include "must.h"

#include <errno.h>

static inline _Noreturn void refuse(const char *option, const char *value, const char *expected) {
    fprintf(stderr, EXAMPLE ": %s %s: expected %s (--help tells more)\n", option, value, expected);
    exit(EXIT_USAGE);
}

static inline long parse_number(const char *option, const char *text, long smallest, long largest) {
    char *end, expected[64];
    errno = 0;
    long value = strtol(text, &end, 10);
    if (errno == 0 && end != text && *end == '\0' && value >= smallest && value <= largest) return value;
    snprintf(expected, sizeof expected, "a number from %ld to %ld", smallest, largest);
    refuse(option, text, expected);
}

#endif
