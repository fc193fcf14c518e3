/* SPDX-License-Identifier: Apache-2.0 */
/* The epilogue of the 16-bit kernels on Hopper: each warp of a consumer finishes its 16 rows of a tile alone.
 *
 * wgmma leaves the accumulators in this order,
 *
 *     lane l:  rows l / 4 and l / 4 + 8     columns 8 i + 2 (l % 4) and the next
 *
 * which is also that of ldmatrix and stmatrix. So `in` and `out` are combined with them in registers. TMA
 * moves boxes of 16 rows of 128 bytes between shared and device memory, and a warp finishes a box at a time,
 * 32 numbers of each thread, or half of it. */
#ifndef EG_CUDA_HOPPER_EPILOGUE_CUH
#define EG_CUDA_HOPPER_EPILOGUE_CUH

#include "hopper_boxes.cuh"

/* v = a + v or a * v, where a are a thread's accumulators of a part, which has 32, or of a slice of one.
 * Accumulators are registers, and a register cannot be indexed at run time. So this jumps to the slice's
 * instructions. They are volatile, or the compiler makes of the jump as many selections as there are
 * accumulators. */
struct eg_plus {
    __device__ static void apply(float a, float &v) {
        asm volatile("add.ftz.f32 %0, %1, %0;" : "+f"(v) : "f"(a));
    }
};
struct eg_times {
    __device__ static void apply(float a, float &v) {
        asm volatile("mul.ftz.f32 %0, %1, %0;" : "+f"(v) : "f"(a));
    }
};
template <int V, int FIRST, int END, int PRODUCTS, int N, class F>
EG_DEVICE void eg_with_one_of(const float (&acc)[PRODUCTS][N], uint32_t slice, const F &f) {
    if constexpr (END - FIRST == 1) {
        constexpr int PART = FIRST * V / 32, FROM = PART / PRODUCTS * 32 + FIRST * V % 32;
#pragma unroll
        for (int i = 0; i < V; i++) f(acc[PART % PRODUCTS][FROM + i], i);
    } else {
        constexpr int MIDDLE = (FIRST + END) / 2;
        if (slice < MIDDLE) {
            eg_with_one_of<V, FIRST, MIDDLE>(acc, slice, f);
        } else {
            eg_with_one_of<V, MIDDLE, END>(acc, slice, f);
        }
    }
}
/* f(accumulator, i) for each i of the V accumulators of a slice. */
template <int V, int PRODUCTS, int N, class F>
EG_DEVICE void eg_with_accumulators(const float (&acc)[PRODUCTS][N], uint32_t slice, const F &f) {
    eg_with_one_of<V, 0, PRODUCTS * N / V>(acc, slice, f);
}
template <class F, int PRODUCTS, int N, int V>
EG_DEVICE void eg_take_accumulators(const float (&acc)[PRODUCTS][N], uint32_t slice, float (&v)[V]) {
    eg_with_accumulators<V>(acc, slice, [&](float a, int i) { F::apply(a, v[i]); });
}

/* The same of accumulators that the block's other consumer has lent (hopper_pingpong.cuh): those of a tile's
 * last 64 columns, in shared memory. Vectors of four lie in the order of the threads. */
template <int PRODUCTS, int N>
EG_DEVICE void eg_lend_accumulators(float4 *to, const float (&acc)[PRODUCTS][N]) {
#pragma unroll
    for (int i = 0; i < PRODUCTS * 8; i++) {
        const float *const a = acc[i / 8] + N - 32 + i % 8 * 4;
        to[i * 128 + threadIdx.x % 128] = make_float4(a[0], a[1], a[2], a[3]);
    }
}
template <class F, int PRODUCTS, int V>
EG_DEVICE void eg_take_lent_accumulators(const float4 *from, uint32_t slice, float (&v)[V]) {
    const uint32_t part = slice * V / 32, vector = slice * V % 32 / 4;
    const float4 *const of = from + (part % PRODUCTS * 8 + vector) * 128 + threadIdx.x % 128;
#pragma unroll
    for (int i = 0; i < V / 4; i++) {
        const float4 a = of[i * 128];
        F::apply(a.x, v[i * 4]), F::apply(a.y, v[i * 4 + 1]);
        F::apply(a.z, v[i * 4 + 2]), F::apply(a.w, v[i * 4 + 3]);
    }
}

