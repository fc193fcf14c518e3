/* The epilogue of the Hopper kernels: a consumer finishes its 64 rows of a tile.
 *
 * The accumulators lie as wgmma leaves them,
 *
 *     warp w, lane l:  rows 16 w + l / 4 (and + 8)     columns 8 i + 2 (l % 4) (and + 1)
 *
 * which is also the order of ldmatrix and stmatrix, so that `in` and `out` meet them in registers. They move
 * between shared and device memory as boxes of 64 rows of 128 bytes. A thread works on one box at a time:
 * its 32 chains of dependent instructions hide one another's latency.
 */
#ifndef EG_CUDA_HOPPER_EPILOGUE_CUH
#define EG_CUDA_HOPPER_EPILOGUE_CUH

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

/* Accumulators are registers, and a register's number is fixed in the code: a jump to the box's moves.
 * They are volatile, lest the compiler turn one jump into as many selections as there are accumulators. */
template <int BOX, int N> EG_DEVICE void eg_move_box(const float (&acc)[N], float (&v)[32]) {
    if constexpr (BOX * 32 < N) {
#pragma unroll
        for (int i = 0; i < 32; i++) asm volatile("mov.b32 %0, %1;" : "=f"(v[i]) : "f"(acc[BOX * 32 + i]));
    }
}
template <int N> EG_DEVICE void eg_take_box(const float (&acc)[N], int box, float (&v)[32]) {
    switch (box) {
    case 0:
        return eg_move_box<0>(acc, v);
    case 1:
        return eg_move_box<1>(acc, v);
    case 2:
        return eg_move_box<2>(acc, v);
    case 3:
        return eg_move_box<3>(acc, v);
    }
}

/* ---- Numbers in a box ---------------------------------------------------------------------------------- */

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

template <bool BF16, int V> EG_DEVICE void eg_load_numbers(eg_place place, float (&v)[V]) {
#pragma unroll
    for (int i = 0; i < V / 8; i++) {
        uint32_t r[4];
        eg_load_blocks(place.blocks(i * 2), r);
#pragma unroll
        for (int j = 0; j < 4; j++) eg_widen_pair<BF16>(r[j], v[i * 8 + j * 2], v[i * 8 + j * 2 + 1]);
    }
}
template <bool BF16, int V> EG_DEVICE void eg_store_numbers(eg_place place, const float (&v)[V]) {
#pragma unroll
    for (int i = 0; i < V / 8; i++) {
        uint32_t r[4];
#pragma unroll
        for (int j = 0; j < 4; j++) r[j] = eg_round_pair<BF16>(v[i * 8 + j * 2], v[i * 8 + j * 2 + 1]);
        eg_store_blocks(place.blocks(i * 2), r);
    }
}
EG_DEVICE void eg_store_numbers_f32(eg_place place, const float (&v)[16]) {
#pragma unroll
    for (int i = 0; i < 8; i++) eg_store_pair(place.pair(i / 2, i % 2), v[i * 2], v[i * 2 + 1]);
}

/* ---- Column sums -------------------------------------------------------------------------------------- */

/* Sums of the warp's 16 rows over 32 columns, whose numbers begin at v[first], in a fixed order: lane l
 * returns that of column 8 (l / 8) + 2 (l % 4) + l / 4 % 2. Each exchange halves what a lane has to add. */
