#include "slabs.h"

#include <string.h>

#include "error.h"
#include "sizes.h"
#include "text.h"

static size_t most(size_t a, size_t b) { return a > b ? a : b; }

/* ---- What there is to walk ---------------------------------------------------------------------- */

static const eg_operand_id summed[EG_SUMS] = {
    [EG_SUM_D_B] = EG_OP_D_B, [EG_SUM_D_BIAS] = EG_OP_D_BIAS, [EG_SUM_D_BIAS_BELOW] = EG_OP_D_BIAS_BELOW};

static bool several(const eg_slabs *s) { return s->rows < s->whole.m || s->items < s->whole.batch; }

/* Each item of the batch has an output of its own; else one takes the sum over all of them. */
static bool per_item(const eg_slabs *s, int sum) {
    return sum == EG_SUM_D_B && s->whole.batch > 1 && s->whole.operands[EG_OP_D_B].batch_stride != 0;
}

/* An output of 16 bits that more than one slab adds to is kept in the compute type until it is whole. */
static bool kept(const eg_slabs *s, int sum) {
    const eg_operand *out = &s->whole.operands[summed[sum]];
    const bool added_to = per_item(s, sum) ? s->rows < s->whole.m : several(s);
    return out->data != NULL && out->dtype != s->whole.compute && added_to;
}

static bool reads_b(const eg_problem *p) {
    const bool recompute = p->source == EG_SOURCE_RECOMPUTE && p->activation != EG_ACT_NONE;
    return !p->backward || recompute || eg_wants(p, EG_OP_D_A);
}

/* ---- Lines of d_b ------------------------------------------------------------------------------- */

/* Its lines are what is dense: rows, or columns. */
static bool lines_are_rows(const eg_operand *d_b) { return d_b->col_stride == 1; }

static int64_t lines_of(const eg_operand *d_b) { return lines_are_rows(d_b) ? d_b->rows : d_b->cols; }

static int64_t length_of(const eg_operand *d_b) { return lines_are_rows(d_b) ? d_b->cols : d_b->rows; }

/* Some of its lines. */
static eg_operand some_lines(eg_operand d_b, int64_t first, int64_t count) {
    const bool rows = lines_are_rows(&d_b);
    const int64_t pitch = rows ? d_b.row_stride : d_b.col_stride;
    d_b.offset += (size_t)(first * pitch) * eg_size_of(d_b.dtype);
    if (rows) d_b.rows = count;
    if (!rows) d_b.cols = count;
    return d_b;
}

/* Bytes before the first whole f32 of d_b: 0 or 2. */
static size_t unaligned(const eg_slabs *s) {
    const eg_operand *d_b = &s->whole.operands[EG_OP_D_B];
    return eg_begin(&s->whole, d_b->data, d_b->offset) % sizeof(float);
}

/* Lines of the half in the workspace: the sums of the others fit in d_b. A multiple of what keeps both halves
 * of an operand aligned to 16 bytes, if it is itself. */
static int64_t kept_lines(const eg_operand *d_b, bool aligned) {
    enum { ALIGN = 8 };
    const int64_t lines = lines_of(d_b), fitting = aligned ? lines / 2 : (lines - 1) / 2;
    return eg_ceil_div(lines - fitting, ALIGN) * ALIGN;
}

static int64_t own_lines(const eg_slabs *s) { return lines_of(&s->whole.operands[EG_OP_D_B]) - s->kept; }

/* It has 16 bits, no gaps, is one for the whole batch, and large enough, wherever it begins: workspaces are
 * asked for before that is known. And a grad_pre that the caller has in 16 bits must be what the products
 * may read. */
