/* SPDX-License-Identifier: Apache-2.0 */
/* The epilogue of the 16-bit kernels on Hopper: each warp of a consumer finishes its 16 rows of a tile alone.
 *
 * wgmma leaves the accumulators in this order,
 *
 *     lane l:  rows l / 4 and l / 4 + 8     columns 8 i + 2 (l % 4) and the next
 *
 * which is also that of ldmatrix and stmatrix. So `in` and `out` are combined with them in registers. TMA
 * moves boxes of 16 rows of 128 bytes between shared and device memory, and a warp works on 32 columns at a
 * time. */
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

/* v = the V accumulators from V * group on. Accumulators are registers, and a register cannot be indexed at
 * run time. So this jumps to the moves of the group. They are volatile, or the compiler makes of the jump as
 * many selections as there are accumulators. */
template <int V, int N> EG_DEVICE void eg_read_accumulators(const float (&acc)[N], int group, float (&v)[V]) {
    static_assert(N / V <= 16, "the cases below");
#define EG_CASE(g)                                                                                           \
    case g:                                                                                                  \
        if constexpr (g * V < N) {                                                                           \
            _Pragma("unroll") for (int i = 0; i < V;                                                         \
                                   i++) asm volatile("mov.b32 %0, %1;" : "=f"(v[i]) : "f"(acc[g * V + i]));  \
        }                                                                                                    \
        return;
    switch (group) {
        EG_CASE(0)
        EG_CASE(1)
        EG_CASE(2)
        EG_CASE(3)
        EG_CASE(4)
        EG_CASE(5)
        EG_CASE(6)
        EG_CASE(7)
        EG_CASE(8) EG_CASE(9) EG_CASE(10) EG_CASE(11) EG_CASE(12) EG_CASE(13) EG_CASE(14) EG_CASE(15)
    }
#undef EG_CASE
}

/* ---- Numbers in a TMA box ------------------------------------------------------------------------------ */

/* Where this thread finds its numbers in a box: lines of 128 bytes, whose 16-byte vectors are swizzled by
 * line. */
struct eg_box_address {
    uint32_t box;

    /* For ldmatrix and stmatrix: lane l names line l % 8 of block l / 8; blocks go down, then right. */
    __device__ uint32_t blocks(int vector) const {
        const int lane = threadIdx.x % 32, line = lane % 16;
        return box + line * 128 + (((vector + lane / 16) ^ (line & 7)) << 4);
    }
    /* f32: the pair of columns 8 i + 2 (l % 4) in the upper or lower eight rows. */
    __device__ uint32_t pair(int i, int lower) const {
        const int lane = threadIdx.x % 32, line = lane / 4 + lower * 8, vector = 2 * i + lane % 4 / 2;
        return box + line * 128 + ((vector ^ (line & 7)) << 4) + lane % 2 * 8;
    }
};

/* V / 4 columns of 8, from 16-byte vector `vector` on. Pairs of neighbours stay packed until they are used.
 */
template <int V> EG_DEVICE void eg_load_pairs(eg_box_address address, int vector, uint32_t (&pairs)[V / 2]) {
#pragma unroll
    for (int i = 0; i < V / 8; i++)
        eg_load_blocks(address.blocks(vector + i * 2), (uint32_t(&)[4])pairs[i * 4]);
}
template <bool BF16, int V>
EG_DEVICE void eg_store_numbers(eg_box_address address, int vector, const float (&v)[V]) {
#pragma unroll
    for (int i = 0; i < V / 8; i++) {
        uint32_t r[4];
#pragma unroll
        for (int j = 0; j < 4; j++) r[j] = eg_round_pair<BF16>(v[i * 8 + j * 2], v[i * 8 + j * 2 + 1]);
        eg_store_blocks(address.blocks(vector + i * 2), r);
    }
}

/* ---- The arithmetic ------------------------------------------------------------------------------------ */

/* `bias`: from the first of these columns on. */
template <int V> EG_DEVICE void eg_add_bias(const float *bias, float (&v)[V]) {
#pragma unroll
    for (int i = 0; i < V / 4; i++) {
        const float2 b = *(const float2 *)(bias + i * 8 + threadIdx.x % 4 * 2);
        v[i * 4] += b.x, v[i * 4 + 1] += b.y, v[i * 4 + 2] += b.x, v[i * 4 + 3] += b.y;
    }
}

