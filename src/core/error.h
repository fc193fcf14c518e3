/* SPDX-License-Identifier: Apache-2.0 */
/* The per-thread message behind eg_last_error. */
#ifndef EG_ERROR_H
#define EG_ERROR_H

#include "epigrad/epigrad.h"

/* Sets this thread's message and returns `status`, so that a failure reads `return eg_fail(...)`. */
eg_status eg_fail(eg_status status, const char *format, ...) __attribute__((format(printf, 2, 3)));

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
