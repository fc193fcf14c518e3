/* SPDX-License-Identifier: Apache-2.0 */
#include "model.h"

#include "attention.h"

#include "../common/must.h"

/* ---- Memory ------------------------------------------------------------------------------------- */

/* The next `count` numbers of one block of memory, or, before there is one, only their count. */
typedef struct arena {
    real *memory;
    size_t used;
} arena;

static real *take(arena *a, size_t count) {
    const size_t begin = a->used, line = 64 / sizeof(real); /* whole cache lines */
    a->used += (count + line - 1) / line * line;
    return a->memory ? a->memory + begin : NULL;
}

static routing place_routing(const model_size *s, arena *a) {
    const size_t rows = (size_t)s->time * (size_t)s->batch;
    if (s->experts == 0) return (routing){0};
    return (routing){.experts = s->experts,
                     .p = take(a, rows * (size_t)s->experts),
                     .order = (int32_t *)(void *)take(a, rows),
                     .ends = (int32_t *)(void *)take(a, (size_t)s->experts)};
}

static void place_all(model *m, arena *a) {
    const model_size *s = &m->size;
    const size_t rows = (size_t)s->time * (size_t)s->batch;
    const size_t stream = rows * (size_t)s->width, hidden = rows * (size_t)s->hidden;
    const size_t square = rows * (size_t)s->time * (size_t)s->heads;

    const size_t parameters = weights_place(s, NULL).count;
    m->parameter = weights_place(s, take(a, parameters));
    m->gradient = weights_place(s, take(a, parameters));
    const size_t of_experts = s->experts > 0 ? stream : 0;
    for (int i = 0; i < s->blocks; i++)
        m->block[i] = (block_saved){.x = take(a, stream),
                                    .attention_in = take(a, stream),
                                    .qkv = take(a, 3 * stream),
                                    .p = take(a, square),
                                    .mixed = take(a, stream),
                                    .middle = take(a, stream),
                                    .mlp_in = take(a, stream),
                                    .gate = take(a, hidden),
                                    .up = take(a, hidden),
                                    .sorted = take(a, of_experts),
                                    .result = take(a, of_experts),
                                    .routing = place_routing(s, a)};
    m->input = (unsigned char *)take(a, rows); /* more than it takes */
    m->target = (unsigned char *)take(a, rows);
    m->x = take(a, stream);
    m->last = take(a, stream);
    m->logits = take(a, rows * (size_t)s->letters);
    m->scratch = (scratch){.y = take(a, hidden),
                           .d_x = take(a, stream),
                           .d_in = take(a, stream),
                           .d_mixed = take(a, stream),
                           .d_qkv = take(a, 3 * stream),
                           .d_p = take(a, square),
                           .d_gate = take(a, hidden),
                           .d_up = take(a, hidden),
                           .d_result = take(a, of_experts),
                           .d_sorted = take(a, of_experts)};
}

void model_open(model *m, device on, model_size size) {
    *m = (model){.device = on, .size = size};
    arena all = {0};
    place_all(m, &all);
    void *memory;
    must(eg_alloc(on.context, all.used * sizeof(real), &memory)); /* on the CPU and CUDA an address */
    m->memory = memory;
    on.run->clear(m->memory, all.used);
    all = (arena){.memory = m->memory};
    place_all(m, &all);
}

void model_close(model *m) {
    eg_free(m->device.context, m->memory);
    *m = (model){0};
}

void model_write(const model *m, real *to, const real *from, size_t count) {
    must(eg_upload(m->device.context, to, 0, from, count * sizeof *to));
}

void model_read(const model *m, real *to, const real *from, size_t count) {
    must(eg_download(m->device.context, to, from, 0, count * sizeof *to));
}

void model_initialise(model *m, rng *random) {
    real *all = must_alloc(m->parameter.count, sizeof *all);
    const weights host = weights_place(&m->size, all);
    weights_initialise(&host, &m->size, random);
    model_write(m, m->parameter.all, all, host.count);
    free(all);
}

/* ---- A layer: y = x·Wᵀ, W [out, in] -------------------------------------------------------------- */

