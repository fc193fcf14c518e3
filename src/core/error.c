/* SPDX-License-Identifier: Apache-2.0 */
#include "error.h"

#include <stdarg.h>
#include <stdio.h>

static _Thread_local eg_message message;

eg_status eg_fail(eg_status status, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    /* LLVM 14's analyser loses the line above where the text is a thread's own.
     * NOLINTNEXTLINE(clang-analyzer-valist.Uninitialized) */
    vsnprintf(message.text, sizeof message.text, format, arguments);
    va_end(arguments);
    return status;
}

const char *eg_last_error(void) { return message.text; }

eg_message eg_message_get(void) { return message; }

void eg_message_put(const eg_message *kept) { message = *kept; }

const char *eg_status_name(eg_status status) {
    switch (status) {
    case EG_OK:
        return "EG_OK";
    case EG_ERR_ARGUMENT:
        return "EG_ERR_ARGUMENT";
    case EG_ERR_UNSUPPORTED:
        return "EG_ERR_UNSUPPORTED";
    case EG_ERR_UNAVAILABLE:
        return "EG_ERR_UNAVAILABLE";
    case EG_ERR_OUT_OF_MEMORY:
        return "EG_ERR_OUT_OF_MEMORY";
    case EG_ERR_DEVICE:
        return "EG_ERR_DEVICE";
    }
    return "unknown status";
}