bool eg_slabs_may_halve(const eg_caps *caps, const eg_problem *p) {
    const eg_operand *d_b = &p->operands[EG_OP_D_B];
    if (d_b->data == NULL || p->compute != EG_F32 || eg_size_of(d_b->dtype) != 2) return false;
    if (p->batch > 1 && d_b->batch_stride != 0) return false;
    if (length_of(d_b) == 0 || kept_lines(d_b, false) >= lines_of(d_b)) return false;
    const bool dense = (lines_are_rows(d_b) ? d_b->row_stride : d_b->col_stride) == length_of(d_b);
    const bool rounds = eg_wants(p, EG_OP_GRAD_PRE) && p->activation != EG_ACT_NONE;
    return dense && (caps->rounds_grad_pre || !rounds);
}

/* ---- The problems ------------------------------------------------------------------------------- */

/* An output that is summed; of d_b in halves, what is kept in the workspace. */
static eg_operand summed_operand(const eg_slabs *s, int sum) {
    const eg_operand out = s->whole.operands[summed[sum]];
    return s->halves && sum == EG_SUM_D_B ? some_lines(out, 0, s->kept) : out;
}

/* The same lines elsewhere, dense and in the compute type. */
static eg_operand dense_at(const eg_slabs *s, eg_operand x, void *data, size_t offset) {
    const bool row_major = lines_are_rows(&x);
    x.data = data;
    x.offset = offset;
    x.dtype = s->whole.compute;
    x.row_stride = row_major ? x.cols : 1;
    x.col_stride = row_major ? 1 : x.rows;
    x.batch_stride = 0;
    return x;
}

/* An output in the workspace instead. */
static eg_operand kept_operand(const eg_slabs *s, int sum) {
    const eg_operand out = summed_operand(s, sum);
    eg_operand x = dense_at(s, out, s->data, s->offset + s->sum[sum].offset);
    if (per_item(s, sum)) x.batch_stride = x.rows * x.cols;
    return x;
}

/* The half of d_b in its own memory. */
static eg_operand own_half(const eg_slabs *s) {
    return some_lines(s->whole.operands[EG_OP_D_B], s->kept, own_lines(s));
}

static eg_operand own_sums(const eg_slabs *s) {
    const eg_operand *d_b = &s->whole.operands[EG_OP_D_B];
    return dense_at(s, own_half(s), d_b->data, d_b->offset + unaligned(s));
}

/* Columns begin where vectors of it would, in the type that the backend has its own grad_pre in. */
static int64_t grad_pre_ld(const eg_slabs *s) { return eg_ceil_div(s->whole.n, 8) * 8; }

static eg_operand kept_grad_pre(const eg_slabs *s, int64_t rows) {
    return (eg_operand){.data = s->data,
                        .offset = s->offset + s->grad_pre.offset,
                        .dtype = s->grad_pre_dtype,
                        .rows = rows,
                        .cols = s->whole.n,
                        .row_stride = grad_pre_ld(s),
                        .col_stride = 1,
                        .batch_stride = s->rows * grad_pre_ld(s)};
}

/* Without elements it stays: its strides may be anything. */
static void advance(eg_operand *x, bool has_rows, int64_t item, int64_t row) {
    if (x->data == NULL || x->rows == 0 || x->cols == 0) return;
    const int64_t elements = item * x->batch_stride + (has_rows ? row * x->row_stride : 0);
    x->offset += (size_t)elements * eg_size_of(x->dtype);
}

/* The slab that begins at a row of an item; in halves, but for d_b. */
static eg_problem slab_problem(const eg_slabs *s, int64_t item, int64_t row) {
    eg_problem p = s->whole;
    p.batch = eg_least(s->items, p.batch - item);
    p.m = eg_least(s->rows, p.m - row);
    for (int id = 0; id < EG_OPERANDS; id++) {
        const bool has_rows = eg_operand_has_rows((eg_operand_id)id);
        if (has_rows) p.operands[id].rows = p.m;
        advance(&p.operands[id], has_rows, item, row);
    }
    for (int sum = 0; sum < EG_SUMS; sum++) {
        if (s->sum[sum].bytes > 0) p.operands[summed[sum]] = kept_operand(s, sum);
    }
    if (s->halves) p.operands[EG_OP_D_B] = (eg_operand){0};
    if (s->grad_pre.bytes > 0) p.operands[EG_OP_GRAD_PRE] = kept_grad_pre(s, p.m);
    if (s->pack.bytes > 0) p.packed_b = &s->packed;
    return p;
}