/* v, with `in` in `pairs`, becomes the result; eg_cuda_gemm has the formulas. */
template <bool BF16, int EPILOGUE, int V>
EG_DEVICE void eg_apply(const eg_cuda_gemm &p, float (&v)[V], const uint32_t (&pairs)[V / 2]) {
    float other[V];
    if (EPILOGUE == EG_CUDA_ACT_GRAD) {
        float d_act[V];
        eg_act_derivatives(p.activation, false, p.propagate != 0, v, d_act);
#pragma unroll
        for (int i = 0; i < V / 2; i++) {
            eg_widen_pair<BF16>(pairs[i], v[i * 2], v[i * 2 + 1]);
            v[i * 2] *= d_act[i * 2], v[i * 2 + 1] *= d_act[i * 2 + 1];
        }
        return;
    }
    if (EPILOGUE == EG_CUDA_FORWARD) eg_act(p.activation, v);
#pragma unroll
    for (int i = 0; i < V / 2; i++) eg_widen_pair<BF16>(pairs[i], other[i * 2], other[i * 2 + 1]);
    if (EPILOGUE == EG_CUDA_CHAIN) {
        eg_act_grad(p.activation, p.source == EG_SOURCE_Y, p.propagate != 0, v, other);
    } else {
#pragma unroll
        for (int i = 0; i < V; i++) v[i] += other[i];
    }
}

/* The bias of a tile: a consumer loads it before the tile's products, and puts it in shared memory after
 * them. */
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

/* The sum over the warp's 16 rows of one of 32 columns, in a fixed order: lane l has that of column
 * 8 (l / 8) + 2 (l % 4) + l / 4 % 2. Each exchange halves what a lane has to add. */
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

/* ---- The ends of rows ---------------------------------------------------------------------------------- */

/* No other thread adds to a number, so that the order of additions is fixed. */
EG_DEVICE void eg_store_or_add(float *to, float x, bool adds) {
    if (adds) {
        atomicAdd(to, x);
    } else {
        *to = x;
    }
}
EG_DEVICE void eg_store_or_add(uint16_t *to, uint16_t x, bool) { *to = x; }

/* Stores what TMA cannot store of a box, its columns from `first` on: rows that end inside a vector of 16
 * bytes, or that do not begin on one. By a warp, row by row, so that what it writes at once is dense. */
template <typename T>
EG_DEVICE void eg_store_columns(const eg_cuda_gemm &p, const eg_cuda_matrix &to, uint32_t box, int first,
                                int item, int row, int col, bool adds) {
    constexpr int WIDE = 128 / (int)sizeof(T), VECTOR = 16 / (int)sizeof(T);
    const int end = min((int)p.cols - col, WIDE), lines = min((int)p.rows - row, 16);
#pragma unroll 1
    for (int line = 0; line < lines; line++) {
        T *const out = (T *)to.data + eg_index(to, item, row + line, col);
        for (int i = first + threadIdx.x % 32; i < end; i += 32) {
            T x;
            eg_load_shared(box + line * 128 + ((i / VECTOR ^ (line & 7)) << 4) + i % VECTOR * (int)sizeof(T),
                           x);
            eg_store_or_add(out + i, x, adds);
        }
    }
    __syncwarp(); /* the box has been read */
}

/* ---- The TMA boxes of a warp --------------------------------------------------------------------------- */

/* A warp has a box in shared memory for each 64 columns of the tile. Where the epilogue reads `in`, TMA fills
 * the boxes while products run, and results are written over what was read. Else they are used in turn. One
 * elected lane issues the copies. */
template <class K> struct eg_boxes {
    uint32_t shared;
    int warp; /* of the consumers' */
    bool reads;
    uint32_t parity = 1; /* of the phase in which `in` of this tile arrives */
    int row = 0, col = 0, item = 0;

    __device__ static bool elected() { return eg_elect(); }
    __device__ uint32_t box(int i) const {
        return shared + K::STAGING + (warp * K::BOXES + i) * K::BOX_BYTES;
    }
    __device__ uint32_t full(int i) const { return shared + K::IN_FULL + (warp * K::BOXES + i) * 8; }

    __device__ void start_tile(const eg_hopper_tile &tile) {
        row = tile.row + warp * 16, col = tile.col, item = tile.item;
        parity ^= 1;
    }
    /* Loads `in`, once TMA has read the last tile's results. */
    __device__ void fetch(const eg_cuda_hopper &p) const {
        if (!reads || !elected()) return;
        const bool reads_out = p.gemm.in.data == 0; /* STORE accumulates */
        const int from = !reads_out && p.gemm.in.item_stride == 0 ? 0 : item;
        eg_stores_have_read<0>();
        for (int i = 0; i < K::BOXES; i++) {
            eg_barrier_expect(full(i), K::BOX_BYTES);
            eg_load_box(box(i), p.in, full(i), col + i * 64, row, from);
        }
    }
    /* Waits until the n-th box of results may be written: `in` has arrived there, or the store BOXES before
     * it has been read. */
    __device__ void acquire(int n) const {
        if (reads) {
            eg_barrier_wait(full(n), parity);
        } else {
            if (elected()) eg_stores_have_read<K::BOXES - 1>();
            __syncwarp();
        }
    }
    __device__ eg_box_address at(int n) const { return {box(n % K::BOXES)}; }
    /* Stores the n-th box of results, numbers of type T, which begins `right` columns into the tile. */
    template <typename T>
    __device__ void store(const eg_cuda_hopper &p, const eg_cuda_tensor_map &tensor_map,
                          const eg_cuda_matrix &to, int n, int right, bool adds) const {
        const int by_tma = p.tma_cols - (col + right), wide = 128 / (int)sizeof(T);
        eg_fence_async();
        __syncwarp();
        if (p.tma_cols < p.gemm.cols && by_tma < wide)
            eg_store_columns<T>(p.gemm, to, box(n % K::BOXES), max(by_tma, 0), item, row, col + right, adds);
        if (!elected()) return;
        if (by_tma > 0 && adds) {
            eg_add_box(tensor_map, box(n % K::BOXES), col + right, row, item);
        } else if (by_tma > 0) {
            eg_store_box(tensor_map, box(n % K::BOXES), col + right, row, item);
        }
        eg_stores_commit(); /* an empty group, too: `acquire` counts groups */
    }
};

