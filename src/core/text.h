/* SPDX-License-Identifier: Apache-2.0 */
/* Text that is put together piece by piece, and cut to the room there is for it, its NUL included. */
#ifndef EG_TEXT_H
#define EG_TEXT_H

#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>

typedef struct eg_text {
    char *at;
    size_t left;
} eg_text;

__attribute__((format(printf, 2, 3))) static inline void eg_put(eg_text *text, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    const int length = vsnprintf(text->at, text->left, format, arguments);
    va_end(arguments);
    if (length < 0) return;
    const size_t used = (size_t)length < text->left ? (size_t)length : (text->left > 0 ? text->left - 1 : 0);
    text->at += used;
    text->left -= used;
}

#endif