static eg_operand some_columns(eg_operand x, int64_t first, int64_t count) {
    x.offset += (size_t)(first * x.col_stride) * eg_size_of(x.dtype);
    x.cols = count;
    return x;
}

/* What such a slab adds to a half of d_b: a product of some columns of A, or of grad_pre. */
static eg_problem half_problem(const eg_slabs *s, const eg_problem *slab, bool own) {
    const eg_operand sums = own ? own_sums(s) : kept_operand(s, EG_SUM_D_B);
    const bool of_a = lines_are_rows(&s->whole.operands[EG_OP_D_B]);
    const int64_t first = own ? s->kept : 0, count = own ? own_lines(s) : s->kept;
    const eg_operand a = slab->operands[EG_OP_A],
                     grad_pre = slab->operands[slab->activation == EG_ACT_NONE ? EG_OP_GRAD : EG_OP_GRAD_PRE];
    eg_problem p = *slab;
    p.activation = EG_ACT_NONE;
    p.source = EG_SOURCE_RECOMPUTE;
    p.packed_b = NULL;
    for (int id = 0; id < EG_OPERANDS; id++) p.operands[id] = (eg_operand){0};
    p.operands[EG_OP_A] = of_a ? some_columns(a, first, count) : a;
    p.operands[EG_OP_GRAD] = of_a ? grad_pre : some_columns(grad_pre, first, count);
    p.operands[EG_OP_D_B] = sums;
    if (of_a) p.k = count;
    if (!of_a) p.n = count;
    return p;
}

/* B of the items that begin at `item`, as eg_pack_b has it. */
static eg_problem pack_problem(const eg_slabs *s, int64_t item) {
    eg_problem p = s->whole;
    for (int id = 0; id < EG_OPERANDS; id++) p.operands[id] = (eg_operand){0};
    p.operands[EG_OP_B] = s->whole.operands[EG_OP_B];
    p.backward = false;
    p.batch = eg_least(s->items, p.batch - item);
    advance(&p.operands[EG_OP_B], false, item, 0);
    return p;
}

/* d_b of the items that begin at `item`, made 0: a layer without rows writes sums of nothing. */
static eg_problem clear_problem(const eg_slabs *s, int64_t item) {
    const eg_problem slab = slab_problem(s, item, 0);
    eg_problem p = slab;
    p.m = 0;
    p.activation = EG_ACT_NONE;
    p.accumulate = false;
    for (int id = 0; id < EG_OPERANDS; id++) p.operands[id] = (eg_operand){0};
    p.operands[EG_OP_D_B] = slab.operands[EG_OP_D_B];
    return p;
}

/* to = round(from): a layer without columns, y = 0 + residual. */
static eg_problem copy_problem(const eg_slabs *s, int64_t items, eg_operand from, eg_operand to) {
    eg_problem p = {.addressing = s->whole.addressing,
                    .m = to.rows,
                    .n = to.cols,
                    .batch = items,
                    .dtype = s->whole.dtype,
                    .compute = s->whole.compute,
                    .math = s->whole.math};
    p.operands[EG_OP_RESIDUAL] = from;
    p.operands[EG_OP_Y] = to;
    return p;
}

/* What an output holds before, to where it is added up; or the sum, rounded, to the output. */
static eg_problem sum_problem(const eg_slabs *s, int sum, int64_t item, bool before) {
    const eg_operand x = kept_operand(s, sum);
    eg_operand out = summed_operand(s, sum);
    const int64_t items = per_item(s, sum) ? eg_least(s->items, s->whole.batch - item) : 1;
    advance(&out, false, item, 0);
    return before ? copy_problem(s, items, out, x) : copy_problem(s, items, x, out);
}

/* Lines of d_b's own half to their sums (`before`), or back: both are in one place, so they go through the
 * workspace, in the type of d_b. */
