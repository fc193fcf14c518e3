/* SPDX-License-Identifier: Apache-2.0 */
/* A small language model of Llama's kind: this and model.c are the files to read first.
 *
 *     x = embedding[letter]
 *     each block:  x = x + attention(norm(x))·W_o
 *                  x = x + (silu(norm(x)·W_gate) ⊙ norm(x)·W_up)·W_down
 *     logits = norm(x)·embeddingᵀ
 *
 * With experts, the second half of a block has several W_gate, W_up and W_down. A letter goes through those
 * of the expert that softmax(norm(x)·W_router) is largest for, and the result is multiplied with that number.
 *
 * Every product with a weight is a call of epigrad's, and so are attention's products; the rest is a table of
 * functions, plain C or kernels of the GPU (operations.h). Rows of every matrix are letters, sequence by
 * sequence. */
#ifndef GPT_MODEL_H
#define GPT_MODEL_H

#include "experts.h"
#include "operations.h"
#include "weights.h"

#include <stdbool.h>

/* What a block's backward pass wants of its forward pass. Of the gated unit that is the pair before the gate:
 * the product of the two is made again on the way back, and takes no memory in each block. */
typedef struct block_saved {
    real *x;            /* [rows, width]: the stream as it came in */
    real *attention_in; /* [rows, width]: its norm */
    real *qkv;          /* [rows, 3, heads, depth] */
    real *p;            /* [batch, heads, time, time] */
    real *mixed;        /* [rows, width]: p·v */
    real *middle;       /* [rows, width]: the stream after attention */
    real *mlp_in;       /* [rows, width]: its norm */
    real *gate, *up;    /* [rows, hidden]; of experts sorted, as are: */
    real *sorted;       /* [rows, width]: mlp_in */
    real *result;       /* [rows, width]: what the experts gave */
    routing routing;
} block_saved;

/* What blocks use one after the other. */
typedef struct scratch {
    real *y;                   /* [rows, hidden]: what the gated unit gave */
    real *d_x, *d_in;          /* [rows, width]: gradient of the stream; of a norm's result */
    real *d_mixed;             /* [rows, width] */
    real *d_qkv;               /* [rows, 3, heads, depth] */
    real *d_p;                 /* as p */
    real *d_gate, *d_up;       /* [rows, hidden] */
    real *d_result, *d_sorted; /* [rows, width]: of experts */
} scratch;

typedef struct model {
    device device;
    model_size size;
    weights parameter, gradient;
    block_saved block[MAX_BLOCKS];
    real *x, *last; /* [rows, width]: the stream after the last block; its norm */
    real *logits;   /* [rows, letters] */
    scratch scratch;
    unsigned char *input, *target; /* [rows]: letters, and what comes after each */
    real *memory;                  /* of all of the above, on the device */
} model;

void model_open(model *m, device on, model_size size);
void model_close(model *m);
void model_initialise(model *m, rng *random);

/* m->logits of `batch` sequences of size.time letters: letter[b·time + t] is letter t of sequence b. */
void model_forward(model *m, const unsigned char *letter, int batch);

/* The mean cross-entropy after a forward pass, in nats a letter; the logits' gradient takes their place, if
 * it is wanted. */
double model_loss(model *m, const unsigned char *target, int batch, bool gradient);

/* After both of these: all gradients. */
void model_backward(model *m, int batch);

/* Copies of `count` numbers, to the device and back. */
void model_write(const model *m, real *to, const real *from, size_t count);
void model_read(const model *m, real *to, const real *from, size_t count);

#endif
