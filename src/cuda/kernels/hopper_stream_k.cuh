/* SPDX-License-Identifier: Apache-2.0 */
/* The fix-up of a stream-K tail: helpers store partial tiles, and owners add them to their own. The scheduler
 * that splits the tiles is in hopper_scheduler.cuh. */
#ifndef EG_CUDA_HOPPER_STREAM_K_CUH
#define EG_CUDA_HOPPER_STREAM_K_CUH

/* A helper's consumers store their accumulators as they lie in registers, in chunks of 64 columns. Each
 * thread's stores are fenced for TMA, which loads them later, and counted for all of a consumer at once. */
template <class K>
EG_DEVICE void eg_store_partial_tile(const eg_scheduler<K> &work, uint32_t rank,
                                     const eg_accumulators<K> &acc) {
    float4 *to = (float4 *)work.sums(work.own_partial(), rank) + threadIdx.x;
#pragma unroll
    for (int i = 0; i < K::COLS / 8; i++) {
        to[i * 256] = make_float4(acc[0][i * 4], acc[0][i * 4 + 1], acc[0][i * 4 + 2], acc[0][i * 4 + 3]);
    }
    eg_fence_async_global();
    eg_sync_threads<128>(EG_HOPPER_SYNC + threadIdx.x / 128);
    if (threadIdx.x % 128 == 0) eg_count_up(work.count(work.own_partial(), rank));
}

/* An owner's producer loads the partial tiles of its tile through the ring, after the k-blocks. They are the
 * last to come through it and belong to this block alone, so the other block need not be told of stages that
 * they free. */
template <class K>
EG_DEVICE void eg_load_partial_tiles(const eg_scheduler<K> &work, eg_ring_of<K> &ring, uint32_t rank) {
    const uint32_t last = work.last_partial();
    int chunk = 0;
    for (uint32_t partial = work.first_partial(); partial <= last; partial++) {
        while (eg_count_now(work.count(partial, rank)) < 2) __nanosleep(100);
        eg_fence_async_global();
        for (int i = 0; i < K::BOXES; i++, chunk++, ring.advance()) {
            if (chunk < K::STAGES) {
                eg_barrier_wait(ring.empty(), ring.parity ^ 1);
            } else {
                eg_barrier_wait(ring.read(), (chunk / K::STAGES - 1) & 1);
            }
            if (!eg_elect()) continue;
            eg_barrier_expect(ring.full(), EG_PARTIAL_CHUNK);
            eg_load_bytes(ring.address(), work.sums(partial, rank) + i * EG_PARTIAL_CHUNK, EG_PARTIAL_CHUNK,
                          ring.full());
        }
    }
}

/* An owner's consumers add them, in order. */
template <class K>
EG_DEVICE void eg_add_partial_tiles(const eg_scheduler<K> &work, eg_ring_of<K> &ring,
                                    eg_accumulators<K> &acc) {
    const uint32_t last = work.last_partial();
#pragma unroll 1
    for (uint32_t partial = work.first_partial(); partial <= last; partial++) {
#pragma unroll
        for (int chunk = 0; chunk < K::BOXES; chunk++) {
            eg_barrier_wait(ring.full(), ring.parity);
#pragma unroll
            for (int i = 0; i < 8; i++) {
                const uint4 x = eg_load_vector(ring.address() + (i * 256 + threadIdx.x) * 16);
                float *const to = acc[0] + chunk * 32 + i * 4;
                to[0] += __uint_as_float(x.x), to[1] += __uint_as_float(x.y);
                to[2] += __uint_as_float(x.z), to[3] += __uint_as_float(x.w);
            }
            eg_barrier_arrive(ring.read());
            ring.advance();
        }
    }
}

#endif
