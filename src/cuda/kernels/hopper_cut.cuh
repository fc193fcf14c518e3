/* The last wave of tiles, where it would leave clusters without one: its tiles are cut along the depth.
 *
 *              depth ->
 *            0                     kept                all strips
 *   tile 0   |  owner: cluster H     |     helper 0     |      H helpers, the first clusters of the grid
 *   tile 1   |         cluster H + 1 | helper 0 | hr. 1 |
 *   tile 2   |         cluster H + 2 |     helper 1     |
 *
 * What the owners, a cluster for each tile, leave is one line, tile after tile, of which each helper has an
 * even part: pieces of one tile or several. It leaves the sums of a piece in memory; the owner adds the
 * pieces of its tile in order, so that the same call gives the same bits, and finishes it.
 *
 * Owners all walk the same part of the depth together, as the blocks of other waves do, and so do helpers:
 * L2 is not asked for more. Nobody waits but owners for helpers; those have lower numbers, and blocks begin
 * in that order: what is waited for is running, however few of the blocks do. */
#ifndef EG_CUDA_HOPPER_CUT_CUH
#define EG_CUDA_HOPPER_CUT_CUH

/* 64 columns of the sums of both consumers, 32 in each thread: what a slot of the ring has room for. */
enum { EG_CUT_CHUNK = 256 * 32 * 4 };

/* What a cluster multiplies: strips [first, last) of the depth of a tile, one after another. Here where no
 * tile is cut. */
template <class K, bool CUTS = K::CUTS> struct eg_hopper_work {
    uint32_t tile;
    int first = 0, last;
    uint32_t next_tile = blockIdx.x / 2, tiles;

    __device__ eg_hopper_work(const eg_cuda_hopper &p, uint32_t all)
        : last(eg_hopper_strips<K>(p.gemm) * (int)p.gemm.summed), tiles(all) {}
    /* False: there is no more. */
    __device__ bool next() {
        tile = next_tile;
        next_tile += gridDim.x / 2;
        return tile < tiles;
    }
    __device__ bool is_last() const { return next_tile >= tiles; }
};

template <class K> struct eg_hopper_work<K, true> {
    const eg_cuda_cut &cut;
    uint32_t tile = 0;
    int first = 0, last = 0;

    const uint32_t clusters = gridDim.x / 2, cluster = blockIdx.x / 2;
    const uint32_t helpers, whole; /* clusters that help; tiles that are not cut */
    const int strips, rest;        /* of a tile; and what its owner leaves of them */
    uint32_t next_tile = cluster;
    uint32_t at = 0, end = 0; /* what is left of the cluster's cut work: strips of the line, or of its own */

    __device__ eg_hopper_work(const eg_cuda_hopper &p, uint32_t tiles)
        : cut(p.cut), helpers((uint32_t)p.cut.helpers), whole(tiles - (uint32_t)p.cut.tiles),
          strips(eg_hopper_strips<K>(p.gemm) * (int)p.gemm.summed), rest(strips - p.cut.kept) {
        if (cluster >= helpers + (uint32_t)cut.tiles) return;
        const uint32_t line = (uint32_t)(cut.tiles * rest);
        at = owns() ? 0 : (cluster * line + helpers - 1) / helpers;
        end = owns() ? (uint32_t)cut.kept : ((cluster + 1) * line + helpers - 1) / helpers;
    }
    /* A cut tile, if anything of what is cut. */
    __device__ bool owns() const { return cluster >= helpers; }

    __device__ bool next() {
        if (next_tile >= whole) return next_cut();
        tile = next_tile, first = 0, last = strips;
        next_tile += clusters;
        return true;
    }
    __device__ bool next_cut() {
        if (at == end) return false;
        tile = whole + (owns() ? cluster - helpers : at / (uint32_t)rest);
        first = owns() ? 0 : cut.kept + (int)(at % (uint32_t)rest);
        last = min(owns() ? cut.kept : strips, first + (int)(end - at));
        at += (uint32_t)(last - first);
        return true;
    }

    /* ---- Pieces: tile t's that helper h has is number t + h ---- */

    /* Whether the owner of a cut tile has it. */
    __device__ bool gathers() const { return tile >= whole && first == 0; }
    __device__ uint32_t own_piece() const { return tile - whole + cluster; }
    /* Of the tile: helper h has the strips of the line from ceil(h * line / helpers) on. */
    __device__ uint32_t first_piece() const {
        const uint32_t t = tile - whole;
        return t + t * helpers / (uint32_t)cut.tiles;
    }
    __device__ uint32_t last_piece() const {
        const uint32_t t = tile - whole, line = (uint32_t)(cut.tiles * rest);
        return t + ((t + 1) * (uint32_t)rest - 1) * helpers / line;
    }
    /* A consumer's thread has its place in every chunk. */
    __device__ uint64_t sums(uint32_t piece, uint32_t rank) const {
        return cut.sums + (uint64_t)(piece * 2 + rank) * (K::BOXES * EG_CUT_CHUNK);
    }
    __device__ uint32_t *count(uint32_t piece, uint32_t rank) const {
        return (uint32_t *)cut.counts + piece * 2 + rank;
    }
};

