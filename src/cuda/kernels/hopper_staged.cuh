/* SPDX-License-Identifier: Apache-2.0 */
/* Epilogue warps: A·B whose epilogue grad_pre = grad * act'(A·B + bias) runs during the products of the next
 * tile.
 *
 * The consumers of hopper_gemm.cuh run the epilogue of a tile themselves, and the matrix units wait for them.
 * Here they stage the accumulators in shared memory, in f32, and go on with the next tile. The three warps of
 * the producer's group that are idle otherwise run the epilogue. They have as long for it as the next tile's
 * products take.
 *
 *     consumers        | tile 0 |stage| tile 1          |stage| tile 2        |epilogue 2|
 *     epilogue warps                  | epilogue 0      |     | epilogue 1    |
 *
 * The accumulators of a tile take 128 KB, and beside the ring shared memory has room for 80 KB: five staging
 * buffers of 16 rows, which are those of one consumer warp. So each epilogue warp first moves the rows of one
 * buffer into registers, and the last three consumer warps stage theirs in those buffers:
 *
 *     buffer           0   1   2   3   4        rows of consumer warps 0 to 4
 *     epilogue warp    0   1   2                moves them to registers, 128 numbers a lane
 *     buffer           0   1   2                rows of consumer warps 5, 6, 7
 *
 * Epilogue warp w finishes the 16 rows in its registers, then every third row of buffers 3 and 4, then those
 * in buffer w. A lane has eight columns of a row, whose sums over the rows stay in its registers; so the
 * number of columns is a multiple of eight. After a block's last tile there are no products, and its
 * consumers run the epilogue: eight warps are faster than three, and the ring has room for all rows.
 *
 * Registers set the limit. With fewer than 160 a thread the compiler serialises the consumers' products, and
 * that leaves 184 for the epilogue warps. There is no stream-K tail here: adding partial tiles takes more
 * registers. */
#ifndef EG_CUDA_HOPPER_STAGED_CUH
#define EG_CUDA_HOPPER_STAGED_CUH

#include "hopper_gemm.cuh"

enum {
    EG_EPILOGUE_WARPS = 3,
    EG_STAGING_SHARED_ROWS = 3 * 16, /* the first row of the buffers that all epilogue warps read */
    EG_STAGING_REFILL_ROWS = EG_STAGING_BUFFERS * 16, /* the first row that is staged where others were */
    EG_STAGED_SYNC = EG_HOPPER_SYNC + 2 /* named barriers: of the epilogue warps, of the consumers */
};

struct eg_staged_shape : eg_ring_shape<256> {
    static constexpr int CONSUMER_REGISTERS = 160, EPILOGUE_REGISTERS = 184; /* of the producer's group too */
    static_assert(2 * CONSUMER_REGISTERS + EPILOGUE_REGISTERS == 3 * 168, "the registers of a block");
    static constexpr int STAGING = EG_STAGING_AT, BARRIERS = EG_STAGED_BARRIERS_AT;
    static constexpr int FULL = EG_STAGING_FULL_AT, FREE = EG_STAGING_FREE_AT; /* of each consumer warp */
    static_assert(EG_HOPPER_STAGED_SHARED <= 227 * 1024, "the shared memory of a block");
    static_assert(EG_HOPPER_CONSUMER_WARPS * EG_STAGING_BUFFER <= STAGING,
                  "the last tile is staged in the ring");
};

template <bool BF16_, bool RIGHT_MN_MAJOR_> struct eg_staged : eg_staged_shape {
    using shape = eg_staged_shape;
    static constexpr bool BF16 = BF16_, LEFT_MN_MAJOR = false, RIGHT_MN_MAJOR = RIGHT_MN_MAJOR_;
    static constexpr bool STREAM_K = false;
};

/* ---- Accumulator staging ------------------------------------------------------------------------------ */

/* The staging buffers. Of each consumer warp a barrier says that its rows are staged (full), and one that it
 * may stage the next (free). `turn` is the number of the tile in this block; both barriers have a phase for
 * each. */
struct eg_staging {
    uint32_t shared;