/* ---- The arithmetic ------------------------------------------------------------------------------------ */

/* v = the bias of this thread's columns; `bias`: of the first of all threads'. */
template <int V> EG_DEVICE void eg_load_bias(const float *bias, float (&v)[V]) {
#pragma unroll
    for (int i = 0; i < V / 4; i++) {
        const float2 b = *(const float2 *)(bias + i * 8 + threadIdx.x % 4 * 2);
        v[i * 4] = v[i * 4 + 2] = b.x, v[i * 4 + 1] = v[i * 4 + 3] = b.y;
    }
}
template <bool BF16, int N> EG_DEVICE void eg_widen_pairs(const uint32_t (&pairs)[N], float (&v)[2 * N]) {
#pragma unroll
    for (int i = 0; i < N; i++) eg_widen_pair<BF16>(pairs[i], v[i * 2], v[i * 2 + 1]);
}
/* values[i] = gelu'(of pairs), of which none is NaN or an infinity. */
template <int N>
EG_DEVICE void eg_gelu_derivatives_of_pairs(const uint32_t (&pairs)[N], float (&values)[2 * N]) {
#pragma unroll
    for (int i = 0; i < N; i++) {
        const uint32_t pair =
            eg_pair_at_least_minus(eg_pair_at_most(pairs[i], EG_PAIR_GELU_END), EG_PAIR_GELU_END);
        eg_widen_pair<true>(pair, values[i * 2], values[i * 2 + 1]);
    }
    eg_apply_many([](auto x) { return eg_bounded_act_grad_gelu(x); }, values);
}

/* Whether one of them is NaN or an infinity, from 0 * x. */
template <bool BF16, int N> EG_DEVICE bool eg_maybe_nan_pairs(const uint32_t (&pairs)[N]) {
    uint32_t sums[4] = {};
#pragma unroll
    for (int i = 0; i < N; i++) {
        if (BF16) {
            asm("fma.rn.bf16x2 %0, %1, %2, %0;" : "+r"(sums[i % 4]) : "r"(pairs[i]), "r"(0));
        } else {
            asm("fma.rn.f16x2 %0, %1, %2, %0;" : "+r"(sums[i % 4]) : "r"(pairs[i]), "r"(0));
        }
    }
    return ((sums[0] | sums[1] | sums[2] | sums[3]) & 0x7fff7fffU) != 0; /* else zeros of either sign */
}
template <bool BF16, int V> EG_DEVICE void eg_add_pairs(const uint32_t (&pairs)[V / 2], float (&v)[V]) {
#pragma unroll
    for (int i = 0; i < V / 2; i++) {
        float low, high;
        eg_widen_pair<BF16>(pairs[i], low, high);
        v[i * 2] += low, v[i * 2 + 1] += high;
    }
}

/* The bias of a tile: a consumer loads it long before the tile's products, and puts it in shared memory under
 * them. Zeros, where there is none. */
template <class K> struct eg_bias {
    uint16_t bits[(K::COLS + 127) / 128];

    __device__ void load(const eg_cuda_gemm &p, int group, int col) {
        const uint16_t *const from =
            (const uint16_t *)p.bias.data + (K::GROUPED ? group * p.bias.item_stride : 0);
#pragma unroll
        for (int i = 0; i < (K::COLS + 127) / 128; i++) {
            const int at = col + i * 128 + threadIdx.x % 128;
            bits[i] = 0;
            if (p.bias.data != 0 && at < p.cols) bits[i] = __ldg(from + at);
        }
    }
    __device__ void put(float *shared) const {
#pragma unroll
        for (int i = 0; i < (K::COLS + 127) / 128; i++) {
            const int at = i * 128 + threadIdx.x % 128;
            if (at < K::COLS) shared[at] = K::BF16 ? eg_widen_bf16(bits[i]) : eg_widen_f16(bits[i]);
        }
    }
};

/* Sums of a thread's two rows are added to those of the parts above: two columns of each eight. */
template <int N> EG_DEVICE void eg_add_rows(const float (&v)[2 * N], bool first, float (&sums)[N]) {
#pragma unroll
    for (int i = 0; i < N; i++) {
        const float two = v[i / 2 * 4 + i % 2] + v[i / 2 * 4 + i % 2 + 2];
        sums[i] = first ? two : sums[i] + two;
    }
}
/* The sum over the warp's rows of one of 32 columns, in a fixed order: lane l has that of column
 * 8 (l / 8) + 2 (l % 4) + l / 4 % 2. Each exchange halves what a lane has to add. s: of these columns. */
