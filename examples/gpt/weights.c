/* SPDX-License-Identifier: Apache-2.0 */
#include "weights.h"

#include <math.h>

static real *place(weights *w, const char *name, int rows, int columns) {
    const size_t begin = w->count;
    w->count += (size_t)rows * (size_t)columns;
    w->list[w->tensors++] = (tensor){name, begin, w->count};
    return w->all ? w->all + begin : NULL;
}

weights weights_place(const model_size *s, real *all) {
    weights w = {.all = all};
    const int units = s->experts > 0 ? s->experts : 1;
    w.embedding = place(&w, "embedding", s->letters, s->width);
    for (int i = 0; i < s->blocks; i++) {
        block_weights *b = &w.block[i];
        b->qkv = place(&w, "qkv", 3 * s->width, s->width);
        b->o = place(&w, "o", s->width, s->width);
        b->gate = place(&w, "gate", units * s->hidden, s->width);
        b->up = place(&w, "up", units * s->hidden, s->width);
        b->down = place(&w, "down", units * s->width, s->hidden);
        if (s->experts > 0) b->router = place(&w, "router", s->experts, s->width);
    }
    w.matrices = w.count;
    for (int i = 0; i < s->blocks; i++) {
        w.block[i].attention_norm = place(&w, "attention norm", 1, s->width);
        w.block[i].mlp_norm = place(&w, "mlp norm", 1, s->width);
    }
    w.last_norm = place(&w, "last norm", 1, s->width);
    return w;
}

static void fill(real *matrix, int rows, int columns, double deviation, rng *random) {
    for (int64_t i = 0; i < (int64_t)rows * columns; i++) matrix[i] = (real)(deviation * rng_normal(random));
}

/* What is added to the stream is smaller, the more blocks add to it. */
void weights_initialise(const weights *w, const model_size *s, rng *random) {
    const double in = 1 / sqrt(s->width), added = 1 / sqrt(2.0 * s->blocks);
    const int units = s->experts > 0 ? s->experts : 1;
    fill(w->embedding, s->letters, s->width, in, random);
    for (int i = 0; i < s->blocks; i++) {
        const block_weights *b = &w->block[i];
        fill(b->qkv, 3 * s->width, s->width, in, random);
        fill(b->o, s->width, s->width, in * added, random);
        fill(b->gate, units * s->hidden, s->width, in, random);
        fill(b->up, units * s->hidden, s->width, in, random);
        fill(b->down, units * s->width, s->hidden, added / sqrt(s->hidden), random);
        if (s->experts > 0) fill(b->router, s->experts, s->width, in, random);
    }
    for (size_t i = w->matrices; i < w->count; i++) w->all[i] = 1;
}
