/* SPDX-License-Identifier: Apache-2.0 */
/* Hopper's instructions as functions: one PTX instruction each, named for what it does.
 *
 * Shared memory is named by its 32-bit address in the block's window. TMA and the matrix units read shared
 * memory through the asynchronous proxy. What threads have stored there must be fenced (eg_fence_async)
 * before a barrier, or they may not see it. */
#ifndef EG_CUDA_HOPPER_PTX_CUH
#define EG_CUDA_HOPPER_PTX_CUH

#include "matrix.cuh"

/* ---- Barriers in shared memory (mbarrier) ---------------------------------------------------------- */

EG_DEVICE void eg_barrier_init(uint32_t barrier, int arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
}

/* Makes the initialised barriers visible to TMA and to the other block of the cluster. */
EG_DEVICE void eg_barrier_init_fence() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }

/* One arrival, and `bytes` that TMA has to deliver before the phase ends. */
EG_DEVICE void eg_barrier_expect(uint32_t barrier, uint32_t bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes)
                 : "memory");
}

/* One arrival at a barrier of this block. */
EG_DEVICE void eg_barrier_arrive(uint32_t barrier) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}

/* One arrival at the barrier that lies at the same address in block `rank` of the cluster. It orders nothing
 * else between the blocks: a release at cluster scope is a fence of device memory, which costs more than the
 * products of a stage. */
EG_DEVICE void eg_barrier_arrive(uint32_t barrier, uint32_t rank) {
    asm volatile("{\n"
                 ".reg .b32 there;\n"
                 "mapa.shared::cluster.u32 there, %0, %1;\n"
                 "mbarrier.arrive.shared::cluster.b64 _, [there];\n"
                 "}" ::"r"(barrier),
                 "r"(rank)
                 : "memory");
}

EG_DEVICE uint32_t eg_load_number(uint32_t from) {
    uint32_t number;
    asm volatile("ld.shared.u32 %0, [%1];" : "=r"(number) : "r"(from) : "memory");
    return number;
}
EG_DEVICE void eg_load_shared(uint32_t from, uint16_t &x) {
    asm volatile("ld.shared.u16 %0, [%1];" : "=h"(x) : "r"(from) : "memory");
}
EG_DEVICE void eg_load_pair(uint32_t from, float &x, float &y) {
    asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];" : "=f"(x), "=f"(y) : "r"(from) : "memory");
}
EG_DEVICE void eg_load_shared(uint32_t from, float &x) {
    asm volatile("ld.shared.f32 %0, [%1];" : "=f"(x) : "r"(from) : "memory");
}

/* Waits for the end of the phase of this parity. */
EG_DEVICE void eg_barrier_wait(uint32_t barrier, uint32_t parity) {
    asm volatile("{\n"
                 ".reg .pred over;\n"
                 "again:\n"
                 "mbarrier.try_wait.parity.shared::cta.b64 over, [%0], %1;\n"
                 "@!over bra again;\n"
                 "}" ::"r"(barrier),
                 "r"(parity)
                 : "memory");
}

/* ---- Barriers of threads --------------------------------------------------------------------------- */

template <int THREADS> EG_DEVICE void eg_sync_threads(int id) {
    asm volatile("bar.sync %0, %1;" ::"r"(id), "n"(THREADS) : "memory");
}
/* The same barrier, of which this thread does not wait for the others. */
template <int THREADS> EG_DEVICE void eg_arrive_threads(int id) {
    asm volatile("bar.arrive %0, %1;" ::"r"(id), "n"(THREADS) : "memory");
}
EG_DEVICE void eg_sync_cluster() {
    asm volatile("barrier.cluster.arrive.aligned;\nbarrier.cluster.wait.aligned;" ::: "memory");
}
/* The same in two: what was done before the arrival need not be visible after the wait. */
EG_DEVICE void eg_cluster_arrive() { asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory"); }
EG_DEVICE void eg_cluster_wait() { asm volatile("barrier.cluster.wait.aligned;" ::: "memory"); }
EG_DEVICE uint32_t eg_cluster_rank() {
    uint32_t rank;
    asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    return rank;
}

/* The warp's number in the block. With the shuffle the compiler knows that it is the same in all lanes, and
 * keeps what depends on it in uniform registers, which the instructions of TMA take. */
EG_DEVICE int eg_warp() { return __shfl_sync(0xffffffffU, (int)threadIdx.x / 32, 0); }
/* True in one lane. All lanes of the warp call it. */
EG_DEVICE bool eg_elect() {
    uint32_t elected;
    asm volatile("{\n"
                 ".reg .pred one;\n"
                 "elect.sync _|one, 0xffffffff;\n"
                 "selp.u32 %0, 1, 0, one;\n"
                 "}"
                 : "=r"(elected));
    return elected != 0;
}

/* Moves registers from one warp group of the block to another. */
template <int COUNT> EG_DEVICE void eg_fewer_registers() {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(COUNT));
}
template <int COUNT> EG_DEVICE void eg_more_registers() {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(COUNT));
}

