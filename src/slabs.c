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
    return sum == EG_SUM_D_B && s->whole.operands[EG_OP_D_B].batch_stride != 0;
}

/* An output of 16 bits that more than one slab adds to is kept in the compute type until it is whole. */
static bool kept(const eg_slabs *s, int sum) {
    const eg_operand *out = &s->whole.operands[summed[sum]];
    const bool added_to = per_item(s, sum) ? s->rows < s->whole.m : several(s);
    return out->data != NULL && out->dtype != s->whole.compute && added_to;
}

/* d_a cannot be added to, and a backend's pack cannot be read in part: there the batch stays together. */
static bool together(const eg_problem *p) {
    const eg_operand *d_a = &p->operands[EG_OP_D_A];
    return p->batch <= 1 || (d_a->data != NULL && d_a->batch_stride == 0) ||
           (p->packed_b != NULL && p->packed_b->batched);
}

static bool reads_b(const eg_problem *p) {
    const bool recompute = p->source == EG_SOURCE_RECOMPUTE && p->activation != EG_ACT_NONE;
    return !p->backward || recompute || eg_wants(p, EG_OP_D_A);
}

/* ---- The problems ------------------------------------------------------------------------------- */

/* An output in the workspace instead, dense and in the compute type, its lines along those of the output. */
static eg_operand kept_operand(const eg_slabs *s, int sum) {
    const eg_operand *out = &s->whole.operands[summed[sum]];
    const bool row_major = out->col_stride == 1;
    eg_operand x = *out;
    x.data = s->data;
    x.offset = s->offset + s->sum[sum].offset;
    x.dtype = s->whole.compute;
    x.row_stride = row_major ? x.cols : 1;
    x.col_stride = row_major ? 1 : x.rows;
    x.batch_stride = per_item(s, sum) ? x.rows * x.cols : 0;
    return x;
}

/* Without elements it stays: its strides may be anything. */
static void advance(eg_operand *x, bool has_rows, int64_t item, int64_t row) {
    if (x->data == NULL || x->rows == 0 || x->cols == 0) return;
    const int64_t elements = item * x->batch_stride + (has_rows ? row * x->row_stride : 0);
    x->offset += (size_t)elements * eg_size_of(x->dtype);
}

/* The slab that begins at a row of an item. */
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
    if (s->pack.bytes > 0) p.packed_b = &s->packed;
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
    eg_operand out = s->whole.operands[summed[sum]];
    const int64_t items = per_item(s, sum) ? eg_least(s->items, s->whole.batch - item) : 1;
    advance(&out, false, item, 0);
    return before ? copy_problem(s, items, out, x) : copy_problem(s, items, x, out);
}

/* ---- The workspace ------------------------------------------------------------------------------ */

static bool add_region(eg_slabs *s, eg_region *region, size_t bytes) {
    enum { ALIGN = 256 };
    const size_t offset = (s->workspace + ALIGN - 1) / ALIGN * ALIGN;
    *region = (eg_region){offset, bytes};
    return !__builtin_add_overflow(offset, bytes, &s->workspace) && s->workspace <= (size_t)INT64_MAX;
}

