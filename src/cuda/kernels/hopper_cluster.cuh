/* SPDX-License-Identifier: Apache-2.0 */
/* The fused product of 16-bit matrices on Hopper, for results of so few tiles that they are made at once: a
 * block a tile, whose depth a cluster of blocks may share, each of which finishes some of the tile's columns.
 *
 * Contract: eg_cuda_hopper in ../kernels.h, with tensor maps of left and right; left is K-major; out, second
 * and in are of the operands' type, and with the bias in vectors of 16 bytes along the rows.
 *
 *     depth           part 0    part 1    part 2    part 3
 *                       |         |         |         |      accumulators, in registers
 *     tile            block 0   block 1   block 2   block 3
 *                       |         |         |         |      each sends three quarters of its columns, and
 *     a quarter each    v         v         v         v      adds up those that it has received, in order
 *
 * Such a product is short: its time is that of the first k-block, of memory, and of what comes after the last
 * product. So accumulators go from registers to the shared memory of the block that finishes them, by
 * st.async, whose bytes a barrier there counts, and lie there in the order of the threads: no address depends
 * on a row, and no two threads meet in a bank. A block finishes whole columns, so that their sums need no
 * other block. Each warp finishes 16 rows alone, sixteen columns at a time, which ldmatrix and stmatrix take
 * as the matrix unit has them; `in` and the bias are on their way during the products.
 *
 * Where the tile has 64 rows, two consumers lie side by side, so that a wide tile reads left once.
 *
 * Where all blocks load at once, L2 has to give more than it can. So a cluster may also have several tiles,
 * which share what they read: those side by side the rows of left, those one below the other the columns of
 * right. Of an operand that is shared each block loads some lines, for all of them (multicast).
 *
 *                          right
 *     left   tile 0: parts 0 1 2 3       part i of both loads its own left, and one half of right for both:
 *     left   tile 1: parts 0 1 2 3       a stage is free when both have read it */
#ifndef EG_CUDA_HOPPER_CLUSTER_CUH
#define EG_CUDA_HOPPER_CLUSTER_CUH

#include "hopper_multicast.cuh"

#include "hopper_mainloop.cuh"

#include "hopper_chunks.cuh"

#include "hopper_widths.cuh"

enum {
    EG_CLUSTER_SYNC = 1,   /* a named barrier: of all consumers */
    EG_CLUSTER_AT_ONCE = 2 /* times sixteen columns that a warp finishes at once */
};

template <bool BF16_, int ROWS_, int COLS_, int TILES_DOWN_ = 1, int TILES_BESIDE_ = 1> struct eg_cluster {
    using tile = eg_dense_tile;
    static constexpr bool BF16 = BF16_, TURNED = false;
    static constexpr int ROWS = ROWS_, COLS = COLS_, DEPTH = EG_HOPPER_DEPTH;
    static constexpr int TILES_DOWN = TILES_DOWN_, TILES_BESIDE = TILES_BESIDE_,
                         TILES = TILES_DOWN * TILES_BESIDE; /* of a cluster */
    static constexpr int CONSUMERS = EG_CLUSTER_CONSUMERS(ROWS, COLS), WARPS = 4 * CONSUMERS;
    static constexpr bool BESIDE = CONSUMERS == 2 && ROWS == 64;
    static constexpr int WIDE = EG_CLUSTER_WIDE(ROWS, COLS); /* columns of a consumer */
    static constexpr int ACCUMULATORS = WIDE / 2, CHUNKS = WIDE / 16;
    static constexpr int PRODUCER = WARPS; /* the warp that loads */
    static constexpr int STAGES = EG_CLUSTER_STAGES(ROWS, COLS), STAGE = EG_TMA_SPLIT_STAGE(ROWS, COLS);
    static constexpr int LEFT = ROWS * DEPTH * 2; /* bytes; right follows */
    static constexpr int ARRIVED = 2 * STAGES * 8, BIAS = EG_CLUSTER_BIAS, TILE_AT = EG_TMA_SPLIT_FRONT;
    static constexpr int CHUNK = 128 * 32;  /* bytes of sixteen columns of a consumer's 64 rows */
    static constexpr int LINES = CONSUMERS; /* of chunks, that lie one below the other */
    static constexpr int BOX = EG_CLUSTER_BOX, PITCH = BOX / 16;
    static constexpr int BOXES = TILE_AT + ROWS * COLS * 4, SUMS = BOXES + WARPS * 2 * BOX;
    static_assert(WIDE % 64 == 0 || !BESIDE, "a consumer begins with a box of right");
    static_assert(ARRIVED + 8 <= BIAS && BIAS + COLS * 2 <= TILE_AT, "what lies before the stages");
    static_assert(SUMS + WARPS * WIDE * 4 == EG_CLUSTER_LEAST(ROWS, COLS) &&
                      EG_CLUSTER_LEAST(ROWS, COLS) <= EG_CLUSTER_SHARED(ROWS, COLS),
                  "the parts lie where the stages were");
};

