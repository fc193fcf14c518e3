/* SPDX-License-Identifier: Apache-2.0 */
/* A cluster of blocks that has several tiles, and of each the parts of its depth (hopper_cluster.cuh): which
 * of them a block makes, and what it loads.
 *
 * K: ROWS, COLS and DEPTH of a stage; TILES_DOWN and TILES_BESIDE, powers of two: a cluster's tiles. */
#ifndef EG_CUDA_HOPPER_MULTICAST_CUH
#define EG_CUDA_HOPPER_MULTICAST_CUH

#include "../cluster.h"
#include "hopper_split.cuh"

/* ---- A block's place in its cluster ------------------------------------------------------------------- */

/* The parts of a tile follow each other, those of the next tile to the right follow them. */
template <class K> struct eg_cluster_place {
    /* The blocks that load what this one reads: those of its row of tiles, and the others of its column. They
     * are as many as read what it loads. */
    static constexpr uint32_t LOADERS = K::TILES_BESIDE + K::TILES_DOWN - 1;
    const int splits, shift; /* a power of two, and which */
    int part, below, beside; /* of the depth; of the tiles */

    __device__ explicit eg_cluster_place(int splits_) : splits(splits_), shift(__ffs(splits_) - 1) {
        const int rank = (int)blockIdx.x & (splits * K::TILES - 1), tile = rank >> shift;
        part = rank & (splits - 1), below = tile / K::TILES_BESIDE, beside = tile % K::TILES_BESIDE;
    }
    __device__ uint32_t rank_of(int row, int col, int of) const {
        return (uint32_t)((row * K::TILES_BESIDE + col) * splits + of);
    }
    __device__ uint32_t loader(uint32_t i) const {
        if (i < K::TILES_BESIDE) return rank_of(below, (int)i, part);
        const int row = (int)i - K::TILES_BESIDE;
        return rank_of(row + (row >= below), beside, part);
    }
    /* Those that read what this one loads of left, of right: bits. */
    __device__ uint16_t left_readers() const {
        uint32_t blocks = 0;
#pragma unroll
        for (int i = 0; i < K::TILES_BESIDE; i++) blocks |= 1U << rank_of(below, i, part);
        return (uint16_t)blocks;
    }
    __device__ uint16_t right_readers() const {
        uint32_t blocks = 0;
#pragma unroll
        for (int i = 0; i < K::TILES_DOWN; i++) blocks |= 1U << rank_of(i, beside, part);
        return (uint16_t)blocks;
    }
};

/* Of a tile that is not at the end. */
template <class K> EG_DEVICE int eg_cluster_rows(const eg_cuda_gemm &p) {
    return K::TURNED ? EG_TURNED_ROWS(p.rows, p.chunks, K::ROWS) : K::ROWS;
}

/* Clusters are numbered as tiles are, by the first of theirs. Others may lie outside the result: their blocks
 * load for those that do not. */
template <class K>
EG_DEVICE eg_dense_tile eg_cluster_tile(const eg_cuda_gemm &p, const eg_cluster_place<K> &place) {
    eg_dense_tile at = eg_tile_at<K::TILES_DOWN * K::ROWS, K::TILES_BESIDE * K::COLS, eg_dense_tile>(
        p, blockIdx.x / K::TILES >> place.shift);
    if (K::TILES == 1 && !K::TURNED) return at;
    const int rows = eg_cluster_rows<K>(p);
    if (K::TURNED) at.row = at.row / K::ROWS * rows;
    at.row += place.below * rows, at.col += place.beside * K::COLS;
    at.rows = (int32_t)(p.rows - at.row < rows ? p.rows - at.row : rows);
    if (at.rows < 0 || at.col >= p.cols) at.rows = 0;
    return at;
}

/* ---- Loads, by one thread ----------------------------------------------------------------------------- */

/* A box for this block, or for all of `readers`. */
template <bool ALL>
EG_DEVICE void eg_cluster_box(uint32_t to, const eg_cuda_tensor_map &tensor_map, uint32_t barrier, int x,
                              int y, int item, uint16_t readers) {
    if (ALL) {
        eg_load_box_all(to, tensor_map, barrier, x, y, item, readers);
    } else {
        eg_load_box(to, tensor_map, barrier, x, y, item);
    }
}

/* Of a shared operand a block loads some lines, of the other all. */
template <class K, bool RIGHT_MN_MAJOR>
EG_DEVICE void eg_cluster_load_shares(const eg_cuda_hopper &p, const eg_split_ring<K> &ring,
                                      const eg_cluster_place<K> &place, const eg_dense_tile &at, int first,
                                      int count) {
    constexpr int BOXES = RIGHT_MN_MAJOR ? K::COLS / 64 : 1,
                  LINES = (RIGHT_MN_MAJOR ? K::DEPTH : K::COLS) / K::TILES_DOWN;
    const uint16_t left_readers = place.left_readers(), right_readers = place.right_readers();
    const int rows = eg_cluster_rows<K>(p.gemm), bytes = (rows + K::COLS) * (K::DEPTH * 2);
    const int row = place.beside * (rows / K::TILES_BESIDE), line = place.below * LINES;
    eg_split_loads<K, eg_split_layout<false, RIGHT_MN_MAJOR>> loads(p, ring, at, first, count);
#pragma unroll 1
    for (; loads.left > 0; loads.advance()) {
        const int left_item = p.gemm.left.item_stride == 0 ? 0 : loads.item,
                  right_item = p.gemm.right.item_stride == 0 ? 0 : loads.item;
        const uint32_t full = loads.ring.full(), left = loads.ring.address(), right = left + K::LEFT;
        eg_barrier_wait(loads.ring.empty(), loads.ring.parity ^ 1);
        eg_barrier_expect(full, bytes);
        eg_cluster_box<(K::TILES_BESIDE > 1)>(left + row * 128, p.left, full, loads.depth, loads.row + row,
                                              left_item, left_readers);
#pragma unroll
        for (int i = 0; i < BOXES; i++)
            eg_cluster_box<(K::TILES_DOWN > 1)>(right + (i * 64 + line) * 128, p.right, full,
                                                RIGHT_MN_MAJOR ? loads.col + i * 64 : loads.depth,
                                                RIGHT_MN_MAJOR ? loads.depth + line : loads.col + line,
                                                right_item, right_readers);
    }
}

template <class K, bool RIGHT_MN_MAJOR>
EG_DEVICE void eg_cluster_load(const eg_cuda_hopper &p, const eg_split_ring<K> &ring,
                               const eg_cluster_place<K> &place, const eg_dense_tile &at, int first,
                               int count) {
    if constexpr (K::TILES > 1 || K::TURNED)
        return eg_cluster_load_shares<K, RIGHT_MN_MAJOR>(p, ring, place, at, first, count);
    eg_split_loads<K, eg_split_layout<false, RIGHT_MN_MAJOR>> loads(p, ring, at, first, count);
#pragma unroll 1
    while (loads.left > 0) {
        eg_barrier_wait(loads.ring.empty(), loads.ring.parity ^ 1);
        loads.begin_next();
    }
}

#endif
