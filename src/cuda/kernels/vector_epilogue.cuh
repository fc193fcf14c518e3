/* SPDX-License-Identifier: Apache-2.0 */
/* The epilogue on vectors of 16 bytes of rows: terms of a product, on values that a kernel has in registers.
 *
 * The epilogue and its activation are chosen once, around the loop over vectors: the instructions that a
 * block runs are few then and lie side by side. With all activations inside the loop, fetching them took
 * longer than a small product. */
#ifndef EG_CUDA_VECTOR_EPILOGUE_CUH
#define EG_CUDA_VECTOR_EPILOGUE_CUH

#include "vectors.cuh"

/* Where a vector of a row is. */
template <typename V>
EG_DEVICE uint4 *eg_vector_at(const eg_cuda_matrix &x, int64_t item, int64_t row, int64_t col) {
    return (uint4 *)x.data + (item * x.item_stride + row * x.row_stride + col) / V::COUNT;
}

/* A product of 16-bit numbers waits in f32, and so do factors: as many numbers, in two vectors. What is
 * loaded and widened later is on its way meanwhile. */
template <typename V> struct eg_loaded {
    uint4 low, high;

    __device__ void load(const eg_cuda_matrix &x, int64_t item, int64_t row, int64_t col) {
        if (V::COUNT != 8 || x.dtype != EG_F32) {
            low = *eg_vector_at<V>(x, item, row, col);
            return;
        }
        const uint4 *from = eg_vector_at<f32x4>(x, item, row, col);
        low = from[0], high = from[V::COUNT == 8];
    }
    template <typename T> __device__ void widen(const eg_cuda_matrix &x, T (&v)[V::COUNT]) const {
        if (V::COUNT != 8 || x.dtype != EG_F32) return V::widen(low, v);
        const uint4 halves[2] = {low, high};
#pragma unroll
        for (int i = 0; i < V::COUNT; i++) {
            float four[4];
            f32x4::widen(halves[i / 4 % 2], four);
            v[i] = four[i % 4];
        }
    }
};

template <typename V, typename T>
EG_DEVICE void eg_load_values(const eg_cuda_matrix &x, int64_t item, int64_t row, int64_t col,
                              T (&v)[V::COUNT]) {
    eg_loaded<V> loaded;
    loaded.load(x, item, row, col);
    loaded.widen(x, v);
}

template <typename V, typename T>
EG_DEVICE void eg_store_values(const eg_cuda_matrix &x, int64_t item, int64_t row, int64_t col,
                               const T (&v)[V::COUNT]) {
    if (V::COUNT != 8 || x.dtype != EG_F32) {
        *eg_vector_at<V>(x, item, row, col) = V::round(v);
        return;
    }
    uint4 *to = eg_vector_at<f32x4>(x, item, row, col);
#pragma unroll
    for (int half = 0; half < (V::COUNT == 8 ? 2 : 1); half++) {
        float four[4];
#pragma unroll
        for (int i = 0; i < 4; i++) four[i] = (float)v[(half * 4 + i) % V::COUNT];
        to[half] = f32x4::round(four);
    }
}

/* Those of a gradient: see eg_with_terms. */
template <typename V, typename U> EG_DEVICE void eg_with_gradient(const eg_cuda_gemm &p, const U &use) {
    typedef typename V::real values[V::COUNT];
    const bool none = p.activation == EG_ACT_NONE, propagate = p.propagate != 0;
    const bool of_value = p.epilogue == EG_CUDA_ACT_GRAD; /* act' is taken at the value, else at `in` */
    eg_with_act_grad(p.activation, p.source == EG_SOURCE_Y, [&](const auto &derivative) EG_INLINE {
        use([&](values &v, const values &in) EG_INLINE {
            values saved, d_act;
#pragma unroll
            for (int i = 0; i < V::COUNT; i++) saved[i] = of_value ? v[i] : in[i];
            eg_act_derivatives_by(derivative, none, propagate, saved, d_act);
#pragma unroll
            for (int i = 0; i < V::COUNT; i++) v[i] = (of_value ? in[i] : v[i]) * d_act[i];
        });
    });
}

/* Calls use(finish), where finish(v, in) makes results of values v, to which the bias is added, and of what
 * the epilogue reads. */
template <typename V, typename U> EG_DEVICE void eg_with_terms(const eg_cuda_gemm &p, const U &use) {
    typedef typename V::real values[V::COUNT];
    if (p.epilogue == EG_CUDA_STORE) { /* in: the result that is added to, or 0 */
        use([](values &v, const values &in) EG_INLINE {
#pragma unroll
            for (int i = 0; i < V::COUNT; i++) v[i] += in[i];
        });
        return;
    }
    if (p.epilogue == EG_CUDA_TIMES) {
        eg_with_act(p.activation, [&](const auto &act) EG_INLINE {
            use([&](values &v, const values &in) EG_INLINE {
#pragma unroll
                for (int i = 0; i < V::COUNT; i++) v[i] = (eg_is_nan(v[i]) ? v[i] : act(v[i])) * in[i];
            });
        });
        return;
    }
    if (p.epilogue == EG_CUDA_FORWARD) {
        eg_with_act(p.activation, [&](const auto &act) EG_INLINE {
            use([&](values &v, const values &in) EG_INLINE {
#pragma unroll
                for (int i = 0; i < V::COUNT; i++) v[i] = (eg_is_nan(v[i]) ? v[i] : act(v[i])) + in[i];
            });
        });
        return;
    }
    eg_with_gradient<V>(p, use);
}

/* A vector of the result, at (row, col) of an item: values become results. */
template <typename V, typename F>
EG_DEVICE void eg_finish_vector(const eg_cuda_gemm &p, int64_t item, int64_t row, int64_t col,
                                const F &finish, typename V::real (&v)[V::COUNT]) {
    typename V::real bias[V::COUNT] = {}, read[V::COUNT] = {};
    if (p.in.data != 0) eg_load_values<V>(p.in, item, row, col, read);
    if (p.bias.data != 0) V::widen(*eg_vector_at<V>(p.bias, item, 0, col), bias);
#pragma unroll
    for (int i = 0; i < V::COUNT; i++) v[i] += bias[i];
    if (p.second.data != 0) *eg_vector_at<V>(p.second, item, row, col) = V::round(v);
    finish(v, read);
    if (p.out.data != 0) eg_store_values<V>(p.out, item, row, col, v);
}

#endif
