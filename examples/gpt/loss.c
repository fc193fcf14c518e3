/* SPDX-License-Identifier: Apache-2.0 */
#include "loss.h"

#include <tgmath.h>

double cross_entropy(const real *logits, const unsigned char *target, int rows, int letters, real *d_logits) {
    double loss = 0;
    for (int r = 0; r < rows; r++, logits += letters) {
        const real right = logits[target[r]];
        real largest = logits[0], sum = 0;
        for (int i = 1; i < letters; i++) largest = logits[i] > largest ? logits[i] : largest;
        for (int i = 0; i < letters; i++) sum += exp(logits[i] - largest);
        loss += (double)(log(sum) + largest - right);
        if (!d_logits) continue;
        for (int i = 0; i < letters; i++) d_logits[i] = exp(logits[i] - largest) / (sum * (real)rows);
        d_logits[target[r]] -= 1 / (real)rows;
        d_logits += letters;
    }
    return loss / rows;
}
