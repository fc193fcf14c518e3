/* SPDX-License-Identifier: Apache-2.0 */
/* The products of a gated unit with their epilogues (../pair.h), with a tile for each consumer:
 *
 *   forward   a tile is 64 columns of the gate and the same 64 of the other half, side by side, so that one
 *             thread has both numbers of a result. Of the right operand each block of a cluster loads those
 *             of one of them, for both blocks.
 *   chain     a tile is 128 columns of what d_y is: both gradients are made of it where both saved matrices
 *             have been read. There are boxes for two parts of them; those of the others come when the
 *             results of the part before have been stored.
 *
 * No product waits in device memory for its epilogue. */
#ifndef EG_CUDA_HOPPER_GATED_CUH
#define EG_CUDA_HOPPER_GATED_CUH

#include "hopper_pair.cuh"

/* ---- act and act' of the same numbers ----------------------------------------------------------------- */

/* The formulas once more, with arguments that are bounded in the same way, so that both take the same
 * exponential. */
#undef EG_FN
#define EG_FN(name, x)                                                                                       \
    template <int N> EG_DEVICE eg_many<N> eg_both_##name([[maybe_unused]] const eg_many<N> &x) {
#undef EG_BOUNDED
#define EG_BOUNDED(x, end) EG_CLAMP(x, end)
#include "epigrad/activation.h"

