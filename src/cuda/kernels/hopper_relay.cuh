/* A·B whose epilogue runs beside the products of the next tile: grad_pre = grad * act'(A·B + bias).
 *
 * The consumers of hopper_gemm.cuh finish a tile themselves, and the matrix units wait for them. Here they hand
 * its sums on as they are, in f32, and multiply on. The three warps of the producer's group that have nothing
 * else to do finish the tile, and have as long for it as the next one's products take.
 *
 *     consumers   | tile 0 |put| tile 1          |put| tile 2        |finish tile 2|
 *     finishers            | finish tile 0 |     | finish tile 1 |
 *
 * The sums of a tile are 128 KB, and beside the ring shared memory has room for 80: five places of 16 rows, what
 * a warp of the consumers has. So each finisher takes the rows of one place into its registers at once, and the
 * consumers' last three warps fill those places again:
 *
 *     place        0   1   2   3   4        rows of the consumers' warps 0 to 4
 *     finisher     0   1   2                takes them into registers, 128 numbers a lane
 *     place        0   1   2                rows of warps 5, 6, 7
 *
 * Finisher f finishes the 16 rows in its registers, then every third row of places 3 and 4, then those in place f.
 * A lane has eight columns of a row, whose sums over the rows stay in its registers; so the columns are a multiple
 * of eight. After a block's last tile nobody multiplies, and its consumers finish it: eight warps are quicker than
 * three, and what was the ring has room for all rows.
 *
 * Registers decide what fits: 160 a thread are the fewest with which the products are not made one by one, which
 * leaves the finishers 184. Tiles are not cut here: adding pieces takes the consumers more. */
#ifndef EG_CUDA_HOPPER_RELAY_CUH
#define EG_CUDA_HOPPER_RELAY_CUH

#include "hopper_gemm.cuh"

enum {
    EG_RELAY_FINISHERS = 3,
    EG_RELAY_ROW = 256 * 4,            /* bytes of a row of sums */
    EG_RELAY_PLACE = 16 * EG_RELAY_ROW, /* and of a place */
    EG_RELAY_SHARED_ROWS = 3 * 16,     /* the first row of places that all finishers read */
    EG_RELAY_LAST_ROWS = 5 * 16,       /* the first of those that fill places again */
    EG_RELAY_SYNC = EG_HOPPER_SYNC + 2 /* named barriers: of the finishers, of the consumers */
};

struct eg_relay_shape {
    static constexpr int COLS = 256, ROWS = 128, DEPTH = 64, STAGES = 3;
    static constexpr int LEFT_BYTES = ROWS * DEPTH * 2, RIGHT_BYTES = DEPTH * COLS * 2;
    static constexpr int SLOT_BYTES = LEFT_BYTES + RIGHT_BYTES;
    static constexpr int FEW = 160, MANY = 184; /* registers of the consumers, and of the finishers' group */
    static_assert(2 * FEW + MANY == 3 * 168, "what a block has");
    /* Shared memory: the ring, the places, the ring's barriers; full and free of each consumers' warp. */
    static constexpr int PLACES = STAGES * SLOT_BYTES;
    static constexpr int BARRIERS = PLACES + 5 * EG_RELAY_PLACE;
    static constexpr int FULL = BARRIERS + 3 * STAGES * 8, FREE = FULL + 8 * 8;
    static_assert(FREE + 8 * 8 <= 227 * 1024, "what a block can have");
    static_assert(8 * EG_RELAY_PLACE <= PLACES, "the last tile, where the ring was");
};

template <bool BF16_, bool RIGHT_ACROSS_> struct eg_relay : eg_relay_shape {
    using shape = eg_relay_shape;
    static constexpr bool BF16 = BF16_, LEFT_ACROSS = false, RIGHT_ACROSS = RIGHT_ACROSS_;
    static constexpr bool CUTS = false, MAKES_REST = false;
};

/* ---- Places ----------------------------------------------------------------------------------------- */

/* Where the rows of each consumers' warp lie: full when they do, free when it may put the next. `turn`: the
 * number of the tile in this block; both barriers have a phase for each. */