/* ---- Counters in device memory, between the blocks of a launch ------------------------------------------
 */

/* Who reads the new count also sees what this thread has stored, or has seen stored. */
EG_DEVICE void eg_count_up(uint32_t *count) {
    asm volatile("red.release.gpu.global.add.u32 [%0], 1;" ::"l"(count) : "memory");
}
EG_DEVICE uint32_t eg_count_now(const uint32_t *count) {
    uint32_t value;
    asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(value) : "l"(count) : "memory");
    return value;
}

EG_DEVICE uint4 eg_load_vector(uint32_t from) {
    uint4 v;
    asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "r"(from)
                 : "memory");
    return v;
}

/* ---- TMA: boxes of a tensor of three dimensions ---------------------------------------------------------
 */

EG_DEVICE void eg_fence_async() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

/* Between what threads store in device memory and what TMA then reads there. It is needed on both sides of
 * the signal that it has been stored. */
EG_DEVICE void eg_fence_async_global() { asm volatile("fence.proxy.async.global;" ::: "memory"); }

/* Bytes as they lie in device memory. Addresses and `bytes` are multiples of 16. */
EG_DEVICE void eg_load_bytes(uint32_t to, uint64_t from, uint32_t bytes, uint32_t barrier) {
    asm volatile(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(to),
        "l"(from), "r"(bytes), "r"(barrier)
        : "memory");
}

EG_DEVICE void eg_prefetch_tensor_map(const eg_cuda_tensor_map &tensor_map) {
    asm volatile("prefetch.tensormap [%0];" ::"l"(&tensor_map) : "memory");
}

EG_DEVICE void eg_load_box(uint32_t to, const eg_cuda_tensor_map &tensor_map, uint32_t barrier, int x, int y,
                           int item) {
    asm volatile("cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes"
                 " [%0], [%1, {%3, %4, %5}], [%2];" ::"r"(to),
                 "l"(&tensor_map), "r"(barrier), "r"(x), "r"(y), "r"(item)
                 : "memory");
}

/* The box arrives at the same address of every block in `blocks`, and at its barrier there. */
EG_DEVICE void eg_load_box_all(uint32_t to, const eg_cuda_tensor_map &tensor_map, uint32_t barrier, int x,
                               int y, int item, uint16_t blocks) {
    asm volatile("cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes"
                 ".multicast::cluster [%0], [%1, {%3, %4, %5}], [%2], %6;" ::"r"(to),
                 "l"(&tensor_map), "r"(barrier), "r"(x), "r"(y), "r"(item), "h"(blocks)
                 : "memory");
}

/* What lies outside the tensor is not written, except what follows a row up to the next 16 bytes. */
EG_DEVICE void eg_store_box(const eg_cuda_tensor_map &tensor_map, uint32_t from, int x, int y, int item) {
    asm volatile(
        "cp.async.bulk.tensor.3d.global.shared::cta.bulk_group [%0, {%2, %3, %4}], [%1];" ::"l"(&tensor_map),
        "r"(from), "r"(x), "r"(y), "r"(item)
        : "memory");
}

/* The box is added to what is there. Each element is rounded once and added to once, so no order matters. */
EG_DEVICE void eg_add_box(const eg_cuda_tensor_map &tensor_map, uint32_t from, int x, int y, int item) {
    asm volatile(
        "cp.reduce.async.bulk.tensor.3d.global.shared::cta.add.bulk_group [%0, {%2, %3, %4}], [%1];" ::"l"(
            &tensor_map),
        "r"(from), "r"(x), "r"(y), "r"(item)
        : "memory");
}

/* The boxes that this thread stored since the last such call form a group, which may be empty. */
EG_DEVICE void eg_stores_commit() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }

/* Waits until all but the last LEFT groups this thread stored have been read from shared memory. */
template <int LEFT> EG_DEVICE void eg_stores_have_read() {
    asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(LEFT) : "memory");
}

/* ---- Shared memory to fragments and back: four 8 x 8 blocks of 16-bit numbers ----------------------- */