static bool add_sum(eg_slabs *s, int sum) {
    const eg_operand *out = &s->whole.operands[summed[sum]];
    size_t bytes = eg_size_of(s->whole.compute);
    if (!kept(s, sum)) return true;
    return !__builtin_mul_overflow(bytes, out->rows, &bytes) &&
           !__builtin_mul_overflow(bytes, out->cols, &bytes) &&
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

/* And what is done around the slabs. */
static eg_status take_other_room(const eg_caps *caps, const eg_slabs *s, size_t *room) {
    eg_plan plan;
    const eg_problem clear = clear_problem(s, 0);
    EG_TRY(take_room(caps, &clear, &plan, room));
    for (int sum = 0; sum < EG_SUMS; sum++) {
        if (s->sum[sum].bytes == 0) continue;
        const eg_problem before = sum_problem(s, sum, 0, true), after = sum_problem(s, sum, 0, false);
        EG_TRY(take_room(caps, &before, &plan, room));
        EG_TRY(take_room(caps, &after, &plan, room));
    }
    return EG_OK;
}

/* Where the last of steps of `each` through `total` begins. */
static int64_t last_start(int64_t total, int64_t each) { return each > 0 ? (total - 1) / each * each : 0; }

/* Slabs of so many items and rows: their regions, and the plan of the first. */
static eg_status lay_out(const eg_caps *caps, int64_t items, int64_t rows, eg_slabs *s) {
    s->items = items;
    s->rows = rows;
    s->threads = caps->threads;
    s->pack = s->slab = (eg_region){0};
    memset(s->sum, 0, sizeof s->sum);
    s->workspace = 0;
    s->data = (void *)(uintptr_t)4096; /* a mark, aligned as the real one is */
    s->offset = 0;
    size_t room = 0;
    if (!several(s)) {
        EG_TRY(take_room(caps, &s->whole, &s->plan, &room));
    } else {
        bool fits = add_pack(caps, s);
        for (int sum = 0; sum < EG_SUMS; sum++) fits = fits && add_sum(s, sum);
        if (!fits) return eg_plan_too_large(&s->whole);
        eg_plan other;
        const eg_problem last =
            slab_problem(s, last_start(s->whole.batch, items), last_start(s->whole.m, rows));
        EG_TRY(take_room(caps, &last, &other, &room));
        EG_TRY(take_other_room(caps, s, &room));
        const eg_problem first = slab_problem(s, 0, 0);
        EG_TRY(take_room(caps, &first, &s->plan, &room));
    }
    return add_region(s, &s->slab, room) ? EG_OK : eg_plan_too_large(&s->whole);
}

/* ---- The largest slab --------------------------------------------------------------------------- */

/* Rows of a slab are a multiple of COARSE, which suits the tiles of every kernel; where no such slab fits, of
 * FINE. Both keep the alignment of the operands. */
enum { COARSE = 256, FINE = 64 };

/* More threads may need more workspace, and a slab must not depend on how many there are: it leaves room for
 * MOST_THREADS, or for a FEWERth of them and so on where that would cost more than half of it. */
enum { MOST_THREADS = 64, FEWER = 4 };

/* Slabs to choose from, by size: `count` of them, from items x rows on. */
typedef struct family {
    int64_t items, rows, more_items, more_rows, count;
} family;

enum { FAMILIES = 4 };

/* The best first: the whole call, whole items of its batch, many rows, few rows. */
static void list_families(const eg_problem *p, family list[FAMILIES]) {
    const int64_t cut = p->m > 0 && p->batch > 0 ? p->m - 1 : 0, items = together(p) ? p->batch : 1;
    list[0] = (family){p->batch, p->m, 0, 0, 1};
    list[1] = (family){1, p->m, 1, 0, together(p) || p->m == 0 ? 0 : p->batch - 1};
    list[2] = (family){items, COARSE, 0, COARSE, cut / COARSE};
    list[3] = (family){items, FINE, 0, FINE, eg_least(cut / FINE, COARSE / FINE - 1)};
}

typedef struct search {
    eg_caps caps;
    size_t limit;
    eg_slabs *slabs;
} search;

typedef struct extent {
    int64_t items, rows;
} extent;

/* Lays a slab out. What no memory could hold does not fit, which is no failure. */
static eg_status try_slab(search *x, int threads, extent slab, bool *fits) {
    const eg_message message = eg_message_get();
    x->caps.threads = threads;
    const eg_status status = lay_out(&x->caps, slab.items, slab.rows, x->slabs);
    *fits = status == EG_OK && x->slabs->workspace <= x->limit;
    if (status != EG_ERR_OUT_OF_MEMORY) return status;
    eg_message_put(&message);
    return EG_OK;
}

/* Rows of all its items; an integer might not hold them. */
static double rows_of(extent slab) { return (double)slab.items * (double)slab.rows; }

static extent member(const family *f, int64_t index) {
    return (extent){f->items + index * f->more_items, f->rows + index * f->more_rows};
}

/* For so many threads and for one, which may need more. */
static eg_status try_both(search *x, int threads, extent slab, bool *fit) {
    *fit = true;
    if (threads > 1) EG_TRY(try_slab(x, 1, slab, fit));
    return *fit ? try_slab(x, threads, slab, fit) : EG_OK;
}

/* A number between two others, by the workspace at the first and its growth from number to number, which
 * hardly ever is anything but even. */
static int64_t interpolate(int64_t low, int64_t high, size_t room, double growth) {
    const double guess = growth > 0 ? (double)low + (double)room / growth : (double)low + 1;
    if (guess >= (double)high) return high - 1;
    return guess > (double)low + 1 ? (int64_t)guess : low + 1;
}

/* How many slabs of a family fit. */
static eg_status count_fitting(search *x, int threads, const family *f, int64_t *count) {
    int64_t fitting = 0, failing = f->count + 1;
    size_t used = 0;
    double growth = 0;
    for (int step = 0; failing - fitting > 1; step++) {
        const bool halve = step > 3 && step % 2 == 0;
        const int64_t next = halve ? fitting + (failing - fitting) / 2
                                   : interpolate(fitting, failing, x->limit - used, growth);
        bool fits = false;
        EG_TRY(try_both(x, threads, member(f, next - 1), &fits));
        if (!fits) failing = next;
        if (!fits) continue;
        if (fitting > 0) growth = ((double)x->slabs->workspace - (double)used) / (double)(next - fitting);
        used = x->slabs->workspace;
        fitting = next;
    }
    *count = fitting;
    return EG_OK;
}

/* The largest slab that fits; of no rows where none does. */
static eg_status largest(search *x, int threads, extent *slab) {
    family list[FAMILIES];
    list_families(&x->slabs->whole, list);
    for (int i = 0; i < FAMILIES; i++) {
        int64_t count = 0;
        EG_TRY(count_fitting(x, threads, &list[i], &count));
        if (count == 0) continue;
        *slab = member(&list[i], count - 1);
        return EG_OK;
    }
    *slab = (extent){0, -1};
    return EG_OK;
}

/* Names the least that would have been enough. */
static eg_status refuse(search *x, int alone) {
    const size_t limit = x->limit;
    size_t need = SIZE_MAX;
    family list[FAMILIES];
    list_families(&x->slabs->whole, list);
    x->limit = SIZE_MAX;
    for (int i = 0; i < FAMILIES; i++) {
        bool fits = false;
        if (list[i].count > 0) EG_TRY(try_slab(x, alone, member(&list[i], 0), &fits));
        if (fits && x->slabs->workspace < need) need = x->slabs->workspace;
    }
    if (need == SIZE_MAX) return eg_plan_too_large(&x->slabs->whole);
    return eg_fail(EG_ERR_ARGUMENT,
                   "workspace_limit is %zu; expected at least %zu, what the smallest slab needs", limit,
                   need);
}

static eg_status choose(const eg_caps *caps, size_t limit, eg_slabs *s) {
    search x = {.caps = *caps, .limit = limit, .slabs = s};
    const int alone = caps->threads > 0 ? 1 : 0;
    extent best, slab;
    bool fits = false;
    EG_TRY(largest(&x, alone, &best));
    if (best.rows < 0) return refuse(&x, alone);
    for (int threads = alone * MOST_THREADS; threads > 1; threads /= FEWER) {
        EG_TRY(largest(&x, threads, &slab));
        if (slab.rows < 0 || rows_of(slab) < rows_of(best) / 2) continue;
        best = slab;
        break;
    }
    /* With as many of the threads as do find room. */
    EG_TRY(try_slab(&x, caps->threads, best, &fits));
    for (int threads = caps->threads / 2; !fits; threads /= 2) EG_TRY(try_slab(&x, threads, best, &fits));
    return EG_OK;
}

eg_status eg_slabs_make(const eg_caps *caps, const eg_problem *problem, size_t limit, eg_slabs *slabs) {
    slabs->whole = *problem;
    eg_plan_fold(&slabs->whole);
    if (limit > 0) return choose(caps, limit, slabs);
    return lay_out(caps, slabs->whole.batch, slabs->whole.m, slabs);
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

/* Copies the sums of each item, or those of all items, from (`before`) or to where the caller has them. */
static eg_status copy_sums(eg_context *context, const eg_slabs *s, bool of_items, int64_t item, bool before) {
    for (int sum = 0; sum < EG_SUMS; sum++) {
        if (s->sum[sum].bytes == 0 || per_item(s, sum) != of_items) continue;
        const eg_problem copy = sum_problem(s, sum, item, before);
        EG_TRY(run(context, s, &copy));
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
        EG_TRY(run(context, s, &slab));
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
    }
    eg_plan_print(&s->plan, out.at, out.left);
}