/* A pass over `rows` letters. */
typedef struct pass {
    model *m;
    int rows;
} pass;

static const operations *run_of(const pass *p) { return p->m->device.run; }

static eg_layer layer_of(const pass *p, int in, int out, eg_activation activation) {
    eg_layer layer = eg_layer_of(p->rows, in, out, activation);
    layer.dtype = REAL_DTYPE;
    return layer;
}

/* y = x·Wᵀ (+ residual, which may be NULL). */
static void linear(const pass *p, int in, int out, const real *x, const real *w, const real *residual,
                   real *y) {
    const eg_layer layer = layer_of(p, in, out, EG_ACT_NONE);
    eg_forward_args args =
        eg_forward_of(eg_const_row_major(x), eg_const_col_major(w), eg_elements(NULL), eg_row_major(y));
    args.residual = eg_const_row_major(residual);
    must(eg_forward(p->m->device.context, &layer, &args));
}

/* d_x = d_y·W and d_W = d_yᵀ·x; `into` says what is added to instead. */
static void linear_backward(const pass *p, int in, int out, const real *x, const real *w, const real *d_y,
                            real *d_x, real *d_w, uint64_t into) {
    const eg_layer layer = layer_of(p, in, out, EG_ACT_NONE);
    eg_backward_args args = eg_backward_of(eg_const_row_major(x), eg_const_col_major(w), eg_elements(NULL),
                                           eg_const_row_major(d_y));
    args.d_a = eg_row_major(d_x);
    args.d_b = eg_col_major(d_w);
    args.accumulate_into = into;
    must(eg_backward(p->m->device.context, &layer, &args));
}

/* ---- The attention half of a block --------------------------------------------------------------- */

static attention attention_of(const pass *p) {
    const model_size *s = &p->m->size;
    return (attention){.device = p->m->device,
                       .time = s->time,
                       .batch = p->rows / s->time,
                       .heads = s->heads,
                       .depth = s->width / s->heads};
}

static void attention_half(const pass *p, int i) {
    const int width = p->m->size.width;
    const block_weights *w = &p->m->parameter.block[i];
    const block_saved *s = &p->m->block[i];
    const attention a = attention_of(p);

    run_of(p)->norm_forward(s->x, w->attention_norm, s->attention_in, p->rows, width);
    linear(p, width, 3 * width, s->attention_in, w->qkv, NULL, s->qkv);
    run_of(p)->rotate(&a, s->qkv, 1);
    attention_forward(&a, s->qkv, s->p, s->mixed);
    linear(p, width, width, s->mixed, w->o, s->x, s->middle); /* the stream is the layer's residual */
}

/* d_x is that of the stream after this half, and becomes that before it. */
static void attention_half_backward(const pass *p, int i) {
    const int width = p->m->size.width;
    const block_weights *w = &p->m->parameter.block[i], *d = &p->m->gradient.block[i];
    const block_saved *s = &p->m->block[i];
    const scratch *t = &p->m->scratch;
    const attention a = attention_of(p);

    linear_backward(p, width, width, s->mixed, w->o, t->d_x, t->d_mixed, d->o, 0);
    attention_backward(&a, s->qkv, s->p, t->d_mixed, t->d_p, t->d_qkv);
    run_of(p)->rotate(&a, t->d_qkv, -1);
    linear_backward(p, width, 3 * width, s->attention_in, w->qkv, t->d_qkv, t->d_in, d->qkv, 0);
    run_of(p)->norm_backward(s->x, w->attention_norm, t->d_in, t->d_x, d->attention_norm, p->rows, width);
}

/* ---- The gated half ------------------------------------------------------------------------------ */

/* A layer of each expert, with a weight of its own; without experts, the only one. */
static eg_layer expert_layer(const pass *p, int in, int out, eg_activation activation) {
    eg_layer layer = layer_of(p, in, out, activation);
    layer.groups = p->m->size.experts;
    return layer;
}

static eg_matrix expert_weight(const pass *p, const real *w) {
    eg_matrix matrix = eg_const_col_major(w);
    matrix.batch_stride = (int64_t)p->m->size.hidden * p->m->size.width;
    return matrix;
}