struct eg_relay_places {
    uint32_t shared;

    __device__ uint32_t full(int warp) const { return shared + eg_relay_shape::FULL + warp * 8; }
    __device__ uint32_t free(int warp) const { return shared + eg_relay_shape::FREE + warp * 8; }
    __device__ uint32_t row(int row) const {
        const int in_places = row < EG_RELAY_LAST_ROWS ? row : row - EG_RELAY_LAST_ROWS;
        return shared + eg_relay_shape::PLACES + in_places * EG_RELAY_ROW;
    }
    /* By one thread. Of the places that all finishers read, each says that it has. */
    __device__ void init() const {
        for (int warp = 0; warp < 8; warp++) {
            eg_barrier_init(full(warp), 32);
            eg_barrier_init(free(warp), warp == 3 || warp == 4 ? 32 * EG_RELAY_FINISHERS : 32);
        }
    }
    __device__ void wait_full(int warp, uint32_t turn) const { eg_barrier_wait(full(warp), turn & 1); }
    /* The last three warps wait for this tile's first three to be taken, the others for the last tile. */
    __device__ void wait_free(int warp, uint32_t turn) const {
        eg_barrier_wait(free(warp), (turn & 1) ^ (warp < 5));
    }
    /* By each lane of a warp that has written or read: through one for all the race checker sees no order. */
    __device__ static void tell(uint32_t barrier) { eg_barrier_arrive(barrier); }
};

/* A row is 64 pieces of 16 bytes: first those with a lane's first four columns, then those with its others,
 * each half in an order that differs by row, so that no access below meets another in a bank. */
EG_DEVICE uint32_t eg_relay_piece(int lane, int half, int row) {
    return (uint32_t)(((lane ^ (row & 3) ^ half << 2) + half * 32) << 4);
}

/* A consumers' warp leaves its rows. The accumulators lie as hopper_epilogue.cuh has it. */
EG_DEVICE void eg_relay_put(uint32_t place, const float (&acc)[128]) {
    const int lane = threadIdx.x % 32, row = lane / 4, half = lane % 4 / 2;
    const uint32_t line = place + row * EG_RELAY_ROW + half * 512 + lane % 2 * 8;
#pragma unroll
    for (int j = 0; j < 8; j++) {
        const uint32_t to = line + ((j ^ (row & 3) ^ half << 2) << 4);
#pragma unroll
        for (int i = j; i < 32; i += 8) {
            eg_store_pair(to + (i - j) * 16, acc[i * 4], acc[i * 4 + 1]);
            eg_store_pair(to + (i - j) * 16 + 8 * EG_RELAY_ROW, acc[i * 4 + 2], acc[i * 4 + 3]);
        }
    }
}

/* A lane's eight columns of a row. */
EG_DEVICE void eg_relay_take(uint32_t line, int row, float *v) {
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const uint4 q = eg_load_vector(line + eg_relay_piece(threadIdx.x % 32, half, row));
        v[half * 4] = __uint_as_float(q.x), v[half * 4 + 1] = __uint_as_float(q.y);
        v[half * 4 + 2] = __uint_as_float(q.z), v[half * 4 + 3] = __uint_as_float(q.w);
    }
}

/* ---- Rows ------------------------------------------------------------------------------------------- */

