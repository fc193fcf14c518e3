/* SPDX-License-Identifier: Apache-2.0 */
/* How a command fails: an exit code, and one line that names what is wrong. */
#ifndef CLI_FAILURE_H
#define CLI_FAILURE_H

#include "epigrad/epigrad.h"

/* The exit codes are part of the command's interface. */
enum {
    CLI_OK = 0,
    CLI_FAILED = 1,     /* any other failure */
    CLI_BAD_INPUT = 2,  /* bad usage or bad input */
    CLI_UNAVAILABLE = 3 /* the backend is not available */
};

/* Keeps the message for main, which prints it, and returns `code`. */
int cli_fail(int code, const char *format, ...) __attribute__((format(printf, 2, 3)));
int cli_out_of_memory(void);

/* The last message: one line, printable whatever the bytes of a hostile file that it quotes. */
const char *cli_failure(void);

#define CLI_TRY(call)                                                                                        \
    do {                                                                                                     \
        const int code_ = (call);                                                                            \
        if (code_ != CLI_OK) return code_;                                                                   \
    } while (0)

#endif
