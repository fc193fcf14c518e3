/* SPDX-License-Identifier: Apache-2.0 */
#include "sample.h"

#include "../common/must.h"

#include <stdbool.h>
#include <string.h>
#include <tgmath.h>

/* A letter by its probability, with those that are likely made likelier. */
static int draw(const real *logits, int letters, rng *random) {
    const double temperature = 0.7;
    double weight[256] = {0}, largest = (double)logits[0], sum = 0;
    for (int i = 1; i < letters; i++) largest = fmax(largest, (double)logits[i]);
    for (int i = 0; i < letters; i++) sum += weight[i] = exp(((double)logits[i] - largest) / temperature);
    double rest = sum * rng_uniform(random);
    for (int i = 0; i < letters - 1; i++)
        if ((rest -= weight[i]) < 0) return i;
    return letters - 1;
}

/* Lines are broken here: the model has only seen the ends of paragraphs. */
static void print(char letter, int *column) {
    const bool ends = letter == ' ' && *column >= 72;
    fputs(letter == '\n' ? "\n\n" : (char[]){(char)(ends ? '\n' : letter), '\0'}, stdout);
    fflush(stdout);
    *column = ends || letter == '\n' ? 0 : *column + 1;
}

/* The window is always as long as in the training, so that every call is one that was made before. What is
 * behind the last letter does not matter: nothing looks ahead. A writer in a hurry would keep k and v of each
 * letter instead. */
void write_sample(model *m, const text *t, int count, rng *random) {
    const int time = m->size.time;
    unsigned char *window = must_alloc((size_t)time, 1);
    real logits[256];
    int known = 1, column = 0;
    window[0] = t->number['\n'];
    for (int i = 0; i < count; i++) {
        model_forward(m, window, 1);
        model_read(m, logits, m->logits + (ptrdiff_t)(known - 1) * t->letters, (size_t)t->letters);
        const int next = draw(logits, t->letters, random);
        print(t->name[next], &column);
        if (known == time) memmove(window, window + 1, (size_t)--known);
        window[known++] = (unsigned char)next;
    }
    putchar('\n');
    free(window);
}
