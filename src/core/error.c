/* SPDX-License-Identifier: Apache-2.0 */
#include "error.h"

#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

static _Thread_local eg_message message;

/* The last place of a text in another one; NULL: there is none. */
static const char *find_last(const char *text, const char *found) {
    const char *last = NULL;
    for (const char *at = strstr(text, found); at != NULL; at = strstr(at + 1, found)) last = at;
    return last;
}

/* What is wrong, and what was expected: neither helps without the other. */
static void take_shortened(const char *whole) {
    const size_t room = sizeof message.text - sizeof "...";
    const char *expected = find_last(whole, "; expected");
    const size_t end = expected != NULL ? strlen(expected) : 0, kept = end < room / 2 ? end : 0;
    snprintf(message.text, sizeof message.text, "%.*s...%s", (int)(room - kept), whole,
             kept > 0 ? expected : "");
}

/* A driver's text, or a path, may have line ends, or escapes that a terminal obeys. */
static void make_one_line(char *text) {
    for (; *text != '\0'; text++) {
        if (*text == '\n' || *text == '\r' || *text == '\t') *text = ' ';
        if ((unsigned char)*text < ' ' || *text == '\x7f') *text = '?';
    }
}

eg_status eg_fail(eg_status status, const char *format, ...) {
    char whole[2 * sizeof message.text] = "";
    va_list arguments;
    va_start(arguments, format);
    /* LLVM 14's analyser loses the line above where the text is a thread's own.
     * NOLINTNEXTLINE(clang-analyzer-valist.Uninitialized) */
    const int length = vsnprintf(whole, sizeof whole, format, arguments);
    va_end(arguments);
    if (length < (int)sizeof message.text)
        snprintf(message.text, sizeof message.text, "%s", whole);
    else
        take_shortened(whole);
    make_one_line(message.text);
    return status;
}

/* One byte of a name, as C has it between quotes. */
static int put_escaped(unsigned char byte, char *text, size_t room) {
    if (byte == '\n') return snprintf(text, room, "\\n");
    if (byte == '"' || byte == '\\') return snprintf(text, room, "\\%c", byte);
    const bool printable = byte >= ' ' && byte <= '~';
    return snprintf(text, room, printable ? "%c" : "\\x%02x", byte);
}

eg_quoted eg_quote(const char *name) {
    eg_quoted quoted = {"\""};
    const size_t most = sizeof quoted.text - sizeof "\"...";
    size_t used = 1;
    for (; *name != '\0'; name++) {
        char escaped[8];
        const size_t length = (size_t)put_escaped((unsigned char)*name, escaped, sizeof escaped);
        if (used + length > most) break;
        memcpy(quoted.text + used, escaped, length);
        used += length;
    }
    snprintf(quoted.text + used, sizeof quoted.text - used, "\"%s", *name != '\0' ? "..." : "");
    return quoted;
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