/* ---- Products ----------------------------------------------------------------------------------------- */

template <class K, bool RIGHT_MN_MAJOR, int COUNT>
EG_DEVICE void eg_cluster_multiply(float (&acc)[COUNT], uint32_t stage, int consumer, bool add) {
    constexpr uint64_t LEFT_STEP = 32 >> 4, RIGHT_STEP = (RIGHT_MN_MAJOR ? 16 * 128 : 32) >> 4;
    const uint64_t left =
                       eg_operand_at(stage + (K::BESIDE || K::TURNED ? 0 : consumer * (64 * 128)), 64 * 128),
                   right = eg_operand_at(stage + K::LEFT +
                                             (K::BESIDE   ? consumer * (K::WIDE * 128)
                                              : K::TURNED ? consumer * (64 * 128)
                                                          : 0),
                                         64 * 128);
    eg_products_begin();
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const uint64_t l = left + i * LEFT_STEP, r = right + i * RIGHT_STEP;
        if constexpr (K::TURNED) {
            eg_multiply<K::BF16, RIGHT_MN_MAJOR, false>(acc, r, l, add || i > 0);
        } else {
            eg_multiply<K::BF16, false, RIGHT_MN_MAJOR>(acc, l, r, add || i > 0);
        }
    }
    eg_products_commit();
}

/* acc = the sum over `count` k-blocks. A stage's products are issued before those of the stage before have
 * finished; only then can that one be loaded again. Of a stage that is not loaded again nobody is told: the
 * other block may have ended. */
template <class K, bool RIGHT_MN_MAJOR, int COUNT>
EG_DEVICE void eg_cluster_sum(eg_split_ring<K> ring, const eg_cluster_place<K> &place, int consumer,
                              int count, float (&acc)[COUNT]) {
    constexpr uint32_t LOADERS = eg_cluster_place<K>::LOADERS;
    const uint32_t lane = threadIdx.x % 32;
    const uint32_t loader = K::TILES > 1 && lane < LOADERS ? place.loader(lane) : 0;
    eg_split_ring<K> last = ring;
#pragma unroll 1
    for (int i = 0; i < count; i++, last = ring, ring.advance()) {
        eg_barrier_wait(ring.full(), ring.parity);
        eg_cluster_multiply<K, RIGHT_MN_MAJOR>(acc, ring.address(), consumer, i > 0);
        eg_products_wait<1>();
        if (i > 0 && lane < LOADERS && (K::TILES == 1 || i + K::STAGES <= count)) {
            if (K::TILES == 1) {
                eg_barrier_arrive(last.empty());
            } else {
                eg_barrier_arrive(last.empty(), loader);
            }
        }
    }
    eg_products_wait<0>();
}

