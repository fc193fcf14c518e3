/* SPDX-License-Identifier: Apache-2.0 */
/* The map of act_grad.cuh with all of d_bias: no other kernel adds up sums of chunks.
 *
 *     a cluster takes the columns of 128 bytes of a row, and all rows; of single numbers 32 columns
 *     a warp reads four rows of it at once, a vector of 16 bytes a lane; or one row, a number a lane
 *     its next rows are as many on as all warps of the cluster take at once
 *     a column's sum: a thread's rows, four lanes, the warps of a block in order, the blocks in order
 *
 * Blocks send their sums to the first one by st.async, whose bytes a barrier there counts: a barrier of the
 * whole cluster with release and acquire would wait for the results on their way to memory, too. */
#ifndef EG_CUDA_HOPPER_ACT_GRAD_CUH
#define EG_CUDA_HOPPER_ACT_GRAD_CUH

#include "../whole_sums.h"
#include "act_grad.cuh"
#include "hopper_ptx.cuh"

/* Lanes that have a row's columns. */
template <typename V> constexpr int lanes_across = V::COUNT > 1 ? 8 : 32;

EG_DEVICE void send(uint32_t to, uint32_t barrier, float x) {
    asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.f32 [%0], %1, [%2];" ::"r"(to),
                 "f"(x), "r"(barrier)
                 : "memory");
}

/* The same address in the first block of the cluster. */
EG_DEVICE uint32_t in_first_block(const void *here) {
    uint32_t there = eg_shared_address(here);
    asm volatile("mapa.shared::cluster.u32 %0, %0, 0;" : "+r"(there));
    return there;
}

/* Sums of the cluster's columns: of each warp, and in the first block those of the blocks. */
template <typename V> struct columns_sums {
    static constexpr int COLS = lanes_across<V> * V::COUNT;
    typename V::real of_warp[WARPS][COLS], of_block[EG_WHOLE_SUMS_BLOCKS][COLS];
    uint64_t arrived;
};

/* Before others may send to it. */
EG_DEVICE void make_barrier(uint64_t &arrived) {
    if (eg_cluster_rank() != 0 || threadIdx.x != 0) return;
    eg_barrier_init(eg_shared_address(&arrived), 1);
    eg_barrier_init_fence();
}

/* Of the first block, for what the others send. Some of it may have come before it is expected. */
template <typename V> EG_DEVICE void wait_for_others(columns_sums<V> &sums, int blocks) {
    const uint32_t barrier = eg_shared_address(&sums.arrived);
    if (threadIdx.x == 0) eg_barrier_expect(barrier, (uint32_t)(blocks - 1) * sizeof sums.of_block[0]);
    eg_barrier_wait(barrier, 0);
}

/* Of the lanes that have the same columns: one of them keeps the sum. */
template <typename V>
EG_DEVICE void sum_lanes(columns_sums<V> &to, const typename V::real (&sums)[V::COUNT]) {
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int j = 0; j < V::COUNT; j++) {
        typename V::real x = sums[j];
#pragma unroll
        for (int distance = 16; distance >= lanes_across<V>; distance /= 2)
            x += __shfl_xor_sync(0xffffffffU, x, distance);
        if (lane < lanes_across<V>) to.of_warp[threadIdx.x / 32][lane * V::COUNT + j] = x;
    }
}

/* By a thread for each column. Before that all blocks have arrived at the cluster's barrier. */
template <typename V>
EG_DEVICE void finish_sums(const eg_cuda_act_grad &p, columns_sums<V> &sums, int blocks, int64_t first_col) {
    typedef typename V::real real;
    const int col = threadIdx.x, rank = (int)eg_cluster_rank();
    __syncthreads();
    if (blocks > 1) eg_cluster_wait();
    if (col >= columns_sums<V>::COLS) return;
    real total = 0;
    for (int i = 0; i < WARPS; i++) total += sums.of_warp[i][col];
    if (rank > 0)
        return send(in_first_block(&sums.of_block[rank][col]), in_first_block(&sums.arrived), total);
    if (blocks > 1) wait_for_others(sums, blocks);
    for (int i = 1; i < blocks; i++) total += sums.of_block[i][col];
    if (first_col + col < p.cols) eg_put_column_sum(p, 0, first_col + col, total);
}

/* `chunks` are the blocks of a cluster. */
template <typename V, typename G> EG_DEVICE void run_columns(const eg_cuda_act_grad &p) {
    __shared__ columns_sums<V> shared;
    const int blocks = (int)p.chunks, lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const int64_t first_col = (int64_t)(blockIdx.x / (unsigned)blocks) * columns_sums<V>::COLS;
    if (blocks > 1) {
        make_barrier(shared.arrived);
        eg_cluster_arrive();
    }
    eg_wait_for_predecessor();
    eg_let_successor_start();
    if (blockIdx.x == 0) eg_clear(p.counts, threadIdx.x, 32 * WARPS);
    constexpr int LANES = lanes_across<V>, ROWS_OF_WARP = 32 / LANES;
    const int64_t row = ((int64_t)eg_cluster_rank() * WARPS + warp) * ROWS_OF_WARP + lane / LANES;
    const int64_t col = first_col + lane % LANES * V::COUNT;
    typename V::real sums[V::COUNT] = {};
    if (col < p.cols) {
        const thread_rows rows =
            thread_rows_of<V, G>(p, 0, row, p.rows, (int64_t)blocks * WARPS * ROWS_OF_WARP, col);
        map_with_activation<V, G>(p.activation, p.source == EG_SOURCE_Y, rows, sums);
    }
    sum_lanes<V>(shared, sums);
    finish_sums<V>(p, shared, blocks, first_col);
}

#define EG_WHOLE_SUMS_ENTRY(name, vector, of_grad)                                                           \
    extern "C" __global__ void __launch_bounds__(32 * WARPS, EG_WHOLE_SUMS_RESIDENT)                         \
        eg_hopper_act_grad_##name(const __grid_constant__ eg_cuda_act_grad p) {                              \
        run_columns<vector, of_grad>(p);                                                                     \
    }

#endif