    __device__ uint32_t full(int warp) const { return shared + eg_staged_shape::FULL + warp * 8; }
    __device__ uint32_t free(int warp) const { return shared + eg_staged_shape::FREE + warp * 8; }
    __device__ uint32_t row(int row) const {
        const int in_buffers = row < EG_STAGING_REFILL_ROWS ? row : row - EG_STAGING_REFILL_ROWS;
        return shared + eg_staged_shape::STAGING + in_buffers * EG_STAGING_ROW;
    }
    /* By one thread. A buffer that all epilogue warps read is free when each has said so. */
    __device__ void init() const {
        for (int warp = 0; warp < 8; warp++) {
            eg_barrier_init(full(warp), 32);
            eg_barrier_init(free(warp), warp == 3 || warp == 4 ? 32 * EG_EPILOGUE_WARPS : 32);
        }
    }
    __device__ void wait_full(int warp, uint32_t turn) const { eg_barrier_wait(full(warp), turn & 1); }
    /* The last three warps use buffers again: they wait for those of this tile, the others for those of the
     * last. */
    __device__ void wait_free(int warp, uint32_t turn) const {
        eg_barrier_wait(free(warp), (turn & 1) ^ (warp < 5));
    }
    /* By each lane of a warp that has written or read. With one arrival for all lanes, the race checker sees
     * no order. */
    __device__ static void arrive(uint32_t barrier) { eg_barrier_arrive(barrier); }
};

/* Where a vector of 16 bytes lies in a row, which has 64: first those with a lane's first four columns, then
 * those with its other four. The order in each half differs by row, so that the accesses below have no bank
 * conflicts. */
EG_DEVICE uint32_t eg_staged_vector(int lane, int half, int row) {
    return (uint32_t)(((lane ^ (row & 3) ^ half << 2) + half * 32) << 4);
}

/* A consumer warp stages its rows. The accumulators lie in registers as hopper_epilogue.cuh says. */
EG_DEVICE void eg_stage_accumulators(uint32_t buffer, const float (&acc)[128]) {
    const int lane = threadIdx.x % 32, row = lane / 4, half = lane % 4 / 2;
    const uint32_t line = buffer + row * EG_STAGING_ROW + half * 512 + lane % 2 * 8;
#pragma unroll
    for (int j = 0; j < 8; j++) {
        const uint32_t to = line + ((j ^ (row & 3) ^ half << 2) << 4);
#pragma unroll
        for (int i = j; i < 32; i += 8) {
            eg_store_pair(to + (i - j) * 16, acc[i * 4], acc[i * 4 + 1]);
            eg_store_pair(to + (i - j) * 16 + 8 * EG_STAGING_ROW, acc[i * 4 + 2], acc[i * 4 + 3]);
        }
    }
}

/* A lane's eight columns of a row. */
EG_DEVICE void eg_read_staged(uint32_t line, int row, float *v) {
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const uint4 q = eg_load_vector(line + eg_staged_vector(threadIdx.x % 32, half, row));
        v[half * 4] = __uint_as_float(q.x), v[half * 4 + 1] = __uint_as_float(q.y);
        v[half * 4 + 2] = __uint_as_float(q.z), v[half * 4 + 3] = __uint_as_float(q.w);
    }
}

/* ---- Rows ------------------------------------------------------------------------------------------- */

