/* SPDX-License-Identifier: Apache-2.0 */
/* A small language model of Llama's kind: this and model.c are the files to read first.
 *
 *     x = embedding[letter]
 *     each block:  x = x + attention(norm(x))·W_o
 *                  x = x + (silu(norm(x)·W_gate) ⊙ norm(x)·W_up)·W_down
 *     logits = norm(x)·embeddingᵀ
 *
 * Every product with a weight is a call of epigrad's, and so are attention's products; the rest is plain C.
 * Rows of every matrix are letters, time first (attention.h says why). */
#ifndef GPT_MODEL_H
#define GPT_MODEL_H

#include "weights.h"

/* What a block's backward pass wants of its forward pass. Of the gated unit that is the pair before the gate:
 * the product of the two is made again on the way back, and takes no memory in each block. */
typedef struct block_saved {
    real *x;            /* [rows, width]: the stream as it came in */
    real *attention_in; /* [rows, width]: its norm */
    real *q, *k, *v;    /* [rows, width] */
    real *p;            /* [batch·heads, time, time] */
    real *mixed;        /* [rows, width]: p·v */
    real *middle;       /* [rows, width]: the stream after attention */
    real *mlp_in;       /* [rows, width]: its norm */
    real *gate, *up;    /* [rows, hidden] */
} block_saved;

/* What blocks use one after the other. */
typedef struct scratch {
    real *y;                         /* [rows, hidden]: what the gated unit gave */
    real *d_x, *d_in;                /* [rows, width]: gradient of the stream; of a norm's result */
    real *d_mixed, *d_q, *d_k, *d_v; /* [rows, width] */
    real *d_p;                       /* as p */
    real *d_gate, *d_up;             /* [rows, hidden] */
} scratch;

typedef struct model {
    eg_context *context;
    model_size size;
    weights parameter, gradient;
    block_saved block[MAX_BLOCKS];
    real *x, *last; /* [rows, width]: the stream after the last block; its norm */
    real *logits;   /* [rows, letters] */
    scratch scratch;
    real *memory; /* of all of the above */
} model;

void model_open(model *m, eg_context *context, model_size size);
void model_close(model *m);

/* m->logits of `batch` sequences of size.time letters: letter[t·batch + b] is letter t of sequence b. */
void model_forward(model *m, const unsigned char *letter, int batch);

/* After a forward pass of the same letters, with the gradient of the loss in place of m->logits: all
 * gradients. */
void model_backward(model *m, const unsigned char *letter, int batch);

#endif
