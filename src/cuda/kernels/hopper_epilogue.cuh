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
template <int V, int PRODUCTS, int N>
EG_DEVICE void eg_read_accumulators(const float (&acc)[PRODUCTS][N], int group, float (&v)[V]) {
    static_assert(PRODUCTS * N / V <= 16 && N % V == 0, "the cases below");
#define EG_CASE(g)                                                                                           \
    case g:                                                                                                  \
        if constexpr (g * V < PRODUCTS * N) {                                                                \
            _Pragma("unroll") for (int i = 0; i < V; i++) asm volatile("mov.b32 %0, %1;" : "=f"(v[i]) :      \
                                                                       "f"(acc[g * V / N][g * V % N + i]));  \
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

    /* For ldmatrix and stmatrix: lane l names line l % 8 of block l / 8; blocks go down, then right. Boxes
     * are aligned to their size, so that a step of two vectors is an exclusive or. */
    __device__ static uint32_t line() {
        const uint32_t lane = threadIdx.x % 32, of = lane % 16;
        return of * 128 + ((lane / 16 ^ (of & 7)) << 4);
    }
    __device__ uint32_t blocks(uint32_t line, int vector) const {
        return (box + line) ^ (uint32_t)vector << 4;
    }
    /* f32: the pair of columns 8 i + 2 (l % 4) in the upper or lower eight rows. */
    __device__ uint32_t pair(int i, int lower) const {
        const int lane = threadIdx.x % 32, line = lane / 4 + lower * 8, vector = 2 * i + lane % 4 / 2;
        return box + line * 128 + ((vector ^ (line & 7)) << 4) + lane % 2 * 8;
    }
};

/* The 64 columns of a box. Pairs of neighbours stay packed until they are used. */
EG_DEVICE void eg_load_pairs(eg_box_address address, uint32_t line, uint32_t (&pairs)[16]) {
#pragma unroll
    for (int i = 0; i < 4; i++) eg_load_blocks(address.blocks(line, i * 2), (uint32_t(&)[4])pairs[i * 4]);
}
template <bool BF16>
EG_DEVICE void eg_store_numbers(eg_box_address address, uint32_t line, const float (&v)[32]) {
#pragma unroll
    for (int i = 0; i < 4; i++) {
        uint32_t r[4];
#pragma unroll
        for (int j = 0; j < 4; j++) r[j] = eg_round_pair<BF16>(v[i * 8 + j * 2], v[i * 8 + j * 2 + 1]);
        eg_store_blocks(address.blocks(line, i * 2), r);
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

/* v, with `in` in `pairs`, becomes the gradient; eg_cuda_gemm has the formulas. */
template <bool BF16, int EPILOGUE, int V>
EG_DEVICE void eg_apply_grad(const eg_cuda_gemm &p, float (&v)[V], const uint32_t (&pairs)[V / 2]) {
    float other[V];
    if constexpr (EPILOGUE == EG_CUDA_ACT_GRAD) {
        eg_act_derivatives(p.activation, false, p.propagate != 0, v, other);
#pragma unroll
        for (int i = 0; i < V / 2; i++) {
            eg_widen_pair<BF16>(pairs[i], v[i * 2], v[i * 2 + 1]);
            v[i * 2] *= other[i * 2], v[i * 2 + 1] *= other[i * 2 + 1];
        }
    } else {
#pragma unroll
        for (int i = 0; i < V / 2; i++) eg_widen_pair<BF16>(pairs[i], other[i * 2], other[i * 2 + 1]);
        eg_act_grad(p.activation, p.source == EG_SOURCE_Y, p.propagate != 0, v, other);
    }
}
template <bool BF16, int V> EG_DEVICE void eg_add_pairs(const uint32_t (&pairs)[V / 2], float (&v)[V]) {
#pragma unroll
    for (int i = 0; i < V / 2; i++) {
        float low, high;
        eg_widen_pair<BF16>(pairs[i], low, high);
        v[i * 2] += low, v[i * 2 + 1] += high;
    }
}

/* The bias of a tile: a consumer loads it before the tile's products, and puts it in shared memory after
 * them. */
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

/* The sum over the warp's 16 rows of one of 32 columns, in a fixed order: lane l has that of column
 * 8 (l / 8) + 2 (l % 4) + l / 4 % 2. Each exchange halves what a lane has to add. v: of these columns. */
EG_DEVICE float eg_sum_rows(const float *v) {
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
 * bytes, or that do not begin on one; of the first of 16 rows, up to row `rows`. By a warp, row by row, so
 * that what it writes at once is dense. */
template <typename T>
EG_DEVICE void eg_store_columns(const eg_cuda_gemm &p, const eg_cuda_matrix &to, uint32_t box, int first,
                                int item, int row, int rows, int col, bool adds) {
    constexpr int WIDE = 128 / (int)sizeof(T), VECTOR = 16 / (int)sizeof(T);
    const int end = min((int)p.cols - col, WIDE), lines = min(rows - row, 16);
#pragma unroll 1
    for (int line = 0; line < lines; line++) {
        T *const out = (T *)to.data + eg_index(to, item, row + line, col);
#pragma unroll 1
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

/* A number that is kept in a register, where the compiler would rather make it again for each use: a warp has
 * its scheduler to itself in the epilogue, and waits for every step of such a chain. */
EG_DEVICE uint32_t eg_keep(uint32_t x) {
    asm volatile("" : "+r"(x));
    return x;
}

/* A warp finishes its rows of a tile in parts of 16 rows and 64 columns, a TMA box each: the parts of a box's
 * columns, one below the other, then those of the next. It has a ring of BOXES boxes in shared memory. A part
 * takes one box, or two where two results are stored: `second`, then `out`. Where the epilogue reads `in`,
 * TMA fills the box of `out` with it, for as many parts ahead as there are boxes, and the result is written
 * over it. One elected lane issues the copies. */
template <class K> struct eg_boxes {
    static constexpr int PARTS = K::PRODUCTS * K::COLS / 64;
    static_assert(K::BOXES >= 2 && K::BOXES <= 4, "two for a part, and no more than two such parts");

    const uint32_t warp; /* of the consumers' */
    const uint32_t boxes, barriers, line;
    const bool reads, two;
    const bool by_threads;            /* some columns of results, which TMA cannot store */
    uint32_t place = 0;               /* of the present part's first box */
    uint32_t phases = 0;              /* of each box: the parity in which `in` arrives */
    int first = 0, col = 0, item = 0; /* of the warp's part of the tile: its first row */
    int end = 0;                      /* K::GROUPED: of the rows of its group, which is `item` */

    __device__ eg_boxes(const eg_cuda_hopper &p, uint32_t shared, int of, bool in, bool second)
        : warp(of), boxes(shared + K::STAGING + of * (K::BOXES * K::BOX_BYTES)),
          barriers(shared + K::IN_FULL + of * (K::BOXES * 8)), line(eg_keep(eg_box_address::line())),
          reads(in), two(second), by_threads(eg_keep(p.tma_cols < p.gemm.cols)) {}
    __device__ static bool elected() { return eg_elect(); }
    /* `ahead` boxes after the present part's first. */
    __device__ uint32_t place_at(uint32_t ahead) const {
        const uint32_t at = place + ahead;
        return at >= K::BOXES ? at - K::BOXES : at;
    }
    __device__ uint32_t box(uint32_t at) const { return boxes + at * K::BOX_BYTES; }
    __device__ uint32_t full(uint32_t at) const { return barriers + at * 8; }
    __device__ eg_box_address second() const { return {box(place)}; }
    __device__ eg_box_address out() const { return {box(place_at(two))}; }
    __device__ int row(int part) const { return first + part % K::PRODUCTS * 64; }
    __device__ static int right(int part) { return part / K::PRODUCTS * 64; }

    __device__ void start_tile(const eg_hopper_tile &tile) {
        first = tile.row + (K::PRODUCTS == 1 ? warp : warp % 4) * 16, col = tile.col, item = tile.item;
        if (K::GROUPED) end = tile.end;
    }
    __device__ int group() const { return K::GROUPED ? item : 0; }
    /* What has the rows of groups is one matrix. */
    __device__ int matrix() const { return K::GROUPED ? 0 : item; }
    __device__ int rows(const eg_cuda_gemm &p) const { return K::GROUPED ? end : (int)p.rows; }
    /* Loads `in` of a part, into the box that is `ahead` boxes after the present part's first. By one lane.
     */
    __device__ void load(const eg_cuda_hopper &p, int part, uint32_t ahead) const {
        const bool reads_out = p.gemm.in.data == 0; /* STORE accumulates */
        const int from = !reads_out && p.gemm.in.item_stride == 0 ? 0 : matrix();
        const uint32_t at = place_at(ahead);
        eg_barrier_expect(full(at), K::BOX_BYTES);
        eg_load_box(box(at), p.in, full(at), col + right(part), row(part), from);
    }
    /* Loads the first parts' of a tile, once TMA has read the last tile's results. */
    __device__ void fetch(const eg_cuda_hopper &p) const {
        constexpr int MOST = PARTS < K::BOXES ? PARTS : K::BOXES;
        if (!reads || !elected()) return;
        eg_stores_have_read<0>();
        for (int i = 0; i < (two ? K::BOXES / 2 : MOST); i++) load(p, i, two ? 2 * i + 1 : i);
    }
    /* Loads that of a part to come, in a box whose results have been read by then. */
    __device__ void fetch_after(const eg_cuda_hopper &p, int part) const {
        constexpr int LAST = K::BOXES - 1;
        if (!reads || !elected()) return;
        if (two && part + 1 < PARTS && part + 1 >= K::BOXES / 2) {
            eg_stores_have_read<K::BOXES - 2>();
            load(p, part + 1, 3);
        }
        if (!two && part + LAST < PARTS && part > 0) {
            eg_stores_have_read<1>();
            load(p, part + LAST, LAST);
        }
    }
    /* Waits until the present part's results may be written: `in` has arrived there, or what was stored from
     * there before has been read. In a rehearsal nothing arrives. */
    __device__ void acquire(bool rehearsal = false) {
        if (reads && !rehearsal) {
            const uint32_t at = place_at(two);
            eg_barrier_wait(full(at), phases >> at & 1);
            phases ^= 1U << at;
            return;
        }
        if (two) {
            eg_stores_have_read<K::BOXES - 2>(); /* those of the elected lane: the others have none */
        } else {
            eg_stores_have_read<K::BOXES - 1>();
        }
        __syncwarp();
    }
    /* To the next part's boxes. */
    __device__ void advance() { place = place_at(1 + two); }
    /* What has been written in the boxes can be stored. */
    __device__ static void finish_writing() {
        eg_fence_async();
        __syncwarp();
    }
    /* Stores a box of results, numbers of type T, which begins `right` columns into the tile. */
    template <typename T>
    __device__ void store(const eg_cuda_hopper &p, const eg_cuda_tensor_map &tensor_map,
                          const eg_cuda_matrix &to, eg_box_address from, int row, int right,
                          bool adds) const {
        const bool partial = K::GROUPED && row + 16 > end; /* the rows after it are of the next group */
        if (__builtin_expect(by_threads || partial, 0)) {
            const int by_tma = partial ? 0 : p.tma_cols - (col + right), wide = 128 / (int)sizeof(T);
            if (by_tma < wide)
                eg_store_columns<T>(p.gemm, to, from.box, max(by_tma, 0), matrix(), row, rows(p.gemm),
                                    col + right, adds);
        }
        if (!elected()) return;
        if ((by_threads && p.tma_cols == 0) || partial) {
            /* there is no tensor map, or nothing left to store */
        } else if (adds) {
            eg_add_box(tensor_map, from.box, col + right, row, matrix());
        } else {
            eg_store_box(tensor_map, from.box, col + right, row, matrix());
        }
        eg_stores_commit(); /* an empty group, too: groups are counted */
    }
};

/* The product's scale, on accumulators that nothing else has read: without one, a tile costs a branch. */
template <class K> EG_DEVICE void eg_scale_tile(const eg_cuda_gemm &p, eg_accumulators<K> &acc) {
    if (__builtin_expect(p.scale == 1, 1)) return;
    const float scale = (float)p.scale;
#pragma unroll
    for (int i = 0; i < K::PRODUCTS * K::COLS / 2; i++) acc[i / (K::COLS / 2)][i % (K::COLS / 2)] *= scale;
}

/* ---- Products without an activation --------------------------------------------------------------- */

/* A product as it is, or added to what is there. No step depends on the column at run time, so the loop is
 * unrolled and registers are named. */
template <class K>
EG_DEVICE void eg_store_rows(const eg_cuda_hopper &p, const eg_accumulators<K> &acc, eg_boxes<K> &boxes) {
#pragma unroll
    for (int i = 0; i < eg_boxes<K>::PARTS; i++) {
        boxes.acquire();
        float v[32];
#pragma unroll
        for (int j = 0; j < 32; j++) v[j] = acc[i % K::PRODUCTS][i / K::PRODUCTS * 32 + j];
        if (boxes.reads) {
            uint32_t old[16];
            eg_load_pairs(boxes.out(), boxes.line, old);
            eg_add_pairs<K::BF16>(old, v);
        }
        eg_store_numbers<K::BF16>(boxes.out(), boxes.line, v);
        boxes.finish_writing();
        boxes.template store<uint16_t>(p, p.out, p.gemm.out, boxes.out(), boxes.row(i), boxes.right(i),
                                       false);
        boxes.fetch_after(p, i);
        boxes.advance();
    }
}

/* In f32, with 32 columns in a box. TMA adds. */
template <class K>
EG_DEVICE void eg_store_rows_f32(const eg_cuda_hopper &p, const eg_accumulators<K> &acc, eg_boxes<K> &boxes) {
#pragma unroll
    for (int i = 0; i < 2 * eg_boxes<K>::PARTS; i++) {
        const int product = i % K::PRODUCTS, from = i / K::PRODUCTS * 16;
        boxes.acquire();
#pragma unroll
        for (int j = 0; j < 8; j++)
            eg_store_pair(boxes.out().pair(j / 2, j % 2), acc[product][from + j * 2],
                          acc[product][from + j * 2 + 1]);
        boxes.finish_writing();
        boxes.template store<float>(p, p.out, p.gemm.out, boxes.out(), boxes.row(i), from * 2,
                                    p.gemm.accumulate != 0);
        boxes.advance();
    }
}

/* ---- Products with an activation ------------------------------------------------------------------ */

/* The epilogue of one warp, part by part: 32 numbers of each thread at once, which is work enough to hide the
 * latencies of each other, with few branches between. */
template <class K, int EPILOGUE> struct eg_epilogue {
    static constexpr bool FORWARD = EPILOGUE == EG_CUDA_FORWARD;
    static constexpr int V = 32;

    const eg_cuda_hopper &p;
    eg_boxes<K> boxes;
    uint8_t *memory;
    const uint32_t has_bias, has_sums;

    __device__ eg_epilogue(const eg_cuda_hopper &hopper, uint8_t *from, uint32_t shared, int warp)
        : p(hopper), boxes(hopper, shared, warp, !FORWARD || eg_keep(hopper.gemm.in.data != 0),
                           FORWARD && eg_keep(hopper.gemm.second.data != 0)),
          memory(from), has_bias(EPILOGUE == EG_CUDA_CHAIN ? 0 : eg_keep(hopper.gemm.bias.data != 0)),
          has_sums(FORWARD ? 0 : eg_keep(hopper.gemm.sums != 0)) {}
    __device__ float *bias() const { return (float *)(memory + K::BIAS) + boxes.warp / 4 * K::COLS; }
    __device__ float *sums(int warp) const { return (float *)(memory + K::SUMS) + warp * K::COLS; }
    __device__ void sync() const { eg_sync_threads<128>(EG_HOPPER_SYNC + boxes.warp / 4); }

    /* Adds the sums of a part's columns to those of the part above. */
    __device__ void add_sums(int part, float (&v)[V]) const {
        const int row = boxes.row(part);
        if (row + 16 > boxes.rows(p.gemm)) eg_clear_rows(boxes.rows(p.gemm) - row, v);
        float *const sum = sums(boxes.warp) + boxes.right(part) + eg_sum_column();
#pragma unroll
        for (int i = 0; i < 2; i++) {
            const float above = part % K::PRODUCTS == 0 ? 0.0F : sum[i * 32];
            sum[i * 32] = above + eg_sum_rows(v + i * 16);
        }
    }

    __device__ void finish(int part, float (&v)[V]) const {
        uint32_t pairs[V / 2];
        if (!FORWARD) eg_load_pairs(boxes.out(), boxes.line, pairs);
        if (has_bias) eg_add_bias(bias() + boxes.right(part), v);
        if (FORWARD) {
            if (boxes.two) eg_store_numbers<K::BF16>(boxes.second(), boxes.line, v);
            eg_act(p.gemm.activation, v);
            if (__builtin_expect(boxes.reads, 0)) { /* the residual */
                eg_load_pairs(boxes.out(), boxes.line, pairs);
                eg_add_pairs<K::BF16>(pairs, v);
            }
        } else {
            eg_apply_grad<K::BF16, EPILOGUE>(p.gemm, v, pairs);
        }
        eg_store_numbers<K::BF16>(boxes.out(), boxes.line, v);
        if (has_sums) add_sums(part, v);
    }

    __device__ void store(int part, bool rehearsal) {
        const int row = boxes.row(part), right = boxes.right(part);
        boxes.finish_writing();
        if (rehearsal) return;
        if (boxes.two)
            boxes.template store<uint16_t>(p, p.second, p.gemm.second, boxes.second(), row, right, false);
        if (p.gemm.out.data != 0) {
            boxes.template store<uint16_t>(p, p.out, p.gemm.out, boxes.out(), row, right, false);
        } else if (boxes.elected()) {
            eg_stores_commit();
        }
        boxes.fetch_after(p, part);
        boxes.advance();
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

    /* The column sums of four warps become those of the consumer: a row of `sums` for its rows of the
     * tile. */
    __device__ void store_sums() const {
        const float *four = sums(boxes.warp & ~3);
        const int64_t chunk = row_of_sums();
        sync();
        for (int col = threadIdx.x % 128; col < K::COLS; col += 128) {
            const float sum =
                (four[col] + four[K::COLS + col]) + (four[2 * K::COLS + col] + four[3 * K::COLS + col]);
            if (chunk >= 0 && boxes.col + col < p.gemm.cols)
                eg_put_column_sum(p.gemm, chunk, boxes.col + col, sum);
        }
    }

    /* After the tile's products. A rehearsal finishes one part of no tile, and stores nothing. */
    __device__ void finish_tile(const eg_accumulators<K> &acc, const eg_bias<K> &bits,
                                bool rehearsal = false) {
        if (has_bias) {
            sync(); /* the last tile's bias has been read */
            bits.put(bias());
        }
        if (has_bias || has_sums) sync(); /* the bias is there, the last sums have been read */
#pragma unroll 1
        for (int part = 0; part < (rehearsal ? 1 : eg_boxes<K>::PARTS); part++) {
            float v[V];
            eg_read_accumulators(acc, part % K::PRODUCTS * (K::COLS / 64) + part / K::PRODUCTS, v);
            boxes.acquire(rehearsal);
            finish(part, v);
            store(part, rehearsal);
        }
        if (has_sums && !rehearsal) store_sums();
    }
};

/* A product that is only stored. */
template <class K> struct eg_epilogue<K, EG_CUDA_STORE> {
    const eg_cuda_hopper &p;
    eg_boxes<K> boxes;

    __device__ eg_epilogue(const eg_cuda_hopper &hopper, uint8_t *, uint32_t shared, int warp)
        : p(hopper),
          boxes(hopper, shared, warp, hopper.gemm.accumulate && hopper.gemm.out.dtype != EG_F32, false) {}

    __device__ void finish_tile(const eg_accumulators<K> &acc, const eg_bias<K> &, bool rehearsal = false) {
        if (rehearsal) return;
        if (p.gemm.out.dtype == EG_F32) return eg_store_rows_f32<K>(p, acc, boxes);
        eg_store_rows<K>(p, acc, boxes);
    }
};

#endif
