/* SPDX-License-Identifier: Apache-2.0 */
/* The model's parameters, and where each is. */
#ifndef GPT_WEIGHTS_H
#define GPT_WEIGHTS_H

#include "real.h"

#include "../common/random.h"

enum { MAX_BLOCKS = 16 };

typedef struct model_size {
    int blocks, width, heads, hidden;
    int experts; /* gated units of each block, of which a letter goes through one; 0: one unit, and no choice
                  */
    int time;    /* letters of a sequence */
    int batch;   /* sequences of a step, at most */
    int letters; /* of the alphabet */
} model_size;

/* As PyTorch has them, [out, in]: a column-major B. */
typedef struct block_weights {
    real *qkv;                       /* [3·width, width]: three matrices, one below the other */
    real *o;                         /* [width, width] */
    real *gate, *up;                 /* [hidden, width], of each expert */
    real *down;                      /* [width, hidden], of each expert */
    real *router;                    /* [experts, width] */
    real *attention_norm, *mlp_norm; /* [width] */
} block_weights;

/* A tensor's place in the flat array. */
typedef struct tensor {
    const char *name;
    size_t begin, end;
} tensor;

/* All parameters in one array, or their gradients in one of the same order: matrices, then the norms' gains.
 */
typedef struct weights {
    real *all;
    size_t count, matrices; /* elements; of these the first are in matrices */
    real *embedding;        /* [letters, width]: the first layer, and the last */
    real *last_norm;        /* [width] */
    block_weights block[MAX_BLOCKS];
    tensor list[2 + 10 * MAX_BLOCKS];
    int tensors;
} weights;

/* Places the tensors in `all`, of `count` elements. NULL: only counts. */
weights weights_place(const model_size *size, real *all);

/* Normal weights that keep the size of what goes through them; gains 1. */
void weights_initialise(const weights *w, const model_size *size, rng *random);

#endif