static void move_problems(const eg_slabs *s, int64_t first, int64_t count, bool before, eg_problem move[2]) {
    const eg_operand out = some_lines(own_half(s), first, count),
                     sums = some_lines(own_sums(s), first, count);
    eg_operand way = dense_at(s, out, s->data, s->offset + s->way.offset);
    way.dtype = out.dtype;
    move[0] = copy_problem(s, 1, before ? out : sums, way);
    move[1] = copy_problem(s, 1, way, before ? sums : out);
}

/* ---- The workspace ------------------------------------------------------------------------------ */

static bool add_region(eg_slabs *s, eg_region *region, size_t bytes) {
    enum { ALIGN = 256 };
    const size_t offset = (s->workspace + ALIGN - 1) / ALIGN * ALIGN;
    *region = (eg_region){offset, bytes};
    return !__builtin_add_overflow(offset, bytes, &s->workspace) && s->workspace <= (size_t)INT64_MAX;
}

static bool add_sum(eg_slabs *s, int sum) {
    const eg_operand out = summed_operand(s, sum);
    size_t bytes = eg_size_of(s->whole.compute);
    if (!kept(s, sum)) return true;
    return !__builtin_mul_overflow(bytes, out.rows, &bytes) &&
           !__builtin_mul_overflow(bytes, out.cols, &bytes) &&
           !__builtin_mul_overflow(bytes, per_item(s, sum) ? s->items : 1, &bytes) &&
           add_region(s, &s->sum[sum], bytes);
}

static bool add_pack(const eg_caps *caps, eg_slabs *s) {
    const eg_backend_ops *ops = eg_backend_find(caps->backend);
    const eg_problem *p = &s->whole;
    if (ops->pack_bytes == NULL || p->packed_b != NULL || !reads_b(p) || !eg_wants(p, EG_OP_B)) return true;
    const eg_problem b = pack_problem(s, 0);
    size_t bytes = 0;
    s->packed = (eg_packed){.layer = {.size = sizeof s->packed.layer,
                                      .m = b.m,
                                      .k = b.k,
                                      .n = b.n,
                                      .batch = b.batch,
                                      .dtype = b.dtype,
                                      .math = b.math},
                            .batched = b.batch > 1 && b.operands[EG_OP_B].batch_stride != 0};
    return ops->pack_bytes(caps, &b, &bytes) == EG_OK && add_region(s, &s->pack, bytes);
}

/* What a problem that is run in the slab's region needs of it. */
static eg_status take_room(const eg_caps *caps, const eg_problem *problem, eg_plan *plan, size_t *room) {
    EG_TRY(eg_plan_make(caps, problem, plan));
    *room = most(*room, plan->workspace);
    return EG_OK;
}

/* Where d_b begins is not known when the size of the workspace is asked for: there is room for either number
 * of kept lines. */
static eg_status take_halves(const eg_caps *caps, eg_slabs *s, const eg_problem *slab, size_t *room) {
    for (int i = 0; i < 4; i++) {
        s->kept = kept_lines(&s->whole.operands[EG_OP_D_B], i >= 2);
        const eg_problem half = half_problem(s, slab, i % 2 == 0);
        EG_TRY(take_room(caps, &half, &s->half_plan, room));
    }
    return EG_OK;
}

static eg_status take_slab(const eg_caps *caps, eg_slabs *s, int64_t item, int64_t row, size_t *room) {
    const eg_problem slab = slab_problem(s, item, row);
    EG_TRY(take_room(caps, &slab, &s->plan, room));
    return s->halves ? take_halves(caps, s, &slab, room) : EG_OK;
}

/* Where the last of steps of `each` through `total` begins. */
static int64_t last_start(int64_t total, int64_t each) { return each > 0 ? (total - 1) / each * each : 0; }

static eg_status take_slabs(const eg_caps *caps, eg_slabs *s, size_t *room) {
    EG_TRY(take_slab(caps, s, last_start(s->whole.batch, s->items), last_start(s->whole.m, s->rows), room));
    return take_slab(caps, s, 0, 0, room);
}

