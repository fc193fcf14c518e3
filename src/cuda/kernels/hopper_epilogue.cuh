/* The epilogue of the Hopper kernels: a consumer finishes its 64 rows of a tile, 32 columns at a time.
 *
 * A thread's 16 accumulators of such a granule are two of wgmma's fragments:
 *
 *     warp w, lane l:  rows 16 w + l / 4 (and + 8)     columns 8 i + 2 (l % 4) (and + 1),  i < 4
 *
 * which is also the order of ldmatrix and stmatrix, so that `in` and `out` meet the accumulators in
 * registers. They move between shared and device memory as boxes of 64 rows of 128 bytes.
 */
#ifndef EG_CUDA_HOPPER_EPILOGUE_CUH
#define EG_CUDA_HOPPER_EPILOGUE_CUH

enum { EG_GRANULE = 32 }; /* columns */

template <bool BF16> EG_DEVICE void eg_widen_pair(uint32_t bits, float &low, float &high) {
    if (BF16) {
        low = __uint_as_float(bits << 16), high = __uint_as_float(bits & 0xffff0000U);
    } else {
        low = eg_widen_f16((uint16_t)bits), high = eg_widen_f16((uint16_t)(bits >> 16));
    }
}
template <bool BF16> EG_DEVICE uint32_t eg_round_pair(float low, float high) {
    return BF16 ? eg_round_bf16x2(low, high) : eg_round_f16x2(low, high);
}

/* Accumulators are registers, and a register's number is fixed in the code: a jump to the granule's moves.
 * They are volatile, lest the compiler turn one jump into 8 * 16 selections. */
template <int N, int GRANULE> EG_DEVICE void eg_move_granule(const float (&acc)[N], float (&v)[16]) {
    if constexpr (GRANULE < N / 16) {
#pragma unroll
        for (int i = 0; i < 16; i++) asm volatile("mov.b32 %0, %1;" : "=f"(v[i]) : "f"(acc[GRANULE * 16 + i]));
    }
}
template <int N> EG_DEVICE void eg_take_granule(const float (&acc)[N], int granule, float (&v)[16]) {
    static_assert(N <= 128, "a case for each granule");
    switch (granule) {
    case 0: return eg_move_granule<N, 0>(acc, v);
    case 1: return eg_move_granule<N, 1>(acc, v);
    case 2: return eg_move_granule<N, 2>(acc, v);
    case 3: return eg_move_granule<N, 3>(acc, v);
    case 4: return eg_move_granule<N, 4>(acc, v);
    case 5: return eg_move_granule<N, 5>(acc, v);
    case 6: return eg_move_granule<N, 6>(acc, v);
    case 7: return eg_move_granule<N, 7>(acc, v);
    }
}

/* ---- Granules in a box -------------------------------------------------------------------------------- */

/* Where this thread finds its part of a box: lines of 128 bytes, their 16-byte pieces swizzled by line. */
struct eg_place {
    uint32_t box;

    /* ldmatrix, stmatrix: lane l names line l % 8 of block l / 8; blocks go down, then right. */
    __device__ uint32_t blocks(int piece) const {
        const int lane = threadIdx.x % 32, line = threadIdx.x % 128 / 32 * 16 + lane % 16;
        return box + line * 128 + (((piece + lane / 16) ^ (line & 7)) << 4);
    }
    /* f32: the pair of columns 8 i + 2 (l % 4) in the upper or lower eight rows. */
    __device__ uint32_t pair(int i, int lower) const {
        const int lane = threadIdx.x % 32, line = threadIdx.x % 128 / 32 * 16 + lane / 4 + lower * 8;
        const int piece = 2 * i + lane % 4 / 2;
        return box + line * 128 + ((piece ^ (line & 7)) << 4) + lane % 2 * 8;
    }
};

/* `half`: which 32 of the box's 64 columns. */
template <bool BF16> EG_DEVICE void eg_load_granule(eg_place place, int half, float (&v)[16]) {
#pragma unroll
    for (int i = 0; i < 2; i++) {
        uint32_t r[4];
        eg_load_blocks(place.blocks(half * 4 + i * 2), r);
#pragma unroll
        for (int j = 0; j < 4; j++) eg_widen_pair<BF16>(r[j], v[i * 8 + j * 2], v[i * 8 + j * 2 + 1]);
    }
}
template <bool BF16> EG_DEVICE void eg_store_granule(eg_place place, int half, const float (&v)[16]) {
#pragma unroll
    for (int i = 0; i < 2; i++) {
        uint32_t r[4];
#pragma unroll
        for (int j = 0; j < 4; j++) r[j] = eg_round_pair<BF16>(v[i * 8 + j * 2], v[i * 8 + j * 2 + 1]);
        eg_store_blocks(place.blocks(half * 4 + i * 2), r);
    }
}
EG_DEVICE void eg_load_granule_f32(eg_place place, float (&v)[16]) {
#pragma unroll
    for (int i = 0; i < 8; i++) {
        const float2 pair = eg_load_pair(place.pair(i / 2, i % 2));
        v[i * 2] = pair.x, v[i * 2 + 1] = pair.y;
    }
}
EG_DEVICE void eg_store_granule_f32(eg_place place, const float (&v)[16]) {
#pragma unroll
    for (int i = 0; i < 8; i++) eg_store_pair(place.pair(i / 2, i % 2), v[i * 2], v[i * 2 + 1]);
}