/* ---- Products without an activation --------------------------------------------------------------- */

/* A product as it is, or added to what is there. No step depends on the column at run time, so the loop is
 * unrolled and registers are named. */
template <class K>
EG_DEVICE void eg_store_rows(const eg_cuda_hopper &p, const float (&acc)[K::COLS / 2],
                             const eg_boxes<K> &boxes) {
#pragma unroll
    for (int i = 0; i < K::BOXES; i++) {
        boxes.acquire(i);
        float v[32];
#pragma unroll
        for (int j = 0; j < 32; j++) v[j] = acc[i * 32 + j];
        if (boxes.reads) {
            uint32_t old[16];
            eg_load_pairs<32>(boxes.at(i), 0, old);
#pragma unroll
            for (int j = 0; j < 16; j++) {
                float low, high;
                eg_widen_pair<K::BF16>(old[j], low, high);
                v[j * 2] += low, v[j * 2 + 1] += high;
            }
        }
        eg_store_numbers<K::BF16>(boxes.at(i), 0, v);
        boxes.template store<uint16_t>(p, p.out, p.gemm.out, i, i * 64, false);
    }
}

/* In f32, with 32 columns in a box. TMA adds. */
template <class K>
EG_DEVICE void eg_store_rows_f32(const eg_cuda_hopper &p, const float (&acc)[K::COLS / 2],
                                 const eg_boxes<K> &boxes) {
#pragma unroll
    for (int i = 0; i < 2 * K::BOXES; i++) {
        boxes.acquire(i);
#pragma unroll
        for (int j = 0; j < 8; j++) {
            eg_store_pair(boxes.at(i).pair(j / 2, j % 2), acc[i * 16 + j * 2], acc[i * 16 + j * 2 + 1]);
        }
        boxes.template store<float>(p, p.out, p.gemm.out, i, i * 32, p.gemm.accumulate != 0);
    }
}

/* ---- Products with an activation ------------------------------------------------------------------ */

/* The epilogue of one warp, in steps of 32 columns. Where two results are stored (`second`), each box of 64
 * columns is made twice. */