/* Turned, by as many of the accumulators as the tile has rows for: one of a few mainloops. */
template <class K, bool RIGHT_MN_MAJOR, int WIDTH = K::ROWS>
EG_DEVICE void eg_cluster_sum_rows(const eg_split_ring<K> &ring, const eg_cluster_place<K> &place,
                                   int consumer, int count, int rows, float (&acc)[K::ACCUMULATORS]) {
    if constexpr (K::TURNED) {
        constexpr int NEXT = WIDTH - EG_TURNED_STEP;
        if constexpr (NEXT >= EG_TURNED_LEAST_WIDTH) {
            if (rows <= NEXT)
                return eg_cluster_sum_rows<K, RIGHT_MN_MAJOR, NEXT>(ring, place, consumer, count, rows, acc);
        }
        eg_cluster_sum<K, RIGHT_MN_MAJOR>(ring, place, consumer, count, (float(&)[WIDTH / 2]) acc);
    } else {
        eg_cluster_sum<K, RIGHT_MN_MAJOR>(ring, place, consumer, count, acc);
    }
}

/* Sixteens of rows that are the result's: the others are neither sent nor finished. */
EG_DEVICE int eg_cluster_lines(const eg_dense_tile &at) { return (at.rows + 15) / 16; }

template <class K> EG_DEVICE uint32_t eg_cluster_rows_sent(const eg_dense_tile &at) {
    return K::TURNED ? (at.rows + 7) / 8 * 8 : eg_cluster_lines(at) * 16;
}

/* ---- What a consumer finishes ------------------------------------------------------------------------- */

/* Columns of its tile: `width` from `first` on, in parts, whose rows are 2, 4 or 8 vectors of 16 bytes. */
template <class K> struct eg_cluster_share {
    int first, width, part, log;
    __device__ eg_cluster_share(int consumer, int rank, int shift) {
        width = K::WIDE >> shift, first = (K::BESIDE ? consumer * K::WIDE : 0) + rank * width;
        part = min(width & -width, 64), log = __ffs(part) - 4;
    }
};

/* A warp's rows of a matrix of the epilogue, as vectors: a lane has one of every fourth, eighth or sixteenth
 * row. */
struct eg_cluster_vectors {
    uint64_t at; /* of this lane's first; 0: absent */
    int64_t step;

    __device__ eg_cluster_vectors(const eg_cuda_matrix &x, int64_t item, int64_t row, int64_t col, int log)
        : at(x.data), step((x.row_stride * 2) << (5 - log)) {
        const int lane = threadIdx.x % 32;
        if (at != 0)
            at += (uint64_t)(item * x.item_stride + (row + (lane >> log)) * x.row_stride + col +
                             (lane & ((1 << log) - 1)) * 8)
                  << 1;
    }
    /* To rows further down, a multiple of 32. */
    __device__ void move(int rows, int log) {
        if (at != 0) at += step * ((rows << log) / 32);
    }
};

