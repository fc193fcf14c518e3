/* SPDX-License-Identifier: Apache-2.0 */
/* The fused map: the last rows of grad_pre = grad * act'(saved), made by the product that reads them, d_a.
 *
 *     act_grad.cu   the rows that the first wave of tiles reads, at the speed of memory
 *     here          the remaining rows: three warps of the producer's group, which are idle otherwise
 *
 *               columns: 32 vectors of 16 bytes side by side are a warp's
 *             +-----+-----+---
 *             |  0  |  1  |         a chunk is 32 rows, with a row of column sums
 *      band   +-----+-----+---      its tiles are handed out in this order, to any warp that asks
 *             | ... |               8 chunks are a band: the rows that a cluster's tile reads
 *
 * A warp that has finished a tile of the map counts it for the band. The producer waits until the band of its
 * tile of d_a is complete. Warps that make the map never wait, and tiles are handed out in order. So a band
 * that is waited for is being made, however few of the blocks run. */
#ifndef EG_CUDA_HOPPER_MAP_CUH
#define EG_CUDA_HOPPER_MAP_CUH

enum {
    EG_MAP_WARPS = 3,                 /* of the producer's group */
    EG_MAP_ROWS = 2,                  /* that a thread works on at once, to hide its latencies */
    EG_MAP_STAGE = EG_MAP_ROWS * 1024 /* bytes: those rows of a warp, of both operands */
};

/* ---- Handing out tiles of the map, and waiting for them ----------------------------------------------- */

EG_DEVICE uint32_t eg_map_column_blocks(const eg_cuda_act_grad &p) { return ((uint32_t)p.cols + 255) / 256; }

/* The next tile of the map, for the warp that asks. */
EG_DEVICE uint32_t eg_claim_map_tile(const eg_cuda_act_grad &p) {
    uint32_t tile = 0;
    if (threadIdx.x % 32 == 0) tile = atomicAdd((uint32_t *)p.counts.data, 1U);
    return __shfl_sync(0xffffffffU, tile, 0);
}

/* Each thread's stores are fenced for TMA, and counted for all threads at once. */
EG_DEVICE void eg_map_tile_is_done(const eg_cuda_act_grad &p, uint32_t chunk) {
    constexpr uint32_t CHUNKS = EG_CUDA_MAP_BAND / EG_CUDA_MAP_CHUNK;
    eg_fence_async_global();
    __syncwarp();
    if (threadIdx.x % 32 == 0) eg_count_up((uint32_t *)p.counts.data + 1 + chunk / CHUNKS);
}

/* Waits until a band is complete. */
EG_DEVICE void eg_wait_for_band(const eg_cuda_act_grad &p, uint32_t band) {
    constexpr uint32_t CHUNKS = EG_CUDA_MAP_BAND / EG_CUDA_MAP_CHUNK;
    const uint32_t tiles = min((uint32_t)p.chunks - band * CHUNKS, CHUNKS) * eg_map_column_blocks(p);
    while (eg_count_now((const uint32_t *)p.counts.data + 1 + band) < tiles) __nanosleep(100);
    eg_fence_async_global();
}

/* Waits until the rows of a tile of left, from `row` on, are there. */
EG_DEVICE void eg_wait_for_rows(const eg_cuda_hopper &p, int row) {
    const int first = (int)(p.gemm.rows - p.map.rows); /* the rows before are another kernel's */
    if (row >= first) eg_wait_for_band(p.map, (uint32_t)(row - first) / EG_CUDA_MAP_BAND);
}

/* ---- A tile of the map -------------------------------------------------------------------------------- */

/* The rows of a thread: its vector in the first row of the tile, and the bytes from row to row. */
struct eg_map_rows {
    const char *grad, *saved;
    char *out;
    int64_t grad_step, saved_step, out_step;
    int rows;
};

EG_DEVICE eg_map_rows eg_map_rows_of(const eg_cuda_act_grad &p, int64_t row, int64_t col) {
    const auto at = [&](const eg_cuda_matrix &x) { return (char *)x.data + (row * x.row_stride + col) * 2; };
    return {at(p.grad),
            at(p.saved),
            at(p.out),
            p.grad.row_stride * 2,
            p.saved.row_stride * 2,
            p.out.row_stride * 2,
            (int)min(p.rows - row, (int64_t)EG_CUDA_MAP_CHUNK)};
}

/* The rows that a warp loads ahead, in a ring of its own in shared memory. Each thread has its own 16 bytes
 * of a row of either operand. In registers every stage would need code of its own, more than fits the
 * instruction cache. */