/* A lane's eight columns of a tile. */
template <bool BF16> struct eg_lane_columns {
    const eg_cuda_gemm &p;
    const char *in;
    char *out;     /* NULL: not wanted */
    int rows;      /* of the tile that the result has; 0 where the columns are outside */
    float sums[8]; /* of the rows that the warp has finished */

    __device__ eg_lane_columns(const eg_cuda_gemm &gemm, const eg_hopper_tile &tile) : p(gemm), sums() {
        const int col = tile.col + threadIdx.x % 32 * 8;
        const auto at = [&](const eg_cuda_matrix &x) {
            return (char *)x.data + (tile.item * x.item_stride + tile.row * x.row_stride + col) * 2;
        };
        in = at(p.in), out = p.out.data != 0 ? at(p.out) : nullptr;
        rows = col < p.cols ? (int)min(p.rows - tile.row, (int64_t)eg_staged_shape::ROWS) : 0;
    }
    __device__ void bias(const eg_hopper_tile &tile, float (&v)[8]) const {
        const uint16_t *from = (const uint16_t *)p.bias.data + tile.col + threadIdx.x % 32 * 8;
#pragma unroll
        for (int i = 0; i < 8; i++) {
            uint16_t bits = 0;
            if (p.bias.data != 0 && rows > 0)
                asm volatile("ld.global.nc.u16 %0, [%1];" : "=h"(bits) : "l"(from + i));
            v[i] = BF16 ? eg_widen_bf16(bits) : eg_widen_f16(bits);
        }
    }
    /* Of a row: a streaming load, since it is read once. */
    __device__ uint4 grad(int row) const {
        return row < rows ? __ldcs((const uint4 *)(in + row * p.in.row_stride * 2)) : make_uint4(0, 0, 0, 0);
    }
    /* v = pre of ROWS rows becomes grad_pre there. */
    template <int ROWS, typename F>
    __device__ void finish(const F &derivative, const int (&row)[ROWS], const uint4 (&grad)[ROWS],
                           float (&v)[ROWS * 8]) {
        float d_act[ROWS * 8];
        eg_act_derivatives_by(derivative, p.activation == EG_ACT_NONE, p.propagate != 0, v, d_act);
#pragma unroll
        for (int i = 0; i < ROWS; i++) {
            float *g = v + i * 8;
            if (row[i] >= rows) continue;
            eg_widen_pair<BF16>(grad[i].x, g[0], g[1]), eg_widen_pair<BF16>(grad[i].y, g[2], g[3]);
            eg_widen_pair<BF16>(grad[i].z, g[4], g[5]), eg_widen_pair<BF16>(grad[i].w, g[6], g[7]);
#pragma unroll
            for (int j = 0; j < 8; j++) g[j] *= d_act[i * 8 + j], sums[j] += g[j];
            if (out != nullptr)
                *(uint4 *)(out + row[i] * p.out.row_stride * 2) =
                    make_uint4(eg_round_pair<BF16>(g[0], g[1]), eg_round_pair<BF16>(g[2], g[3]),
                               eg_round_pair<BF16>(g[4], g[5]), eg_round_pair<BF16>(g[6], g[7]));
        }
    }
};

/* `count` rows of a tile, first, first + step, ..., which are staged from `line` on. Two are finished at
 * once, while the gradients of the next two are loaded. */
template <bool BF16, typename F>
EG_DEVICE void eg_finish_staged_rows(eg_lane_columns<BF16> &x, const F &derivative, const float (&bias)[8],
                                     uint32_t line, int first, int count, int step) {
    const auto row_at = [&](int i) { return i < count ? first + i * step : eg_staged_shape::ROWS; };
    uint4 next[2] = {x.grad(row_at(0)), x.grad(row_at(1))};
#pragma unroll 1
    for (int i = 0; i < count; i += 2) {
        const int row[2] = {row_at(i), row_at(i + 1)};
        const uint4 grad[2] = {next[0], next[1]};
        next[0] = x.grad(row_at(i + 2)), next[1] = x.grad(row_at(i + 3));
        float v[16];
        eg_read_staged(line + i * step * EG_STAGING_ROW, row[0], v);
        eg_read_staged(line + min(i + 1, count - 1) * step * EG_STAGING_ROW,
                       first + min(i + 1, count - 1) * step, v + 8);
#pragma unroll
        for (int j = 0; j < 16; j++) v[j] += bias[j % 8];
        x.template finish<2>(derivative, row, grad, v);
    }
}

/* The column sums of WARPS warps become one row of `sums`, added in order. Each warp puts its own in shared
 * memory first, STEP bytes after those of the warp before. By all of those warps. */
template <int WARPS, int STEP>
EG_DEVICE void eg_sum_staged(const eg_cuda_gemm &p, const eg_hopper_tile &tile, uint32_t from, int warp,
                             const float (&sums)[8]) {
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int i = 0; i < 8; i += 2)
        eg_store_pair(from + warp * STEP + lane * 32 + i * 4, sums[i], sums[i + 1]);
    eg_sync_threads<32 * WARPS>(EG_STAGED_SYNC + (WARPS == 8));
    const int64_t chunk = tile.row / eg_staged_shape::ROWS;
    for (int col = warp * 32 + lane; col < eg_staged_shape::COLS; col += 32 * WARPS) {
        float total = 0;
#pragma unroll
        for (int w = 0; w < WARPS; w++) total += __uint_as_float(eg_load_number(from + w * STEP + col * 4));
        if (chunk < p.chunks && tile.col + col < p.cols)
            ((float *)p.sums)[(tile.item * p.chunks + chunk) * p.cols + tile.col + col] = total;
    }
    eg_sync_threads<32 * WARPS>(EG_STAGED_SYNC + (WARPS == 8));
}

