/* SPDX-License-Identifier: Apache-2.0 */
#include "low_memory.h"

#include "cache.h"
#include "error.h"
#include "low_memory_chunk.h"

/* ---- The largest chunk --------------------------------------------------------------------------- */

/* Rows of a chunk are a multiple of COARSE, which suits the tiles of every kernel; where no such chunk fits,
 * of FINE. Both keep the alignment of the operands. */
enum { COARSE = 256, FINE = 64 };

/* More threads may need more workspace, and a chunk must not depend on how many there are: it leaves room for
 * MOST_THREADS, or for a FEWERth of them and so on where that would cost more than half of it. */
enum { MOST_THREADS = 64, FEWER = 4 };

/* Chunks to choose from, by size: `count` of them, from items x rows on. */
typedef struct family {
    int64_t items, rows, more_items, more_rows, count;
} family;

enum { FAMILIES = 4 };

static bool sums_items(const eg_low_memory *x) {
    for (int i = 0; i < x->whole.ops; i++) {
        if (eg_sums_items(&x->whole.op[i])) return true;
    }
    return false;
}

/* A d_a that sums over the batch would be summed in the compute type, all of it. So its batch stays together
 * where the backend can do that. */
static bool together(const eg_low_memory *x) {
    return x->problem.batch <= 1 || (sums_items(x) && !x->by_outer);
}

/* The best first: the whole call, whole items of its batch (of one outer item), many rows, few rows. */
static void list_families(const eg_low_memory *x, family list[FAMILIES]) {
    const int64_t m = x->problem.m, batch = x->problem.batch;
    const bool whole = together(x), all_rows = x->by_outer && sums_items(x); /* chunks add to one sum */
    const int64_t cut = m > 0 && !all_rows ? m - 1 : 0, items = whole ? batch : 1;
    list[0] = (family){x->by_outer ? x->problem.inner : batch, m, 0, 0, 1};
    list[1] = (family){1, m, 1, 0, whole || m == 0 ? 0 : eg_least(x->problem.inner, batch - 1)};
    list[2] = (family){items, COARSE, 0, COARSE, cut / COARSE};
    list[3] = (family){items, FINE, 0, FINE, eg_least(cut / FINE, COARSE / FINE - 1)};
}

typedef struct search {
    eg_caps caps;
    size_t limit;
    eg_low_memory *call;
} search;

typedef struct extent {
    int64_t items, rows;
} extent;

/* Lays a chunk out. What no memory could hold does not fit, which is no failure. */
static eg_status try_chunk(search *x, int threads, extent chunk, bool *fits) {
    const eg_message message = eg_message_get();
    x->caps.threads = threads;
    const eg_status status = eg_low_memory_lay_out(&x->caps, chunk.items, chunk.rows, x->call);
    *fits = status == EG_OK && x->call->workspace <= x->limit;
    if (status != EG_ERR_OUT_OF_MEMORY) return status;
    eg_message_put(&message);
    return EG_OK;
}

/* Rows of all its items; an integer might not hold them. */
static double rows_of(extent chunk) { return (double)chunk.items * (double)chunk.rows; }

static extent member(const family *f, int64_t index) {
    return (extent){f->items + index * f->more_items, f->rows + index * f->more_rows};
}

/* For so many threads and for one, which may need more. */
static eg_status try_both(search *x, int threads, extent chunk, bool *fit) {
    *fit = true;
    if (threads > 1) EG_TRY(try_chunk(x, 1, chunk, fit));
    return *fit ? try_chunk(x, threads, chunk, fit) : EG_OK;
}

/* A number between two others, by the workspace at the first and its growth from number to number, which
 * hardly ever is anything but even. */
static int64_t interpolate(int64_t low, int64_t high, size_t room, double growth) {
    const double guess = growth > 0 ? (double)low + (double)room / growth : (double)low + 1;
    if (guess >= (double)high) return high - 1;
    return guess > (double)low + 1 ? (int64_t)guess : low + 1;
}

