/* SPDX-License-Identifier: Apache-2.0 */
#include "loss.h"

#include "data.h"

#include <math.h>

/* The largest logit is taken off first: exponentials are then at most 1. */
static void softmax(const double *logits, double *probability) {
    double largest = logits[0], sum = 0;
    for (int c = 1; c < CLASSES; c++) largest = fmax(largest, logits[c]);
    for (int c = 0; c < CLASSES; c++) sum += probability[c] = exp(logits[c] - largest);
    for (int c = 0; c < CLASSES; c++) probability[c] /= sum;
}

double softmax_cross_entropy(const double *logits, const unsigned char *label, int rows, double *d_logits) {
    double loss = 0;
    for (int r = 0; r < rows; r++, logits += CLASSES) {
        double probability[CLASSES];
        softmax(logits, probability);
        loss -= log(fmax(probability[label[r]], 1e-300));
        if (!d_logits) continue;
        for (int c = 0; c < CLASSES; c++) *d_logits++ = probability[c] - (c == label[r]);
    }
    return loss;
}

int most_likely(const double *logits, double *probability) {
    double p[CLASSES];
    int best = 0;
    softmax(logits, p);
    for (int c = 1; c < CLASSES; c++)
        if (p[c] > p[best]) best = c;
    *probability = p[best];
    return best;
}