EG_DEVICE float eg_sum_lanes(const float *s) {
    const int lane = threadIdx.x % 32;
    float t[8];
#pragma unroll
    for (int i = 0; i < 8; i++) t[i] = s[i];
#pragma unroll
    for (int left = 4; left >= 1; left /= 2) {
        const bool upper = lane & (left * 4);
#pragma unroll
        for (int i = 0; i < left; i++) {
            const float mine = upper ? t[i + left] : t[i], other = upper ? t[i] : t[i + left];
            t[i] = mine + __shfl_xor_sync(0xffffffffU, other, left * 4);
        }
    }
    return t[0];
}
/* Of the 16 rows only the first `rows` are the result's. The others were multiplied as zeros, which is NaN
 * where right has an infinity, and must not be summed. */
template <int V> EG_DEVICE void eg_clear_rows(int rows, float (&v)[V]) {
    const int row = threadIdx.x % 32 / 4;
#pragma unroll
    for (int i = 0; i < V; i++) {
        if (row + i % 4 / 2 * 8 >= rows) v[i] = 0;
    }
}
EG_DEVICE int eg_sum_column() {
    const int lane = threadIdx.x % 32;
    return lane / 8 * 8 + lane % 4 * 2 + lane / 4 % 2;
}
/* Where a warp's column sums of a tile go: this lane's column of the first 32, of which `cols` columns from
 * there on are the result's. */
struct eg_row_of_sums {
    float *row;
    int cols;

    __device__ void store(int at, float sum) const {
        if (at < cols) row[at] = sum;
    }
};

/* The product's scale, on accumulators that nothing else has read: without one, a tile costs a branch. The
 * bits are compared, since f64 waits for the matrix unit. */
template <class K> EG_DEVICE void eg_scale_tile(const eg_cuda_gemm &p, eg_accumulators<K> &acc) {
    const uint2 bits = *(const uint2 *)&p.scale;
    if (__builtin_expect(bits.x == 0 && bits.y == 0x3ff00000U, 1)) return; /* 1 */
    const float scale = (float)p.scale;
#pragma unroll
    for (int i = 0; i < K::PRODUCTS * K::COLS / 2; i++) acc[i / (K::COLS / 2)][i % (K::COLS / 2)] *= scale;
}

/* ---- Products without an activation --------------------------------------------------------------- */

/* A product as it is, or added to what is there. No step depends on the column at run time, so the loop is
 * unrolled and registers are named. */
template <class K>
EG_DEVICE void eg_store_rows(const eg_cuda_hopper &p, const eg_accumulators<K> &acc, eg_boxes<K> &boxes) {
    boxes.acquire_tile(false);
#pragma unroll
    for (int i = 0; i < eg_boxes<K>::PARTS; i++) {
        float v[32];
#pragma unroll
        for (int j = 0; j < 32; j++) v[j] = acc[i % K::PRODUCTS][i / K::PRODUCTS * 32 + j];
        if (boxes.reads) {
            uint32_t old[16];
            eg_load_pairs(boxes.box(i), boxes.line, old);
            eg_add_pairs<K::BF16>(old, v);
        }
        eg_store_numbers<K::BF16>(boxes.box(i), boxes.line, v);
        if (i % 2 == 0) continue;
        boxes.finish_writing();
#pragma unroll
        for (uint32_t part = i - 1; part <= i; part++) {
            if (__builtin_expect(!boxes.whole(part), 0)) {
                boxes.template store_any<uint16_t>(p, p.out, p.gemm.out, boxes.box(part), boxes.row(part),
                                                   boxes.right(part), false);
            } else if (boxes.elected()) {
                boxes.template store<uint16_t>(p.out, boxes.box(part), boxes.row(part), boxes.right(part),
                                               false);
            }
        }
        if (boxes.elected()) eg_stores_commit();
    }
}

