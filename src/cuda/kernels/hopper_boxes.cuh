/* SPDX-License-Identifier: Apache-2.0 */
/* The TMA boxes through which a warp's epilogue on Hopper (hopper_epilogue.cuh) reads and stores: 16 rows of
 * 128 bytes. */
#ifndef EG_CUDA_HOPPER_BOXES_CUH
#define EG_CUDA_HOPPER_BOXES_CUH

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

/* The 64 columns of a box, or fewer from a vector of eight on. Pairs of neighbours stay packed until they are
 * used. */
template <int N>
EG_DEVICE void eg_load_pairs(eg_box_address address, uint32_t line, uint32_t (&pairs)[N], int vector = 0) {
#pragma unroll
    for (int i = 0; i < N / 4; i++)
        eg_load_blocks(address.blocks(line, vector + i * 2), (uint32_t(&)[4])pairs[i * 4]);
}
template <bool BF16, int V>
EG_DEVICE void eg_store_numbers(eg_box_address address, uint32_t line, const float (&v)[V], int vector = 0) {
#pragma unroll
    for (int i = 0; i < V / 8; i++) {
        uint32_t r[4];
#pragma unroll
        for (int j = 0; j < 4; j++) r[j] = eg_round_pair<BF16>(v[i * 8 + j * 2], v[i * 8 + j * 2 + 1]);
        eg_store_blocks(address.blocks(line, vector + i * 2), r);
    }
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
    constexpr int LINES = 4; /* whose numbers are on their way at once */
    const int end = min((int)p.cols - col, WIDE), lines = min(rows - row, 16);
#pragma unroll 1
    for (int i = first + threadIdx.x % 32; i < end; i += 32) {
        T *out = (T *)to.data + eg_index(to, item, row, col + i);
#pragma unroll 1
        for (int line = 0; line < lines; line += LINES) {
            T x[LINES];
#pragma unroll
            for (int j = 0; j < LINES; j++)
                eg_load_shared(box + (line + j) * 128 + ((i / VECTOR ^ ((line + j) & 7)) << 4) +
                                   i % VECTOR * (int)sizeof(T),
                               x[j]);
#pragma unroll
            for (int j = 0; j < LINES; j++, out += to.row_stride)
                if (line + j < lines) eg_store_or_add(out, x[j], adds);
        }
    }
    __syncwarp(); /* the box has been read */
}

/* Stores the first `cols` columns of a box, whole vectors of 16 bytes, of the first of 16 rows, up to row
 * `rows`: what TMA could store, but for the rows after these. By a warp, all vectors at once. */
