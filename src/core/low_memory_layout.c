/* SPDX-License-Identifier: Apache-2.0 */
/* The workspace of a call in chunks: every list of operations that it will run is compiled once, for the
 * first chunk and the last, to find what it needs. */
#include <string.h>

#include "error.h"
#include "low_memory_chunk.h"
#include "sizes.h"

/* False where no memory could hold it. */
static bool add_region(eg_low_memory *x, eg_region *region, size_t bytes) {
    enum { ALIGN = 256 };
    const size_t offset = (x->workspace + ALIGN - 1) / ALIGN * ALIGN;
    *region = (eg_region){.offset = offset, .bytes = bytes};
    return !__builtin_add_overflow(offset, bytes, &x->workspace) && x->workspace <= (size_t)INT64_MAX;
}

static bool bytes_of(int64_t items, int64_t rows, int64_t cols, eg_dtype dtype, size_t *bytes) {
    return !__builtin_mul_overflow(items, rows, bytes) && !__builtin_mul_overflow(*bytes, cols, bytes) &&
           !__builtin_mul_overflow(*bytes, eg_size_of(dtype), bytes);
}

/* ---- Regions that are there whatever a chunk needs --------------------------------------------------- */

/* A result of 16 bits that more than one chunk adds to is summed in the compute type until it is whole. */
static bool add_sums(eg_low_memory *x, int index) {
    const eg_op *op = &x->whole.op[index];
    const bool per_item = eg_is_per_item(x, op);
    const eg_view out = eg_workspace_part(x, index);
    size_t bytes = 0;
    const bool sums = eg_sums_rows(op) || eg_adds_items(x, op);
    if (!sums || op->out.dtype == x->whole.compute) return true;
    if (per_item && x->rows >= x->problem.m) return true;
    return bytes_of(per_item ? x->items : 1, out.rows, out.cols, x->whole.compute, &bytes) &&
           add_region(x, &x->sum[index], bytes);
}

static bool add_pack(const eg_caps *caps, eg_low_memory *x) {
    const eg_backend_ops *ops = eg_backend_find(caps->backend);
    bool wanted = false;
    for (int i = 0; i < x->whole.ops && !x->whole.gated; i++) /* of two, each chunk packs its own */
        wanted = wanted || eg_reads_b(&x->whole.op[i]);
    if (ops->plan_pack == NULL || !wanted) return true;
    const eg_problem b = eg_pack_of_items(x, 0);
    size_t bytes = 0;
    x->packed = (eg_packed){.layer = {.size = sizeof x->packed.layer,
                                      .m = b.m,
                                      .k = b.k,
                                      .n = b.n,
                                      .batch = b.batch,
                                      .dtype = b.dtype,
                                      .math = b.math},
                            .batched = b.batch > 1 && eg_has_items(&b.operands[EG_OP_B])};
    return ops->plan_pack(caps, &b, &x->packed, &bytes) == EG_OK && add_region(x, &x->pack, bytes);
}

/* The gradient that both parts of a result read, where nobody else has it. */
static bool size_gradient(const eg_caps *caps, eg_low_memory *x) {
    const eg_view *right = &x->whole.op[x->in_result].right;
    size_t *bytes = &x->gradient.bytes;
    if (right->space != EG_TEMPORARY || eg_is_present(&x->whole.temporary[right->id].same)) return true;
    x->gradient_dtype = caps->rounds_grad_pre ? x->whole.dtype : x->whole.compute;
    return bytes_of(x->items, x->rows, eg_gradient_stride(x), x->gradient_dtype, bytes) &&
           *bytes <= SIZE_MAX / 2;
}

/* ---- What a chunk needs ------------------------------------------------------------------------------ */

static eg_status take_room(const eg_caps *caps, eg_program *program, size_t *room) {
    EG_TRY(eg_compile(caps, program));
    *room = eg_most_bytes(*room, program->workspace);
    return EG_OK;
}

/* To overwrite sums and to add to them may take different kernels. */
static eg_status take_chunk(const eg_caps *caps, eg_low_memory *x, int64_t item, int64_t row, size_t *room) {
    const eg_chunk c = eg_chunk_at(x, item, row);
    for (int begun = 0; begun < EG_BEGUN_STATES; begun++) {
        if (begun == EG_BEGUN_SHARED && x->items >= x->problem.batch) continue;
        eg_chunk_ops(x, &c, (eg_begun)begun, &x->program.list);
        EG_TRY(take_room(caps, &x->program, room));
        for (int i = 0; i < 2 && x->in_result != EG_NO_OP; i++) {
            eg_chunk_part(x, &c, i == 0, (eg_begun)begun, &x->part.list);
            EG_TRY(take_room(caps, &x->part, room));
        }
    }
    return EG_OK;
}