/* Whether f32 results are read before they are added to. Else TMA adds, in L2, which takes 1.6 times as long
 * as memory does to give and take them. A block's only tile has nothing to hide that reading with. Nor is it
 * needed where products hide TMA's additions: those of a tile take some 12,000 clocks, a k-block 512. Operands
 * of groups come from memory too, and wait for what is read: so there fewer k-blocks are enough, in the mean. */
template <class K> EG_DEVICE bool eg_reads_f32(const eg_cuda_hopper &p) {
    enum { HIDE = 24 * K::DEPTH, HIDE_IN_GROUPS = 16 * K::DEPTH };
    const bool groups = p.gemm.ragged == EG_CUDA_RAGGED_DEPTH;
    const int64_t hides = groups ? HIDE_IN_GROUPS * p.gemm.items : HIDE;
    return K::READS_F32 && p.gemm.accumulate && p.gemm.out.dtype == EG_F32 && p.tma_cols > 0 &&
           p.gemm.tiles > gridDim.x && p.gemm.depth * p.gemm.summed < hides;
}

/* In f32, with 32 columns in a box: a tile has more parts than boxes. Where results are read, a box takes
 * what a later part is added to as soon as the next box has been stored. */
template <class K>
EG_DEVICE void eg_store_rows_f32(const eg_cuda_hopper &p, const eg_accumulators<K> &acc, eg_boxes<K> &boxes) {
    constexpr int ALL = 2 * eg_boxes<K>::PARTS;
    static_assert(!K::READS_F32 || ALL == 2 * K::BOXES, "each box's barrier has two phases a tile");
    const bool reads = eg_reads_f32<K>(p), adds = p.gemm.accumulate && !reads;
#pragma unroll
    for (int i = 0; i < ALL; i++) {
        const int product = i % K::PRODUCTS, from = i / K::PRODUCTS * 16, row = boxes.row(i);
        const eg_box_address box = boxes.box(i % K::BOXES);
        float v[16];
#pragma unroll
        for (int j = 0; j < 16; j++) v[j] = acc[product][from + j];
        if (reads) {
            boxes.wait_for_f32(i);
#pragma unroll
            for (int j = 0; j < 8; j++) {
                float x, y;
                eg_load_pair(box.pair(j / 2, j % 2), x, y);
                v[j * 2] += x, v[j * 2 + 1] += y;
            }
        } else {
            eg_stores_have_read<K::BOXES - 1>();
            __syncwarp();
        }
#pragma unroll
        for (int j = 0; j < 8; j++) eg_store_pair(box.pair(j / 2, j % 2), v[j * 2], v[j * 2 + 1]);
        boxes.finish_writing();
        if (__builtin_expect(!boxes.whole(i), 0)) {
            boxes.template store_any<float>(p, p.out, p.gemm.out, box, row, from * 2, adds);
        } else if (boxes.elected()) {
            boxes.template store<float>(p.out, box, row, from * 2, adds);
        }
        if (!boxes.elected()) continue;
        eg_stores_commit();
        const int later = i - 1 + K::BOXES;
        if (reads && i > 0 && later < ALL) boxes.template fetch_f32<1>(p, later);
    }
}

/* ---- Products with an activation ------------------------------------------------------------------ */

/* The epilogue of one warp, part by part: 32 numbers of each thread at once, which is work enough to hide the
 * latencies of each other, with few branches between. Where accumulators leave too few registers for that, a
 * part is finished in two slices. */