/* How many chunks of a family fit. */
static eg_status count_fitting(search *x, int threads, const family *f, int64_t *count) {
    int64_t fitting = 0, failing = f->count + 1;
    size_t used = 0;
    double growth = 0;
    for (int step = 0; failing - fitting > 1; step++) {
        const bool bisect = step > 3 && step % 2 == 0;
        const int64_t next = bisect ? fitting + (failing - fitting) / 2
                                    : interpolate(fitting, failing, x->limit - used, growth);
        bool fits = false;
        EG_TRY(try_both(x, threads, member(f, next - 1), &fits));
        if (!fits) failing = next;
        if (!fits) continue;
        if (fitting > 0) growth = ((double)x->call->workspace - (double)used) / (double)(next - fitting);
        used = x->call->workspace;
        fitting = next;
    }
    *count = fitting;
    return EG_OK;
}

/* The largest chunk that fits; of no rows where none does. */
static eg_status largest(search *x, int threads, extent *chunk) {
    family list[FAMILIES];
    list_families(x->call, list);
    for (int i = 0; i < FAMILIES; i++) {
        int64_t count = 0;
        EG_TRY(count_fitting(x, threads, &list[i], &count));
        if (count == 0) continue;
        *chunk = member(&list[i], count - 1);
        return EG_OK;
    }
    *chunk = (extent){0, -1};
    return EG_OK;
}

/* What the smallest chunk needs; SIZE_MAX where no memory could hold any. */
static eg_status least_need(search *x, int alone, size_t *need) {
    family list[FAMILIES];
    list_families(x->call, list);
    for (int i = 0; i < FAMILIES; i++) {
        bool fits = false;
        if (list[i].count > 0) EG_TRY(try_chunk(x, alone, member(&list[i], 0), &fits));
        if (fits && x->call->workspace < *need) *need = x->call->workspace;
    }
    return EG_OK;
}

/* Names the least that would have been enough. */
static eg_status refuse(search *x, int alone) {
    const size_t limit = x->limit;
    const int may_split = eg_low_memory_may_split(&x->caps, &x->call->whole);
    size_t need = SIZE_MAX;
    x->limit = SIZE_MAX;
    x->call->in_result = EG_NO_OP;
    EG_TRY(least_need(x, alone, &need));
    x->call->in_result = may_split;
    if (may_split != EG_NO_OP) EG_TRY(least_need(x, alone, &need));
    if (need == SIZE_MAX) return eg_too_large(&x->call->whole);
    return eg_fail(EG_ERR_ARGUMENT,
                   "workspace_limit is %zu; expected at least %zu, what the smallest chunk needs", limit,
                   need);
}

/* The chunk that a call takes, whatever its threads; of no rows where none fits. */
static eg_status choose_chunk(search *x, int alone, extent *best) {
    extent chunk;
    EG_TRY(largest(x, alone, best));
    if (best->rows < 0) return EG_OK;
    for (int threads = alone * MOST_THREADS; threads > 1; threads /= FEWER) {
        EG_TRY(largest(x, threads, &chunk));
        if (chunk.rows < 0 || rows_of(chunk) < rows_of(*best) / 2) continue;
        *best = chunk;
        break;
    }
    return EG_OK;
}

/* Sums in the result's memory leave room for more rows, but both of its parts read the gradient, and a
 * backend that packs packs it, and A, once more. That is worth it where a chunk has twice the rows, so that
 * the result is read and written half as often. */
static eg_status choose_split(search *x, int alone, extent *best) {
    const double rows = best->rows > 0 ? rows_of(*best) : 0;
    const double all = (double)x->call->problem.batch * (double)x->call->problem.m;
    const int may_split = eg_low_memory_may_split(&x->caps, &x->call->whole);
    extent chunk;
    if (2 * rows > all || may_split == EG_NO_OP) return EG_OK;
    x->call->in_result = may_split;
    EG_TRY(choose_chunk(x, alone, &chunk));
    if (chunk.rows > 0 && rows_of(chunk) >= 2 * rows) {
        *best = chunk;
    } else {
        x->call->in_result = EG_NO_OP;
    }
    return EG_OK;
}

/* As many chunks, but no longer than that takes, so that the last is not a short one. */
static eg_status even_out(search *x, int alone, extent *best) {
    const int64_t m = x->call->problem.m, unit = best->rows % COARSE == 0 ? COARSE : FINE;
    if (best->rows <= 0 || best->rows >= m) return EG_OK;
    const int64_t each = eg_ceil_div(m, eg_ceil_div(m, best->rows));
    const extent even = {best->items, eg_ceil_div(each, unit) * unit};
    bool fits = false;
    EG_TRY(try_chunk(x, alone, even, &fits));
    if (fits) *best = even;
    return EG_OK;
}