/* Where the last of steps of `each` through `total` begins. */
static int64_t last_start(int64_t total, int64_t each) { return each > 0 ? (total - 1) / each * each : 0; }

/* Of chunks of fewer items than an outer one has, the last one in it. */
static int64_t last_item(const eg_low_memory *x) {
    const int64_t batch = x->problem.batch, inner = x->problem.inner;
    return x->items < inner ? batch - inner + last_start(inner, x->items) : last_start(batch, x->items);
}

static eg_status take_chunks(const eg_caps *caps, eg_low_memory *x, size_t *room) {
    EG_TRY(take_chunk(caps, x, last_item(x), last_start(x->problem.m, x->rows), room));
    return take_chunk(caps, x, 0, 0, room);
}

static eg_status take_moves(const eg_caps *caps, eg_low_memory *x, bool before, size_t *room) {
    const int64_t lines = eg_result_lines(x), last = last_start(lines, x->moved);
    for (int onward = 0; onward < 2; onward++) {
        eg_move_lines(x, 0, eg_least(x->moved, lines), before, onward, &x->other.list);
        EG_TRY(take_room(caps, &x->other, room));
        eg_move_lines(x, last, lines - last, before, onward, &x->other.list);
        EG_TRY(take_room(caps, &x->other, room));
    }
    return EG_OK;
}

/* And what is done around the chunks. */
static eg_status take_other_room(const eg_caps *caps, eg_low_memory *x, size_t *room) {
    for (int i = 0; i < x->whole.ops; i++) {
        const eg_op *op = &x->whole.op[i];
        for (int before = op->accumulate; x->sum[i].bytes > 0 && before >= 0; before--) {
            eg_copy_sums(x, i, 0, before, &x->other.list);
            EG_TRY(take_room(caps, &x->other, room));
            if (i == x->in_result) EG_TRY(take_moves(caps, x, before, room));
        }
    }
    return EG_OK;
}

/* ---- The layout -------------------------------------------------------------------------------------- */

/* Where a result's memory holds part of its sums. Lines that leave it take the place of what chunks do not
 * need any more. */
static eg_status lay_out_split(const eg_caps *caps, eg_low_memory *x) {
    const size_t line = (size_t)eg_line_length(eg_split_result(x)) * sizeof(uint16_t);
    size_t room = 0, other = 0;
    EG_TRY(take_chunks(caps, x, &room));
    const size_t fitting = (room + x->gradient.bytes) / line;
    x->moved = fitting == 0 ? 1 : eg_least((int64_t)fitting, eg_result_lines(x));
    EG_TRY(take_other_room(caps, x, &other));
    bool fits = add_region(x, &x->chunk, eg_most_bytes(room, other)) &&
                add_region(x, &x->gradient, x->gradient.bytes);
    const size_t end = x->workspace;
    x->workspace = x->chunk.offset + other;
    fits =
        fits && add_region(x, &x->transit, ((size_t)x->moved * line + 3) / 4 * 4); /* of words, for WebGPU */
    x->workspace = eg_most_bytes(x->workspace, end);
    return fits ? EG_OK : eg_too_large(&x->whole);
}

eg_status eg_low_memory_lay_out(const eg_caps *caps, int64_t items, int64_t rows, eg_low_memory *x) {
    const bool split = x->in_result != EG_NO_OP;
    size_t room = 0;
    x->items = items;
    x->rows = rows;
    x->threads = caps->threads;
    x->pack = x->chunk = x->gradient = x->transit = (eg_region){0};
    memset(x->sum, 0, sizeof x->sum);
    x->workspace = 0;
    if (!eg_has_chunks(x)) {
        x->program.list = x->whole;
        EG_TRY(take_room(caps, &x->program, &room));
    } else {
        bool fits = add_pack(caps, x);
        if (split) x->workspace_lines = eg_workspace_lines(eg_split_result(x));
        for (int i = 0; i < x->whole.ops; i++) fits = fits && add_sums(x, i);
        if (!fits || (split && !size_gradient(caps, x))) return eg_too_large(&x->whole);
        if (split) return lay_out_split(caps, x);
        EG_TRY(take_chunks(caps, x, &room));
        EG_TRY(take_other_room(caps, x, &room));
    }
    return add_region(x, &x->chunk, room) ? EG_OK : eg_too_large(&x->whole);
}
