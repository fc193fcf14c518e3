/* SPDX-License-Identifier: Apache-2.0 */
/* eg_convert: every pair of storage types, through the wider of the two. */
#include "epigrad/epigrad.h"
#include "error.h"
#include "half.h"

static double read_number(const void *src, eg_dtype from, size_t i) {
    switch (from) {
    case EG_F64:
        return ((const double *)src)[i];
    case EG_F32:
        return (double)((const float *)src)[i];
    case EG_F16:
        return (double)eg_f32_of_f16(((const uint16_t *)src)[i]);
    case EG_BF16:
        return (double)eg_f32_of_bf16(((const uint16_t *)src)[i]);
    case EG_DTYPE_DEFAULT:
        break;
    }
    return 0;
}

static void write_number(void *dst, eg_dtype to, size_t i, double x) {
    switch (to) {
    case EG_F64:
        ((double *)dst)[i] = x;
        break;
    case EG_F32:
        ((float *)dst)[i] = (float)x;
        break;
    case EG_F16:
        ((uint16_t *)dst)[i] = eg_f16_of_f32(eg_f32_odd_of_f64(x));
        break;
    case EG_BF16:
        ((uint16_t *)dst)[i] = eg_bf16_of_f32(eg_f32_odd_of_f64(x));
        break;
    case EG_DTYPE_DEFAULT:
        break;
    }
}

static eg_status check_buffer(const char *name, const void *data, eg_dtype dtype, size_t count) {
    const size_t size = eg_dtype_size(dtype);
    if (count == 0) return EG_OK;
    if (data == NULL) return eg_fail(EG_ERR_ARGUMENT, "%s is NULL; expected %zu elements", name, count);
    if ((uintptr_t)data % size == 0) return EG_OK;
    return eg_fail(EG_ERR_ARGUMENT, "%s is %p; expected a multiple of %zu bytes, the size of %s", name, data,
                   size, eg_dtype_name(dtype));
}

static eg_status check_apart(const void *dst, size_t dst_bytes, const void *src, size_t src_bytes) {
    const uintptr_t to = (uintptr_t)dst, from = (uintptr_t)src;
    if (to < from ? dst_bytes <= from - to : src_bytes <= to - from) return EG_OK;
    return eg_fail(EG_ERR_ARGUMENT,
                   "dst at %p, %zu bytes, overlaps src at %p, %zu bytes; expected separate memory", dst,
                   dst_bytes, src, src_bytes);
}

eg_status eg_convert(void *dst, eg_dtype to, const void *src, eg_dtype from, size_t count) {
    if (eg_dtype_size(to) == 0)
        return eg_fail(EG_ERR_ARGUMENT, "to is %d; expected EG_F32, EG_F64, EG_F16 or EG_BF16", (int)to);
    if (eg_dtype_size(from) == 0)
        return eg_fail(EG_ERR_ARGUMENT, "from is %d; expected EG_F32, EG_F64, EG_F16 or EG_BF16", (int)from);
    if (count > SIZE_MAX / sizeof(double))
        return eg_fail(EG_ERR_ARGUMENT, "count is %zu; expected at most %zu", count,
                       SIZE_MAX / sizeof(double));
    EG_TRY(check_buffer("dst", dst, to, count));
    EG_TRY(check_buffer("src", src, from, count));
    EG_TRY(check_apart(dst, count * eg_dtype_size(to), src, count * eg_dtype_size(from)));
    for (size_t i = 0; i < count; i++) write_number(dst, to, i, read_number(src, from, i));
    return EG_OK;
}
