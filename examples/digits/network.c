/* SPDX-License-Identifier: Apache-2.0 */
#include "network.h"

#include "data.h"
#include "../common/must.h"

#include <math.h>

static const int64_t width[LAYERS + 1] = {PIXELS, 256, 128, CLASSES};

/* ---- Operands: where a layer's tensors are ------------------------------------------------------ */

/* What is left out is 0 and means: dense, row-major, one matrix for the whole batch, of the layer's type. */

static eg_matrix weight_of(const network *net, const dense *layer) {
    return (eg_matrix){.data = net->parameters, .offset = layer->weight_at * eg_dtype_size(net->dtype)};
}

static eg_vector bias_of(const network *net, const dense *layer) {
    return (eg_vector){.data = net->parameters, .offset = layer->bias_at * eg_dtype_size(net->dtype)};
}

/* The gradients may be wider than the layer: f32 for f16 and bf16. */
static eg_matrix d_weight_of(const network *net, const dense *layer) {
    return (eg_matrix){.data = net->gradients,
                       .offset = layer->weight_at * eg_dtype_size(net->master_dtype),
                       .dtype = net->master_dtype};
}

static eg_vector d_bias_of(const network *net, const dense *layer) {
    return (eg_vector){.data = net->gradients,
                       .offset = layer->bias_at * eg_dtype_size(net->master_dtype),
                       .dtype = net->master_dtype};
}

/* What layer i reads: the input of the network, or what the layer below has written. */
static eg_matrix input_of(const network *net, int i, eg_matrix input) {
    return i == 0 ? input : (eg_matrix){.data = net->layer[i - 1].y};
}

/* The description of a call: sizes, type and what the epilogue is. */
static eg_layer describe(const network *net, const dense *layer, int rows, eg_activation activation) {
    return (eg_layer){.size = sizeof(eg_layer),
                      .m = rows,
                      .k = layer->in,
                      .n = layer->out,
                      .dtype = net->dtype,
                      .activation = activation};
}

/* ---- Making and unmaking ------------------------------------------------------------------------ */

static void layer_open(network *net, int i, eg_activation activation) {
    dense *layer = &net->layer[i];
    layer->in = width[i];
    layer->out = width[i + 1];
    layer->activation = activation;
    layer->weight_at = net->parameter_count;
    layer->bias_at = layer->weight_at + (size_t)(layer->in * layer->out);
    net->parameter_count = layer->bias_at + (size_t)layer->out;

    size_t bytes = (size_t)net->max_rows * (size_t)layer->out * eg_dtype_size(net->dtype);
    must(eg_alloc(net->context, bytes, &layer->y));
    must(eg_alloc(net->context, bytes, &layer->grad_pre));
    if (!eg_activation_from_y(activation)) must(eg_alloc(net->context, bytes, &layer->pre));
}

void network_open(network *net, eg_context *context, eg_dtype dtype, eg_activation hidden, int max_rows) {
    *net = (network){.context = context, .dtype = dtype, .max_rows = max_rows};
    net->master_dtype = dtype == EG_F64 ? EG_F64 : EG_F32;
    for (int i = 0; i < LAYERS; i++) layer_open(net, i, i < LAYERS - 1 ? hidden : EG_ACT_NONE);
    must(eg_alloc(context, net->parameter_count * eg_dtype_size(dtype), &net->parameters));
    must(eg_alloc(context, net->parameter_count * eg_dtype_size(net->master_dtype), &net->gradients));
    net->staging = must_alloc(net->parameter_count + (size_t)max_rows * CLASSES, eg_dtype_size(dtype));
}

static void drop_packs(network *net) {
    for (int i = 0; i < LAYERS; i++) {
        eg_packed_free(net->context, net->layer[i].packed);
        net->layer[i].packed = NULL;
    }
}

void network_close(network *net) {
    drop_packs(net);
    for (int i = 0; i < LAYERS; i++) {
        dense *layer = &net->layer[i];
        eg_free(net->context, layer->y);
        eg_free(net->context, layer->pre);
        eg_free(net->context, layer->grad_pre);
    }
    eg_free(net->context, net->parameters);
    eg_free(net->context, net->gradients);
    free(net->staging);
    *net = (network){0};
}

