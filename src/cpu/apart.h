/* How far apart the strips of a copied operand are, which are panels or rows of cells.
 *
 * A left operand is read from a dozen strips in turn. Where these are a multiple of 128 KiB apart (64 KiB on
 * processors with 1 MiB of L2), the same numbers of all of them belong to the same few sets of L2, evict each
 * other, and come from L3 every time. So long strips get some units (rows of tiles, or cells) more, which
 * nobody reads or writes. Measured: docs/cpu.md. */
#ifndef EG_CPU_APART_H
#define EG_CPU_APART_H

#include "../sizes.h"

/* From a strip of so many units of `size` bytes to the next, in units. Never less for a longer strip. */
static inline int64_t eg_units_apart(int64_t units, int64_t size) {
    enum { SHARED = 32 << 10, CLEAR = 8 << 10, LONG = 128 << 10 };
    const uint64_t bytes = (uint64_t)units * (uint64_t)size; /* wraps around where no plan is made */
    const int64_t past = (int64_t)(bytes % SHARED);
    if (bytes < LONG || (past >= CLEAR && past <= SHARED - CLEAR)) return units;
    return units + eg_ceil_div((past < CLEAR ? CLEAR : SHARED + CLEAR) - past, size);
}

#endif
