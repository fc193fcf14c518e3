/* SPDX-License-Identifier: Apache-2.0 */
/* A call is refused in words that name the argument, its value and what was expected. */
#ifndef EG_TESTS_REFUSED_H
#define EG_TESTS_REFUSED_H

#include "fixture.h"

static inline void assert_message(const char *argument, const char *value, const char *expected) {
    const char *message = eg_last_error();
    if (strstr(message, argument) == NULL || strstr(message, value) == NULL ||
        strstr(message, expected) == NULL)
        fail_msg("\"%s\" lacks one of \"%s\", \"%s\", \"%s\"", message, argument, value, expected);
    assert_null(strchr(message, '\n')); /* one line */
}

#define assert_refused(call, argument, value, expected)                                                      \
    do {                                                                                                     \
        assert_status(call, EG_ERR_ARGUMENT);                                                                \
        assert_message(argument, value, expected);                                                           \
    } while (0)

#endif
