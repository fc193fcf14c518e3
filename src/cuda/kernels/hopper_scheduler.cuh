/* SPDX-License-Identifier: Apache-2.0 */
/* The schedulers of the 16-bit kernels on Hopper: which cluster makes which tile, and in what order.
 *
 *   static      cluster c of C makes tiles c, c + C, c + 2 C, ...
 *   stream-K    the same; but clusters that the last wave would leave idle share the depth of its tiles
 *
 * The producer and the consumers of a block each go through the same tiles in the same order. */
#ifndef EG_CUDA_HOPPER_SCHEDULER_CUH
#define EG_CUDA_HOPPER_SCHEDULER_CUH

#include "../groups.h"
#include "hopper_mainloop.cuh"

/* ---- Raster: from a tile's number to its place -------------------------------------------------------- */

/* From a number in `down` rows of tiles. */
struct eg_raster_place {
    uint32_t row, col;
};
EG_DEVICE eg_raster_place eg_raster(uint32_t index, uint32_t down, uint32_t across, uint32_t raster) {
    const uint32_t band = index / (raster * across), in_band = index % (raster * across);
    const uint32_t height = min(down - band * raster, raster);
    return {band * raster + in_band % height, in_band / height};
}

/* All blocks of a wave walk the depth together. Their tiles form a compact block of `raster` rows of tiles,
 * so that L2 serves most of what they read. */
template <class K, bool GROUPED = K::GROUPED> struct eg_hopper_tiles {
    bool beside; /* the blocks of a cluster */
    uint32_t down, across, raster, total;

    __device__ explicit eg_hopper_tiles(const eg_cuda_hopper &p)
        : beside(eg_shares_left<K>(p)), down(tiles((uint32_t)p.gemm.rows, beside ? K::ROWS : 2 * K::ROWS)),
          across(tiles((uint32_t)p.gemm.cols, beside ? 2 * K::COLS : K::COLS)), raster((uint32_t)p.raster),
          total(down * across * (uint32_t)p.gemm.items) {}
    __device__ static uint32_t tiles(uint32_t count, uint32_t each) { return (count + each - 1) / each; }

    __device__ eg_hopper_tile at(uint32_t index, uint32_t rank) const {
        const uint32_t item = index / (down * across), in_item = index % (down * across);
        const eg_raster_place place = eg_raster(in_item, down, across, raster);
        const uint32_t row = beside ? place.row : 2 * place.row + rank,
                       col = beside ? 2 * place.col + rank : place.col;
        return {(int)item, (int)(row * K::ROWS), (int)(col * K::COLS)};
    }
};

/* Of groups: one after the other. A warp asks for its tiles in their order. */
template <class K> struct eg_hopper_tiles<K, true> {
    enum { BLOCKS_DOWN = K::SHARES_LEFT ? 1 : 2, BLOCKS_RIGHT = 3 - BLOCKS_DOWN }; /* of a cluster */
    enum { HEIGHT = BLOCKS_DOWN * K::ROWS, WIDTH = BLOCKS_RIGHT * K::COLS };
    const eg_cuda_hopper &p;
    const uint32_t total;
    eg_cuda_walk walk = {0, 0};

    __device__ explicit eg_hopper_tiles(const eg_cuda_hopper &hopper)
        : p(hopper), total(eg_cuda_all_tiles(ends(), HEIGHT, across())) {}
    __device__ eg_cuda_ends ends() const {
        return {(const int32_t *)p.gemm.ends, (uint32_t)p.gemm.rows, (uint32_t)p.gemm.items};
    }
    __device__ uint32_t across() const { return ((uint32_t)p.gemm.cols + WIDTH - 1) / WIDTH; }

    __device__ eg_hopper_tile at(uint32_t index, uint32_t rank) {
        const uint32_t tiles = eg_cuda_walk_to(ends(), HEIGHT, across(), index, &walk);
        const eg_cuda_group_rows rows = eg_cuda_rows_of_group(ends(), walk.group);
        const eg_raster_place place =
            eg_raster(index - walk.before, tiles / across(), across(), (uint32_t)p.raster);
        return {(int)walk.group, (int)(rows.first + (BLOCKS_DOWN * place.row + rank % BLOCKS_DOWN) * K::ROWS),
                (int)((BLOCKS_RIGHT * place.col + rank % BLOCKS_RIGHT) * K::COLS), (int)rows.end};
    }
};

/* ---- Static ------------------------------------------------------------------------------------------- */

/* What a cluster multiplies next: k-blocks [first, last) of a tile; here all of them. */
template <class K, bool STREAM_K = K::STREAM_K> struct eg_scheduler {
    uint32_t tile;
    int first = 0, last;
    uint32_t next_tile = blockIdx.x / 2, tiles;

    __device__ eg_scheduler(const eg_cuda_hopper &p, uint32_t all)
        : last(eg_hopper_k_blocks<K>(p.gemm) * (int)p.gemm.summed), tiles(all) {}

    /* False: there is no more. */
    __device__ bool next() {
        tile = next_tile;
        next_tile += gridDim.x / 2;
        return tile < tiles;
    }
    __device__ bool is_last() const { return next_tile >= tiles; }
    /* The tile after the next. */
    __device__ uint32_t after_next() const { return next_tile + gridDim.x / 2; }
};