template <class K, int EPILOGUE> struct eg_epilogue {
    static constexpr bool FORWARD = EPILOGUE == EG_CUDA_FORWARD;
    enum { V = 16, BOX_STEPS = 32 / V }; /* numbers a thread finishes at once; steps in a box */

    const eg_cuda_hopper &p;
    eg_boxes<K> boxes;
    uint8_t *memory;

    __device__ eg_epilogue(const eg_cuda_hopper &hopper, uint8_t *from, uint32_t shared, int warp)
        : p(hopper), boxes{shared, warp, reads(hopper.gemm)}, memory(from) {}
    __device__ float *bias() const { return (float *)(memory + K::BIAS) + boxes.warp / 4 * K::COLS; }
    __device__ float *sums(int warp) const { return (float *)(memory + K::SUMS) + warp * K::COLS; }

    /* With two results no box is left for the residual, which is then read from device memory. */
    __device__ static bool twice(const eg_cuda_gemm &x) { return FORWARD && x.second.data != 0; }
    __device__ static bool reads(const eg_cuda_gemm &x) {
        return EPILOGUE == EG_CUDA_ACT_GRAD || (x.in.data != 0 && !twice(x));
    }
    __device__ bool sums_wanted() const { return !FORWARD && p.gemm.sums != 0; }
    __device__ void sync() const { eg_sync_threads<128>(EG_HOPPER_SYNC + boxes.warp / 4); }

    /* The residual, from device memory. */
    __device__ void read_residual(int right, uint32_t (&pairs)[V / 2]) const {
        const eg_cuda_gemm &x = p.gemm;
        const int lane = threadIdx.x % 32;
#pragma unroll
        for (int i = 0; i < V / 2; i++) {
            const int row = boxes.row + lane / 4 + i % 2 * 8,
                      col = boxes.col + right + i / 2 * 8 + lane % 4 * 2;
            const uint16_t *from = (const uint16_t *)x.in.data + eg_index(x.in, boxes.item, row, col);
            const uint32_t low = row < x.rows && col < x.cols ? from[0] : 0U;
            pairs[i] = low | (row < x.rows && col + 1 < x.cols ? (uint32_t)from[1] << 16 : 0U);
        }
    }

    /* Step s of the tile; v has V of its accumulators. */
    __device__ void finish(int s, float (&v)[V]) {
        const eg_cuda_gemm &x = p.gemm;
        const bool both = twice(x), first = both && s / BOX_STEPS % 2 == 0;
        const int n = s / BOX_STEPS, vector = s % BOX_STEPS * (V / 4),
                  right = (both ? n / 2 : n) * 64 + vector * 8;
        if (s % BOX_STEPS == 0) boxes.acquire(n);
        uint32_t pairs[V / 2] = {};
        if (boxes.reads) {
            eg_load_pairs<V>(boxes.at(n), vector, pairs);
        } else if (both && !first && p.gemm.in.data != 0) {
            read_residual(right, pairs);
        }
        if (p.gemm.bias.data != 0) eg_add_bias(bias() + right, v);
        if (!first) eg_apply<K::BF16, EPILOGUE>(p.gemm, v, pairs);
        if (first || p.gemm.out.data != 0) {
            eg_store_numbers<K::BF16>(boxes.at(n), vector, v);
            if (s % BOX_STEPS == BOX_STEPS - 1)
                boxes.template store<uint16_t>(p, first ? p.second : p.out, first ? x.second : x.out, n,
                                               right - vector * 8, false);
        }
        if (!sums_wanted()) return;
        if (boxes.row + 16 > x.rows) eg_clear_rows((int)x.rows - boxes.row, v);
        sums(boxes.warp)[right + eg_sum_column()] = eg_sum_rows(v);
    }

    /* The column sums of four warps become those of the consumer: a row of `sums` for every 64 rows of the
     * result. */
    __device__ void store_sums() const {
        const float *four = sums(boxes.warp & ~3);
        const int64_t chunk = boxes.row / 64;
        sync();
        for (int col = threadIdx.x % 128; col < K::COLS; col += 128) {
            const float sum =
                (four[col] + four[K::COLS + col]) + (four[2 * K::COLS + col] + four[3 * K::COLS + col]);
            if (chunk < p.gemm.chunks && boxes.col + col < p.gemm.cols) {
                ((float *)p.gemm.sums)[(boxes.item * p.gemm.chunks + chunk) * p.gemm.cols + boxes.col + col] =
                    sum;
            }
        }
    }

    /* After the tile's products. */
    __device__ void finish_tile(const float (&acc)[K::COLS / 2], const eg_bias<K> &bits) {
        if (p.gemm.bias.data != 0) {
            sync(); /* the last tile's bias has been read */
            bits.put(bias());
        }
        if (p.gemm.bias.data != 0 || sums_wanted())
            sync(); /* the bias is there, the last sums have been read */
        const bool both = twice(p.gemm);
#pragma unroll 1
        for (int s = 0; s < (K::BOXES * BOX_STEPS) << both; s++) {
            float v[V];
            eg_read_accumulators(acc, both ? s / (2 * BOX_STEPS) * BOX_STEPS + s % BOX_STEPS : s, v);
            finish(s, v);
        }
        if (sums_wanted()) store_sums();
    }
};

/* A product that is only stored. */
template <class K> struct eg_epilogue<K, EG_CUDA_STORE> {
    const eg_cuda_hopper &p;
    eg_boxes<K> boxes;

    __device__ eg_epilogue(const eg_cuda_hopper &hopper, uint8_t *, uint32_t shared, int warp)
        : p(hopper), boxes{shared, warp, hopper.gemm.accumulate && hopper.gemm.out.dtype != EG_F32} {}

    __device__ void finish_tile(const float (&acc)[K::COLS / 2], const eg_bias<K> &) {
        if (p.gemm.out.dtype == EG_F32) return eg_store_rows_f32<K>(p, acc, boxes);
        eg_store_rows<K>(p, acc, boxes);
    }
};

#endif
