/* SPDX-License-Identifier: Apache-2.0 */
/* A stack of linear layers on a device, 64-256-128-10: this is the file to read to learn epigrad's API.
 *
 * Every parameter lives in one device buffer, layer by layer (weight, then bias; of a gated unit two of
 * each), and every gradient in another of the same order; the operands of a call point into them by a byte
 * offset. The host keeps the master copy, which the optimiser changes:
 *
 *                 dtype f64    f32    f16, bf16
 *   master copy, gradients     f64    f32    f32      16-bit weights are rounded from f32 masters, and their
 *   weights, activations       f64    f32    16 bits  gradients come back in f32: small steps are not lost
 */
#ifndef DIGITS_NETWORK_H
#define DIGITS_NETWORK_H

#include "../common/random.h"

#include <epigrad/epigrad.h>
#include <stdbool.h>

enum { LAYERS = 3 };

/* What a hidden layer makes of pre = x · weight + bias:
 *     plain    y = act(pre)
 *     gated    y = act(pre) ⊙ pre_up, with pre_up = x · weight_up + bias_up: SwiGLU where act is silu */
typedef struct hidden_units {
    eg_activation activation;
    bool gated;
} hidden_units;

/* What ends in _up is of gated units: 0 or NULL in a plain layer. */
typedef struct dense {
    int64_t in, out;
    hidden_units units;
    size_t weight_at, bias_at; /* elements from the start of the parameters, and of the gradients */
    size_t weight_up_at, bias_up_at;
    void *y;                      /* device [rows, out] */
    void *pre, *pre_up;           /* device [rows, out], saved for act'; NULL where act' is a function of y */
    void *grad_pre, *grad_pre_up; /* device [rows, out]: dLoss/dpre, dLoss/dpre_up */
    eg_packed *packed, *packed_up; /* by network_pack: weights as the device's kernels like them, or NULL */
} dense;

typedef struct network {
    eg_context *context;
    const eg_comm *comm;   /* over which gradients are summed; NULL: one process */
    eg_dtype dtype;        /* of weights, biases and activations */
    eg_dtype master_dtype; /* of the master copy and of the gradients: f64 for f64, else f32 */
    int max_rows;
    dense layer[LAYERS];
    size_t parameter_count;
    void *parameters; /* device, dtype */
    void *gradients;  /* device, master_dtype */
    void *staging;    /* host: values of dtype on their way to or from the device */
} network;

void network_open(network *net, eg_context *context, eg_dtype dtype, hidden_units hidden, int max_rows);
void network_close(network *net);

/* First values for the master copy: biases 0, normal weights that keep the variance of a relu layer, gated or
 * not. */
void network_initialise(const network *net, rng *random, double *parameters);

/* Takes over the master copy (parameter_count values of master_dtype). */
void network_set(network *net, const void *master);

/* Packs the weights for the device, which spares every following forward pass that work. Worth it for weights
 * that stay as they are, as in an evaluation; in training each step would have to pack them anew. */
void network_pack(network *net);

/* Runs `rows` rows of input through the layers and gives the logits [rows, 10]. With `training`, what the
 * backward pass needs is kept. */
void network_forward(network *net, eg_matrix input, int rows, bool training, double *logits);

/* After a training forward pass over the same input: the gradients (parameter_count values of
 * master_dtype) of a loss whose gradient with respect to the logits is d_logits. */
void network_backward(network *net, eg_matrix input, int rows, const double *d_logits, void *gradients);

#endif