/* ---- Stream-K: a tail of split tiles --------------------------------------------------------------------
 *
 *              depth ->
 *            0                   owner_k_blocks      all k-blocks
 *   tile 0   |  owner: cluster H     |     helper 0     |      H helpers, the first clusters of the grid
 *   tile 1   |         cluster H + 1 | helper 0 | hr. 1 |
 *   tile 2   |         cluster H + 2 |     helper 1     |
 *
 * Each tile of the tail has an owner. The k-blocks that the owners do not multiply are one sequence, tile
 * after tile, of which each helper takes an equal share: partial tiles of one tile or several. Helpers store
 * the accumulators of their partial tiles in device memory. The owner adds those of its tile in a fixed
 * order, so that the same call gives the same bits, and runs the epilogue (hopper_stream_k.cuh).
 *
 * Owners walk the same part of the depth together, and so do helpers, so L2 serves them like a full wave.
 * Only owners wait, and only for helpers. Those have lower numbers, and blocks start in that order: a helper
 * that is waited for is running, however few of the blocks do. */

/* Bytes of 64 columns of a partial tile: what a stage of the ring has room for. */
enum { EG_PARTIAL_CHUNK = 256 * 32 * 4 };

template <class K> struct eg_scheduler<K, true> {
    const eg_cuda_stream_k &tail;
    uint32_t tile = 0;
    int first = 0, last = 0;
    const uint32_t clusters = gridDim.x / 2, cluster = blockIdx.x / 2;
    const uint32_t helpers, whole_tiles; /* whole_tiles: those before the tail */
    const int k_blocks, helper_k_blocks; /* of a tile; and those that its owner leaves to helpers */
    uint32_t next_tile = cluster;
    uint32_t at = 0, end = 0; /* the cluster's k-blocks in the tail: of the sequence, or of its own tile */

    __device__ eg_scheduler(const eg_cuda_hopper &p, uint32_t tiles)
        : tail(p.tail), helpers((uint32_t)p.tail.helpers), whole_tiles(tiles - (uint32_t)p.tail.tiles),
          k_blocks(eg_hopper_k_blocks<K>(p.gemm) * (int)p.gemm.summed),
          helper_k_blocks(k_blocks - p.tail.owner_k_blocks) {
        if (cluster >= helpers + (uint32_t)tail.tiles) return;
        const uint32_t sequence = (uint32_t)(tail.tiles * helper_k_blocks);
        at = owns() ? 0 : (cluster * sequence + helpers - 1) / helpers;
        end = owns() ? (uint32_t)tail.owner_k_blocks : ((cluster + 1) * sequence + helpers - 1) / helpers;
    }
    /* A tile of the tail, if the cluster has any part in it. */
    __device__ bool owns() const { return cluster >= helpers; }

    __device__ bool next() {
        if (next_tile >= whole_tiles) return next_split();
        tile = next_tile, first = 0, last = k_blocks;
        next_tile += clusters;
        return true;
    }
    __device__ bool next_split() {
        if (at == end) return false;
        tile = whole_tiles + (owns() ? cluster - helpers : at / (uint32_t)helper_k_blocks);
        first = owns() ? 0 : tail.owner_k_blocks + (int)(at % (uint32_t)helper_k_blocks);
        last = min(owns() ? tail.owner_k_blocks : k_blocks, first + (int)(end - at));
        at += (uint32_t)(last - first);
        return true;
    }

    /* ---- Partial tiles: helper h's of tile t of the tail has number t + h ---- */

    /* Whether the owner of a split tile is at work on it. */
    __device__ bool reduces() const { return tile >= whole_tiles && first == 0; }
    __device__ uint32_t own_partial() const { return tile - whole_tiles + cluster; }
    /* Of the tile. Helper h's k-blocks begin at ceil(h * sequence / helpers). */
    __device__ uint32_t first_partial() const {
        const uint32_t t = tile - whole_tiles;
        return t + t * helpers / (uint32_t)tail.tiles;
    }
    __device__ uint32_t last_partial() const {
        const uint32_t t = tile - whole_tiles, sequence = (uint32_t)(tail.tiles * helper_k_blocks);
        return t + ((t + 1) * (uint32_t)helper_k_blocks - 1) * helpers / sequence;
    }
    __device__ uint64_t sums(uint32_t partial, uint32_t rank) const {
        return tail.sums + (uint64_t)(partial * 2 + rank) * (K::BOXES * EG_PARTIAL_CHUNK);
    }
    __device__ uint32_t *count(uint32_t partial, uint32_t rank) const {
        return (uint32_t *)tail.counts + partial * 2 + rank;
    }
};

#endif
