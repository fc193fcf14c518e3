/* SPDX-License-Identifier: Apache-2.0 */
/* The per-thread message behind eg_last_error. */
#ifndef EG_ERROR_H
#define EG_ERROR_H

#include "epigrad/epigrad.h"

/* Sets this thread's message and returns `status`, so that a failure reads `return eg_fail(...)`. The message
 * is one line whatever texts are in it. One that is too long loses the end of what is before "; expected". */
eg_status eg_fail(eg_status status, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* A name that the caller or the environment gave, for a message: in quotes, with escapes for what is not
 * printable ASCII, and shortened where it is long. */
typedef struct eg_quoted {
    char text[72];
} eg_quoted;
eg_quoted eg_quote(const char *name);

/* The message, to be put back after a failure that is none of the call's. */
typedef struct eg_message {
    char text[512];
} eg_message;
eg_message eg_message_get(void);
void eg_message_put(const eg_message *message);

/* Returns from the caller with the status of a call that failed. */
#define EG_TRY(call)                                                                                         \
    do {                                                                                                     \
        const eg_status status_ = (call);                                                                    \
        if (status_ != EG_OK) return status_;                                                                \
    } while (0)

#endif