void network_initialise(const network *net, rng *random, double *parameters) {
    for (int i = 0; i < LAYERS; i++) {
        const dense *layer = &net->layer[i];
        double deviation = sqrt(2.0 / (double)layer->in);
        for (size_t p = layer->weight_at; p < layer->bias_at; p++)
            parameters[p] = deviation * rng_normal(random);
        for (int64_t n = 0; n < layer->out; n++) parameters[layer->bias_at + (size_t)n] = 0;
    }
}

void network_set(network *net, const void *master) {
    size_t count = net->parameter_count;
    must(eg_convert(net->staging, net->dtype, master, net->master_dtype, count));
    must(eg_upload(net->context, net->parameters, 0, net->staging, count * eg_dtype_size(net->dtype)));
    drop_packs(net); /* a pack is a copy: these are of weights that are no more */
}

void network_pack(network *net) {
    drop_packs(net);
    for (int i = 0; i < LAYERS; i++) {
        dense *layer = &net->layer[i];
        eg_layer description = describe(net, layer, net->max_rows, layer->activation);
        eg_matrix weight = weight_of(net, layer);
        must(eg_pack_b(net->context, &description, &weight, &layer->packed));
    }
}

/* ---- Forward ------------------------------------------------------------------------------------ */

/* y = act(input · weight + bias), one call for each layer: the activation costs no pass of its own. */
void network_forward(network *net, eg_matrix input, int rows, bool training, double *logits) {
    for (int i = 0; i < LAYERS; i++) {
        dense *layer = &net->layer[i];
        eg_layer description = describe(net, layer, rows, layer->activation);
        eg_forward_args args = {.size = sizeof args,
                                .a = input_of(net, i, input),
                                .b = weight_of(net, layer),
                                .packed_b = layer->packed, /* NULL: not packed */
                                .bias = bias_of(net, layer),
                                .y = {.data = layer->y}};
        if (training) args.pre.data = layer->pre; /* NULL: not wanted */
        must(eg_forward(net->context, &description, &args));
    }
    size_t count = (size_t)rows * CLASSES;
    must(eg_download(net->context, net->staging, net->layer[LAYERS - 1].y, 0,
                     count * eg_dtype_size(net->dtype)));
    must(eg_convert(logits, EG_F64, net->staging, net->dtype, count));
}

/* ---- Backward ----------------------------------------------------------------------------------- */

/* How act' of the layer below is folded into the d_a of the layer above, whose d_a then IS the grad_pre of
 * the layer below, and whose call also sums that into the lower layer's bias gradient. */
static eg_chain chain_to(const network *net, const dense *below) {
    bool from_y = eg_activation_from_y(below->activation);
    return (eg_chain){.saved = {.data = from_y ? below->y : below->pre},
                      .source = from_y ? EG_SOURCE_Y : EG_SOURCE_PRE,
                      .activation = below->activation,
                      .d_bias = d_bias_of(net, below)};
}

/* One call for each layer, from the top down. Each finds its own grad_pre ready: the top one from the loss,
 * the others from the chain of the layer above. So no call has an act' of its own left to apply. */
static void layer_backward(network *net, int i, eg_matrix input, int rows) {
    dense *layer = &net->layer[i];
    eg_layer description = describe(net, layer, rows, EG_ACT_NONE);
    eg_backward_args args = {.size = sizeof args,
                             .a = input_of(net, i, input),
                             .b = weight_of(net, layer),
                             .grad = {.data = layer->grad_pre},
                             .d_b = d_weight_of(net, layer)};
    args.data_parallel.comm = net->comm;
    if (i == LAYERS - 1) args.d_bias = d_bias_of(net, layer); /* the chain has given the others' */
    if (i > 0) {                                              /* nobody wants the gradient of the pixels */
        args.d_a.data = net->layer[i - 1].grad_pre;
        args.chain = chain_to(net, &net->layer[i - 1]);
    }
    must(eg_backward(net->context, &description, &args));
}

void network_backward(network *net, eg_matrix input, int rows, const double *d_logits, void *gradients) {
    size_t count = (size_t)rows * CLASSES;
    void *top = net->layer[LAYERS - 1].grad_pre;
    must(eg_convert(net->staging, net->dtype, d_logits, EG_F64, count));
    must(eg_upload(net->context, top, 0, net->staging, count * eg_dtype_size(net->dtype)));

    for (int i = LAYERS - 1; i >= 0; i--) layer_backward(net, i, input, rows);

    size_t bytes = net->parameter_count * eg_dtype_size(net->master_dtype);
    must(eg_download(net->context, gradients, net->gradients, 0, bytes));
}
