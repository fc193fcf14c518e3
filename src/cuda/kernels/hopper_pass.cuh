/* The rest of the element-wise pass under the products of d_a: grad_pre = grad * act'(saved), its last rows.
 *
 *     act_grad.cu   the rows that the first wave of tiles reads, at the speed of memory
 *     here          the others: three warps of the producer's group, which have nothing else to do
 *
 *               columns: 32 vectors of 16 bytes side by side are a warp's
 *             +-----+-----+---
 *             |  0  |  1  |         a chunk is 32 rows, with a row of column sums
 *      band   +-----+-----+---      its parts are handed out in this order to any warp that asks
 *             | ... |               8 chunks are a band: the rows of a tile
 *
 * A warp that has made a part counts it for the band. The producer of a tile waits until its band is
 * complete. Nobody who makes parts waits for anything, and none is handed out before all that come before
 * it: so a band that is waited for is being made, however few of the blocks run. */
#ifndef EG_CUDA_HOPPER_PASS_CUH
#define EG_CUDA_HOPPER_PASS_CUH

enum {
    EG_PASS_WARPS = 3,                 /* beside the products */
    EG_PASS_ROWS = 2,                  /* that a thread works on at once, to hide its latencies */
    EG_PASS_SLOT = EG_PASS_ROWS * 1024 /* bytes of those of a warp, of both operands */
};

/* ---- Who has made what ------------------------------------------------------------------------------ */

EG_DEVICE uint32_t eg_pass_strips(const eg_cuda_act_grad &p) { return ((uint32_t)p.cols + 255) / 256; }

/* The next part is the warp's. */
EG_DEVICE uint32_t eg_claim_part(const eg_cuda_act_grad &p) {
    uint32_t part = 0;
    if (threadIdx.x % 32 == 0) part = atomicAdd((uint32_t *)p.counts.data, 1U);
    return __shfl_sync(0xffffffffU, part, 0);
}

/* Each thread's stores are fenced for the copy engine, and the count for all of them. */
EG_DEVICE void eg_part_is_made(const eg_cuda_act_grad &p, uint32_t chunk) {
    constexpr uint32_t CHUNKS = EG_CUDA_REST_BAND / EG_CUDA_REST_CHUNK;
    eg_fence_async_global();
    __syncwarp();
    if (threadIdx.x % 32 == 0) eg_count_up((uint32_t *)p.counts.data + 1 + chunk / CHUNKS);
}

/* Until a band is complete. */
EG_DEVICE void eg_wait_for_band(const eg_cuda_act_grad &p, uint32_t band) {
    constexpr uint32_t CHUNKS = EG_CUDA_REST_BAND / EG_CUDA_REST_CHUNK;
    const uint32_t parts = min((uint32_t)p.chunks - band * CHUNKS, CHUNKS) * eg_pass_strips(p);
    while (eg_count_now((const uint32_t *)p.counts.data + 1 + band) < parts) __nanosleep(100);
    eg_fence_async_global();
}

/* Until the rows of left from `row` on, a tile's, are there. */
EG_DEVICE void eg_wait_for_rest(const eg_cuda_hopper &p, int row) {
    const int head = (int)(p.gemm.rows - p.rest.rows);
    if (row >= head) eg_wait_for_band(p.rest, (uint32_t)(row - head) / EG_CUDA_REST_BAND);
}

/* ---- A part ----------------------------------------------------------------------------------------- */

/* What a thread walks: its vector in the first row of the part, and the bytes from row to row. */
struct eg_pass_walk {
    const char *grad, *saved;
    char *out;
    int64_t grad_step, saved_step, out_step;
    int rows;
};

EG_DEVICE eg_pass_walk eg_pass_walk_of(const eg_cuda_act_grad &p, int64_t row, int64_t col) {
    const auto at = [&](const eg_cuda_matrix &x) { return (char *)x.data + (row * x.row_stride + col) * 2; };
    return {at(p.grad),
            at(p.saved),
            at(p.out),
            p.grad.row_stride * 2,
            p.saved.row_stride * 2,
            p.out.row_stride * 2,
            (int)min(p.rows - row, (int64_t)EG_CUDA_REST_CHUNK)};
}

/* Rows on their way, in a ring of the warp's in shared memory; each thread has its own 16 bytes of a row of
 * either operand. Registers would need code for every slot, more than the instruction cache has room for. */
template <int SLOTS> struct eg_pass_ring {
    uint32_t shared; /* the thread's place in the first slot */
    uint64_t policy; /* eg_read_once */

    __device__ uint32_t slot(int step) const { return shared + step % SLOTS * EG_PASS_SLOT; }
    /* Zeros for rows past the last. */
    __device__ void fetch(const eg_pass_walk &w, int step) const {
#pragma unroll
        for (int i = 0; i < EG_PASS_ROWS; i++) {
            const int row = step * EG_PASS_ROWS + i, there = row < w.rows, at = there ? row : 0;
            eg_copy_vector(slot(step) + i * 1024, w.grad + at * w.grad_step, there * 16, policy);
            eg_copy_vector(slot(step) + i * 1024 + 512, w.saved + at * w.saved_step, there * 16, policy);
        }
        eg_copies_commit();
    }
};

