/* SPDX-License-Identifier: Apache-2.0 */
#include "network.h"

#include "data.h"
#include "../common/must.h"

#include <math.h>

static const int64_t width[LAYERS + 1] = {PIXELS, 256, 128, CLASSES};

/* ---- Operands: where a layer's tensors are ------------------------------------------------------ */

/* What is left out is 0 and means: dense, row-major, one matrix for the whole batch, of the layer's type. */

static eg_matrix weight_from(const network *net, size_t at) {
    return (eg_matrix){.data = net->parameters, .offset = at * eg_dtype_size(net->dtype)};
}

static eg_vector bias_from(const network *net, size_t at) {
    return (eg_vector){.data = net->parameters, .offset = at * eg_dtype_size(net->dtype)};
}

/* The gradients may be wider than the layer: f32 for f16 and bf16. */
static eg_matrix d_weight_from(const network *net, size_t at) {
    return (eg_matrix){
        .data = net->gradients, .offset = at * eg_dtype_size(net->master_dtype), .dtype = net->master_dtype};
}

static eg_vector d_bias_from(const network *net, size_t at) {
    return (eg_vector){
        .data = net->gradients, .offset = at * eg_dtype_size(net->master_dtype), .dtype = net->master_dtype};
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

/* The next parameters are a weight, then a bias. */
static void place(network *net, const dense *layer, size_t *weight_at, size_t *bias_at) {
    *weight_at = net->parameter_count;
    *bias_at = *weight_at + (size_t)(layer->in * layer->out);
    net->parameter_count = *bias_at + (size_t)layer->out;
}

static void layer_open(network *net, int i, hidden_units units) {
    dense *layer = &net->layer[i];
    layer->in = width[i];
    layer->out = width[i + 1];
    layer->units = units;
    place(net, layer, &layer->weight_at, &layer->bias_at);
    if (units.gated) place(net, layer, &layer->weight_up_at, &layer->bias_up_at);

    size_t bytes = (size_t)net->max_rows * (size_t)layer->out * eg_dtype_size(net->dtype);
    bool from_y = !units.gated && eg_activation_from_y(units.activation);
    must(eg_alloc(net->context, bytes, &layer->y));
    must(eg_alloc(net->context, bytes, &layer->grad_pre));
    if (!from_y) must(eg_alloc(net->context, bytes, &layer->pre));
    if (units.gated) must(eg_alloc(net->context, bytes, &layer->pre_up));
    if (units.gated) must(eg_alloc(net->context, bytes, &layer->grad_pre_up));
}

void network_open(network *net, eg_context *context, eg_dtype dtype, hidden_units hidden, int max_rows) {
    const hidden_units top = {.activation = EG_ACT_NONE};
    *net = (network){.context = context, .dtype = dtype, .max_rows = max_rows};
    net->master_dtype = dtype == EG_F64 ? EG_F64 : EG_F32;
    for (int i = 0; i < LAYERS; i++) layer_open(net, i, i < LAYERS - 1 ? hidden : top);
    must(eg_alloc(context, net->parameter_count * eg_dtype_size(dtype), &net->parameters));
    must(eg_alloc(context, net->parameter_count * eg_dtype_size(net->master_dtype), &net->gradients));
    net->staging = must_alloc(net->parameter_count + (size_t)max_rows * CLASSES, eg_dtype_size(dtype));
}

static void drop_packs(network *net) {
    for (int i = 0; i < LAYERS; i++) {
        dense *layer = &net->layer[i];
        eg_packed_free(net->context, layer->packed);
        eg_packed_free(net->context, layer->packed_up);
        layer->packed = layer->packed_up = NULL;
    }
}

void network_close(network *net) {
    drop_packs(net);
    for (int i = 0; i < LAYERS; i++) {
        dense *layer = &net->layer[i];
        eg_free(net->context, layer->y);
        eg_free(net->context, layer->pre);
        eg_free(net->context, layer->pre_up);
        eg_free(net->context, layer->grad_pre);
        eg_free(net->context, layer->grad_pre_up);
    }
    eg_free(net->context, net->parameters);
    eg_free(net->context, net->gradients);
    free(net->staging);
    *net = (network){0};
}

/* `gain`: the variance of x · weight over that of x. */
static void initialise(const dense *layer, double gain, rng *random, double *weight, double *bias) {
    double deviation = sqrt(gain / (double)layer->in);
    for (int64_t i = 0; i < layer->in * layer->out; i++) weight[i] = deviation * rng_normal(random);
    for (int64_t n = 0; n < layer->out; n++) bias[n] = 0;
}

void network_initialise(const network *net, rng *random, double *parameters) {
    for (int i = 0; i < LAYERS; i++) {
        const dense *layer = &net->layer[i];
        initialise(layer, 2, random, parameters + layer->weight_at, parameters + layer->bias_at);
        if (layer->units.gated) /* act has kept half of the variance */
            initialise(layer, 1, random, parameters + layer->weight_up_at, parameters + layer->bias_up_at);
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
        eg_layer description = describe(net, layer, net->max_rows, layer->units.activation);
        eg_matrix b = weight_from(net, layer->weight_at), b_up = weight_from(net, layer->weight_up_at);
        must(eg_pack_b(net->context, &description, &b, &layer->packed));
        if (layer->units.gated) must(eg_pack_b(net->context, &description, &b_up, &layer->packed_up));
    }
}

/* ---- Forward ------------------------------------------------------------------------------------ */

/* y = act(input · weight + bias), one call for each layer: the activation costs no pass of its own. Nor does
 * the factor of a gated unit, whose other half is given beside the first. */
void network_forward(network *net, eg_matrix input, int rows, bool training, double *logits) {
    for (int i = 0; i < LAYERS; i++) {
        dense *layer = &net->layer[i];
        eg_layer description = describe(net, layer, rows, layer->units.activation);
        eg_forward_args args = {.size = sizeof args,
                                .a = input_of(net, i, input),
                                .b = weight_from(net, layer->weight_at),
                                .packed_b = layer->packed, /* NULL: not packed */
                                .bias = bias_from(net, layer->bias_at),
                                .y = {.data = layer->y}};
        if (training) args.pre.data = layer->pre; /* NULL: not wanted */
        if (layer->units.gated) {
            args.b_up = weight_from(net, layer->weight_up_at);
            args.packed_b_up = layer->packed_up;
            args.bias_up = bias_from(net, layer->bias_up_at);
            if (training) args.pre_up.data = layer->pre_up;
        }
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
    bool from_y = below->pre == NULL;
    return (eg_chain){.saved = {.data = from_y ? below->y : below->pre},
                      .source = from_y ? EG_SOURCE_Y : EG_SOURCE_PRE,
                      .activation = below->units.activation,
                      .d_bias = d_bias_from(net, below->bias_at)};
}

/* The other half of gated units below: the same call makes their gradient, and sums that too. */
static eg_chain_up chain_up_to(const network *net, const dense *below) {
    return (eg_chain_up){.saved = {.data = below->pre_up},
                         .d_up = {.data = below->grad_pre_up},
                         .d_bias = d_bias_from(net, below->bias_up_at)};
}

/* One call for each layer, from the top down. Each finds its own grad_pre ready: the top one from the loss,
 * the others from the chain of the layer above. So no call has an act' of its own left to apply. */
static void layer_backward(network *net, int i, eg_matrix input, int rows) {
    dense *layer = &net->layer[i];
    eg_layer description = describe(net, layer, rows, EG_ACT_NONE);
    eg_backward_args args = {.size = sizeof args,
                             .a = input_of(net, i, input),
                             .b = weight_from(net, layer->weight_at),
                             .grad = {.data = layer->grad_pre},
                             .d_b = d_weight_from(net, layer->weight_at)};
    args.data_parallel.comm = net->comm;
    if (layer->units.gated) {
        args.b_up = weight_from(net, layer->weight_up_at);
        args.grad_up.data = layer->grad_pre_up;
        args.d_b_up = d_weight_from(net, layer->weight_up_at);
    }
    if (i == LAYERS - 1) args.d_bias = d_bias_from(net, layer->bias_at); /* the chain has given the others' */
    if (i > 0) { /* nobody wants the gradient of the pixels */
        const dense *below = &net->layer[i - 1];
        args.d_a.data = below->grad_pre;
        args.chain = chain_to(net, below);
        if (below->units.gated) args.chain_up = chain_up_to(net, below);
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