/* ---- An epilogue warp --------------------------------------------------------------------------------- */

/* The 16 rows in registers, one at a time. The others move down, so that the loop has code for one row only.
 */
template <bool BF16, typename F>
EG_DEVICE void eg_finish_register_rows(eg_lane_columns<BF16> &x, const F &derivative, int first,
                                       float (&accumulators)[128]) {
    uint4 next = x.grad(first);
#pragma unroll 1
    for (int row = first; row < first + 16; row++) {
        float v[8];
#pragma unroll
        for (int i = 0; i < 8; i++) v[i] = accumulators[i];
#pragma unroll
        for (int i = 0; i < 120; i++) accumulators[i] = accumulators[i + 8];
        const uint4 now[1] = {next};
        const int rows[1] = {row};
        if (row + 1 < first + 16) next = x.grad(row + 1);
        x.template finish<1>(derivative, rows, now, v);
    }
}

template <bool BF16, typename F>
EG_DEVICE void eg_finish_staged_tile(const eg_cuda_gemm &p, const F &derivative, const eg_hopper_tile &tile,
                                     const eg_staging &staging, int epilogue_warp, uint32_t turn,
                                     float (&accumulators)[128]) {
    const int shared = EG_STAGING_SHARED_ROWS + epilogue_warp,
              last = EG_STAGING_REFILL_ROWS + epilogue_warp * 16;
    eg_lane_columns<BF16> x(p, tile);
    eg_finish_register_rows(x, derivative, epilogue_warp * 16, accumulators);
    float bias[8];
    x.bias(tile, bias);
    staging.wait_full(3, turn), staging.wait_full(4, turn);
    eg_finish_staged_rows(x, derivative, bias, staging.row(shared), shared,
                          (32 - epilogue_warp + 2) / EG_EPILOGUE_WARPS, EG_EPILOGUE_WARPS);
    staging.arrive(staging.free(3)), staging.arrive(staging.free(4));
    staging.wait_full(5 + epilogue_warp, turn);
    eg_finish_staged_rows(x, derivative, bias, staging.row(last), last, 16, 1);
    __syncwarp(); /* the buffer has been read */
    if (p.sums != 0)
        eg_sum_staged<EG_EPILOGUE_WARPS, EG_STAGING_BUFFER>(p, tile, staging.row(0), epilogue_warp, x.sums);
    staging.arrive(staging.free(epilogue_warp));
}

/* All tiles of the block but the last, which its consumers finish themselves. */
template <class K>
EG_DEVICE void eg_run_epilogue_warp(const eg_cuda_hopper &p, uint32_t shared, uint32_t rank,
                                    int epilogue_warp) {
    const eg_hopper_tiles<K> tiles(p);
    const eg_staging staging = {shared};
    uint32_t turn = 0;
    for (eg_scheduler<K> work(p, tiles.total); work.next() && !work.is_last(); turn++) {
        const eg_hopper_tile tile = tiles.at(work.tile, rank);
        float accumulators[128], bias[8];
        eg_lane_columns<K::BF16>(p.gemm, tile).bias(tile, bias);
        staging.wait_full(epilogue_warp, turn);
#pragma unroll
        for (int row = 0; row < 16; row++)
            eg_read_staged(staging.row(epilogue_warp * 16 + row), row, accumulators + row * 8);
        staging.arrive(staging.free(5 + epilogue_warp));
#pragma unroll
        for (int i = 0; i < 128; i++) accumulators[i] += bias[i % 8];
        eg_with_act_grad(p.gemm.activation, false, [&](const auto &derivative) {
            eg_finish_staged_tile<K::BF16>(p.gemm, derivative, tile, staging, epilogue_warp, turn,
                                           accumulators);
        });
    }
}

/* ---- The consumers ------------------------------------------------------------------------------------ */

