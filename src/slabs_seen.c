/* The slabs of calls seen before. Choosing one takes some hundred plans, half a millisecond of the host's
 * time; laying out one that is known takes a tenth of that. */
#include <string.h>

#include "error.h"
#include "slabs.h"

enum { SEEN = 16 };

/* A call, without the places of its operands, on which a slab does not depend; and its slab. */
typedef struct entry {
    eg_problem problem;
    size_t limit; /* 0: free */
    int64_t items, rows;
    bool halves;
} entry;

struct eg_slabs_seen {
    entry entries[SEEN];
    int next; /* to be given up */
};

/* By bytes: problems that differ in their padding only are not found, and that is all. */
static void forget_places(eg_problem *problem) {
    problem->addressing = EG_PRESENCE;
    for (int id = 0; id < EG_OPERANDS; id++) {
        eg_operand *x = &problem->operands[id];
        if (x->data == NULL) continue;
        x->data = (void *)(uintptr_t)4096; /* a mark */
        x->offset = 0;
    }
}

static const entry *find(const eg_slabs_seen *seen, const eg_problem *key, size_t limit) {
    for (int i = 0; i < SEEN; i++) {
        const entry *x = &seen->entries[i];
        if (x->limit == limit && memcmp(&x->problem, key, sizeof *key) == 0) return x;
    }
    return NULL;
}

static eg_slabs_seen *seen_of(eg_context *context) {
    if (context->slabs_seen == NULL) {
        context->slabs_seen = eg_host_alloc(context, sizeof *context->slabs_seen);
        if (context->slabs_seen != NULL) memset(context->slabs_seen, 0, sizeof *context->slabs_seen);
    }
    return context->slabs_seen;
}

/* What is packed may hold anything by the next time, so such calls are not kept. Nor are they without memory
 * to keep them in. */
eg_status eg_slabs_recall(eg_context *context, const eg_problem *problem, size_t limit, eg_slabs *slabs) {
    const eg_caps *caps = &context->caps;
    eg_slabs_seen *seen = limit == 0 || problem->packed_b != NULL ? NULL : seen_of(context);
    if (seen == NULL) return eg_slabs_make(caps, problem, limit, slabs);
    eg_problem key;
    memcpy(&key, problem, sizeof key);
    forget_places(&key);
    const entry *known = find(seen, &key, limit);
    if (known != NULL)
        return eg_slabs_take(caps, problem, limit, known->items, known->rows, known->halves, slabs);
    EG_TRY(eg_slabs_make(caps, problem, limit, slabs));
    entry *x = &seen->entries[seen->next];
    seen->next = (seen->next + 1) % SEEN;
    memcpy(&x->problem, &key, sizeof key);
    x->limit = limit, x->items = slabs->items, x->rows = slabs->rows, x->halves = slabs->halves;
    return EG_OK;
}