/* A lane's eight columns of a tile. */
template <bool BF16> struct eg_relay_lane {
    const eg_cuda_gemm &p;
    const char *in;
    char *out;    /* NULL: not wanted */
    int rows;     /* of the tile that there are; 0 where the columns are outside */
    float sums[8]; /* of the rows that the warp has finished */

    __device__ eg_relay_lane(const eg_cuda_gemm &gemm, const eg_hopper_tile &tile) : p(gemm), sums() {
        const int col = tile.col + threadIdx.x % 32 * 8;
        const auto at = [&](const eg_cuda_matrix &x) {
            return (char *)x.data + (tile.item * x.item_stride + tile.row * x.row_stride + col) * 2;
        };
        in = at(p.in), out = p.out.data != 0 ? at(p.out) : nullptr;
        rows = col < p.cols ? (int)min(p.rows - tile.row, (int64_t)eg_relay_shape::ROWS) : 0;
    }
    __device__ void bias(const eg_hopper_tile &tile, float (&v)[8]) const {
        const uint16_t *from = (const uint16_t *)p.bias.data + tile.col + threadIdx.x % 32 * 8;
#pragma unroll
        for (int i = 0; i < 8; i++) {
            uint16_t bits = 0;
            if (p.bias.data != 0 && rows > 0) asm volatile("ld.global.nc.u16 %0, [%1];" : "=h"(bits) : "l"(from + i));
            v[i] = BF16 ? eg_widen_bf16(bits) : eg_widen_f16(bits);
        }
    }
    /* Of a row; read once. */
    __device__ uint4 grad(int row) const {
        return row < rows ? __ldcs((const uint4 *)(in + row * p.in.row_stride * 2)) : make_uint4(0, 0, 0, 0);
    }
    /* v = pre of ROWS rows becomes their part of grad_pre. */
    template <int ROWS, typename F>
    __device__ void finish(const F &derivative, const int (&row)[ROWS], const uint4 (&grad)[ROWS], float (&v)[ROWS * 8]) {
        float slope[ROWS * 8];
        eg_slopes_by(derivative, p.activation == EG_ACT_NONE, p.propagate != 0, v, slope);
#pragma unroll
        for (int i = 0; i < ROWS; i++) {
            float *g = v + i * 8;
            if (row[i] >= rows) continue;
            eg_widen_pair<BF16>(grad[i].x, g[0], g[1]), eg_widen_pair<BF16>(grad[i].y, g[2], g[3]);
            eg_widen_pair<BF16>(grad[i].z, g[4], g[5]), eg_widen_pair<BF16>(grad[i].w, g[6], g[7]);
#pragma unroll
            for (int j = 0; j < 8; j++) g[j] *= slope[i * 8 + j], sums[j] += g[j];
            if (out != nullptr) eg_store_row<BF16>(out + row[i] * p.out.row_stride * 2, g);
        }
    }
};

/* Rows first, first + step, ... of a tile, `count` of them, that lie in shared memory from `line` on. Two at once,
 * and the gradients of the next two on their way. */
template <bool BF16, typename F>
EG_DEVICE void eg_relay_rows(eg_relay_lane<BF16> &x, const F &derivative, const float (&bias)[8], uint32_t line,
                             int first, int count, int step) {
    const auto row_at = [&](int i) { return i < count ? first + i * step : eg_relay_shape::ROWS; };
    uint4 next[2] = {x.grad(row_at(0)), x.grad(row_at(1))};
#pragma unroll 1
    for (int i = 0; i < count; i += 2) {
        const int row[2] = {row_at(i), row_at(i + 1)};
        const uint4 grad[2] = {next[0], next[1]};
        next[0] = x.grad(row_at(i + 2)), next[1] = x.grad(row_at(i + 3));
        float v[16];
        eg_relay_take(line + i * step * EG_RELAY_ROW, row[0], v);
        eg_relay_take(line + min(i + 1, count - 1) * step * EG_RELAY_ROW, first + min(i + 1, count - 1) * step, v + 8);
#pragma unroll
        for (int j = 0; j < 16; j++) v[j] += bias[j % 8];
        x.template finish<2>(derivative, row, grad, v);
    }
}

/* WARPS' sums of the tile's columns become one row of them, in order; each has left its own at `mine`, STEP bytes
 * after the warp's before. By all of those warps. */