static eg_offsets ends_of(const routing *r) { return (eg_offsets){.data = r->ends}; }

/* Sends every letter to an expert. */
static void choose_experts(const pass *p, int i) {
    const model_size *size = &p->m->size;
    block_saved *s = &p->m->block[i];
    s->routing.rows = p->rows;
    linear(p, size->width, size->experts, s->mlp_in, p->m->parameter.block[i].router, NULL, s->routing.p);
    run_of(p)->route(&s->routing);
    run_of(p)->sort_rows(&s->routing, s->mlp_in, s->sorted, size->width);
}

/* The stream after the experts. */
static void down_of_experts(const pass *p, int i, const real *y, real *out) {
    const model_size *size = &p->m->size;
    const block_saved *s = &p->m->block[i];
    const eg_layer down = expert_layer(p, size->hidden, size->width, EG_ACT_NONE);
    eg_forward_args args =
        eg_forward_of(eg_const_row_major(y), expert_weight(p, p->m->parameter.block[i].down),
                      eg_elements(NULL), eg_row_major(s->result));
    args.offsets = ends_of(&s->routing);
    must(eg_forward(p->m->device.context, &down, &args));
    run_of(p)->add_results(&s->routing, s->result, s->middle, out, size->width);
}

static void gated_half(const pass *p, int i, real *out) {
    const model_size *size = &p->m->size;
    const block_weights *w = &p->m->parameter.block[i];
    const block_saved *s = &p->m->block[i];
    real *y = p->m->scratch.y;

    run_of(p)->norm_forward(s->middle, w->mlp_norm, s->mlp_in, p->rows, size->width);
    if (size->experts > 0) choose_experts(p, i);
    const real *in = size->experts > 0 ? s->sorted : s->mlp_in;
    const eg_layer unit = expert_layer(p, size->width, size->hidden, EG_ACT_SILU);
    eg_forward_args args =
        eg_forward_of(eg_const_row_major(in), expert_weight(p, w->gate), eg_elements(NULL), eg_row_major(y));
    args.b_up = expert_weight(p, w->up);
    args.pre = eg_row_major(s->gate);
    args.pre_up = eg_row_major(s->up);
    args.offsets = ends_of(&s->routing);
    must(eg_forward(p->m->device.context, &unit, &args));
    if (size->experts > 0) {
        down_of_experts(p, i, y, out);
    } else {
        linear(p, size->hidden, size->width, y, w->down, s->middle, out);
    }
}

/* The down projection's call chains: its d_a is multiplied by what the gated unit below asks for, so that
 * both gradients of the unit come out of it, and y again, which the forward pass did not keep. */
static void down_backward(const pass *p, int i, const real *grad) {
    const model_size *size = &p->m->size;
    const real *w = p->m->parameter.block[i].down;
    const block_saved *s = &p->m->block[i];
    const scratch *t = &p->m->scratch;
    const eg_layer down = expert_layer(p, size->hidden, size->width, EG_ACT_NONE);

    eg_backward_args args =
        eg_backward_of(eg_row_major(NULL), expert_weight(p, w), eg_elements(NULL), eg_const_row_major(grad));
    args.offsets = ends_of(&s->routing);
    args.d_a = eg_row_major(t->d_gate);
    args.chain.saved = eg_row_major(s->gate);
    args.chain.source = EG_SOURCE_PRE;
    args.chain.activation = EG_ACT_SILU;
    args.chain_up.saved = eg_row_major(s->up);
    args.chain_up.d_up = eg_row_major(t->d_up);
    args.chain_up.y = eg_row_major(t->y);
    must(eg_backward(p->m->device.context, &down, &args));

    /* d_W reads the y that was just written, so it is a call of its own. */
    args =
        eg_backward_of(eg_row_major(t->y), eg_row_major(NULL), eg_elements(NULL), eg_const_row_major(grad));
    args.d_b = expert_weight(p, p->m->gradient.block[i].down);
    args.offsets = ends_of(&s->routing);
    must(eg_backward(p->m->device.context, &down, &args));
}

