/* SPDX-License-Identifier: Apache-2.0 */
/* Sums of rows of column sums, for d_bias. */
#ifndef EG_CUDA_COLUMN_SUM_CUH
#define EG_CUDA_COLUMN_SUM_CUH

#include "matrix.cuh"

/* The sum of every `step`-th row from `first` on, with compensation (Neumaier), so that the error does not
 * grow with their number. */
template <typename T>
EG_DEVICE T eg_sum_column(const eg_cuda_column_sum &p, int64_t col, int64_t first, int64_t step) {
    const T *from = (const T *)p.sums + col;
    T total = 0, lost = 0;
    for (int64_t row = first; row < p.rows; row += step) {
        const T x = from[row * p.cols], sum = total + x;
        const T error = eg_abs(total) < eg_abs(x) ? (x - sum) + total : (total - sum) + x;
        lost += eg_is_nan(error) ? (T)0 : error; /* NaN where the sum is infinite */
        total = sum;
    }
    return total + lost;
}

template <typename T> EG_DEVICE void eg_put_sum(const eg_cuda_column_sum &p, int64_t col, T total) {
    const int64_t at = col * p.out.col_stride;
    T old = 0;
    if (p.accumulate) eg_load(p.out, at, old);
    eg_store(p.out, at, old + total);
}

#endif
