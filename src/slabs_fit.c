#include "slabs.h"

#include "error.h"
#include "sizes.h"

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

/* d_a cannot be added to, and a backend's pack cannot be read in part: there the batch stays together. */
static bool together(const eg_problem *p) {
    const eg_operand *d_a = &p->operands[EG_OP_D_A];
    return p->batch <= 1 || (d_a->data != NULL && d_a->batch_stride == 0) ||
           (p->packed_b != NULL && p->packed_b->batched);
}

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
    const eg_status status = eg_slabs_lay_out(&x->caps, slab.items, slab.rows, x->slabs);
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

/* What the smallest slab needs; SIZE_MAX where no memory could hold any. */
static eg_status least_need(search *x, int alone, size_t *need) {
    family list[FAMILIES];
    list_families(&x->slabs->whole, list);
    for (int i = 0; i < FAMILIES; i++) {
        bool fits = false;
        if (list[i].count > 0) EG_TRY(try_slab(x, alone, member(&list[i], 0), &fits));
        if (fits && x->slabs->workspace < *need) *need = x->slabs->workspace;
    }
    return EG_OK;
}

/* Names the least that would have been enough. */
static eg_status refuse(search *x, int alone) {
    const size_t limit = x->limit;
    size_t need = SIZE_MAX;
    x->limit = SIZE_MAX;
    for (int halves = eg_slabs_may_halve(&x->caps, &x->slabs->whole); halves >= 0; halves--) {
        x->slabs->halves = halves > 0;
        EG_TRY(least_need(x, alone, &need));
    }
    if (need == SIZE_MAX) return eg_plan_too_large(&x->slabs->whole);
    return eg_fail(EG_ERR_ARGUMENT,
                   "workspace_limit is %zu; expected at least %zu, what the smallest slab needs", limit,
                   need);
}

/* The slab that a call takes, whatever its threads; of no rows where none fits. */
static eg_status choose_slab(search *x, int alone, extent *best) {
    extent slab;
    EG_TRY(largest(x, alone, best));
    if (best->rows < 0) return EG_OK;
    for (int threads = alone * MOST_THREADS; threads > 1; threads /= FEWER) {
        EG_TRY(largest(x, threads, &slab));
        if (slab.rows < 0 || rows_of(slab) < rows_of(*best) / 2) continue;
        *best = slab;
        break;
    }
    return EG_OK;
}

/* Halves of d_b leave room for more rows, but each reads grad_pre, and a backend that packs lays it out, and
 * A, once more. They pay where a slab has twice the rows, so that d_b is read and written half as often. */
static eg_status choose_halves(search *x, int alone, extent *best) {
    const eg_problem *p = &x->slabs->whole;
    const double rows = best->rows > 0 ? rows_of(*best) : 0, most = (double)p->batch * (double)p->m;
    extent slab;
    if (2 * rows > most || !eg_slabs_may_halve(&x->caps, p)) return EG_OK;
    x->slabs->halves = true;
    EG_TRY(choose_slab(x, alone, &slab));
    x->slabs->halves = slab.rows > 0 && rows_of(slab) >= 2 * rows;
    if (x->slabs->halves) *best = slab;
    return EG_OK;
}

/* As many slabs, but no longer than that takes, so that the last is not a short one. */
static eg_status even_out(search *x, int alone, extent *best) {
    const int64_t m = x->slabs->whole.m, unit = best->rows % COARSE == 0 ? COARSE : FINE;
    if (best->rows <= 0 || best->rows >= m) return EG_OK;
    const int64_t each = eg_ceil_div(m, eg_ceil_div(m, best->rows));
    const extent even = {best->items, eg_ceil_div(each, unit) * unit};
    bool fits = false;
    EG_TRY(try_slab(x, alone, even, &fits));
    if (fits) *best = even;
    return EG_OK;
}

/* With as many of the threads as find room. One does. */
static eg_status lay_out(search *x, int threads, extent slab) {
    bool fits = false;
    do {
        EG_TRY(try_slab(x, threads, slab, &fits));
        threads /= 2;
    } while (!fits && threads > 0);
    return EG_OK;
}

static eg_status choose(search *x, extent *best) {
    const int alone = x->caps.threads > 0 ? 1 : 0;
    EG_TRY(choose_slab(x, alone, best));
    EG_TRY(choose_halves(x, alone, best));
    return best->rows < 0 ? refuse(x, alone) : even_out(x, alone, best);
}

static search begin(const eg_caps *caps, const eg_problem *problem, size_t limit, bool halves,
                    eg_slabs *slabs) {
    slabs->whole = *problem;
    slabs->halves = halves;
    eg_plan_fold(&slabs->whole);
    return (search){.caps = *caps, .limit = limit, .slabs = slabs};
}

eg_status eg_slabs_make(const eg_caps *caps, const eg_problem *problem, size_t limit, eg_slabs *slabs) {
    search x = begin(caps, problem, limit, false, slabs);
    extent best = {slabs->whole.batch, slabs->whole.m};
    if (limit == 0) return eg_slabs_lay_out(caps, best.items, best.rows, slabs);
    EG_TRY(choose(&x, &best));
    return lay_out(&x, caps->threads, best);
}

eg_status eg_slabs_take(const eg_caps *caps, const eg_problem *problem, size_t limit, int64_t items,
                        int64_t rows, bool halves, eg_slabs *slabs) {
    search x = begin(caps, problem, limit, halves, slabs);
    return lay_out(&x, caps->threads, (extent){items, rows});
}