template <typename T>
EG_DEVICE void eg_store_vectors(const eg_cuda_matrix &to, uint32_t box, int cols, int item, int row, int rows,
                                int col) {
    constexpr int VECTOR = 16 / (int)sizeof(T);
    const int lane = (int)(threadIdx.x % 32), at = lane % 8 * VECTOR, lines = at < cols ? rows - row : 0;
    T *out = (T *)to.data + eg_index(to, item, row + lane / 8, col + at);
#pragma unroll 1
    for (int line = lane / 8; line < min(lines, 16); line += 4, out += 4 * to.row_stride)
        *(uint4 *)out = eg_load_vector(box + line * 128 + ((lane ^ line) & 7) * 16);
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
 * columns, one below the other, then those of the next. It has a box in shared memory for each part, or for
 * most. Where two results are stored, a part takes two, `second`, then `out`. Where there are too few, boxes
 * are used again in the same tile, two at once. Where the epilogue reads `in`, TMA fills the boxes of `out`
 * with it during the products, and results are written over it. One elected lane issues the copies. */
struct eg_parts {
    uint32_t begin, end;
};
template <class K> struct eg_boxes {
    static constexpr int PARTS = K::PRODUCTS * K::COLS / 64;
    static_assert(K::BOXES <= PARTS && K::BOXES % 2 == 0 && PARTS % 2 == 0, "two parts, or boxes, at once");

    const uint32_t warp; /* of the consumers' */
    const uint32_t boxes, barrier, line;
    const bool reads, two;
    const bool by_threads;            /* some columns of results, which TMA cannot store */
    uint32_t phase = 0;               /* the parity in which `in` arrives */
    int first = 0, col = 0, item = 0; /* of the warp's part of the tile: its first row */
    int end = 0;                      /* K::GROUPED: of the rows of its group, which is `item` */

    __device__ eg_boxes(const eg_cuda_hopper &p, uint32_t shared, int of, bool in, bool second)
        : warp(of), boxes(shared + K::STAGING + of * (K::BOXES * K::BOX_BYTES)),
          barrier(shared + K::IN_FULL + of * K::BOX_BARRIERS * 8), line(eg_keep(eg_box_address::line())),
          reads(in), two(second), by_threads(eg_keep(p.tma_cols < p.gemm.cols)) {}
    __device__ static bool elected() { return eg_elect(); }
    __device__ eg_box_address box(uint32_t i) const { return {boxes + i * K::BOX_BYTES}; }
    __device__ eg_box_address second(uint32_t part) const { return box(2 * part % K::BOXES); }
    __device__ eg_box_address out(uint32_t part) const {
        return box(two ? 2 * part % K::BOXES + 1 : part % K::BOXES);
    }
    __device__ int row(uint32_t part) const { return first + (int)(part % K::PRODUCTS * 64); }
    __device__ static int right(uint32_t part) { return (int)(part / K::PRODUCTS * 64); }

    __device__ void start_tile(const eg_hopper_tile &tile) {
        first = tile.row + (K::PRODUCTS == 1 ? warp : warp % 4) * 16, col = tile.col, item = tile.item;
        if (K::GROUPED) end = tile.end;
    }
    __device__ int group() const { return K::GROUPED ? item : 0; }
    /* What has the rows of groups is one matrix. */
    __device__ int matrix() const { return K::GROUPED ? 0 : item; }
    __device__ int rows(const eg_cuda_gemm &p) const { return K::GROUPED ? end : (int)p.rows; }
    /* Results' maps, which are needed late, and `in`. By one lane of the block. */
    __device__ void prefetch(const eg_cuda_hopper &p) const {
        if (warp > 0 || !elected() || p.tma_cols == 0) return;
        if (reads) eg_prefetch_tensor_map(p.in);
        if (two) eg_prefetch_tensor_map(p.second);
        if (p.gemm.out.data != 0) eg_prefetch_tensor_map(p.out);
    }
    __device__ void load(const eg_cuda_hopper &p, uint32_t part) const {
        const bool reads_out = p.gemm.in.data == 0; /* STORE accumulates */
        const int from = !reads_out && p.gemm.in.item_stride == 0 ? 0 : matrix();
        eg_load_box(out(part).box, p.in, barrier, col + right(part), row(part), from);
    }
    /* Loads `in` of a tile's parts, of as many as have boxes, once TMA has read the last tile's results. */
    __device__ void fetch(const eg_cuda_hopper &p, eg_parts parts) const {
        if (!reads || two || !elected()) return;
        const uint32_t end = K::BOXES < PARTS ? min(parts.end, parts.begin + K::BOXES) : parts.end;
        eg_stores_have_read<0>();
        eg_barrier_expect(barrier, (end - parts.begin) * K::BOX_BYTES);
#pragma unroll 1
        for (uint32_t part = parts.begin; part < end; part++) load(p, part);
    }
    /* Loads what part `i` of a tile in f32 is added to, 32 columns in a box, once all stores but the last
     * LEFT have been read. Boxes have a barrier each, for two parts of a tile. By one lane. */
    template <int LEFT> __device__ void fetch_f32(const eg_cuda_hopper &p, int i) const {
        const uint32_t full = barrier + i % K::BOXES * 8;
        eg_stores_have_read<LEFT>();
        eg_barrier_expect(full, K::BOX_BYTES);
        eg_load_box(box(i % K::BOXES).box, p.in, full, col + i / K::PRODUCTS * 32, row(i), matrix());
    }
    __device__ void wait_for_f32(int i) const {
        eg_barrier_wait(barrier + i % K::BOXES * 8, (uint32_t)(i / K::BOXES % 2));
    }
    __device__ void wait_for_in() {
        eg_barrier_wait(barrier, phase);
        phase ^= 1;
    }
    /* Waits until the tile's first boxes may be written: `in` has arrived there, or what was stored from
     * there before has been read. In a rehearsal nothing arrives. */
    __device__ void acquire_tile(bool rehearsal) {
        if (reads && !two && !rehearsal) return wait_for_in();
        eg_stores_have_read<0>(); /* those of the elected lane: the others have none */
        __syncwarp();
    }
    /* The same for the next two boxes: of a part that stores two results, or of this one and the next. */
    __device__ void acquire(const eg_cuda_hopper &p, uint32_t part, eg_parts parts, bool rehearsal) {
        const uint32_t count = two ? 1 : 2;
        const bool again = part >= parts.begin + count * (K::BOXES / 2);
        if (again) {
            eg_stores_have_read<K::BOXES / 2 - 1>();
            __syncwarp();
        }
        if (__builtin_expect(reads && !rehearsal && (two || again), 0)) {
            if (elected()) {
                eg_barrier_expect(barrier, count * K::BOX_BYTES);
                load(p, part);
                if (!two) load(p, part + 1);
            }
            wait_for_in();
        }
    }
    /* What has been written in the boxes can be stored. */
    __device__ static void finish_writing() {
        eg_fence_async();
        __syncwarp();
    }
    /* Whether all of a part's rows and columns are the result's and can be stored by TMA. */
    __device__ bool whole(uint32_t part) const {
        return !by_threads && !(K::GROUPED && row(part) + 16 > end);
    }
    /* Stores a box of results, numbers of type T, which begins `right` columns into the tile. By the warp. */
    template <typename T>
    __device__ void store_any(const eg_cuda_hopper &p, const eg_cuda_tensor_map &tensor_map,
                              const eg_cuda_matrix &to, eg_box_address from, int row, int right,
                              bool adds) const {
        const bool partial = K::GROUPED && row + 16 > end; /* the rows after it are of the next group */
        const int wide = 128 / (int)sizeof(T), by_tma = p.tma_cols - (col + right),
                  in_vectors = partial && adds ? 0 : min(max(by_tma, 0), wide);
        if (partial && in_vectors > 0)
            eg_store_vectors<T>(to, from.box, in_vectors, matrix(), row, rows(p.gemm), col + right);
        if (in_vectors < wide)
            eg_store_columns<T>(p.gemm, to, from.box, in_vectors, matrix(), row, rows(p.gemm), col + right,
                                adds);
        if (p.tma_cols > 0 && !partial && elected()) store<T>(tensor_map, from, row, right, adds);
    }
    /* By one lane. */
    template <typename T>
    __device__ void store(const eg_cuda_tensor_map &tensor_map, eg_box_address from, int row, int right,
                          bool adds) const {
        if (adds) {
            eg_add_box(tensor_map, from.box, col + right, row, matrix());
        } else {
            eg_store_box(tensor_map, from.box, col + right, row, matrix());
        }
    }
};

#endif