static void gated_half_backward(const pass *p, int i) {
    const model_size *size = &p->m->size;
    const block_weights *w = &p->m->parameter.block[i], *d = &p->m->gradient.block[i];
    const block_saved *s = &p->m->block[i];
    const scratch *t = &p->m->scratch;

    const bool experts = size->experts > 0;
    if (experts) run_of(p)->add_results_backward(&s->routing, s->result, t->d_x, t->d_result, size->width);
    down_backward(p, i, experts ? t->d_result : t->d_x);
    /* The chain has done what is element by element: the unit has no activation left. */
    const eg_layer unit = expert_layer(p, size->width, size->hidden, EG_ACT_NONE);
    eg_backward_args args =
        eg_backward_of(eg_row_major(experts ? s->sorted : s->mlp_in), expert_weight(p, w->gate),
                       eg_elements(NULL), eg_row_major(t->d_gate));
    args.b_up = expert_weight(p, w->up);
    args.grad_up = eg_row_major(t->d_up);
    args.d_a = eg_row_major(experts ? t->d_sorted : t->d_in);
    args.d_b = expert_weight(p, d->gate);
    args.d_b_up = expert_weight(p, d->up);
    args.offsets = ends_of(&s->routing);
    must(eg_backward(p->m->device.context, &unit, &args));
    if (experts) {
        run_of(p)->unsort_rows(&s->routing, t->d_sorted, t->d_in, size->width);
        /* The router read the same input: its gradient is added to that of the experts. */
        linear_backward(p, size->width, size->experts, s->mlp_in, w->router, s->routing.p, t->d_in, d->router,
                        EG_INTO_D_A);
    }
    run_of(p)->norm_backward(s->middle, w->mlp_norm, t->d_in, t->d_x, d->mlp_norm, p->rows, size->width);
}

/* ---- The whole ----------------------------------------------------------------------------------- */

/* The stream after block i. */
static real *after(const model *m, int i) { return i + 1 < m->size.blocks ? m->block[i + 1].x : m->x; }

void model_forward(model *m, const unsigned char *letter, int batch) {
    const pass p = {m, batch * m->size.time};
    const operations *run = m->device.run;
    must(eg_upload(m->device.context, m->input, 0, letter, (size_t)p.rows));
    run->embed(m->parameter.embedding, m->input, m->block[0].x, p.rows, m->size.width);
    for (int i = 0; i < m->size.blocks; i++) {
        attention_half(&p, i);
        gated_half(&p, i, after(m, i));
    }
    run->norm_forward(m->x, m->parameter.last_norm, m->last, p.rows, m->size.width);
    linear(&p, m->size.width, m->size.letters, m->last, m->parameter.embedding, NULL, m->logits);
}

double model_loss(model *m, const unsigned char *target, int batch, bool gradient) {
    const int rows = batch * m->size.time;
    must(eg_upload(m->device.context, m->target, 0, target, (size_t)rows));
    return m->device.run->cross_entropy(m->logits, m->target, rows, m->size.letters,
                                        gradient ? m->logits : NULL);
}

void model_backward(model *m, int batch) {
    const pass p = {m, batch * m->size.time};
    const operations *run = m->device.run;
    const int width = m->size.width;
    real *d_x = m->scratch.d_x, *d_in = m->scratch.d_in;

    linear_backward(&p, width, m->size.letters, m->last, m->parameter.embedding, m->logits, d_in,
                    m->gradient.embedding, 0);
    run->clear(d_x, (size_t)p.rows * (size_t)width); /* nothing goes past the last norm */
    run->norm_backward(m->x, m->parameter.last_norm, d_in, d_x, m->gradient.last_norm, p.rows, width);
    for (int i = m->size.blocks - 1; i >= 0; i--) {
        gated_half_backward(&p, i);
        attention_half_backward(&p, i);
    }
    /* The same matrix is the first layer, too: it gets the gradients of its rows on top. */
    run->embed_backward(d_x, m->input, m->gradient.embedding, p.rows, width, m->size.letters);
}
