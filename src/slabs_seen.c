/* The slabs of calls seen before. Choosing one takes some hundred plans, half a millisecond of the host's
 * time; laying out one that is known takes a tenth of that. */
#include <string.h>

#include "error.h"
#include "slabs.h"

enum { SEEN = 16, WORDS = sizeof(eg_problem) / sizeof(uint64_t) };
_Static_assert(sizeof(eg_problem) % sizeof(uint64_t) == 0, "whole words");

/* A problem without the places of its operands, on which a slab does not depend. By its bits: those that
 * differ in their padding only are not found to be the same, and that is all. */
typedef struct call_key {
    uint64_t words[WORDS];
} call_key;

/* A call and its slab. */
typedef struct entry {
    call_key key;
    size_t limit; /* 0: free */
    int64_t items, rows;
    bool halves;
} entry;

struct eg_slabs_seen {
    entry entries[SEEN];
    int next; /* to be given up */
};

static call_key key_of(const eg_problem *problem) {
    eg_problem x;
    call_key key;
    memcpy(&x, problem, sizeof x);
    x.addressing = EG_PRESENCE;
    for (int id = 0; id < EG_OPERANDS; id++) {
        if (x.operands[id].data == NULL) continue;
        x.operands[id].data = (void *)(uintptr_t)4096; /* a mark */
        x.operands[id].offset = 0;
    }
    memcpy(&key, &x, sizeof key);
    return key;
}

static const entry *find(const eg_slabs_seen *seen, const call_key *key, size_t limit) {
    for (int i = 0; i < SEEN; i++) {
        const entry *x = &seen->entries[i];
        if (x->limit == limit && memcmp(&x->key, key, sizeof *key) == 0) return x;
    }
    return NULL;
}

eg_slabs_seen *eg_slabs_seen_make(const eg_context *context) {
    eg_slabs_seen *seen = eg_host_alloc(context, sizeof *seen);
    if (seen != NULL) memset(seen, 0, sizeof *seen);
    return seen;
}

/* What is packed may hold anything by the next time, so such calls are not kept. */
eg_status eg_slabs_recall(eg_context *context, const eg_problem *problem, size_t limit, eg_slabs *slabs) {
    const eg_caps *caps = &context->caps;
    eg_slabs_seen *seen = context->slabs_seen;
    if (limit == 0 || problem->packed_b != NULL) return eg_slabs_make(caps, problem, limit, slabs);
    const call_key key = key_of(problem);
    const entry *known = find(seen, &key, limit);
    if (known != NULL)
        return eg_slabs_take(caps, problem, limit, known->items, known->rows, known->halves, slabs);
    EG_TRY(eg_slabs_make(caps, problem, limit, slabs));
    seen->entries[seen->next] = (entry){key, limit, slabs->items, slabs->rows, slabs->halves};
    seen->next = (seen->next + 1) % SEEN;
    return EG_OK;
}