template <class K> struct eg_cluster_epilogue {
    using share = eg_cluster_share<K>;
    const eg_cuda_gemm &p;
    const share &mine;
    const int lane, warp, consumer, splits;
    int line; /* of chunks: the consumer's, or any if the product is turned */
    const uint32_t shared, box, second_box;
    int64_t row, col; /* of the warp's first */
    int below;        /* rows of the tile from there on */
    int rows, cols;   /* of the result, of these sixteen */
    eg_cluster_vectors in, out, second;
    uint4 ahead[4]; /* `in` of the next part */

    __device__ eg_cluster_epilogue(const eg_cuda_gemm &gemm, const eg_dense_tile &at, const share &of,
                                   uint32_t base, int warp_, int splits_)
        : p(gemm), mine(of), lane(threadIdx.x % 32), warp(warp_), consumer(warp_ / 4), splits(splits_),
          line(K::TURNED ? warp_ : consumer), shared(base), box(base + K::BOXES + warp_ * (2 * K::BOX)),
          second_box(box + K::BOX), row(at.row + (K::BESIDE ? warp_ % 4 : warp_) * 16),
          col(at.col + of.first), below(at.rows - (int)(row - at.row)), rows(min(below, 16)),
          cols((int)(gemm.cols - col < of.width ? gemm.cols - col : of.width)),
          in(gemm.in, at.item, row, col, of.log), out(gemm.out, at.item, row, col, of.log),
          second(gemm.second, at.item, row, col, of.log), ahead{} {}

    /* ---- What is read ---- */

    __device__ bool there(int i, int from) const {
        return i < mine.part / 16 && (i << (5 - mine.log)) + (lane >> mine.log) < rows &&
               from + (lane & ((1 << mine.log) - 1)) * 8 < cols;
    }
    __device__ uint32_t vector(int i) const {
        return (uint32_t)(((i << (5 - mine.log)) + (lane >> mine.log)) * K::PITCH +
                          (lane & ((1 << mine.log) - 1)) * 16);
    }
    /* `in` of the part that begins at column `from`. */
    __device__ void fetch(int from) {
        if (in.at == 0) return;
#pragma unroll
        for (int i = 0; i < 4; i++) {
            ahead[i] = make_uint4(0, 0, 0, 0);
            if (there(i, from)) ahead[i] = eg_load_global(in.at + i * in.step + from * 2);
        }
    }
    /* Before the products: the bias goes to shared memory, which is not read before all consumers have met.
     */
    __device__ void begin(const eg_dense_tile &at) {
        const int from = (int)threadIdx.x % 128 * 8;
        if (from < mine.width) {
            uint4 bias = make_uint4(0, 0, 0, 0);
            if (p.bias.data != 0 && from < cols)
                bias =
                    eg_load_global(p.bias.data + (uint64_t)(at.item * p.bias.item_stride + col + from) * 2);
            asm volatile(
                "st.shared.v4.u32 [%0], {%1, %2, %3, %4};" ::"r"(shared + K::BIAS + (mine.first + from) * 2),
                "r"(bias.x), "r"(bias.y), "r"(bias.z), "r"(bias.w)
                : "memory");
        }
        fetch(0);
    }

    /* ---- Accumulators change places ---- */

    /* `chunk`: sixteen columns of the share. */
    __device__ uint32_t place(int of, int chunk) const {
        return shared + K::TILE_AT + ((of * K::LINES + line) * (mine.width / 16) + chunk) * K::CHUNK +
               threadIdx.x % (K::CHUNK / 32) * 16;
    }
    __device__ static void keep_half(uint32_t to, const float *v) {
        asm volatile("st.shared.v4.f32 [%0], {%1, %2, %3, %4};" ::"r"(to), "f"(v[0]), "f"(v[1]), "f"(v[2]),
                     "f"(v[3])
                     : "memory");
    }
    __device__ static void send_half(uint32_t to, uint32_t barrier, const float *v) {
        asm volatile(
            "st.async.shared::cluster.mbarrier::complete_tx::bytes.v4.f32 [%0], {%1, %2, %3, %4}, [%5];" ::
                "r"(to),
            "f"(v[0]), "f"(v[1]), "f"(v[2]), "f"(v[3]), "r"(barrier)
            : "memory");
    }
    __device__ static void keep_chunk(uint32_t to, const float *v) {
        keep_half(to, v), keep_half(to + K::CHUNK / 2, v + 4);
    }
    __device__ void keep(const float (&acc)[K::ACCUMULATORS]) const {
#pragma unroll
        for (int i = 0; i < K::CHUNKS; i++) keep_chunk(place(0, i), acc + i * 8);
    }
    /* `to` and the barrier at the same addresses of another block. */
    __device__ void map_to(uint32_t block, uint32_t &to, uint32_t &barrier) const {
        asm volatile("mapa.shared::cluster.u32 %0, %0, %3;\nmapa.shared::cluster.u32 %1, %2, %3;"
                     : "+r"(to), "=r"(barrier)
                     : "r"(shared + K::ARRIVED), "r"(block));
    }
    __device__ void send(const float (&acc)[K::ACCUMULATORS], const eg_cluster_place<K> &at) const {
        const int chunks = mine.width / 16, rank = at.part;
        const uint32_t first = at.rank_of(at.below, at.beside, 0);
        int owner = 0, chunk = 0;
        uint32_t to = 0, barrier = 0;
#pragma unroll
        for (int i = 0; i < K::CHUNKS; i++) {
            if (chunk == 0) map_to(first + owner, to = place(rank, 0), barrier);
            const float *const v = acc + i * 8;
            if (owner == rank) {
                keep_chunk(place(rank, chunk), v);
            } else {
                send_half(to, barrier, v), send_half(to + K::CHUNK / 2, barrier, v + 4);
            }
            to += K::CHUNK;
            if (++chunk == chunks) chunk = 0, owner++;
        }
    }
    /* Turned: a warp has sixteen columns, which one block finishes, of all rows; eight of them at a time. */
    __device__ void hand_over(const float (&acc)[K::ACCUMULATORS], const eg_cluster_place<K> &at,
                              int eights) const {
        const int chunks = mine.width / 16, rank = at.part, owner = warp / chunks;
        uint32_t to = shared + K::TILE_AT + (rank * K::LINES * chunks + warp % chunks) * K::CHUNK + lane * 16,
                 barrier = 0;
        const uint32_t step = chunks * K::CHUNK;
        if (owner == rank) {
#pragma unroll
            for (int i = 0; i < K::ACCUMULATORS / 4; i++) {
                if (i < eights) keep_half(to + i % 2 * (K::CHUNK / 2), acc + i * 4);
                if (i % 2 == 1) to += step;
            }
            return;
        }
        map_to(at.rank_of(at.below, at.beside, owner), to, barrier);
#pragma unroll
        for (int i = 0; i < K::ACCUMULATORS / 4; i++) {
            if (i < eights) send_half(to + i % 2 * (K::CHUNK / 2), barrier, acc + i * 4);
            if (i % 2 == 1) to += step;
        }
    }
    template <int C> __device__ static void read(uint32_t from, float (&v)[C * 8]) {
#pragma unroll
        for (int i = 0; i < C * 2; i++) {
            const uint4 x = eg_load_vector(from + i * (K::CHUNK / 2));
            v[i * 4] = __uint_as_float(x.x), v[i * 4 + 1] = __uint_as_float(x.y);
            v[i * 4 + 2] = __uint_as_float(x.z), v[i * 4 + 3] = __uint_as_float(x.w);
        }
    }
    template <int C> __device__ void take(int chunk, float (&v)[C * 8]) const {
        const uint32_t step = K::LINES * (mine.width / 16) * K::CHUNK;
        uint32_t from = place(0, chunk);
        read<C>(from, v);
#pragma unroll 1
        for (int i = 1; i < splits; i++) {
            float part[C * 8];
            read<C>(from += step, part);
#pragma unroll
            for (int j = 0; j < C * 8; j++) v[j] += part[j];
        }
    }

    /* ---- Sixteen columns ---- */

    using numbers = eg_chunk<K, K::TURNED>;
    __device__ void add_bias(int chunk, float *v) const {
        numbers::add_bias(shared + K::BIAS + (mine.first + chunk * 16) * 2, v);
    }
    __device__ static void put(uint32_t to, const float *v) {
        uint32_t pairs[4];
#pragma unroll
        for (int i = 0; i < 4; i++) pairs[i] = eg_round_pair<K::BF16>(v[i * 2], v[i * 2 + 1]);
        numbers::store(to, pairs);
    }
    __device__ static void get(uint32_t from, float *v) {
        uint32_t pairs[4];
        numbers::load(from, pairs);
#pragma unroll
        for (int j = 0; j < 4; j++) eg_widen_pair<K::BF16>(pairs[j], v[j * 2], v[j * 2 + 1]);
    }
    __device__ void add_up(int chunk, float *v) const {
        const int sixteen = K::TURNED ? line : warp;
        numbers::add_up(shared + K::SUMS + (sixteen * K::WIDE + chunk * 16) * 4, rows, v);
    }

    /* ---- All of them ---- */

    __device__ void store(const eg_cluster_vectors &to, uint32_t from, int part) const {
        if (to.at == 0) return;
#pragma unroll
        for (int i = 0; i < 4; i++) {
            if (there(i, part))
                eg_store_global(to.at + i * to.step + part * 2, eg_load_vector(from + vector(i)));
        }
    }
    /* `in` of a part to the warp's box; that of the next part is on its way then. */
    __device__ void put_in(int part) {
#pragma unroll
        for (int i = 0; i < 4; i++) {
            if (i < mine.part / 16)
                asm volatile("st.shared.v4.u32 [%0], {%1, %2, %3, %4};" ::"r"(box + vector(i)),
                             "r"(ahead[i].x), "r"(ahead[i].y), "r"(ahead[i].z), "r"(ahead[i].w)
                             : "memory");
        }
        if (part + mine.part < mine.width) fetch(part + mine.part);
        __syncwarp();
    }
    /* C times sixteen columns at once. What is seldom asked for is left to any_terms(). */
    template <int EPILOGUE, int C> __device__ void terms(int chunk, uint32_t to, bool two) const {
        constexpr bool GRADIENT = EPILOGUE != EG_CUDA_FORWARD;
        float v[C * 8], other[C * 8]; /* what the activation or its derivative is taken at, and its factor */
        const auto get_in = [&](float(&x)[C * 8]) {
#pragma unroll
            for (int i = 0; i < C; i++) get(to + i * 32, x + i * 8);
        };
        const auto put_all = [&](uint32_t at) {
#pragma unroll
            for (int i = 0; i < C; i++) put(at + i * 32, v + i * 8);
        };
        if (EPILOGUE == EG_CUDA_CHAIN) {
            get_in(v);
            take<C>(chunk, other);
        } else {
            if (GRADIENT) get_in(other);
            take<C>(chunk, v);
#pragma unroll
            for (int i = 0; i < C; i++) add_bias(chunk + i, v + i * 8);
            if (two) put_all(to + K::BOX);
        }
        if (GRADIENT) {
            eg_act_derivatives_many(p.activation, p.source == EG_SOURCE_Y, p.propagate != 0, eg_maybe_nan(v),
                                    v);
#pragma unroll
            for (int i = 0; i < C * 8; i++) v[i] *= other[i];
        } else if (__builtin_expect(p.activation == EG_ACT_GELU, 1)) {
            eg_apply_many([](auto x) { return eg_act_gelu(x); }, v); /* it lies here, and needs no jump */
        } else {
            eg_act_many(p.activation, v);
        }
        put_all(to);
        if (GRADIENT && p.sums != 0) {
#pragma unroll
            for (int i = 0; i < C; i++) add_up(chunk + i, v + i * 8);
        }
    }
    __device__ void any_terms(int chunk, uint32_t to, bool scaled) const {
        float v[8], in_[8] = {};
        take<1>(chunk, v);
        if (scaled) {
#pragma unroll
            for (int j = 0; j < 8; j++) v[j] *= (float)p.scale;
        }
        add_bias(chunk, v);
        if (in.at != 0) get(to, in_);
        if (second.at != 0) put(to + K::BOX, v);
        eg_split_terms(p, in_, v);
        put(to, v);
        if (p.sums != 0) add_up(chunk, v);
    }
    template <class F> __device__ void each_part(int step, const F &f) {
        const uint32_t first = box + numbers::line();
        const bool reads = in.at != 0, two = second.at != 0;
#pragma unroll 1
        for (int part = 0; part < mine.width; part += mine.part) {
            if (reads) put_in(part);
#pragma unroll 1
            for (int i = 0; i < mine.part / 16; i += step) f(part / 16 + i, first + i * 32);
            __syncwarp();
            if (two) store(second, second_box, part);
            store(out, box, part);
            __syncwarp();
        }
    }
    /* A turned product's warps finish every sixteen rows in turn. */
    template <class F> __device__ void each_line(int step, const F &f) {
        each_part(step, f);
        if constexpr (K::TURNED) {
#pragma unroll 1
            while ((below -= 16 * K::WARPS) > 0) {
                line += K::WARPS, rows = min(below, 16);
                in.move(16 * K::WARPS, mine.log), out.move(16 * K::WARPS, mine.log);
                second.move(16 * K::WARPS, mine.log);
                fetch(0);
                each_part(step, f);
            }
        }
    }
    template <int EPILOGUE> __device__ void finish_as() {
        const bool two = second.at != 0;
        each_line(EG_CLUSTER_AT_ONCE,
                  [&](int chunk, uint32_t to) { terms<EPILOGUE, EG_CLUSTER_AT_ONCE>(chunk, to, two); });
    }
    __device__ void finish() {
        const uint2 bits = *(const uint2 *)&p.scale; /* a comparison of f64 waits for the matrix unit */
        const bool scaled = bits.x != 0 || bits.y != 0x3ff00000U;
        if (!scaled && mine.part >= 16 * EG_CLUSTER_AT_ONCE) {
            if (p.epilogue == EG_CUDA_FORWARD && in.at == 0) return finish_as<EG_CUDA_FORWARD>();
            if (p.epilogue == EG_CUDA_CHAIN) return finish_as<EG_CUDA_CHAIN>();
            if (p.epilogue == EG_CUDA_ACT_GRAD) return finish_as<EG_CUDA_ACT_GRAD>();
        }
        each_line(1, [&](int chunk, uint32_t to) { any_terms(chunk, to, scaled); });
    }
    /* Of all rows of the tile, when all consumers have met. */
    __device__ void sum_columns(const eg_dense_tile &at) const {
        constexpr int THREADS = K::BESIDE ? 128 : 32 * K::WARPS;
        const uint32_t first = shared + K::SUMS + (K::BESIDE ? consumer * 4 * K::WIDE * 4 : 0);
        for (int i = (int)threadIdx.x % THREADS; i < cols; i += THREADS) {
            float total = 0;
#pragma unroll 4
            for (int j = 0; j < eg_cluster_lines(at); j++)
                total += __uint_as_float(eg_load_number(first + (j * K::WIDE + i) * 4));
            eg_put_column_sum(p, at.row / eg_cluster_rows<K>(p) + at.item * p.chunks, col + i, total);
        }
    }
};

