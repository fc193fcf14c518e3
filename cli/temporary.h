/* SPDX-License-Identifier: Apache-2.0 */
/* What is written beside OUT, until it takes OUT's place. A signal that ends the command (SIGHUP, SIGINT,
 * SIGQUIT, SIGTERM, SIGXCPU) removes it first. One at a time, and from one thread. */
#ifndef CLI_TEMPORARY_H
#define CLI_TEMPORARY_H

#include <stdbool.h>

/* As mkstemp and mkdtemp: `path` ends in XXXXXX, which is replaced, and errno says why it failed. */
int temporary_make_file(char *path);
bool temporary_make_folder(char *path);

/* Holds signals back: neither half a rename nor half a removal is to be cut short. */
void temporary_hold_signals(void);

/* It was renamed or removed: a signal, also one that was held back, no longer looks for it. */
void temporary_end(void);

#endif
