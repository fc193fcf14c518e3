/* SPDX-License-Identifier: Apache-2.0 */
/* What the example draws on the terminal. */
#ifndef DIGITS_DISPLAY_H
#define DIGITS_DISPLAY_H

#include "data.h"
#include "training.h"

/* A bar on a terminal, a line every few epochs elsewhere. */
typedef struct progress {
    const char *title;
    int epochs;
    int on_terminal;
} progress;

progress progress_begin(const char *title, int epochs);
void progress_update(const progress *bar, int epoch, double loss);
void progress_end(const progress *bar);

/* Digits the network got wrong, side by side, with what it said. */
void draw_mistakes(const digits *d, const guess *wrong, int count);

#endif