static eg_status take_moves(const eg_caps *caps, const eg_slabs *s, bool before, size_t *room) {
    const int64_t last = last_start(own_lines(s), s->moved), each = eg_least(s->moved, own_lines(s));
    eg_problem move[4];
    eg_plan plan;
    move_problems(s, 0, each, before, &move[0]);
    move_problems(s, last, own_lines(s) - last, before, &move[2]);
    for (int i = 0; i < 4; i++) EG_TRY(take_room(caps, &move[i], &plan, room));
    return EG_OK;
}

/* And what is done around the slabs. */
static eg_status take_other_room(const eg_caps *caps, const eg_slabs *s, size_t *room) {
    eg_plan plan;
    if (per_item(s, EG_SUM_D_B)) {
        const eg_problem clear = clear_problem(s, 0);
        EG_TRY(take_room(caps, &clear, &plan, room));
    }
    for (int before = s->whole.accumulate; before >= 0; before--) {
        for (int sum = 0; sum < EG_SUMS; sum++) {
            if (s->sum[sum].bytes == 0) continue;
            const eg_problem copy = sum_problem(s, sum, 0, before);
            EG_TRY(take_room(caps, &copy, &plan, room));
        }
        if (s->halves) EG_TRY(take_moves(caps, s, before, room));
    }
    return EG_OK;
}

/* The grad_pre that both halves read, where nobody else has it. */
static bool size_grad_pre(const eg_caps *caps, eg_slabs *s) {
    const eg_problem *p = &s->whole;
    if (p->activation == EG_ACT_NONE || eg_wants(p, EG_OP_GRAD_PRE)) return true;
    s->grad_pre_dtype = caps->rounds_grad_pre ? p->dtype : p->compute;
    size_t *bytes = &s->grad_pre.bytes;
    return !__builtin_mul_overflow(s->items, s->rows, bytes) &&
           !__builtin_mul_overflow(*bytes, grad_pre_ld(s), bytes) &&
           !__builtin_mul_overflow(*bytes, eg_size_of(s->grad_pre_dtype), bytes) && *bytes <= SIZE_MAX / 2;
}

/* The rest of the workspace in halves. Lines that leave d_b take the place of what slabs do not need any
 * more. */
static eg_status lay_out_halves(const eg_caps *caps, eg_slabs *s) {
    const eg_operand *d_b = &s->whole.operands[EG_OP_D_B];
    const size_t line = (size_t)length_of(d_b) * sizeof(uint16_t); /* on its way, in d_b's type */
    size_t room = 0, other = 0;
    EG_TRY(take_slabs(caps, s, &room));
    const size_t fitting = (room + s->grad_pre.bytes) / line;
    s->moved = fitting == 0 ? 1 : eg_least((int64_t)fitting, own_lines(s));
    for (int aligned = 0; aligned < 2; aligned++) {
        s->kept = kept_lines(d_b, aligned);
        EG_TRY(take_other_room(caps, s, &other));
    }
    s->kept = kept_lines(d_b, unaligned(s) == 0);
    bool fits = add_region(s, &s->slab, most(room, other)) && add_region(s, &s->grad_pre, s->grad_pre.bytes);
    const size_t end = s->workspace;
    s->workspace = s->slab.offset + other;
    fits = fits && add_region(s, &s->way, ((size_t)s->moved * line + 3) / 4 * 4); /* of words, for WebGPU */
    s->workspace = most(s->workspace, end);
    return fits ? EG_OK : eg_plan_too_large(&s->whole);
}

/* Regions that are there whatever a slab needs. */
static bool lay_out_sums(const eg_caps *caps, eg_slabs *s) {
    bool fits = add_pack(caps, s);
    if (s->halves) s->kept = kept_lines(&s->whole.operands[EG_OP_D_B], false);
    for (int sum = 0; sum < EG_SUMS; sum++) fits = fits && add_sum(s, sum);
    return fits && (!s->halves || size_grad_pre(caps, s));
}