template <bool BF16> EG_DEVICE void eg_load_row(uint32_t from, float *v) {
    const uint4 q = eg_load_vector(from);
    eg_widen_pair<BF16>(q.x, v[0], v[1]), eg_widen_pair<BF16>(q.y, v[2], v[3]);
    eg_widen_pair<BF16>(q.z, v[4], v[5]), eg_widen_pair<BF16>(q.w, v[6], v[7]);
}
/* As usual, not as streamed: the products read it soon, from L2. */
template <bool BF16> EG_DEVICE void eg_store_row(char *to, const float *v) {
    *(uint4 *)to = make_uint4(eg_round_pair<BF16>(v[0], v[1]), eg_round_pair<BF16>(v[2], v[3]),
                              eg_round_pair<BF16>(v[4], v[5]), eg_round_pair<BF16>(v[6], v[7]));
}

/* The sums are of the unrounded products. */
template <bool BF16, int SLOTS>
EG_DEVICE void eg_walk_rows(const eg_cuda_act_grad &p, const eg_pass_walk &w, const eg_pass_ring<SLOTS> &ring,
                            float (&sums)[8]) {
    const int steps = (w.rows + EG_PASS_ROWS - 1) / EG_PASS_ROWS;
    for (int step = 0; step < SLOTS; step++) ring.fetch(w, step);
#pragma unroll 1
    for (int step = 0; step < steps; step++) {
        float product[EG_PASS_ROWS * 8], from[EG_PASS_ROWS * 8];
        eg_copies_wait<SLOTS - 1>();
#pragma unroll
        for (int i = 0; i < EG_PASS_ROWS; i++) {
            eg_load_row<BF16>(ring.slot(step) + i * 1024, product + i * 8);
            eg_load_row<BF16>(ring.slot(step) + i * 1024 + 512, from + i * 8);
        }
        eg_act_grad(p.activation, p.source == EG_SOURCE_Y, p.propagate != 0, product, from);
        ring.fetch(w, step + SLOTS);
#pragma unroll
        for (int i = 0; i < EG_PASS_ROWS * 8; i++) sums[i % 8] += product[i];
#pragma unroll
        for (int i = 0; i < EG_PASS_ROWS; i++) {
            const int row = step * EG_PASS_ROWS + i;
            if (row < w.rows) eg_store_row<BF16>(w.out + row * w.out_step, product + i * 8);
        }
    }
    eg_copies_wait<0>(); /* zeros: they must not arrive over rows of the next part */
}

template <bool BF16, int SLOTS>
EG_DEVICE void eg_make_part(const eg_cuda_act_grad &p, const eg_pass_ring<SLOTS> &ring, int64_t chunk,
                            uint32_t strip) {
    const int64_t col = strip * 256 + threadIdx.x % 32 * 8;
    if (col >= p.cols) return;
    float sums[8] = {};
    eg_walk_rows<BF16>(p, eg_pass_walk_of(p, chunk * EG_CUDA_REST_CHUNK, col), ring, sums);
    if (p.sums == 0) return;
    float4 *to = (float4 *)((float *)p.sums + chunk * p.cols + col);
    to[0] = make_float4(sums[0], sums[1], sums[2], sums[3]);
    to[1] = make_float4(sums[4], sums[5], sums[6], sums[7]);
}

/* By a warp, with SLOTS slots from `shared` on. */
template <bool BF16, int SLOTS> EG_DEVICE void eg_make_parts(const eg_cuda_act_grad &p, uint32_t shared) {
    const eg_pass_ring<SLOTS> ring = {shared + threadIdx.x % 32 * 16, eg_read_once()};
    const uint32_t strips = eg_pass_strips(p), parts = (uint32_t)p.chunks * strips;
    for (uint32_t part = eg_claim_part(p); part < parts; part = eg_claim_part(p)) {
        eg_make_part<BF16>(p, ring, part / strips, part % strips);
        __syncwarp();
        eg_part_is_made(p, part / strips);
    }
}

/* Beside the products. `warp`: of those that make parts. */
template <class K> EG_DEVICE void eg_make_rest(const eg_cuda_act_grad &p, uint32_t shared, int warp) {
    constexpr int SLOTS = EG_CUDA_REST_BYTES / EG_PASS_SLOT / EG_PASS_WARPS;
    eg_make_parts<K::BF16, SLOTS>(p, shared + K::SUMS + warp * SLOTS * EG_PASS_SLOT);
}

#endif
