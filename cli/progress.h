/* SPDX-License-Identifier: Apache-2.0 */
/* A progress bar on stderr: only on a terminal, and only once the work has taken a second. */
#ifndef CLI_PROGRESS_H
#define CLI_PROGRESS_H

/* `total` steps lie ahead. One bar at a time. */
void progress_begin(const char *command, int total);

/* The step before, if there was one, is done; this one begins. */
void progress_step(const char *label);

/* Takes the bar off the screen. May be called without a bar. */
void progress_end(void);

/* Prints a line of results on stdout, above the bar. */
void progress_print(const char *format, ...) __attribute__((format(printf, 1, 2)));

#endif