/* ---- Column sums -------------------------------------------------------------------------------------- */

/* Sums of the warp's 16 rows, in a fixed order: lane l returns that of column
 * 8 (l / 8) + 2 (l % 4) + l / 4 % 2 of the granule. Each exchange halves what a lane still has to add. */
EG_DEVICE float eg_sum_rows(const float (&v)[16]) {
    const int lane = threadIdx.x % 32;
    float s[8];
#pragma unroll
    for (int i = 0; i < 8; i++) s[i] = v[i / 2 * 4 + i % 2] + v[i / 2 * 4 + i % 2 + 2];
#pragma unroll
    for (int left = 4; left >= 1; left /= 2) {
        const bool upper = lane & (left * 4);
#pragma unroll
        for (int i = 0; i < left; i++) {
            const float mine = upper ? s[i + left] : s[i], other = upper ? s[i] : s[i + left];
            s[i] = mine + __shfl_xor_sync(0xffffffffU, other, left * 4);
        }
    }
    return s[0];
}
EG_DEVICE int eg_sum_column() {
    const int lane = threadIdx.x % 32;
    return lane / 8 * 8 + lane % 4 * 2 + lane / 4 % 2;
}

/* The four warps' sums become the consumer's: a row of `sums` for every 64 rows. */
template <class K>
EG_DEVICE void eg_store_sums(const eg_cuda_gemm &p, const eg_hopper_tile &tile, const float *sums, int consumer) {
    const int64_t chunk = tile.row / 64 + consumer;
    eg_sync_threads<128>(EG_HOPPER_SYNC + consumer);
    for (int col = threadIdx.x % 128; col < K::COLS; col += 128) {
        const float sum = (sums[col] + sums[K::COLS + col]) + (sums[2 * K::COLS + col] + sums[3 * K::COLS + col]);
        if (chunk < p.chunks && tile.col + col < p.cols) {
            ((float *)p.sums)[(tile.item * p.chunks + chunk) * p.cols + tile.col + col] = sum;
        }
    }
    eg_sync_threads<128>(EG_HOPPER_SYNC + consumer);
}

/* ---- The operations ------------------------------------------------------------------------------------ */