template <class K, int EPILOGUE> struct eg_epilogue {
    static constexpr bool FORWARD = EPILOGUE == EG_CUDA_FORWARD, CHAIN = EPILOGUE == EG_CUDA_CHAIN;
    static constexpr int PARTS = eg_boxes<K>::PARTS, RIGHT = K::COLS / 64 /* parts side by side */;
    static constexpr bool LENDS = K::CONSUMERS == 1; /* hopper_pingpong.cuh */
    static constexpr int V = K::NUMBERS, SLICES = 32 / V /* of a part */;

    const eg_cuda_hopper &p;
    eg_boxes<K> boxes;
    uint8_t *memory;
    const uint32_t has_sums, has_out;
    const int activation;
    float row_sums[V / 2]; /* of this thread's columns of the present slice, down to its row */
    float sums[2 * RIGHT]; /* of two columns in each 64, the last 64 first; else stored at once: */
    eg_row_of_sums own;

    __device__ eg_epilogue(const eg_cuda_hopper &hopper, uint8_t *from, uint32_t shared, int warp)
        : p(hopper), boxes(hopper, shared, warp, !FORWARD || eg_keep(hopper.gemm.in.data != 0),
                           FORWARD && eg_keep(hopper.gemm.second.data != 0)),
          memory(from), has_sums(FORWARD ? 0 : eg_keep(hopper.gemm.sums != 0)),
          has_out(eg_keep(hopper.gemm.out.data != 0)), activation((int)eg_keep(hopper.gemm.activation)) {}
    /* Of the consumer: the bias of a tile, then the column sums of two warps. */
    __device__ float *exchange() const {
        return (float *)(memory + K::EXCHANGE) + boxes.warp / 4 * (K::EXCHANGE_ROWS * K::COLS);
    }
    __device__ void sync() const { eg_sync_threads<128>(EG_HOPPER_SYNC + boxes.warp / 4); }

    /* Under the products, when every warp of the consumer has left the last tile. */
    __device__ void put(const eg_bias<K> &bias) const {
        if (!CHAIN) bias.put(exchange());
    }

    __device__ void start_tile(const eg_hopper_tile &tile, eg_parts parts) {
        boxes.start_tile(tile);
        boxes.fetch(p, parts);
    }
    template <class F>
    __device__ void take(const eg_accumulators<K> &acc, uint32_t slice, bool lent, float (&v)[V]) const {
        if (LENDS && lent) {
            eg_take_lent_accumulators<F, K::PRODUCTS>((const float4 *)memory, slice, v);
        } else {
            eg_take_accumulators<F>(acc, slice, v);
        }
    }
    /* `skips`: all up to the activation, in a rehearsal. */
    __device__ void finish(const eg_accumulators<K> &acc, uint32_t slice, bool lent, bool skips) {
        const uint32_t part = slice / SLICES, vector = slice % SLICES * (V / 4);
        const eg_box_address out = boxes.out(part);
        float v[V];
        uint32_t pairs[V / 2];
        if (!skips) {
            if (CHAIN) {
                eg_load_pairs(out, boxes.line, pairs, vector);
                const bool maybe_nan = __any_sync(0xffffffffU, eg_maybe_nan_pairs<K::BF16>(pairs));
                if (K::BF16 && activation == EG_ACT_GELU && !maybe_nan) {
                    eg_gelu_derivatives_of_pairs(pairs, v);
                } else {
                    eg_widen_pairs<K::BF16>(pairs, v);
                    eg_act_derivatives_many(activation, p.gemm.source == EG_SOURCE_Y, p.gemm.propagate != 0,
                                            maybe_nan, v);
                }
            } else {
                eg_load_bias(exchange() + boxes.right(part) + vector * 8, v);
                take<eg_plus>(acc, slice, lent, v);
                if (FORWARD && boxes.two)
                    eg_store_numbers<K::BF16>(boxes.second(part), boxes.line, v, vector);
                if (FORWARD) {
                    eg_act_many(activation, v);
                } else {
                    eg_act_derivatives_many(activation, false, p.gemm.propagate != 0, eg_maybe_nan(v), v);
                }
            }
        }
        if (CHAIN) {
            take<eg_times>(acc, slice, lent, v);
        } else if (!FORWARD) {
            eg_load_pairs(out, boxes.line, pairs, vector);
#pragma unroll
            for (int i = 0; i < V / 2; i++) {
                float low, high;
                eg_widen_pair<K::BF16>(pairs[i], low, high);
                v[i * 2] *= low, v[i * 2 + 1] *= high;
            }
        } else if (__builtin_expect(boxes.reads, 0)) { /* the residual */
            eg_load_pairs(out, boxes.line, pairs, vector);
            eg_add_pairs<K::BF16>(pairs, v);
        }
        eg_store_numbers<K::BF16>(out, boxes.line, v, vector);
        if constexpr (!FORWARD) {
            if (has_sums) add_sums(slice, v);
        }
    }

    /* Slices of both parts of the same columns follow each other where their sums are added up. */
    __device__ void finish_part(const eg_accumulators<K> &acc, uint32_t part, bool lent, bool skips) {
        if constexpr (SLICES == 1) {
            finish(acc, part, lent, skips);
        } else if constexpr (FORWARD) {
#pragma unroll 1
            for (uint32_t i = 0; i < SLICES; i++) finish(acc, part * SLICES + i, lent, skips);
        } else if (part % 2 == 1) {
#pragma unroll 1
            for (uint32_t i = 0; i < 2 * SLICES; i++)
                finish(acc, (part - 1 + i % 2) * SLICES + i / 2, lent, skips);
        }
    }

    /* ---- Stores ---- */

    __device__ void store_by_lane(uint32_t part) const {
        if (boxes.two)
            boxes.template store<uint16_t>(p.second, boxes.second(part), boxes.row(part), boxes.right(part),
                                           false);
        if (has_out)
            boxes.template store<uint16_t>(p.out, boxes.out(part), boxes.row(part), boxes.right(part), false);
    }
    __device__ void store_by_warp(uint32_t part) const {
        if (boxes.two)
            boxes.template store_any<uint16_t>(p, p.second, p.gemm.second, boxes.second(part),
                                               boxes.row(part), boxes.right(part), false);
        if (has_out)
            boxes.template store_any<uint16_t>(p, p.out, p.gemm.out, boxes.out(part), boxes.row(part),
                                               boxes.right(part), false);
    }
    /* The parts from `from` up to `part`, which have been written. */
    __device__ void store(uint32_t from, uint32_t part, bool rehearsal) const {
        boxes.finish_writing();
        bool whole = true;
        if (K::GROUPED || boxes.by_threads) {
            for (uint32_t i = from; i <= part; i++) whole = whole && boxes.whole(i);
        }
        if (__builtin_expect(!whole, 0) && !rehearsal) {
            for (uint32_t i = from; i <= part; i++) store_by_warp(i);
        }
        if (!boxes.elected() || rehearsal) return;
        if (whole) {
            if (from < part) store_by_lane(from);
            store_by_lane(part);
        }
        eg_stores_commit();
    }

    /* ---- Column sums ---- */

    __device__ void add_sums(uint32_t slice, float (&v)[V]) {
        const uint32_t part = slice / SLICES;
        const int row = boxes.row(part);
        if (__builtin_expect(row + 16 > boxes.rows(p.gemm), 0)) eg_clear_rows(boxes.rows(p.gemm) - row, v);
        eg_add_rows(v, part % K::PRODUCTS == 0, row_sums);
        if (part % K::PRODUCTS + 1 < K::PRODUCTS) return; /* there are more of these columns */
        if constexpr (SLICES == 1) {
#pragma unroll
            for (int i = 2 * RIGHT - 1; i > 1; i--) sums[i] = sums[i - 2];
            sums[0] = eg_sum_lanes(row_sums), sums[1] = eg_sum_lanes(row_sums + 8);
        } else {
            own.store(boxes.right(part) + (int)(slice % SLICES) * 32, eg_sum_lanes(row_sums));
        }
    }
    /* Of the consumer's rows of the tile, -1: they are not there. */
    __device__ int64_t row_of_sums() const {
        enum { ROWS = 64 * K::PRODUCTS };
        if (K::GROUPED) {
            const int row = boxes.first - (int)(boxes.warp % 4) * 16;
            return row < boxes.end ? row / ROWS + boxes.item : -1;
        }
        const int64_t chunk = boxes.first / ROWS;
        return chunk < p.gemm.chunks ? boxes.item * p.gemm.chunks + chunk : -1;
    }
    /* Each warp's own, of its rows of the tile: no warp waits for another. */
    __device__ eg_row_of_sums sums_of_warp(bool rehearsal) const {
        const int chunk = boxes.first / K::ROWS * 4 + (int)boxes.warp % 4, col = boxes.col + eg_sum_column();
        float *const rows = (float *)p.gemm.sums + (boxes.item * p.gemm.chunks + chunk) * p.gemm.cols;
        return {rows + col, rehearsal || chunk >= p.gemm.chunks ? 0 : (int)p.gemm.cols - col};
    }
    __device__ void store_sums_of_warp(eg_parts parts, bool rehearsal) const {
        const int from = boxes.right(parts.begin), to = boxes.right(parts.end);
        const eg_row_of_sums all = sums_of_warp(rehearsal);
#pragma unroll
        for (int i = 0; i < 2 * RIGHT; i++) {
            const int at = to - 64 + i % 2 * 32 - i / 2 * 64;
            if (to - i / 2 * 64 > from) all.store(at, sums[i]);
        }
    }
    /* The column sums of four warps become those of the consumer: of a row of `sums`, for its rows of the
     * tile, the columns of these parts. */
    __device__ void store_sums(eg_parts parts, bool rehearsal) const {
        const int64_t chunk = row_of_sums();
        const int from = boxes.right(parts.begin), to = boxes.right(parts.end);
        const bool lower = boxes.warp & 1;
        float *const two = exchange();
        float *const mine = two + boxes.warp % 4 / 2 * K::COLS + to - 64 + eg_sum_column();
        sync(); /* the bias has been read */
        if (lower) {
#pragma unroll
            for (int i = 0; i < RIGHT; i++) {
                if (to - i * 64 > from) mine[-i * 64] = sums[i * 2], mine[-i * 64 + 32] = sums[i * 2 + 1];
            }
        }
        sync();
        if (!lower) {
#pragma unroll
            for (int i = 0; i < RIGHT; i++) {
                if (to - i * 64 > from) {
                    mine[-i * 64] = sums[i * 2] + mine[-i * 64];
                    mine[-i * 64 + 32] = sums[i * 2 + 1] + mine[-i * 64 + 32];
                }
            }
        }
        sync();
        for (int col = from + threadIdx.x % 128; col < to; col += 128) {
            if (chunk >= 0 && boxes.col + col < p.gemm.cols && !rehearsal)
                eg_put_column_sum(p.gemm, chunk, boxes.col + col, two[col] + two[K::COLS + col]);
        }
    }

    /* Parts of a tile, after its products. A rehearsal finishes parts of no tile, and stores nothing. */
    __device__ void finish_tile(const eg_accumulators<K> &acc, eg_parts parts = {0, PARTS}, bool lent = false,
                                bool rehearsal = false) {
        /* Instructions that two warps need at different times are fetched at the same time. */
        const bool skips = rehearsal && boxes.warp % 4 >= 2;
        if (!CHAIN) sync(); /* the bias is there */
        boxes.acquire_tile(rehearsal);
        if constexpr (!FORWARD && SLICES > 1) own = sums_of_warp(rehearsal);
#pragma unroll 1
        for (uint32_t part = parts.begin; part < parts.end; part++) {
            if (boxes.two || (K::BOXES < PARTS && part % 2 == 0)) boxes.acquire(p, part, parts, rehearsal);
            finish_part(acc, part, lent, skips);
            if (boxes.two) {
                store(part, part, rehearsal);
            } else if (part % 2 == 1) {
                store(part - 1, part, rehearsal);
            }
        }
        if (!has_sums || SLICES > 1) return;
        if constexpr (K::SUMS_OF_WARPS) {
            store_sums_of_warp(parts, rehearsal);
        } else {
            store_sums(parts, rehearsal);
        }
    }
};

