/* SPDX-License-Identifier: Apache-2.0 */
/* Random operands for `epigrad bench`. */
#include <math.h>
#include <stdlib.h>
#include <unistd.h>

#include "bench.h"
#include "failure.h"

/* ---- How many ----------------------------------------------------------------------------------- */

static uint64_t cache_bytes(void) {
    const uint64_t least = 32U << 20, most = 256U << 20; /* the bound is for the memory of small machines */
    const long found = sysconf(_SC_LEVEL3_CACHE_SIZE);
    const uint64_t bytes = found > 0 ? (uint64_t)found : least;
    return bytes < least ? least : bytes > most ? most : bytes;
}

/* Twice the cache, in at most 64 sets: small calls go on to live in it, as they would in training. */
static int count_sets(const call *c) {
    uint64_t bytes = 1;
    for (operand op = OP_A; op < OPERANDS; op++) {
        size_t each = 0;
        const tensor *t = &c->tensors[op];
        if (!c->present[op]) continue;
        if (!tensor_shape_bytes(t->shape, t->dims, tensor_element_bytes(t->dtype), &each)) return 1;
        bytes += each;
    }
    const uint64_t count = (2 * cache_bytes() + bytes - 1) / bytes;
    return count < 64 ? (int)count : 64;
}

/* ---- Data --------------------------------------------------------------------------------------- */

/* xorshift64*, uniform in [-1, 1). */
static float next_uniform(uint64_t *state) {
    *state ^= *state >> 12;
    *state ^= *state << 25;
    *state ^= *state >> 27;
    return (float)((double)(*state * 0x2545f4914f6cdd1dU >> 11) * 0x1p-52 - 1.0);
}

static int fill(tensor *t, double scale, uint64_t *state) {
    enum { CHUNK = 4096 };
    float chunk[CHUNK];
    const size_t element = tensor_element_bytes(t->dtype), count = t->bytes / element;
    for (size_t begin = 0; begin < count; begin += CHUNK) {
        const size_t length = count - begin < CHUNK ? count - begin : CHUNK;
        for (size_t i = 0; i < length; i++) chunk[i] = (float)scale * next_uniform(state);
        CLI_TRY(call_status(eg_convert((char *)t->data + begin * element, t->dtype, chunk, EG_F32, length)));
    }
    return CLI_OK;
}

/* Weights are scaled so that pre is of order 1, where activations bend. */
static int fill_inputs(call *c, uint64_t *state) {
    for (operand op = OP_A; op < OP_D_A; op++) {
        const bool is_weight = op == OP_B || op == OP_B_UP;
        const double scale = is_weight && c->layer.k > 0 ? 1.0 / sqrt((double)c->layer.k) : 1.0;
        if (!c->present[op]) continue;
        CLI_TRY(tensor_allocate(&c->tensors[op]));
        CLI_TRY(fill(&c->tensors[op], scale, state));
    }
    return CLI_OK;
}

static int make_call(call *c, const options *o, const shape *sizes, eg_context *context, uint64_t *state) {
    CLI_TRY(call_from_shape(c, o, true, sizes));
    CLI_TRY(fill_inputs(c, state));
    return call_upload(c, context);
}

int bench_sets_make(bench_sets *sets, const options *o, const shape *sizes, eg_context *context) {
    *sets = (bench_sets){0};
    call first;
    int code = call_from_shape(&first, o, true, sizes);
    const int count = code == CLI_OK ? count_sets(&first) : 0;
    call_free(&first);
    if (code != CLI_OK) return code;
    sets->calls = calloc((size_t)count, sizeof *sets->calls);
    if (sets->calls == NULL) return cli_out_of_memory();
    uint64_t state = 0x9e3779b97f4a7c15U;
    while (code == CLI_OK && sets->count < count) {
        code = make_call(&sets->calls[sets->count++], o, sizes, context, &state);
    }
    return code;
}

void bench_sets_free(bench_sets *sets) {
    for (int i = 0; i < sets->count; i++) call_free(&sets->calls[i]);
    free(sets->calls);
    *sets = (bench_sets){0};
}