EG_DEVICE void eg_load_blocks(uint32_t from, uint32_t (&r)[4]) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(from)
                 : "memory");
}
EG_DEVICE void eg_store_blocks(uint32_t to, const uint32_t (&r)[4]) {
    asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(to), "r"(r[0]),
                 "r"(r[1]), "r"(r[2]), "r"(r[3])
                 : "memory");
}
/* Each block transposed. */
EG_DEVICE void eg_load_blocks_turned(uint32_t from, uint32_t (&r)[4]) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(from)
                 : "memory");
}
EG_DEVICE void eg_store_blocks_turned(uint32_t to, const uint32_t (&r)[4]) {
    asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(to),
                 "r"(r[0]), "r"(r[1]), "r"(r[2]), "r"(r[3])
                 : "memory");
}
EG_DEVICE void eg_store_number(uint32_t to, float x) {
    asm volatile("st.shared.f32 [%0], %1;" ::"r"(to), "f"(x) : "memory");
}
EG_DEVICE void eg_store_pair(uint32_t to, float x, float y) {
    asm volatile("st.shared.v2.f32 [%0], {%1, %2};" ::"r"(to), "f"(x), "f"(y) : "memory");
}

/* ---- The matrix units (wgmma) ------------------------------------------------------------------------ */

/* Orders the warp group's register and shared accesses before the products that follow. */
EG_DEVICE void eg_products_begin() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
EG_DEVICE void eg_products_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int LEFT> EG_DEVICE void eg_products_wait() {
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(LEFT) : "memory");
}

/* The matrix descriptor of an operand in shared memory, in the 128-byte swizzle that TMA writes.
 * `chunk`: of an MN-major operand, bytes from 64 rows or columns to the next 64. Groups of eight lines are
 * 1024 bytes apart in either case. */
EG_DEVICE uint64_t eg_operand_at(uint32_t address, uint32_t chunk) {
    const uint64_t swizzle_128 = 1;
    return (uint64_t)((address & 0x3ffffU) >> 4) | (uint64_t)(chunk >> 4) << 16 |
           (uint64_t)(1024 >> 4) << 32 | swizzle_128 << 62;
}

/* clang-format off */
#define EG_NAMES_8 "%0, %1, %2, %3, %4, %5, %6, %7"
#define EG_NAMES_32 EG_NAMES_8 ", "                                                                          \
    "%8, %9, %10, %11, %12, %13, %14, %15, "                                                                 \
    "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define EG_NAMES_64 EG_NAMES_32 ", "                                                                         \
    "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "                       \
    "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define EG_NAMES_128 EG_NAMES_64 ", "                                                                        \
    "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, "                       \
    "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95, "                       \
    "%96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111, "           \
    "%112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127"
#define EG_ACC_8_AT(i) "+f"(acc[i]), "+f"(acc[i + 1]), "+f"(acc[i + 2]), "+f"(acc[i + 3]),                   \
                       "+f"(acc[i + 4]), "+f"(acc[i + 5]), "+f"(acc[i + 6]), "+f"(acc[i + 7])
#define EG_ACC_32_AT(i) EG_ACC_8_AT(i), EG_ACC_8_AT(i + 8), EG_ACC_8_AT(i + 16), EG_ACC_8_AT(i + 24)
#define EG_ACC_8   EG_ACC_8_AT(0)
#define EG_ACC_32  EG_ACC_32_AT(0)
#define EG_ACC_64  EG_ACC_32, EG_ACC_32_AT(32)
#define EG_ACC_128 EG_ACC_64, EG_ACC_32_AT(64), EG_ACC_32_AT(96)

/* acc = left(64 x 16) * right(16 x COLS), + acc where `add`. The numbers name the operands after acc. */
#define EG_WGMMA(type, cols, count, l, r, add_, lt, rt)                                                      \
    asm volatile("{\n.reg .pred add;\nsetp.ne.b32 add, %" #add_ ", 0;\n"                                     \
                 "wgmma.mma_async.sync.aligned.m64n" #cols "k16.f32." #type "." #type                        \
                 " {" EG_NAMES_##count "}, %" #l ", %" #r ", add, 1, 1, %" #lt ", %" #rt ";\n}"              \
                 : EG_ACC_##count                                                                            \
                 : "l"(left), "l"(right), "r"(add), "n"(LEFT_MN_MAJOR), "n"(RIGHT_MN_MAJOR))

/* *_MN_MAJOR: 1 where the operand is MN-major, 0 where it is K-major. */
#define EG_MULTIPLY(cols, n, l, r, a, lt, rt)                                                                \
    template <bool BF16, int LEFT_MN_MAJOR, int RIGHT_MN_MAJOR>                                              \
    EG_DEVICE void eg_multiply(float (&acc)[n], uint64_t left, uint64_t right, int add) {                    \
        if (BF16) EG_WGMMA(bf16, cols, n, l, r, a, lt, rt);                                                  \
        else      EG_WGMMA(f16, cols, n, l, r, a, lt, rt);                                                   \
    }
EG_MULTIPLY(16, 8, 8, 9, 10, 11, 12)
EG_MULTIPLY(64, 32, 32, 33, 34, 35, 36)
EG_MULTIPLY(128, 64, 64, 65, 66, 67, 68)
EG_MULTIPLY(256, 128, 128, 129, 130, 131, 132)
/* clang-format on */

#endif