/* ---- The kernel --------------------------------------------------------------------------------------- */

template <class K> EG_DEVICE void eg_cluster_run(const eg_cuda_hopper &p) {
    extern __shared__ __align__(1024) uint8_t memory[];
    const eg_cluster_place<K> place(p.gemm.splits);
    const int splits = place.splits, shift = place.shift, part = place.part, warp = eg_warp();
    const eg_split_ring<K> ring(eg_shared_address(memory));
    const bool right = p.gemm.right.col_stride == 1;
    eg_let_successor_start();
    if (threadIdx.x == K::PRODUCER * 32) {
        eg_prefetch_tensor_map(p.left);
        eg_prefetch_tensor_map(p.right);
        eg_split_barriers<K>(ring.shared, eg_cluster_place<K>::LOADERS);
    }
    __syncthreads();
    if (K::TILES > 1) eg_sync_cluster(); /* others load to here, and arrive at the barriers */
    const eg_dense_tile at = eg_cluster_tile<K>(p.gemm, place);
    const int64_t all = (at.depth + K::DEPTH - 1) / K::DEPTH * p.gemm.summed;
    const int first = (int)(all * part >> shift), count = (int)(all * (part + 1) >> shift) - first;
    eg_wait_for_predecessor();
    if (warp == K::PRODUCER) {
        if (threadIdx.x % 32 == 0) {
            if (splits > 1)
                eg_barrier_expect(ring.shared + K::ARRIVED,
                                  eg_cluster_rows_sent<K>(at) * (K::COLS * 4) / splits * (splits - 1));
            if (right) {
                eg_cluster_load<K, true>(p, ring, place, at, first, count);
            } else {
                eg_cluster_load<K, false>(p, ring, place, at, first, count);
            }
        }
        __syncwarp();
        if (splits > 1) eg_cluster_arrive(), eg_cluster_wait();
        return;
    }
    const int consumer = warp / 4;
    const eg_cluster_share<K> share(consumer, part, shift);
    eg_cluster_epilogue<K> epilogue(p.gemm, at, share, ring.shared, warp, splits);
    epilogue.begin(at);
    float acc[K::ACCUMULATORS] = {};
    if (K::WARPS > 4 * K::CONSUMERS && consumer >= K::CONSUMERS) {
        /* multiplies nothing, but finishes */
    } else if (right) {
        eg_cluster_sum_rows<K, true>(ring, place, consumer, count, at.rows, acc);
    } else {
        eg_cluster_sum_rows<K, false>(ring, place, consumer, count, at.rows, acc);
    }
    eg_sync_threads<32 * K::WARPS>(EG_CLUSTER_SYNC);        /* all products have read their stages */
    if (splits > 1) eg_cluster_arrive(), eg_cluster_wait(); /* in all blocks */
    if constexpr (K::TURNED) {
        if (at.rows > 0 && consumer < K::CONSUMERS) epilogue.hand_over(acc, place, (at.rows + 7) / 8);
        eg_sync_threads<32 * K::WARPS>(EG_CLUSTER_SYNC); /* any warp may finish what another kept */
        if (splits > 1) eg_barrier_wait(ring.shared + K::ARRIVED, 0);
        if (epilogue.rows > 0) epilogue.finish();
    } else if (epilogue.rows > 0) {
        if (splits > 1) {
            epilogue.send(acc, place);
            eg_barrier_wait(ring.shared + K::ARRIVED, 0);
        } else {
            epilogue.keep(acc);
        }
        epilogue.finish();
    } else if (splits > 1) {
        eg_barrier_wait(ring.shared + K::ARRIVED, 0);
    }
    if (p.gemm.sums == 0 || at.rows == 0) return;
    eg_sync_threads<32 * K::WARPS>(EG_CLUSTER_SYNC);
    epilogue.sum_columns(at);
}