/* The helper's consumers: the sums as they lie in registers, in chunks of 64 columns. Each thread's stores
 * are fenced for the copy engine, and the count for all of a consumer. */
template <class K>
EG_DEVICE void eg_leave_piece(const eg_hopper_work<K> &work, uint32_t rank, const float (&acc)[K::COLS / 2]) {
    float4 *to = (float4 *)work.sums(work.own_piece(), rank) + threadIdx.x;
#pragma unroll
    for (int i = 0; i < K::COLS / 8; i++) {
        to[i * 256] = make_float4(acc[i * 4], acc[i * 4 + 1], acc[i * 4 + 2], acc[i * 4 + 3]);
    }
    eg_fence_async_global();
    eg_sync_threads<128>(EG_HOPPER_SYNC + threadIdx.x / 128);
    if (threadIdx.x % 128 == 0) eg_count_up(work.count(work.own_piece(), rank));
}

/* The owner's producer: after the strips it kept, the pieces come through the ring as well. They are the last
 * that does, and this block's own: the slots that they free are no matter to its neighbour. */
template <class K>
EG_DEVICE void eg_load_pieces(const eg_hopper_work<K> &work, eg_ring_of<K> &ring, uint32_t rank) {
    const uint32_t last = work.last_piece();
    int chunk = 0;
    for (uint32_t piece = work.first_piece(); piece <= last; piece++) {
        while (eg_count_now(work.count(piece, rank)) < 2) __nanosleep(100);
        eg_fence_async_global();
        for (int i = 0; i < K::BOXES; i++, chunk++, ring.advance()) {
            if (chunk < K::STAGES) {
                eg_barrier_wait(ring.empty(), ring.parity ^ 1);
            } else {
                eg_barrier_wait(ring.read(), (chunk / K::STAGES - 1) & 1);
            }
            if (!eg_elect()) continue;
            eg_barrier_expect(ring.full(), EG_CUT_CHUNK);
            eg_load_bytes(ring.address(), work.sums(piece, rank) + i * EG_CUT_CHUNK, EG_CUT_CHUNK,
                          ring.full());
        }
    }
}

/* The owner's consumers. */
template <class K>
EG_DEVICE void eg_add_pieces(const eg_hopper_work<K> &work, eg_ring_of<K> &ring, float (&acc)[K::COLS / 2]) {
    const uint32_t last = work.last_piece();
#pragma unroll 1
    for (uint32_t piece = work.first_piece(); piece <= last; piece++) {
#pragma unroll
        for (int chunk = 0; chunk < K::BOXES; chunk++) {
            eg_barrier_wait(ring.full(), ring.parity);
#pragma unroll
            for (int i = 0; i < 8; i++) {
                const uint4 x = eg_load_vector(ring.address() + (i * 256 + threadIdx.x) * 16);
                float *const to = acc + chunk * 32 + i * 4;
                to[0] += __uint_as_float(x.x), to[1] += __uint_as_float(x.y);
                to[2] += __uint_as_float(x.z), to[3] += __uint_as_float(x.w);
            }
            eg_barrier_arrive(ring.read());
            ring.advance();
        }
    }
}

#endif
