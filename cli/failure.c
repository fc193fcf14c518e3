/* SPDX-License-Identifier: Apache-2.0 */
#include "failure.h"

#include <stdarg.h>
#include <stdio.h>

static char message[512];

/* Control bytes could forge a second line or drive the terminal. */
static void make_printable(char *text) {
    for (; *text != '\0'; text++) {
        const unsigned char byte = (unsigned char)*text;
        if (byte < 0x20 || byte == 0x7f) *text = '?';
    }
}

int cli_fail(int code, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(message, sizeof message, format, arguments);
    va_end(arguments);
    make_printable(message);
    return code;
}

int cli_out_of_memory(void) { return cli_fail(CLI_FAILED, "out of memory"); }

const char *cli_failure(void) { return message; }