/* With as many of the threads as find room. One does. */
static eg_status lay_out(search *x, int threads, extent chunk) {
    bool fits = false;
    do {
        EG_TRY(try_chunk(x, threads, chunk, &fits));
        threads /= 2;
    } while (!fits && threads > 0);
    return EG_OK;
}

static eg_status choose(search *x, extent *best) {
    const int alone = x->caps.threads > 0 ? 1 : 0;
    EG_TRY(choose_chunk(x, alone, best));
    EG_TRY(choose_split(x, alone, best));
    return best->rows < 0 ? refuse(x, alone) : even_out(x, alone, best);
}

/* Of a problem that is folded. */
static bool is_by_outer(const eg_caps *caps, const eg_problem *problem) {
    return caps->one_level && problem->inner < problem->batch;
}

bool eg_goes_by_outer(const eg_caps *caps, const eg_problem *problem) {
    if (!caps->one_level || problem->inner == problem->batch) return false;
    eg_problem folded = *problem;
    eg_fold(&folded);
    return is_by_outer(caps, &folded);
}

/* Whether one of a d_a's two sums over the batch waits for the other one elsewhere: chunks cannot add to it.
 */
static bool has_waiting_sum(const eg_low_memory *x) {
    for (int i = 0; i < x->whole.ops; i++) {
        const eg_view *out = &x->whole.op[i].out;
        if (eg_sums_items(&x->whole.op[i]) && (out->space != EG_OPERAND || out->id != EG_OP_D_A)) return true;
    }
    return false;
}

/* What cannot be done in chunks of items. */
static eg_status check_outer(const eg_low_memory *x) {
    const char *what = NULL;
    if (x->problem.comm != NULL) what = "data_parallel.comm";
    if (has_waiting_sum(x)) what = "a d_a of a gated unit in f16 or bf16 that is summed over the batch";
    if (!x->by_outer || what == NULL) return EG_OK;
    return eg_fail(EG_ERR_UNSUPPORTED,
                   "layer.outer_batch is %lld with %s; expected one level on this backend, or the CPU",
                   (long long)(x->problem.batch / x->problem.inner), what);
}

static search begin(const eg_caps *caps, const eg_problem *problem, size_t limit, eg_low_memory *call) {
    call->problem = *problem;
    eg_fold(&call->problem);
    eg_lower(&call->problem, &call->whole);
    call->whole.in_place = false; /* a chunk does not depend on it: a query does not know */
    call->in_result = EG_NO_OP;
    call->by_outer = is_by_outer(caps, &call->problem);
    return (search){.caps = *caps, .limit = limit, .call = call};
}

eg_status eg_low_memory_make(const eg_caps *caps, const eg_problem *problem, size_t limit,
                             eg_low_memory *call) {
    search x = begin(caps, problem, limit, call);
    extent best = {call->problem.batch, call->problem.m};
    EG_TRY(check_outer(call));
    if (limit == 0) return eg_low_memory_lay_out(caps, best.items, best.rows, call);
    EG_TRY(choose(&x, &best));
    return lay_out(&x, caps->threads, best);
}

/* What is packed may hold anything by the next time, so such calls are searched anew. */
eg_status eg_low_memory_find(eg_context *context, const eg_problem *problem, size_t limit,
                             eg_low_memory *call) {
    const eg_caps *caps = &context->caps;
    eg_chunks known;
    if (problem->packed_b != NULL || problem->packed_b_up != NULL)
        return eg_low_memory_make(caps, problem, limit, call);
    if (eg_cache_find_chunks(context, problem, limit, &known)) {
        search x = begin(caps, problem, limit, call);
        EG_TRY(check_outer(call));
        if (known.in_result) call->in_result = eg_low_memory_may_split(caps, &call->whole);
        return lay_out(&x, caps->threads, (extent){known.items, known.rows});
    }
    EG_TRY(eg_low_memory_make(caps, problem, limit, call));
    known = (eg_chunks){call->items, call->rows, call->in_result != EG_NO_OP};
    eg_cache_keep_chunks(context, problem, limit, known);
    return EG_OK;
}