/* A product that is only stored. */
template <class K> struct eg_epilogue<K, EG_CUDA_STORE> {
    static constexpr bool LENDS = false;

    const eg_cuda_hopper &p;
    eg_boxes<K> boxes;

    __device__ eg_epilogue(const eg_cuda_hopper &hopper, uint8_t *, uint32_t shared, int warp)
        : p(hopper),
          boxes(hopper, shared, warp, hopper.gemm.accumulate && hopper.gemm.out.dtype != EG_F32, false) {}

    __device__ void put(const eg_bias<K> &) const {}
    __device__ void sync() const {}
    __device__ void start_tile(const eg_hopper_tile &tile, eg_parts parts) {
        boxes.start_tile(tile);
        fetch(parts);
    }
    /* What the parts are added to. */
    __device__ void fetch(eg_parts parts) const {
        boxes.fetch(p, parts);
        if (!eg_reads_f32<K>(p) || !boxes.elected()) return;
#pragma unroll 1
        for (int i = 0; i < K::BOXES; i++) boxes.template fetch_f32<0>(p, i);
    }
    __device__ void finish_tile(const eg_accumulators<K> &acc, eg_parts = {}, bool = false,
                                bool rehearsal = false) {
        if (rehearsal) return;
        if (p.gemm.out.dtype == EG_F32) return eg_store_rows_f32<K>(p, acc, boxes);
        eg_store_rows<K>(p, acc, boxes);
    }
};

#endif
