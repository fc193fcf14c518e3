/* SPDX-License-Identifier: Apache-2.0 */
/* Tiles whose depth is shared by the blocks of a cluster: their partial tiles become one.
 *
 *     depth           part 0    part 1    part 2    part 3
 *                       |         |         |         |      partial tiles, in shared memory
 *     tile            block 0   block 1   block 2   block 3
 *                       |         |         |         |      each adds a quarter of all partial tiles, by
 *     a quarter each    v         v         v         v      their numbers, and has its epilogue
 *
 * The order of every sum follows from the number of parts, which the compiler chose. Without clusters (before
 * compute capability 9.0) there is one part. */
#ifndef EG_CUDA_SPLIT_TILE_CUH
#define EG_CUDA_SPLIT_TILE_CUH

#include "../layout.h"
#include "epilogue.cuh"

/* Waits for all threads of the cluster's blocks. What they wrote to shared memory before is seen after. */
EG_DEVICE void eg_cluster_meet(int splits) {
#if __CUDA_ARCH__ >= 900
    if (splits > 1) {
        asm volatile("barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;" ::
                         : "memory");
        return;
    }
#endif
    __syncthreads();
}
/* After it nobody reads this block's shared memory. A release would wait for what was stored. */
EG_DEVICE void eg_cluster_leave(int splits) {
#if __CUDA_ARCH__ >= 900
    if (splits > 1) {
        asm volatile("barrier.cluster.arrive.relaxed.aligned;\nbarrier.cluster.wait.aligned;" ::: "memory");
        return;
    }
#endif
    __syncthreads();
}

/* The address of what lies in block `rank`'s shared memory where `here` lies in this block's. */
EG_DEVICE uint32_t eg_cluster_address(const void *here, int rank) {
    uint32_t there = eg_shared_address(here);
#if __CUDA_ARCH__ >= 900
    asm volatile("mapa.shared::cluster.u32 %0, %0, %1;" : "+r"(there) : "r"(rank));
#endif
    return there;
}
/* Four numbers of it, `step` apart. They are on their way when it returns. */
EG_DEVICE void eg_cluster_peek(const float *here, int step, int rank, float (&x)[4]) {
#if __CUDA_ARCH__ >= 900
    const uint32_t there = eg_cluster_address(here, rank);
    if (step == 1) {
        asm volatile("ld.shared::cluster.v4.f32 {%0, %1, %2, %3}, [%4];"
                     : "=f"(x[0]), "=f"(x[1]), "=f"(x[2]), "=f"(x[3])
                     : "r"(there)
                     : "memory");
        return;
    }
#pragma unroll
    for (int i = 0; i < 4; i++)
        asm volatile("ld.shared::cluster.f32 %0, [%1];" : "=f"(x[i]) : "r"(there + i * step * 4) : "memory");
#else
    for (int i = 0; i < 4; i++) x[i] = here[i * step];
#endif
}
EG_DEVICE void eg_cluster_peek(const double *here, int step, int rank, double (&x)[4]) {
#if __CUDA_ARCH__ >= 900
    const uint32_t there = eg_cluster_address(here, rank);
#pragma unroll
    for (int i = 0; i < 4; i++)
        asm volatile("ld.shared::cluster.f64 %0, [%1];" : "=d"(x[i]) : "r"(there + i * step * 8) : "memory");
#else
    for (int i = 0; i < 4; i++) x[i] = here[i * step];
#endif
}

/* The groups of the tile that a block finishes. */
struct eg_share {
    int first, end;
};
template <int COUNT> EG_DEVICE eg_share eg_share_of(int rank, int splits) {
    return {COUNT * rank / splits, COUNT * (rank + 1) / splits};
}

/* Adds what all blocks have for this block's share, in their order. All is on its way before it is added: one
 * block's shared memory is as far from another as L2. */
template <typename T, int ROWS, int COLS, int LD, int THREADS, int SPLITS>
EG_DEVICE void eg_gather_from(const eg_cuda_gemm &p, T *tile, const eg_share &share) {
    const eg_groups<ROWS, COLS, LD> groups(p);
    const int step = groups.step();
    for (int group = share.first + (int)threadIdx.x; group < share.end; group += THREADS) {
        T *to = tile + groups.at(group);
        T parts[SPLITS][4];
#pragma unroll
        for (int rank = 0; rank < SPLITS; rank++) eg_cluster_peek(to, step, rank, parts[rank]);
#pragma unroll
        for (int i = 0; i < 4; i++) {
            T total = parts[0][i];
#pragma unroll
            for (int rank = 1; rank < SPLITS; rank++) total += parts[rank][i];
            to[i * step] = total;
        }
    }
}
template <typename T, int ROWS, int COLS, int LD, int THREADS>
EG_DEVICE void eg_gather_share(const eg_cuda_gemm &p, T *tile, const eg_share &share) {
    switch (p.splits) { /* a power of two, at most EG_MOST_SPLITS */
    case 2:
        return eg_gather_from<T, ROWS, COLS, LD, THREADS, 2>(p, tile, share);
    case 4:
        return eg_gather_from<T, ROWS, COLS, LD, THREADS, 4>(p, tile, share);
    case 8:
        return eg_gather_from<T, ROWS, COLS, LD, THREADS, 8>(p, tile, share);
    }
}

/* Copies the other blocks' finished shares: the first one then has the whole tile. */
template <typename T, int ROWS, int COLS, int LD, int THREADS>
EG_DEVICE void eg_collect_shares(const eg_cuda_gemm &p, T *tile) {
    const eg_groups<ROWS, COLS, LD> groups(p);
    for (int rank = 1; rank < p.splits; rank++) {
        const eg_share share = eg_share_of<groups.COUNT>(rank, p.splits);
        for (int group = share.first + (int)threadIdx.x; group < share.end; group += THREADS) {
            T *to = tile + groups.at(group);
            T part[4];
            eg_cluster_peek(to, groups.step(), rank, part);
#pragma unroll
            for (int i = 0; i < 4; i++) to[i * groups.step()] = part[i];
        }
    }
}

/* `tile`: a block's partial sums, ROWS rows of LD numbers. finish(share) has the epilogue of the block's
 * share of the tile's groups; what it leaves in the tile is summed over the columns. */
template <typename T, int ROWS, int COLS, int LD, int THREADS, class TILE, typename F>
EG_DEVICE void eg_finish_parts(const eg_cuda_gemm &p, const TILE &at, int rank, T *tile, const F &finish) {
    const eg_share share = eg_share_of<ROWS * COLS / 4>(rank, p.splits);
    eg_cluster_meet(p.splits);
    if (p.splits > 1) eg_gather_share<T, ROWS, COLS, LD, THREADS>(p, tile, share);
    finish(share);
    if (p.sums == 0) return eg_cluster_leave(p.splits);
    eg_cluster_meet(p.splits);
    if (rank == 0) {
        eg_collect_shares<T, ROWS, COLS, LD, THREADS>(p, tile);
        __syncthreads();
        eg_sum_columns<T, ROWS, COLS, LD, THREADS>(p, at, tile);
    }
    eg_cluster_leave(p.splits);
}

#endif