eg_status eg_slabs_lay_out(const eg_caps *caps, int64_t items, int64_t rows, eg_slabs *s) {
    s->items = items;
    s->rows = rows;
    s->threads = caps->threads;
    s->pack = s->slab = s->grad_pre = s->way = (eg_region){0};
    memset(s->sum, 0, sizeof s->sum);
    s->workspace = 0;
    s->data = (void *)(uintptr_t)4096; /* a mark, aligned as the real one is */
    s->offset = 0;
    size_t room = 0;
    if (!several(s)) {
        EG_TRY(take_room(caps, &s->whole, &s->plan, &room));
    } else {
        if (!lay_out_sums(caps, s)) return eg_plan_too_large(&s->whole);
        if (s->halves) return lay_out_halves(caps, s);
        EG_TRY(take_slabs(caps, s, &room));
        EG_TRY(take_other_room(caps, s, &room));
    }
    return add_region(s, &s->slab, room) ? EG_OK : eg_plan_too_large(&s->whole);
}

/* ---- The launch --------------------------------------------------------------------------------- */

static eg_status run(eg_context *context, const eg_slabs *s, const eg_problem *problem) {
    eg_plan plan;
    EG_TRY(eg_plan_make(&context->caps, problem, &plan));
    return context->ops->launch(context, &plan, s->data, s->offset + s->slab.offset);
}

static eg_status pack(eg_context *context, eg_slabs *s, int64_t item) {
    const eg_problem b = pack_problem(s, item);
    s->packed.context = context;
    s->packed.data = (char *)s->data + s->offset + s->pack.offset;
    return context->ops->pack(context, &b, &s->packed);
}

/* Whether later items add to something that the first one began. */
static bool carries(const eg_slabs *s) {
    for (int sum = 0; sum < EG_SUMS; sum++) {
        if (eg_wants(&s->whole, summed[sum]) && !per_item(s, sum)) return true;
    }
    return false;
}

/* Sums of d_b's own half come from its lines one piece after the other, from the first one on; and go there
 * from the last one on: what a piece is written over has gone before. */
static eg_status move_half(eg_context *context, const eg_slabs *s, bool before) {
    const int64_t lines = own_lines(s), pieces = eg_ceil_div(lines, s->moved);
    for (int64_t i = 0; i < pieces; i++) {
        const int64_t first = (before ? i : pieces - 1 - i) * s->moved;
        eg_problem move[2];
        move_problems(s, first, eg_least(s->moved, lines - first), before, move);
        EG_TRY(run(context, s, &move[0]));
        EG_TRY(run(context, s, &move[1]));
    }
    return EG_OK;
}

/* Copies the sums of each item, or those of all items, from (`before`) or to where the caller has them. */
static eg_status copy_sums(eg_context *context, const eg_slabs *s, bool of_items, int64_t item, bool before) {
    for (int sum = 0; sum < EG_SUMS; sum++) {
        if (s->sum[sum].bytes == 0 || per_item(s, sum) != of_items) continue;
        const bool halves = s->halves && sum == EG_SUM_D_B;
        const eg_problem copy = sum_problem(s, sum, item, before);
        if (halves && !before) EG_TRY(move_half(context, s, false)); /* the other goes where these were */
        EG_TRY(run(context, s, &copy));
        if (halves && before) EG_TRY(move_half(context, s, true));
    }
    return EG_OK;
}

/* In halves all but d_b first, if that is anything. */
static eg_status run_slab(eg_context *context, const eg_slabs *s, const eg_problem *slab) {
    if (!s->halves || s->plan.steps > 0) EG_TRY(run(context, s, slab));
    for (int own = 0; own < 2 && s->halves; own++) {
        const eg_problem half = half_problem(s, slab, own);
        EG_TRY(run(context, s, &half));
    }
    return EG_OK;
}

