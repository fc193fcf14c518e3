/* SPDX-License-Identifier: Apache-2.0 */
/* The text that is learnt: letters (any characters) as small numbers, a line each paragraph, a part of it
 * kept for the test.
 */
#ifndef GPT_TEXT_H
#define GPT_TEXT_H

#include "../common/random.h"

#include <stddef.h>

typedef struct text {
    unsigned char *letter; /* numbers below `letters` */
    size_t count, train;   /* letters in all; of these the first are to learn from, the others for the test */
    int letters;           /* how many different ones */
    char name[256];        /* what number stands for what */
    unsigned char number[256];
} text;

/* Reads a file, of which the last tenth is for the test. At least `smallest` letters have to be in each part.
 */
text text_load(const char *path, size_t smallest);
void text_free(text *t);

/* `batch` windows of time + 1 letters from anywhere in begin .. end - 1: input[b·time + t] is letter t of
 * window b, target[b·time + t] the one after it. */
void text_draw(const text *t, size_t begin, size_t end, int time, int batch, rng *random,
               unsigned char *input, unsigned char *target);

#endif