template <int WARPS, int STEP>
EG_DEVICE void eg_relay_sum(const eg_cuda_gemm &p, const eg_hopper_tile &tile, uint32_t from, int warp,
                            const float (&sums)[8]) {
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int i = 0; i < 8; i += 2) eg_store_pair(from + warp * STEP + lane * 32 + i * 4, sums[i], sums[i + 1]);
    eg_sync_threads<32 * WARPS>(EG_RELAY_SYNC + (WARPS == 8));
    const int64_t chunk = tile.row / eg_relay_shape::ROWS;
    for (int col = warp * 32 + lane; col < eg_relay_shape::COLS; col += 32 * WARPS) {
        float total = 0;
#pragma unroll
        for (int w = 0; w < WARPS; w++) total += __uint_as_float(eg_load_number(from + w * STEP + col * 4));
        if (chunk < p.chunks && tile.col + col < p.cols)
            ((float *)p.sums)[(tile.item * p.chunks + chunk) * p.cols + tile.col + col] = total;
    }
    eg_sync_threads<32 * WARPS>(EG_RELAY_SYNC + (WARPS == 8));
}

/* ---- A finisher ------------------------------------------------------------------------------------- */

/* The 16 rows in registers, one at a time: these move down, so that the loop has code for one. */
template <bool BF16, typename F>
EG_DEVICE void eg_relay_held(eg_relay_lane<BF16> &x, const F &derivative, int first, float (&held)[128]) {
    uint4 next = x.grad(first);
#pragma unroll 1
    for (int row = first; row < first + 16; row++) {
        float v[8];
#pragma unroll
        for (int i = 0; i < 8; i++) v[i] = held[i];
#pragma unroll
        for (int i = 0; i < 120; i++) held[i] = held[i + 8];
        const uint4 now[1] = {next};
        const int rows[1] = {row};
        if (row + 1 < first + 16) next = x.grad(row + 1);
        x.template finish<1>(derivative, rows, now, v);
    }
}

template <bool BF16, typename F>
EG_DEVICE void eg_relay_tile(const eg_cuda_gemm &p, const F &derivative, const eg_hopper_tile &tile,
                             const eg_relay_places &places, int finisher, uint32_t turn, float (&held)[128]) {
    const int shared = EG_RELAY_SHARED_ROWS + finisher, last = EG_RELAY_LAST_ROWS + finisher * 16;
    eg_relay_lane<BF16> x(p, tile);
    eg_relay_held(x, derivative, finisher * 16, held);
    float bias[8];
    x.bias(tile, bias);
    places.wait_full(3, turn), places.wait_full(4, turn);
    eg_relay_rows(x, derivative, bias, places.row(shared), shared, (32 - finisher + 2) / EG_RELAY_FINISHERS,
                  EG_RELAY_FINISHERS);
    places.tell(places.free(3)), places.tell(places.free(4));
    places.wait_full(5 + finisher, turn);
    eg_relay_rows(x, derivative, bias, places.row(last), last, 16, 1);
    __syncwarp(); /* the place has been read */
    if (p.sums != 0) eg_relay_sum<EG_RELAY_FINISHERS, EG_RELAY_PLACE>(p, tile, places.row(0), finisher, x.sums);
    places.tell(places.free(finisher));
}

/* The block's tiles but the last, which its consumers finish themselves. */
template <class K>
EG_DEVICE void eg_relay_finish(const eg_cuda_hopper &p, uint32_t shared, uint32_t rank, int finisher) {
    const eg_hopper_tiles<K> tiles(p);
    const eg_relay_places places = {shared};
    uint32_t turn = 0;
    for (eg_hopper_work<K> work(p, tiles.total); work.next() && !work.is_last(); turn++) {
        const eg_hopper_tile tile = tiles.at(work.tile, rank);
        float held[128], bias[8];
        eg_relay_lane<K::BF16>(p.gemm, tile).bias(tile, bias);
        places.wait_full(finisher, turn);
#pragma unroll
        for (int row = 0; row < 16; row++) eg_relay_take(places.row(finisher * 16 + row), row, held + row * 8);
        places.tell(places.free(5 + finisher));
#pragma unroll
        for (int i = 0; i < 128; i++) held[i] += bias[i % 8];
        eg_with_act_grad(p.gemm.activation, false, [&](const auto &derivative) {
            eg_relay_tile<K::BF16>(p.gemm, derivative, tile, places, finisher, turn, held);
        });
    }
}

/* ---- The consumers ------------------------------------------------------------------------------------ */