/* The slabs of the items that begin at `item`. Its first one adds to what an earlier item began, so what this
 * item begins is made 0 before. */
static eg_status launch_items(eg_context *context, eg_slabs *s, int64_t item) {
    const bool accumulate = s->whole.accumulate, carried = item > 0 && carries(s);
    if (accumulate) EG_TRY(copy_sums(context, s, true, item, true));
    if (carried && !accumulate && per_item(s, EG_SUM_D_B)) {
        const eg_problem clear = clear_problem(s, item);
        EG_TRY(run(context, s, &clear));
    }
    if (s->pack.bytes > 0 && (item == 0 || s->whole.operands[EG_OP_B].batch_stride != 0))
        EG_TRY(pack(context, s, item));
    for (int64_t row = 0; row < s->whole.m; row += s->rows) {
        eg_problem slab = slab_problem(s, item, row);
        slab.accumulate = accumulate || carried || row > 0;
        EG_TRY(run_slab(context, s, &slab));
    }
    return copy_sums(context, s, true, item, false);
}

static eg_status launch_slabs(eg_context *context, eg_slabs *s) {
    if (s->whole.accumulate) EG_TRY(copy_sums(context, s, false, 0, true));
    for (int64_t item = 0; item < s->whole.batch; item += s->items) EG_TRY(launch_items(context, s, item));
    return copy_sums(context, s, false, 0, false);
}

/* The backend sees the capabilities that the slabs were planned with. */
eg_status eg_slabs_launch(eg_context *context, eg_slabs *slabs, void *workspace, size_t offset) {
    const int threads = context->caps.threads;
    slabs->data = workspace;
    slabs->offset = offset;
    context->caps.threads = slabs->threads;
    const eg_status status = several(slabs) ? launch_slabs(context, slabs)
                                            : context->ops->launch(context, &slabs->plan, workspace, offset);
    context->caps.threads = threads;
    return status;
}

/* ---- The text ----------------------------------------------------------------------------------- */

static void put_region(eg_text *out, const char *what, const eg_region *region) {
    if (region->bytes > 0) eg_put(out, "    %-20s %14zu bytes\n", what, region->bytes);
}

static void put_halves(eg_text *out, const eg_slabs *s) {
    put_region(out, "grad_pre", &s->grad_pre);
    eg_put(out, "    %lld of %lld lines of d_b are added up there, the others in d_b's own memory\n",
           (long long)s->kept, (long long)lines_of(&s->whole.operands[EG_OP_D_B]));
}

static void put_plan(eg_text *out, const eg_plan *plan) {
    eg_plan_print(plan, out->at, out->left);
    const size_t length = strlen(out->at);
    out->at += length;
    out->left -= length;
}

void eg_slabs_print(const eg_slabs *s, char *text, size_t capacity) {
    static const char *const kept_names[EG_SUMS] = {"d_b in f32", "d_bias in f32", "chain.d_bias in f32"};
    const eg_problem *p = &s->whole;
    eg_text out = {text, capacity};
    if (several(s)) {
        const bool whole_items = s->rows == p->m;
        const double count = (double)eg_ceil_div(p->batch, s->items) * (double)eg_ceil_div(p->m, s->rows);
        eg_put(&out, "slabs of %lld %s", (long long)(whole_items ? s->items : s->rows),
               whole_items ? "items" : "rows");
        if (!whole_items && s->items > 1) eg_put(&out, " of %lld items", (long long)s->items);
        eg_put(&out, " x %.0f  M=%lld batch=%lld  workspace %zu bytes\n", count, (long long)p->m,
               (long long)p->batch, s->workspace);
        put_region(&out, "b, packed once", &s->pack);
        for (int sum = 0; sum < EG_SUMS; sum++) put_region(&out, kept_names[sum], &s->sum[sum]);
        if (s->halves) put_halves(&out, s);
    }
    const bool halves = several(s) && s->halves;
    if (!halves || s->plan.steps > 0) put_plan(&out, &s->plan);
    if (halves) put_plan(&out, &s->half_plan);
}
