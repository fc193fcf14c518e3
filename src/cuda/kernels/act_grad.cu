/* grad_pre = grad * act'(saved) at the speed of memory, with the column sums of its row chunks on the way.
 *
 *     a warp reads 32 vectors of 16 bytes side by side     one row, 256 columns of bf16
 *     a block's 8 warps take every eighth row of the chunk; a thread keeps ROWS rows of both operands in
 *     flight, adds its column sums in registers, and the warps' sums are added in order at the end.
 *
 * The sums are of the unrounded products. Rows of 16-byte vectors only; all else is ref_act_grad's. */
#include "matrix.cuh"
#include "order.cuh"

enum { WARPS = 8, ROWS = 4 };

/* 16 bytes of each storage type, as the compute type. */
struct bf16x8 {
    typedef float real;
    enum { COUNT = 8 };
    static __device__ void widen(const uint4 &q, float (&v)[8]) {
        const uint32_t words[4] = {q.x, q.y, q.z, q.w};
#pragma unroll
        for (int i = 0; i < 4; i++) {
            v[2 * i] = eg_widen_bf16(words[i] & 0xffffU);
            v[2 * i + 1] = __uint_as_float(words[i] & 0xffff0000U);
        }
    }
    static __device__ uint4 round(const float (&v)[8]) {
        return make_uint4(eg_round_bf16x2(v[0], v[1]), eg_round_bf16x2(v[2], v[3]),
                          eg_round_bf16x2(v[4], v[5]), eg_round_bf16x2(v[6], v[7]));
    }
};
struct f16x8 {
    typedef float real;
    enum { COUNT = 8 };
    static __device__ void widen(const uint4 &q, float (&v)[8]) {
        const uint32_t words[4] = {q.x, q.y, q.z, q.w};
#pragma unroll
        for (int i = 0; i < 4; i++) {
            v[2 * i] = eg_widen_f16((uint16_t)words[i]);
            v[2 * i + 1] = eg_widen_f16((uint16_t)(words[i] >> 16));
        }
    }
    static __device__ uint4 round(const float (&v)[8]) {
        return make_uint4(eg_round_f16x2(v[0], v[1]), eg_round_f16x2(v[2], v[3]),
                          eg_round_f16x2(v[4], v[5]), eg_round_f16x2(v[6], v[7]));
    }
};
struct f32x4 {
    typedef float real;
    enum { COUNT = 4 };
    static __device__ void widen(const uint4 &q, float (&v)[4]) {
        v[0] = __uint_as_float(q.x), v[1] = __uint_as_float(q.y);
        v[2] = __uint_as_float(q.z), v[3] = __uint_as_float(q.w);
    }
    static __device__ uint4 round(const float (&v)[4]) {
        return make_uint4(__float_as_uint(v[0]), __float_as_uint(v[1]), __float_as_uint(v[2]),
                          __float_as_uint(v[3]));
    }
};
struct f64x2 {
    typedef double real;
    enum { COUNT = 2 };
    static __device__ void widen(const uint4 &q, double (&v)[2]) {
        v[0] = __hiloint2double((int)q.y, (int)q.x), v[1] = __hiloint2double((int)q.w, (int)q.z);
    }
    static __device__ uint4 round(const double (&v)[2]) {
        return make_uint4((uint32_t)__double2loint(v[0]), (uint32_t)__double2hiint(v[0]),
                          (uint32_t)__double2loint(v[1]), (uint32_t)__double2hiint(v[1]));
    }
};

/* A chunk of rows at one strip of columns; `first` is where the thread's vector stands in each matrix. */
template <typename V>
EG_DEVICE void chunk_strip(const eg_cuda_act_grad &p, int64_t item, int64_t row, int64_t end, int64_t strip,
                           typename V::real (&sums)[V::COUNT]) {
    const int64_t bytes = 16 / V::COUNT;
    const char *grad = (const char *)p.grad.data + (item * p.grad.item_stride + strip) * bytes;
    const char *saved = (const char *)p.saved.data + (item * p.saved.item_stride + strip) * bytes;
    char *out = (char *)p.out.data + (item * p.out.item_stride + strip) * bytes;
    const bool reads_saved = p.activation != EG_ACT_NONE, of_y = p.source == EG_SOURCE_Y;
    for (; row < end; row += WARPS * ROWS) {
        uint4 g[ROWS], s[ROWS];
#pragma unroll
        for (int i = 0; i < ROWS; i++) {
            const int64_t at = row + i * WARPS;
            if (at >= end) break;
            g[i] = *(const uint4 *)(grad + at * p.grad.row_stride * bytes);
            if (reads_saved) s[i] = __ldcs((const uint4 *)(saved + at * p.saved.row_stride * bytes));
        }
#pragma unroll
        for (int i = 0; i < ROWS; i++) {
            const int64_t at = row + i * WARPS;
            if (at >= end) break;
            typename V::real product[V::COUNT], from[V::COUNT] = {};
            V::widen(g[i], product);
            if (reads_saved) V::widen(s[i], from);
            eg_act_grad(p.activation, of_y, p.propagate != 0, product, from);
#pragma unroll
            for (int j = 0; j < V::COUNT; j++) sums[j] += product[j];
            if (p.out.data != 0) *(uint4 *)(out + at * p.out.row_stride * bytes) = V::round(product);
        }
    }
}

template <typename V> EG_DEVICE void run(const eg_cuda_act_grad &p) {
    typedef typename V::real real;
    __shared__ real shared[WARPS][32 * V::COUNT];
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const int64_t strips = (p.cols + 32 * V::COUNT - 1) / (32 * V::COUNT);
    eg_wait_for_predecessor();
    eg_let_successor_start();
    for (int64_t index = blockIdx.x; index < p.items * p.chunks * strips; index += gridDim.x) {
        const int64_t row_of_sums = index / strips, strip = index % strips * 32 * V::COUNT;
        const int64_t item = row_of_sums / p.chunks, row = row_of_sums % p.chunks * p.chunk_rows;
        const int64_t end = row + p.chunk_rows < p.rows ? row + p.chunk_rows : p.rows;
        const int64_t col = strip + lane * V::COUNT;
        real sums[V::COUNT] = {};
        if (col < p.cols) chunk_strip<V>(p, item, row + warp, end, col, sums);
        if (p.sums == 0) continue;
#pragma unroll
        for (int j = 0; j < V::COUNT; j++) shared[warp][j * 32 + lane] = sums[j];
        __syncthreads();
        if (threadIdx.x < 32 * V::COUNT) {
            const int j = threadIdx.x % V::COUNT, from = threadIdx.x / V::COUNT;
            real total = 0;
            for (int i = 0; i < WARPS; i++) total += shared[i][j * 32 + from];
            if (strip + threadIdx.x < p.cols)
                ((real *)p.sums)[row_of_sums * p.cols + strip + threadIdx.x] = total;
        }
        __syncthreads();
    }
}

#define EG_ENTRY(name, vector)                                                                               \
    extern "C" __global__ void __launch_bounds__(32 * WARPS)                                                 \
        eg_act_grad_##name(const __grid_constant__ eg_cuda_act_grad p) {                                     \
        run<vector>(p);                                                                                      \
    }
EG_ENTRY(bf16, bf16x8)
EG_ENTRY(f16, f16x8)
EG_ENTRY(f32, f32x4)
EG_ENTRY(f64, f64x2)