/* The last tile: nobody multiplies after it, and what was the ring has room for all of its sums. */
template <class K>
EG_DEVICE void eg_relay_last(const eg_cuda_gemm &p, const eg_hopper_tile &tile, uint32_t shared, int warp,
                             const float (&acc)[K::COLS / 2]) {
    const uint32_t mine = shared + warp * EG_RELAY_PLACE;
    eg_sync_threads<256>(EG_RELAY_SYNC + 1); /* both consumers' products are done */
    eg_relay_put(mine, acc);
    __syncwarp();
    eg_relay_lane<K::BF16> x(p, tile);
    float bias[8];
    x.bias(tile, bias);
    eg_with_act_grad(p.activation, false, [&](const auto &derivative) {
        eg_relay_rows(x, derivative, bias, mine, warp * 16, 16, 1);
    });
    __syncwarp();
    if (p.sums != 0) eg_relay_sum<8, EG_RELAY_PLACE>(p, tile, shared, warp, x.sums);
}

template <class K>
EG_DEVICE void eg_relay_multiply(const eg_cuda_hopper &p, uint32_t shared, uint32_t rank, int warp) {
    const eg_hopper_tiles<K> tiles(p);
    const eg_relay_places places = {shared};
    eg_ring_of<K> ring(shared, rank);
    uint32_t turn = 0;
    float acc[K::COLS / 2];
    for (eg_hopper_work<K> work(p, tiles.total); work.next(); turn++) {
        eg_multiply_tile<K>(acc, ring, work.last - work.first, warp / 4, [] {});
        if (work.is_last()) {
            eg_relay_last<K>(p.gemm, tiles.at(work.tile, rank), shared, warp, acc);
#pragma unroll
            for (int i = 0; i < K::COLS / 2; i++) acc[i] = 0; /* lest they be kept */
        } else {
            places.wait_free(warp, turn);
            eg_relay_put(places.row(warp * 16), acc);
            places.tell(places.full(warp));
        }
    }
}

/* ---- The kernel --------------------------------------------------------------------------------------- */

template <class K> EG_DEVICE void eg_hopper_relay(const eg_cuda_hopper &p) {
    extern __shared__ __align__(1024) uint8_t memory[];
    const uint32_t shared = eg_shared_address(memory), rank = eg_cluster_rank();
    if (threadIdx.x == 0) {
        eg_ring_barriers<typename K::shape>(shared);
        eg_relay_places{shared}.init();
        eg_barrier_init_fence();
        eg_prefetch_map(p.left);
        eg_prefetch_map(p.right);
    }
    eg_sync_cluster();
    eg_let_successor_start();
    eg_wait_for_predecessor();
    const int warp = eg_warp();
    if (warp >= 8) {
        eg_more_registers<K::MANY>();
        if (warp == 8) eg_produce<K>(p, shared, rank);
        if (blockIdx.x == 0 && warp == 9) eg_clear(p.counts, threadIdx.x % 32, 32);
        if (warp > 8) eg_relay_finish<K>(p, shared, rank, warp - 9);
    } else {
        eg_fewer_registers<K::FEW>();
        eg_relay_multiply<K>(p, shared, rank, warp);
    }
    eg_sync_cluster(); /* a block must not leave while its neighbour still writes to it */
}

/* The letter: the layout of right, B. */
#define EG_HOPPER_RELAY_KERNEL(type, bf16, letter, right_across)                                             \
    extern "C" __global__ void __cluster_dims__(EG_CUDA_CLUSTER, 1, 1)                                       \
        __launch_bounds__(EG_HOPPER_THREADS, 1)                                                              \
            eg_hopper_##type##_relay_r##letter##_128x256(const __grid_constant__ eg_cuda_hopper p) {         \
        eg_hopper_relay<eg_relay<bf16, right_across>>(p);                                                    \
    }
#define EG_HOPPER_RELAY_KERNELS(type, bf16)                                                                  \
    EG_HOPPER_RELAY_KERNEL(type, bf16, r, true)                                                              \
    EG_HOPPER_RELAY_KERNEL(type, bf16, c, false)

#endif