/* act[i], derivative[i] = act(act[i]), act'(act[i]). maybe_nan: as of eg_act_derivatives_many. */
template <int N>
EG_DEVICE void eg_act_both_many(int activation, bool propagate, bool maybe_nan, float (&act)[N],
                                float (&derivative)[N]) {
    uint32_t nan = 0;
    if (__builtin_expect(maybe_nan && activation != EG_ACT_NONE, 0)) {
#pragma unroll
        for (int i = 0; i < N; i++) nan |= (uint32_t)eg_is_nan(act[i]) << i;
    }
    const auto apply = [&](const auto &f, const auto &g) {
#pragma unroll
        for (int i = 0; i < N; i += EG_AT_ONCE) {
            eg_many<EG_AT_ONCE> x;
#pragma unroll
            for (int j = 0; j < EG_AT_ONCE; j++) x.x[j] = act[i + j];
            const eg_many<EG_AT_ONCE> y = f(x), dy = g(x);
#pragma unroll
            for (int j = 0; j < EG_AT_ONCE; j++) act[i + j] = y.x[j], derivative[i + j] = dy.x[j];
        }
    };
    if (activation == EG_ACT_SILU) { /* without the jump */
        apply([](auto x) { return eg_both_act_silu(x); }, [](auto x) { return eg_both_act_grad_silu(x); });
    } else {
        switch (activation) {
#define EG_ROW(NAME, name, value, from_y, text)                                                              \
    case value:                                                                                              \
        apply([](auto x) { return eg_both_act_##name(x); },                                                  \
              [](auto x) { return eg_both_act_grad_##name(x); });                                            \
        break;
            EG_ACTIVATION_TABLE(EG_ROW)
#undef EG_ROW
        }
    }
    if (__builtin_expect(nan != 0, 0)) {
        const float poison = propagate ? __int_as_float(0x7fffffff) : 0;
#pragma unroll
        for (int i = 0; i < N; i++) derivative[i] = nan >> i & 1 ? poison : derivative[i];
    }
}

/* The same for SILU of pairs, of which none is NaN or an infinity. Without an upper bound: e is 0 there. */
template <int N>
EG_DEVICE void eg_silu_both_of_pairs(const uint32_t (&pairs)[N / 2], float (&act)[N],
                                     float (&derivative)[N]) {
#pragma unroll
    for (int i = 0; i < N / 2; i++)
        eg_widen_pair<true>(eg_pair_at_least_minus(pairs[i], EG_PAIR_SILU_END), act[i * 2], act[i * 2 + 1]);
#pragma unroll
    for (int i = 0; i < N; i += EG_AT_ONCE) {
        eg_many<EG_AT_ONCE> x;
#pragma unroll
        for (int j = 0; j < EG_AT_ONCE; j++) x.x[j] = act[i + j];
        const eg_many<EG_AT_ONCE> y = eg_bounded_act_silu(x), dy = eg_bounded_act_grad_silu(x);
#pragma unroll
        for (int j = 0; j < EG_AT_ONCE; j++) act[i + j] = y.x[j], derivative[i + j] = dy.x[j];
    }
}

/* ---- Forward ------------------------------------------------------------------------------------------ */

/* The bias of 64 columns of the gate, then of the other half. */
template <class K> struct eg_gated_bias {
    uint16_t bits;

    __device__ void load(const eg_cuda_hopper_pair &both, const eg_hopper_tile &tile) {
        const uint32_t thread = threadIdx.x % 128;
        const eg_cuda_gemm &p = thread < 64 ? both.gate.gemm : both.up.gemm;
        const int at = tile.col / 2 + (int)(thread % 64);
        bits = 0;
        if (p.bias.data != 0 && at < both.up.gemm.cols) bits = __ldg((const uint16_t *)p.bias.data + at);
    }
    __device__ void put(float *shared) const {
        shared[threadIdx.x % 128] = K::BF16 ? eg_widen_bf16(bits) : eg_widen_f16(bits);
    }
};

template <class K> struct eg_gated_forward {
    static constexpr uint32_t PARTS = K::PRODUCTS, /* 16 rows of a warp and all columns */
        KEPT = 1;                                  /* the lower 64 rows are lent */
    static constexpr bool LENDS = true;
    using bias = eg_gated_bias<K>;
    static_assert(K::COLS == 128 && K::PRODUCTS == 2 && K::BOXES == 4, "64 columns of each; the boxes below");

    const eg_cuda_hopper_pair &both;
    eg_boxes<K> boxes;
    uint8_t *memory;
    const bool saves; /* both pre */
    const int activation;

    __device__ eg_gated_forward(const eg_cuda_hopper_pair &pair, uint8_t *from, uint32_t shared, int warp)
        : both(pair), boxes(pair.gate, shared, warp, false, false), memory(from),
          saves(eg_keep(pair.gate.gemm.second.data != 0)),
          activation((int)eg_keep(pair.gate.gemm.activation)) {}
    __device__ float *exchange() const {
        return (float *)(memory + K::EXCHANGE) + boxes.warp / 4 * (2 * K::COLS);
    }
    __device__ void sync() const { eg_sync_threads<128>(EG_HOPPER_SYNC + boxes.warp / 4); }
    __device__ void put(const bias &x) const { x.put(exchange()); }
    __device__ void prefetch() const {
        if (boxes.warp > 0 || !boxes.elected()) return;
        eg_prefetch_tensor_map(both.up.out);
        if (!saves) return;
        eg_prefetch_tensor_map(both.gate.second);
        eg_prefetch_tensor_map(both.up.second);
    }
    __device__ void start_tile(eg_hopper_tile tile, eg_parts) {
        tile.col /= 2;
        boxes.start_tile(tile);
    }

    /* The accumulators of the lower 64 rows: a quarter of them is the gate's of one part. */
    __device__ static void lend(uint8_t *memory, const eg_accumulators<K> &acc) {
        float4 *const to = (float4 *)memory + threadIdx.x % 128;
#pragma unroll
        for (int i = 0; i < 16; i++)
            to[i * 128] = make_float4(acc[1][i * 4], acc[1][i * 4 + 1], acc[1][i * 4 + 2], acc[1][i * 4 + 3]);
    }
    /* v += those of a part, of the gate or of the other half. */
    __device__ void add(const eg_accumulators<K> &acc, uint32_t part, uint32_t half, bool lent,
                        float (&v)[32]) const {
        if (lent) { /* laid out as the products of a part are by eg_lend_accumulators */
            eg_take_lent_accumulators<eg_plus, 2>((const float4 *)memory, half, v);
        } else {
            eg_take_accumulators<eg_plus>(acc, part + half * K::PRODUCTS, v);
        }
    }
    /* Of the four boxes a part takes three, if both pre are saved: those of the part before but one. */
    __device__ eg_box_address box(uint32_t number, uint32_t which) const {
        return boxes.box(saves ? (number * 3 + which) % 4 : number);
    }
    /* number: of the part among those that this consumer finishes. skips: up to the activation. */
    __device__ void finish(const eg_accumulators<K> &acc, uint32_t part, uint32_t number, bool lent,
                           bool skips) {
        float v[32], u[32];
        if (!skips) {
            eg_load_bias(exchange(), v);
            add(acc, part, 0, lent, v);
            if (saves) eg_store_numbers<K::BF16>(box(number, 0), boxes.line, v);
            if (activation == EG_ACT_SILU) { /* without the jump */
                eg_apply_many([](auto x) { return eg_act_silu(x); }, v);
            } else {
                eg_act_many(activation, v);
            }
        }
        eg_load_bias(exchange() + 64, u);
        add(acc, part, 1, lent, u);
        if (saves) {
            if (number > 0) eg_stores_have_read<0>(), __syncwarp();
            eg_store_numbers<K::BF16>(box(number, 1), boxes.line, u);
        }
#pragma unroll
        for (int i = 0; i < 32; i++) v[i] *= u[i];
        eg_store_numbers<K::BF16>(box(number, 2 * saves), boxes.line, v);
    }
    __device__ void store(uint32_t part, uint32_t number, bool rehearsal) const {
        boxes.finish_writing();
        if (!boxes.elected() || rehearsal) return;
        const int row = boxes.row(part);
        if (saves) {
            boxes.template store<uint16_t>(both.gate.second, box(number, 0), row, 0, false);
            boxes.template store<uint16_t>(both.up.second, box(number, 1), row, 0, false);
        }
        boxes.template store<uint16_t>(both.up.out, box(number, 2 * saves), row, 0, false);
        eg_stores_commit();
    }
    __device__ void finish_tile(const eg_accumulators<K> &acc, eg_parts parts, bool lent, bool rehearsal) {
        /* Instructions that two warps need at different times are fetched at the same time. */
        const bool skips = rehearsal && boxes.warp % 4 >= 2;
        sync(); /* the bias is there */
        boxes.acquire_tile(rehearsal);
#pragma unroll 1
        for (uint32_t part = parts.begin; part < parts.end; part++) {
            finish(acc, part, part - parts.begin, lent, skips);
            store(part, part - parts.begin, rehearsal);
        }
    }
};

/* ---- Chain -------------------------------------------------------------------------------------------- */

template <bool BF16>
EG_DEVICE void eg_load_half(eg_box_address box, uint32_t line, uint32_t half, uint32_t (&pairs)[8]) {
#pragma unroll
    for (int i = 0; i < 2; i++)
        eg_load_blocks(box.blocks(line, (int)half * 4 + i * 2), (uint32_t(&)[4])pairs[i * 4]);
}
template <bool BF16>
EG_DEVICE void eg_store_half(eg_box_address box, uint32_t line, uint32_t half, const float (&v)[16]) {
#pragma unroll
    for (int i = 0; i < 2; i++) {
        uint32_t r[4];
#pragma unroll
        for (int j = 0; j < 4; j++) r[j] = eg_round_pair<BF16>(v[i * 8 + j * 2], v[i * 8 + j * 2 + 1]);
        eg_store_blocks(box.blocks(line, (int)half * 4 + i * 2), r);
    }
}
template <bool BF16> EG_DEVICE bool eg_half_maybe_nan(const uint32_t (&pairs)[8]) {
    uint32_t sums[2] = {};
#pragma unroll
    for (int i = 0; i < 8; i++) {
        if (BF16) {
            asm("fma.rn.bf16x2 %0, %1, %2, %0;" : "+r"(sums[i % 2]) : "r"(pairs[i]), "r"(0));
        } else {
            asm("fma.rn.f16x2 %0, %1, %2, %0;" : "+r"(sums[i % 2]) : "r"(pairs[i]), "r"(0));
        }
    }
    return ((sums[0] | sums[1]) & 0x7fff7fffU) != 0;
}

/* a, b *= the accumulators of half a part. */
template <int PRODUCTS, int N>
EG_DEVICE void eg_times_accumulators(const float (&acc)[PRODUCTS][N], uint32_t part, uint32_t half,
                                     float (&a)[16], float (&b)[16]) {
    eg_with_accumulators<16>(acc, 2 * part + half, [&](float x, int i) {
        eg_times::apply(x, a[i]);
        eg_times::apply(x, b[i]);
    });
}
template <int PRODUCTS>
EG_DEVICE void eg_times_lent_accumulators(const float4 *from, uint32_t part, uint32_t half, float (&a)[16],
                                          float (&b)[16]) {
    const float4 *const of = from + (part % PRODUCTS * 8 + half * 4) * 128 + threadIdx.x % 128;
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const float4 x = of[i * 128];
        eg_times::apply(x.x, a[i * 4]), eg_times::apply(x.y, a[i * 4 + 1]);
        eg_times::apply(x.z, a[i * 4 + 2]), eg_times::apply(x.w, a[i * 4 + 3]);
        eg_times::apply(x.x, b[i * 4]), eg_times::apply(x.y, b[i * 4 + 1]);
        eg_times::apply(x.z, b[i * 4 + 2]), eg_times::apply(x.w, b[i * 4 + 3]);
    }
}

/* Half of the numbers of this lane for half of those of lane ^ LANES: the sums of both, N / 2 in each. */
template <int LANES, int N> EG_DEVICE void eg_halve_sums(const float (&t)[N], float (&s)[N / 2]) {
    const bool upper = threadIdx.x & LANES;
#pragma unroll
    for (int i = 0; i < N / 2; i++) {
        const float mine = upper ? t[i + N / 2] : t[i], other = upper ? t[i] : t[i + N / 2];
        s[i] = mine + __shfl_xor_sync(0xffffffffU, other, LANES);
    }
}

/* Column sums of a warp's rows of a tile, 32 columns after 32 columns: lanes have them as eg_sum_lanes leaves
 * them. Registers cannot be indexed at run time, so they move along. */
template <int COLS> struct eg_warp_sums {
    float rows[8]; /* of a part's columns, down to its rows, four of each half; the last half is last */
    float sums[COLS / 32]; /* of a column in each 32, the last first */

    __device__ void add(const float (&v)[16], bool first, bool last) {
        float two[8], four[4];
#pragma unroll
        for (int i = 0; i < 8; i++) two[i] = v[i / 2 * 4 + i % 2] + v[i / 2 * 4 + i % 2 + 2];
        eg_halve_sums<16>(two, four);
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const float above = rows[i];
            rows[i] = rows[i + 4];
            rows[i + 4] = first ? four[i] : above + four[i];
        }
        if (!last) return;
        float half[2], one[1];
#pragma unroll
        for (int i = 0; i < 4; i++) four[i] = rows[i + 4];
        eg_halve_sums<8>(four, half);
        eg_halve_sums<4>(half, one);
#pragma unroll
        for (int i = COLS / 32 - 1; i > 0; i--) sums[i] = sums[i - 1];
        sums[0] = one[0];
    }
};

/* Boxes are those of a consumer, 64 rows of 128 bytes: TMA takes its time for each, and the ring's loads wait
 * for it. One thread issues all copies. There are two pairs of boxes, for every second part one. */
template <class K> struct eg_gated_chain {
    static constexpr uint32_t PARTS = eg_boxes<K>::PARTS, KEPT = PARTS - 2, IN_BOXES = 2;
    static constexpr bool LENDS = true;
    static constexpr uint32_t BOX_BYTES = 4 * K::BOX_BYTES; /* of four warps */
    struct bias {
        __device__ void load(const eg_cuda_hopper_pair &, const eg_hopper_tile &) {}
    };
    static_assert(K::PRODUCTS == 2 && K::BOXES == 2 * IN_BOXES, "the boxes of two parts");

    const eg_cuda_hopper_pair &both;
    const uint32_t consumer, warp; /* warp: of the consumer's */
    const uint32_t boxes, barriers, line;
    uint8_t *const memory;
    const bool has_sums, propagates;
    const int activation;
    uint32_t phases[2] = {};          /* the parities in which boxes arrive */
    int first = 0, col = 0, item = 0; /* of the tile: its first row */
    eg_parts mine = {0, PARTS};       /* of the tile */
    eg_warp_sums<K::COLS> of_gate, of_up;

    __device__ eg_gated_chain(const eg_cuda_hopper_pair &pair, uint8_t *from, uint32_t shared, int of)
        : both(pair), consumer(of / 4), warp(of % 4), boxes(shared + K::STAGING + of / 4 * (4 * BOX_BYTES)),
          barriers(shared + K::IN_FULL + of / 4 * 16), line(eg_keep(eg_box_address::line())), memory(from),
          has_sums(eg_keep((pair.gate.gemm.sums | pair.up.gemm.sums) != 0)),
          propagates(eg_keep(pair.gate.gemm.propagate != 0)),
          activation((int)eg_keep(pair.gate.gemm.activation)) {}
    __device__ void sync() const { eg_sync_threads<128>(EG_HOPPER_SYNC + consumer); }
    __device__ bool elected() const { return warp == 0 && eg_elect(); }
    __device__ void prefetch() const {
        if (consumer > 0 || !elected()) return;
        eg_prefetch_tensor_map(both.gate.in);
        eg_prefetch_tensor_map(both.up.in);
        eg_prefetch_tensor_map(both.gate.out);
        eg_prefetch_tensor_map(both.up.out);
    }
    __device__ static void lend(uint8_t *memory, const eg_accumulators<K> &acc) {
        eg_lend_accumulators((float4 *)memory, acc);
    }

    /* ---- Boxes: of the gate, then of the other half ---- */

    __device__ static int right(uint32_t part) { return (int)(part / K::PRODUCTS * 64); }
    __device__ int row(uint32_t part) const { return first + (int)(part % K::PRODUCTS * 64); }
    __device__ uint32_t gate_box(uint32_t part) const { return boxes + part % IN_BOXES * (2 * BOX_BYTES); }
    __device__ uint32_t up_box(uint32_t part) const { return gate_box(part) + BOX_BYTES; }
    __device__ eg_box_address of_warp(uint32_t box) const { return {box + warp * K::BOX_BYTES}; }
    /* Into boxes whose last results TMA has read. By the elected thread. Two barriers take turns: all warps
     * have waited at one of them, and met since, when it is used again. */
    __device__ void load(uint32_t part, uint32_t count, uint32_t barrier) const {
        const int item_gate = both.gate.gemm.in.item_stride == 0 ? 0 : item,
                  item_up = both.up.gemm.in.item_stride == 0 ? 0 : item;
        eg_stores_have_read<0>();
        eg_barrier_expect(barrier, count * 2 * BOX_BYTES);
#pragma unroll 1
        for (uint32_t i = part; i < part + count; i++) {
            eg_load_box(gate_box(i), both.gate.in, barrier, col + right(i), row(i), item_gate);
            eg_load_box(up_box(i), both.up.in, barrier, col + right(i), row(i), item_up);
        }
    }
    __device__ void start_tile(const eg_hopper_tile &tile, eg_parts parts) {
        first = tile.row, col = tile.col, item = tile.item, mine = parts;
    }
    /* Under the products, so that those of the other consumer do not wait for boxes. */
    __device__ void put(const bias &) const {
        if (elected()) load(mine.begin, IN_BOXES, barriers);
    }
    __device__ void wait_for_in(uint32_t &phase, uint32_t barrier) {
        eg_barrier_wait(barrier, phase);
        phase ^= 1;
    }
    __device__ void store(uint32_t part, bool rehearsal) const {
        eg_fence_async();
        sync();
        if (!elected() || rehearsal) return;
        eg_store_box(both.gate.out, gate_box(part), col + right(part), row(part), item);
        eg_store_box(both.up.out, up_box(part), col + right(part), row(part), item);
        eg_stores_commit();
    }

    /* ---- Arithmetic ---- */

    /* 32 columns of a part. Sums are of the unrounded numbers. */
    __device__ void finish(const eg_accumulators<K> &acc, uint32_t part, uint32_t half, bool lent) {
        const eg_box_address gate = of_warp(gate_box(part)), up = of_warp(up_box(part));
        uint32_t pairs[8];
        float d_up[16], d_gate[16];
        eg_load_half<K::BF16>(gate, line, half, pairs);
        const bool maybe_nan = __any_sync(0xffffffffU, eg_half_maybe_nan<K::BF16>(pairs));
        if (K::BF16 && activation == EG_ACT_SILU && !maybe_nan) {
            eg_silu_both_of_pairs(pairs, d_up, d_gate);
        } else {
#pragma unroll
            for (int i = 0; i < 8; i++) eg_widen_pair<K::BF16>(pairs[i], d_up[i * 2], d_up[i * 2 + 1]);
            eg_act_both_many(activation, propagates, maybe_nan, d_up, d_gate);
        }
        eg_load_half<K::BF16>(up, line, half, pairs);
#pragma unroll
        for (int i = 0; i < 8; i++) {
            float low, high;
            eg_widen_pair<K::BF16>(pairs[i], low, high);
            d_gate[i * 2] *= low, d_gate[i * 2 + 1] *= high;
        }
        if (lent) {
            eg_times_lent_accumulators<K::PRODUCTS>((const float4 *)memory, part, half, d_up, d_gate);
        } else {
            eg_times_accumulators(acc, part, half, d_up, d_gate);
        }
        eg_store_half<K::BF16>(gate, line, half, d_gate);
        eg_store_half<K::BF16>(up, line, half, d_up);
        if (!has_sums) return;
        const int rows = (int)both.gate.gemm.rows - row(part) - (int)warp * 16;
        if (__builtin_expect(rows < 16, 0)) eg_clear_rows(rows, d_gate), eg_clear_rows(rows, d_up);
        const bool last = part % K::PRODUCTS + 1 == K::PRODUCTS;
        of_gate.add(d_gate, part % K::PRODUCTS == 0, last);
        of_up.add(d_up, part % K::PRODUCTS == 0, last);
    }

    /* ---- Column sums ---- */

    /* As eg_epilogue's: each warp's own. */
    __device__ void store_sums(const eg_cuda_gemm &p, const eg_warp_sums<K::COLS> &of, eg_parts parts,
                               bool rehearsal) const {
        const int chunk = first / K::ROWS * 4 + (int)warp;
        const int from = right(parts.begin), to = right(parts.end);
        if (p.sums == 0 || rehearsal || chunk >= p.chunks) return;
        const int last = col + to - 32 + eg_sum_column(), cols = (int)p.cols;
        float *const row = (float *)p.sums + (item * p.chunks + chunk) * p.cols + last;
#pragma unroll
        for (int i = 0; i < K::COLS / 32; i++) {
            if (to - i * 32 > from && last - i * 32 < cols) row[-i * 32] = of.sums[i];
        }
    }
    __device__ void finish_tile(const eg_accumulators<K> &acc, eg_parts parts, bool lent, bool rehearsal) {
        if (!rehearsal) wait_for_in(phases[0], barriers);
#pragma unroll 1
        for (uint32_t part = parts.begin; part < parts.end; part++) {
            const uint32_t number = part - parts.begin;
            if (number == IN_BOXES) wait_for_in(phases[1], barriers + 8);
            if (number == IN_BOXES + 1) wait_for_in(phases[0], barriers);
            finish(acc, part, 0, lent);
            if (number > 0 && part + 1 < parts.end && !rehearsal && elected())
                load(part + 1, 1, number == 1 ? barriers + 8 : barriers);
            finish(acc, part, 1, lent);
            store(part, rehearsal);
        }
        if (!has_sums) return;
        store_sums(both.gate.gemm, of_gate, parts, rehearsal);
        store_sums(both.up.gemm, of_up, parts, rehearsal);
    }
};

/* ---- The kernels -------------------------------------------------------------------------------------- */

template <class K>
EG_DEVICE void eg_produce_gated(const eg_cuda_hopper_pair &both, uint32_t shared, uint32_t rank) {
    static_assert(!K::LEFT_MN_MAJOR && K::COLS == 128, "the boxes below");
    const bool batched = both.gate.gemm.left.item_stride != 0,
               batched_gate = both.gate.gemm.right.item_stride != 0,
               batched_up = both.up.gemm.right.item_stride != 0;
    eg_produce_by<K>(
        both.gate, shared, rank, [&](const eg_ring_of<K> &ring, const eg_hopper_tile &tile, int depth, int) {
            const uint32_t left = ring.address(), right = left + K::LEFT_BYTES;
            const int col = tile.col / 2;
            const int item_gate = batched_gate ? tile.item : 0, item_up = batched_up ? tile.item : 0;
            eg_barrier_expect(ring.full(), K::STAGE_BYTES);
            eg_load_box(left, both.gate.left, ring.full(), depth, tile.row, batched ? tile.item : 0);
            if (K::RIGHT_MN_MAJOR) {
                eg_load_box_all(right + rank * 32 * 128, both.gate.right, ring.full(), col, depth + rank * 32,
                                item_gate, 3);
                eg_load_box_all(right + (2 + rank) * 32 * 128, both.up.right, ring.full(), col,
                                depth + rank * 32, item_up, 3);
            } else {
                eg_load_box_all(right + rank * K::RIGHT_BYTES / 2,
                                rank == 0 ? both.gate.right : both.up.right, ring.full(), depth, col,
                                rank == 0 ? item_gate : item_up, 3);
            }
        });
}

#define EG_GATED_KERNEL(name, produce, epilogue, ...)                                                        \
    EG_HOPPER_PAIR_ENTRY(name) {                                                                             \
        using K = __VA_ARGS__;                                                                               \
        eg_hopper_pair<K>(                                                                                   \
            both, [&](uint32_t shared, uint32_t rank) { produce; },                                          \
            [&](uint8_t *memory, uint32_t shared, uint32_t rank, int warp) {                                 \
                eg_consume_in_turn<K, epilogue<K>>(both, both.gate, memory, shared, rank, warp);             \
            });                                                                                              \
    }
#define EG_GATED_KERNELS(type, bf16, layout, right)                                                          \
    EG_GATED_KERNEL(hopper_##type##_gated_##layout##_128x128, eg_produce_gated<K>(both, shared, rank),       \
                    eg_gated_forward, eg_pingpong<bf16, false, right, 128, true>)                            \
    EG_GATED_KERNEL(hopper_##type##_gated_chain_##layout##_128x128, eg_produce<K>(both.gate, shared, rank),  \
                    eg_gated_chain, eg_pingpong<bf16, false, right, 128, true>)

#endif