/* The tile's part of the bias, asked for before its products and put in shared memory after them. */
template <class K> struct eg_bias {
    uint16_t bits[(K::COLS + 127) / 128];

    __device__ eg_bias(const eg_cuda_gemm &p, int col) {
#pragma unroll
        for (int i = 0; i < (K::COLS + 127) / 128; i++) {
            const int at = col + i * 128 + threadIdx.x % 128;
            bits[i] = 0;
            if (p.bias.data != 0 && at < p.cols) bits[i] = __ldg((const uint16_t *)p.bias.data + at);
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

/* `bias`: of the granule's columns. */
EG_DEVICE void eg_add_bias(const float *bias, float (&v)[16]) {
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const float2 b = *(const float2 *)(bias + i * 8 + threadIdx.x % 4 * 2);
        v[i * 4] += b.x, v[i * 4 + 1] += b.y, v[i * 4 + 2] += b.x, v[i * 4 + 3] += b.y;
    }
}

/* v, with the granule of `in` in `other`, becomes the result; eg_cuda_gemm has the formulas. */
EG_DEVICE void eg_apply(const eg_cuda_gemm &p, bool reads, float (&v)[16], float (&other)[16]) {
    switch (p.epilogue) {
    case EG_EPILOGUE_FORWARD:
        eg_act(p.activation, v);
        /* fallthrough */
    case EG_EPILOGUE_STORE:
        if (!reads) break;
#pragma unroll
        for (int i = 0; i < 16; i++) v[i] += other[i];
        break;
    case EG_EPILOGUE_ACT_GRAD:
        eg_act_grad(p.activation, false, p.propagate != 0, other, v);
#pragma unroll
        for (int i = 0; i < 16; i++) v[i] = other[i];
        break;
    case EG_EPILOGUE_CHAIN:
        eg_act_grad(p.activation, p.source == EG_SOURCE_Y, p.propagate != 0, v, other);
        break;
    }
}

/* ---- The rows of a consumer ------------------------------------------------------------------------------ */

/* One of the consumer's two staging boxes, once what it held has been read. */
template <class K> EG_DEVICE uint32_t eg_open_staging(uint32_t shared, int consumer, int box) {
    if (threadIdx.x % 128 == 0) eg_stores_have_read<1>();
    eg_sync_threads<128>(EG_HOPPER_SYNC + consumer);
    return shared + K::STAGING + (consumer * 2 + box % 2) * K::BOX_BYTES;
}

EG_DEVICE void eg_close_box(const eg_cuda_map &map, uint32_t box, int col, int row, int item, int consumer) {
    eg_fence_async();
    eg_sync_threads<128>(EG_HOPPER_SYNC + consumer);
    if (threadIdx.x % 128 == 0) eg_store_box(map, box, col, row, item);
}

/* A product as it is, rounded: nothing depends on the granule at run time, so all registers are named. */
template <class K>
EG_DEVICE void eg_store_rows(const eg_cuda_hopper &p, const eg_hopper_tile &tile, const float (&acc)[K::COLS / 2],
                             uint32_t shared, int consumer) {
#pragma unroll
    for (int box = 0; box < K::COLS / 64; box++) {
        const eg_place place = {eg_open_staging<K>(shared, consumer, box)};
#pragma unroll
        for (int half = 0; half < 2; half++) {
            float v[16];
#pragma unroll
            for (int i = 0; i < 16; i++) v[i] = acc[box * 32 + half * 16 + i];
            eg_store_granule<K::BF16>(place, half, v);
        }
        eg_close_box(p.out, place.box, tile.col + box * 64, tile.row + consumer * 64, tile.item, consumer);
    }
}

/* A box of results lies over its `in` in the ring, or else in staging; with `second` the two staging boxes
 * are those of out and second. */
template <class K>
EG_DEVICE uint32_t eg_open_box(const eg_ring<K> &ring, uint32_t shared, int consumer, int box, bool reads,
                               bool second) {
    if (reads) {
        if (box % 2 == 0) eg_barrier_wait(ring.full(), ring.parity);
        return ring.address() + (box % 2 * 2 + consumer) * K::BOX_BYTES;
    }
    if (second && threadIdx.x % 128 == 0) eg_stores_have_read<0>();
    return eg_open_staging<K>(shared, consumer, second ? 0 : box);
}

template <class K>
EG_DEVICE void eg_finish_rows(const eg_cuda_hopper &p, const eg_hopper_tile &tile, const float (&acc)[K::COLS / 2],
                              eg_ring<K> &ring, uint8_t *memory, int consumer, int in_boxes) {
    const bool reads = in_boxes > 0, wide = p.gemm.out.dtype == EG_F32;
    const bool second = p.gemm.epilogue == EG_EPILOGUE_FORWARD && p.gemm.second.data != 0;
    const float *bias = (const float *)(memory + K::BIAS) + consumer * K::COLS;
    float *sums = (float *)(memory + K::STAGING + consumer * 2 * K::BOX_BYTES);
    const int row = tile.row + consumer * 64, per_box = wide ? 1 : 2;
    eg_place place = {0};
#pragma unroll 1
    for (int granule = 0; granule < K::COLS / EG_GRANULE; granule++) {
        const int box = granule / per_box, half = granule % per_box;
        if (half == 0) place.box = eg_open_box<K>(ring, ring.shared, consumer, box, reads, second);
        float v[16], other[16];
        if (reads) {
            if (wide) {
                eg_load_granule_f32(place, other);
            } else {
                eg_load_granule<K::BF16>(place, half, other);
            }
        }
        eg_take_granule(acc, granule, v);
        if (p.gemm.bias.data != 0) eg_add_bias(bias + granule * EG_GRANULE, v);
        if (second) eg_store_granule<K::BF16>({place.box + K::BOX_BYTES}, half, v);
        eg_apply(p.gemm, reads, v, other);
        if (wide) {
            eg_store_granule_f32(place, v);
        } else {
            eg_store_granule<K::BF16>(place, half, v);
        }
        if (p.gemm.sums != 0) {
            sums[threadIdx.x % 128 / 32 * K::COLS + granule * EG_GRANULE + eg_sum_column()] = eg_sum_rows(v);
        }
        if (half != per_box - 1) continue;
        const int col = tile.col + (granule - half) * EG_GRANULE;
        if (p.gemm.out.data != 0) eg_close_box(p.out, place.box, col, row, tile.item, consumer);
        if (second && threadIdx.x % 128 == 0) eg_store_box(p.second, place.box + K::BOX_BYTES, col, row, tile.item);
        if (reads && (box % 2 == 1 || box == in_boxes - 1)) {
            if (p.gemm.out.data == 0) eg_sync_threads<128>(EG_HOPPER_SYNC + consumer);
            if (threadIdx.x % 128 == 0) eg_stores_have_read<0>();
            ring.release();
            ring.advance();
        }
    }
    if (p.gemm.sums != 0) eg_store_sums<K>(p.gemm, tile, sums, consumer);
}

#endif