template <int STAGES> struct eg_map_ring {
    uint32_t shared; /* the thread's vector in the first stage */
    uint64_t policy; /* eg_read_once */

    __device__ uint32_t stage(int step) const { return shared + step % STAGES * EG_MAP_STAGE; }
    /* Zeros for rows past the last. */
    __device__ void fetch(const eg_map_rows &w, int step) const {
#pragma unroll
        for (int i = 0; i < EG_MAP_ROWS; i++) {
            const int row = step * EG_MAP_ROWS + i, there = row < w.rows, at = there ? row : 0;
            eg_copy_vector(stage(step) + i * 1024, w.grad + at * w.grad_step, there * 16, policy);
            eg_copy_vector(stage(step) + i * 1024 + 512, w.saved + at * w.saved_step, there * 16, policy);
        }
        eg_copies_commit();
    }
};

template <bool BF16> EG_DEVICE void eg_load_row(uint32_t from, float *v) {
    const uint4 q = eg_load_vector(from);
    eg_widen_pair<BF16>(q.x, v[0], v[1]), eg_widen_pair<BF16>(q.y, v[2], v[3]);
    eg_widen_pair<BF16>(q.z, v[4], v[5]), eg_widen_pair<BF16>(q.w, v[6], v[7]);
}
/* Not a streaming store: the products read it soon, from L2. */
template <bool BF16> EG_DEVICE void eg_store_row(char *to, const float *v) {
    *(uint4 *)to = make_uint4(eg_round_pair<BF16>(v[0], v[1]), eg_round_pair<BF16>(v[2], v[3]),
                              eg_round_pair<BF16>(v[4], v[5]), eg_round_pair<BF16>(v[6], v[7]));
}

/* The sums are of the unrounded products. */
template <bool BF16, int STAGES>
EG_DEVICE void eg_run_map_rows(const eg_cuda_act_grad &p, const eg_map_rows &w,
                               const eg_map_ring<STAGES> &ring, float (&sums)[8]) {
    const int steps = (w.rows + EG_MAP_ROWS - 1) / EG_MAP_ROWS;
    for (int step = 0; step < STAGES; step++) ring.fetch(w, step);
#pragma unroll 1
    for (int step = 0; step < steps; step++) {
        float product[EG_MAP_ROWS * 8], from[EG_MAP_ROWS * 8];
        eg_copies_wait<STAGES - 1>();
#pragma unroll
        for (int i = 0; i < EG_MAP_ROWS; i++) {
            eg_load_row<BF16>(ring.stage(step) + i * 1024, product + i * 8);
            eg_load_row<BF16>(ring.stage(step) + i * 1024 + 512, from + i * 8);
        }
        eg_act_grad(p.activation, p.source == EG_SOURCE_Y, p.propagate != 0, product, from);
        ring.fetch(w, step + STAGES);
#pragma unroll
        for (int i = 0; i < EG_MAP_ROWS * 8; i++) sums[i % 8] += product[i];
#pragma unroll
        for (int i = 0; i < EG_MAP_ROWS; i++) {
            const int row = step * EG_MAP_ROWS + i;
            if (row < w.rows) eg_store_row<BF16>(w.out + row * w.out_step, product + i * 8);
        }
    }
    eg_copies_wait<0>(); /* the zeros past the end must not arrive over rows of the next tile */
}

template <bool BF16, int STAGES>
EG_DEVICE void eg_make_map_tile(const eg_cuda_act_grad &p, const eg_map_ring<STAGES> &ring, int64_t chunk,
                                uint32_t column_block) {
    const int64_t col = column_block * 256 + threadIdx.x % 32 * 8;
    if (col >= p.cols) return;
    float sums[8] = {};
    eg_run_map_rows<BF16>(p, eg_map_rows_of(p, chunk * EG_CUDA_MAP_CHUNK, col), ring, sums);
    if (p.sums == 0) return;
    float4 *to = (float4 *)((float *)p.sums + chunk * p.cols + col);
    to[0] = make_float4(sums[0], sums[1], sums[2], sums[3]);
    to[1] = make_float4(sums[4], sums[5], sums[6], sums[7]);
}

/* By a warp, with STAGES stages from `shared` on. */
template <bool BF16, int STAGES>
EG_DEVICE void eg_make_map_tiles(const eg_cuda_act_grad &p, uint32_t shared) {
    const eg_map_ring<STAGES> ring = {shared + threadIdx.x % 32 * 16, eg_read_once()};
    const uint32_t column_blocks = eg_map_column_blocks(p), tiles = (uint32_t)p.chunks * column_blocks;
    for (uint32_t tile = eg_claim_map_tile(p); tile < tiles; tile = eg_claim_map_tile(p)) {
        eg_make_map_tile<BF16>(p, ring, tile / column_blocks, tile % column_blocks);
        __syncwarp();
        eg_map_tile_is_done(p, tile / column_blocks);
    }
}

/* During the products. `warp`: of the EG_MAP_WARPS. */
template <class K> EG_DEVICE void eg_make_fused_rows(const eg_cuda_act_grad &p, uint32_t shared, int warp) {
    constexpr int STAGES = EG_HOPPER_MAP_BYTES / EG_MAP_STAGE / EG_MAP_WARPS;
    eg_make_map_tiles<K::BF16, STAGES>(p, shared + K::SUMS + warp * STAGES * EG_MAP_STAGE);
}

#endif