/* The last tile: there are no products after it, so its accumulators are staged where the ring was. */
template <class K>
EG_DEVICE void eg_finish_last_tile(const eg_cuda_gemm &p, const eg_hopper_tile &tile, uint32_t shared,
                                   int warp, const float (&acc)[K::COLS / 2]) {
    const uint32_t mine = shared + warp * EG_STAGING_BUFFER;
    eg_sync_threads<256>(EG_STAGED_SYNC + 1); /* both consumers' products are done */
    eg_stage_accumulators(mine, acc);
    __syncwarp();
    eg_lane_columns<K::BF16> x(p, tile);
    float bias[8];
    x.bias(tile, bias);
    eg_with_act_grad(p.activation, false, [&](const auto &derivative) {
        eg_finish_staged_rows(x, derivative, bias, mine, warp * 16, 16, 1);
    });
    __syncwarp();
    if (p.sums != 0) eg_sum_staged<8, EG_STAGING_BUFFER>(p, tile, shared, warp, x.sums);
}

template <class K>
EG_DEVICE void eg_staged_consume(const eg_cuda_hopper &p, uint32_t shared, uint32_t rank, int warp) {
    const eg_hopper_tiles<K> tiles(p);
    const eg_staging staging = {shared};
    eg_ring_of<K> ring(shared, rank);
    uint32_t turn = 0;
    float acc[K::COLS / 2];
    for (eg_scheduler<K> work(p, tiles.total); work.next(); turn++) {
        eg_multiply_tile<K>(acc, ring, work.last - work.first, warp / 4, [] {});
        if (work.is_last()) {
            eg_finish_last_tile<K>(p.gemm, tiles.at(work.tile, rank), shared, warp, acc);
#pragma unroll
            for (int i = 0; i < K::COLS / 2; i++)
                acc[i] = 0; /* or the compiler keeps them alive over the next tile */
        } else {
            staging.wait_free(warp, turn);
            eg_stage_accumulators(staging.row(warp * 16), acc);
            staging.arrive(staging.full(warp));
        }
    }
}

/* ---- The kernel --------------------------------------------------------------------------------------- */

template <class K> EG_DEVICE void eg_hopper_staged(const eg_cuda_hopper &p) {
    extern __shared__ __align__(1024) uint8_t memory[];
    const uint32_t shared = eg_shared_address(memory), rank = eg_cluster_rank();
    if (threadIdx.x == 0) {
        eg_ring_barriers<typename K::shape>(shared);
        eg_staging{shared}.init();
        eg_barrier_init_fence();
        eg_prefetch_tensor_map(p.left);
        eg_prefetch_tensor_map(p.right);
    }
    eg_sync_cluster();
    eg_let_successor_start();
    eg_wait_for_predecessor();
    const int warp = eg_warp();
    if (warp >= 8) {
        eg_more_registers<K::EPILOGUE_REGISTERS>();
        if (warp == 8) eg_produce<K>(p, shared, rank);
        if (blockIdx.x == 0 && warp == 9) eg_clear(p.counts, threadIdx.x % 32, 32);
        if (warp > 8) eg_run_epilogue_warp<K>(p, shared, rank, warp - 9);
    } else {
        eg_fewer_registers<K::CONSUMER_REGISTERS>();
        eg_staged_consume<K>(p, shared, rank, warp);
    }
    eg_sync_cluster(); /* a block must not leave while its neighbour still writes to it */
}

/* The letter: the layout of right, B, as in the other kernels' names. */
#define EG_HOPPER_STAGED_KERNEL(type, bf16, letter, right_mn_major)                                          \
    extern "C" __global__ void __cluster_dims__(EG_CUDA_CLUSTER, 1, 1)                                       \
        __launch_bounds__(EG_HOPPER_THREADS, 1)                                                              \
            eg_hopper_##type##_staged_n##letter##_128x256(const __grid_constant__ eg_cuda_hopper p) {        \
        eg_hopper_staged<eg_staged<bf16, right_mn_major>>(p);                                                \
    }
#define EG_HOPPER_STAGED_KERNELS(type, bf16)                                                                 \
    EG_HOPPER_STAGED_KERNEL(type, bf16, n, true)                                                             \
    EG_HOPPER_STAGED_KERNEL(type, bf16, t, false)

#endif