template <int V> EG_DEVICE float eg_sum_rows(const float (&v)[V], int first) {
    const int lane = threadIdx.x % 32;
    float s[8];
#pragma unroll
    for (int i = 0; i < 8; i++) s[i] = v[first + i / 2 * 4 + i % 2] + v[first + i / 2 * 4 + i % 2 + 2];
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
EG_DEVICE void eg_store_sums(const eg_cuda_gemm &p, const eg_hopper_tile &tile, const float *sums,
                             int consumer) {
    const int64_t chunk = tile.row / 64 + consumer;
    eg_sync_threads<128>(EG_HOPPER_SYNC + consumer);
    for (int col = threadIdx.x % 128; col < K::COLS; col += 128) {
        const float sum =
            (sums[col] + sums[K::COLS + col]) + (sums[2 * K::COLS + col] + sums[3 * K::COLS + col]);
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

/* `bias`: from the granule's first column on. */
template <int V> EG_DEVICE void eg_add_bias(const float *bias, float (&v)[V]) {
#pragma unroll
    for (int i = 0; i < V / 4; i++) {
        const float2 b = *(const float2 *)(bias + i * 8 + threadIdx.x % 4 * 2);
        v[i * 4] += b.x, v[i * 4 + 1] += b.y, v[i * 4 + 2] += b.x, v[i * 4 + 3] += b.y;
    }
}

/* v, with `in` in `other`, becomes the result; eg_cuda_gemm has the formulas. */
template <int EPILOGUE, int V>
EG_DEVICE void eg_apply(const eg_cuda_gemm &p, bool reads, float (&v)[V], float (&other)[V]) {
    if (EPILOGUE == EG_EPILOGUE_ACT_GRAD) {
        eg_act_grad(p.activation, false, p.propagate != 0, other, v);
#pragma unroll
        for (int i = 0; i < V; i++) v[i] = other[i];
    } else if (EPILOGUE == EG_EPILOGUE_CHAIN) {
        eg_act_grad(p.activation, p.source == EG_SOURCE_Y, p.propagate != 0, v, other);
    } else {
        eg_act(p.activation, v);
        if (!reads) return;
#pragma unroll
        for (int i = 0; i < V; i++) v[i] += other[i];
    }
}

/* ---- Boxes ------------------------------------------------------------------------------------------------
 */

/* A consumer's boxes in shared memory, one for each 64 columns of the tile. Where the epilogue reads `in`,
 * the copy engine fills them while the products run, and the results take the place of what was read; else
 * they are used in turn. One elected thread talks to the copy engine. */
template <class K> struct eg_boxes {
    uint32_t shared;
    int consumer;
    bool reads;
    uint32_t parity; /* of the phase in which `in` of this tile arrives */
    int row, item;

    __device__ static bool elected() { return threadIdx.x % 128 == 0; }
    __device__ void sync() const { eg_sync_threads<128>(EG_HOPPER_SYNC + consumer); }
    __device__ uint32_t box(int i) const {
        return shared + K::STAGING + (consumer * K::BOXES + i) * K::BOX_BYTES;
    }
    __device__ uint32_t full(int i) const { return shared + K::IN_FULL + (consumer * K::BOXES + i) * 8; }

    /* Asks for `in`, once the last tile's results have been read. */
    __device__ void fetch(const eg_cuda_hopper &p, int col) const {
        if (!reads || !elected()) return;
        const bool out_again = p.gemm.in.data == 0; /* STORE accumulates */
        const int from = !out_again && p.gemm.in.item_stride == 0 ? 0 : item;
        eg_stores_have_read<0>();
        for (int i = 0; i < K::BOXES; i++) {
            eg_barrier_expect(full(i), K::BOX_BYTES);
            eg_load_box(box(i), p.in, full(i), col + i * 64, row, from);
        }
    }
    /* The place of the n-th box of results: filled with `in`, or read empty by the store BOXES before. */
    __device__ eg_place open(int n) const {
        if (reads) {
            eg_barrier_wait(full(n), parity);
        } else {
            if (elected()) eg_stores_have_read<K::BOXES - 1>();
            sync();
        }
        return {box(n % K::BOXES)};
    }
    /* The same place again, once what was stored from it has been read. */
    __device__ eg_place reopen(eg_place place) const {
        if (elected()) eg_stores_have_read<0>();
        sync();
        return place;
    }
    __device__ void store(const eg_cuda_map &map, eg_place place, int col, bool adds) const {
        eg_fence_async();
        sync();
        if (!elected()) return;
        if (adds) {
            eg_add_box(map, place.box, col, row, item);
        } else {
            eg_store_box(map, place.box, col, row, item);
        }
    }
};

/* ---- The rows of a consumer ------------------------------------------------------------------------------
 */

/* A product as it is, or added to what is there: nothing depends on the column at run time, so all registers
 * are named. */
template <class K>
EG_DEVICE void eg_store_rows(const eg_cuda_hopper &p, const eg_hopper_tile &tile,
                             const float (&acc)[K::COLS / 2], const eg_boxes<K> &boxes) {
#pragma unroll
    for (int i = 0; i < K::BOXES; i++) {
        const eg_place place = boxes.open(i);
        float v[32];
#pragma unroll
        for (int j = 0; j < 32; j++) v[j] = acc[i * 32 + j];
        if (boxes.reads) {
            float other[32];
            eg_load_numbers<K::BF16>(place, other);
#pragma unroll
            for (int j = 0; j < 32; j++) v[j] += other[j];
        }
        eg_store_numbers<K::BF16>(place, v);
        boxes.store(p.out, place, tile.col + i * 64, false);
    }
}

/* As f32, 32 columns a box; the copy engine does the adding. */
template <class K>
EG_DEVICE void eg_store_rows_f32(const eg_cuda_hopper &p, const eg_hopper_tile &tile,
                                 const float (&acc)[K::COLS / 2], const eg_boxes<K> &boxes) {
#pragma unroll
    for (int i = 0; i < 2 * K::BOXES; i++) {
        const eg_place place = boxes.open(i);
#pragma unroll
        for (int j = 0; j < 8; j++) {
            eg_store_pair(place.pair(j / 2, j % 2), acc[i * 16 + j * 2], acc[i * 16 + j * 2 + 1]);
        }
        boxes.store(p.out, place, tile.col + i * 32, p.gemm.accumulate != 0);
    }
}

/* The epilogues with an activation: one text for all boxes, since it holds every activation. */
template <class K, int EPILOGUE>
EG_DEVICE void eg_finish_rows(const eg_cuda_hopper &p, const eg_hopper_tile &tile,
                              const float (&acc)[K::COLS / 2], const eg_boxes<K> &boxes, uint8_t *memory) {
    constexpr bool FORWARD = EPILOGUE == EG_EPILOGUE_FORWARD;
    const bool second = FORWARD && p.gemm.second.data != 0, sums = !FORWARD && p.gemm.sums != 0;
    const float *bias = (const float *)(memory + K::BIAS) + boxes.consumer * K::COLS;
    float *sum = (float *)(memory + K::SUMS) + (boxes.consumer * 4 + threadIdx.x % 128 / 32) * K::COLS;
    int stored = 0;
#pragma unroll 1
    for (int i = 0; i < K::BOXES; i++) {
        const int col = i * 64;
        float v[32], other[32];
        eg_take_box(acc, i, v);
        if (p.gemm.bias.data != 0) eg_add_bias(bias + col, v);
        eg_place place = boxes.open(stored++);
        if (!FORWARD || boxes.reads) eg_load_numbers<K::BF16>(place, other);
        if (second) {
            eg_store_numbers<K::BF16>(place, v);
            boxes.store(p.second, place, tile.col + col, false);
            place = boxes.reads ? boxes.reopen(place) : boxes.open(stored++);
        }
        eg_apply<EPILOGUE>(p.gemm, boxes.reads, v, other);
        if (p.gemm.out.data != 0) {
            eg_store_numbers<K::BF16>(place, v);
            boxes.store(p.out, place, tile.col + col, false);
        }
        if (sums) {
            sum[col + eg_sum_column()] = eg_sum_rows(v, 0);
            sum[col + 32 + eg_sum_column()] = eg_sum_rows(v, 16);
        }
    }
    if (sums)
        eg_store_sums<K>(p.gemm, tile, (float *)(memory + K::SUMS) + boxes.consumer * 4 * K::COLS,
                         boxes.consumer);
}

#endif