#define EG_CLUSTER_MULTICAST_KERNEL(type, bf16, down, across, rows, cols)                                    \
    extern "C" __global__ void __launch_bounds__(EG_CLUSTER_THREADS(rows, cols),                             \
                                                 EG_CLUSTER_BLOCKS(rows, cols))                              \
        eg_hopper_##type##_cluster_##down##x##across##_##rows##x##cols(                                      \
            const __grid_constant__ eg_cuda_hopper p) {                                                      \
        eg_cluster_run<eg_cluster<bf16, rows, cols, down, across>>(p);                                       \
    }
#define EG_CLUSTER_KERNEL(type, bf16, rows, cols)                                                            \
    extern "C" __global__ void __launch_bounds__(EG_CLUSTER_THREADS(rows, cols),                             \
                                                 EG_CLUSTER_BLOCKS(rows, cols))                              \
        eg_hopper_##type##_cluster_##rows##x##cols(const __grid_constant__ eg_cuda_hopper p) {               \
        eg_cluster_run<eg_cluster<bf16, rows, cols>>(p);                                                     \
    }
#define EG_CLUSTER_NARROW_KERNELS(type, bf16)                                                                \
    EG_CLUSTER_KERNEL(type, bf16, 64, 64)                                                                    \
    EG_CLUSTER_KERNEL(type, bf16, 64, 128)                                                                   \
    EG_CLUSTER_KERNEL(type, bf16, 64, 256)
#define EG_CLUSTER_WIDE_KERNELS(type, bf16)                                                                  \
    EG_CLUSTER_KERNEL(type, bf16, 128, 64)                                                                   \
    EG_CLUSTER_KERNEL(type, bf16, 128, 128)                                                                  \
    EG_CLUSTER_KERNEL(type, bf16, 128, 192)                                                                  \
    EG_CLUSTER_KERNEL(type, bf16, 128, 256)                                                                  \
    EG_CLUSTER_KERNEL(type, bf16, 192, 128)
#define EG_CLUSTER_MULTICAST_KERNELS(type, bf16)                                                             \
    EG_CLUSTER_MULTICAST_KERNEL(type, bf16, 1, 4, 128, 64)                                                   \
    EG_CLUSTER_MULTICAST_KERNEL(type, bf16, 2, 2, 128, 128)                                                  \
    EG_CLUSTER_MULTICAST_KERNEL(type, bf16, 2, 1, 128, 192)

#endif
