/* SPDX-License-Identifier: Apache-2.0 */
/* eg_convert against the oracle's arithmetic: every number of the 16-bit types, and the neighbourhood of
 * every rounding decision between them; and what kernels store. */
#include "oracle.h"
#include "support.h"

#include <math.h>

static const eg_dtype dtypes[] = {EG_F64, EG_F32, EG_F16, EG_BF16};

static void check_one(eg_dtype from, eg_dtype to, double x) {
    double source = 0, result = 0; /* room for any type */
    oracle_put(&source, 0, from, x);
    const double given = oracle_get(&source, 0, from), expected = oracle_round(given, to);
    assert_ok(eg_convert(&result, to, &source, from, 1));
    const double got = oracle_get(&result, 0, to);
    const bool same = isnan(expected) ? isnan(got) : got == expected && signbit(got) == signbit(expected);
    if (!same)
        fail_msg("%s %.17g to %s is %.17g; expected %.17g", eg_dtype_name(from), given, eg_dtype_name(to),
                 got, expected);
}

static void every_half_survives(void **state) {
    (void)state;
    for (int d = 2; d < 4; d++) {
        for (size_t to = 0; to < LENGTH(dtypes); to++) {
            for (unsigned bits = 0; bits < 65536; bits++) {
                const uint16_t half = (uint16_t)bits;
                check_one(dtypes[d], dtypes[to], oracle_get(&half, 0, dtypes[d]));
            }
        }
    }
}

/* Between two neighbours: the tie, and the nearest numbers on either side of it, which a conversion that
 * rounds twice gets wrong. */
static void ties_go_to_even(void **state) {
    (void)state;
    for (int d = 2; d < 4; d++) {
        for (unsigned bits = 0; bits < 0x7f80; bits++) {
            const uint16_t low = (uint16_t)bits, high = (uint16_t)(bits + 1);
            const double x = oracle_get(&low, 0, dtypes[d]), next = oracle_get(&high, 0, dtypes[d]);
            if (!isfinite(x) || !isfinite(next)) continue;
            const double tie = (x + next) / 2;
            const double around[] = {tie, nextafter(tie, 0), nextafter(tie, INFINITY),
                                     (double)nextafterf((float)tie, 0),
                                     (double)nextafterf((float)tie, INFINITY)};
            for (size_t i = 0; i < LENGTH(around); i++) {
                check_one(EG_F64, dtypes[d], around[i]);
                check_one(EG_F64, dtypes[d], -around[i]);
                check_one(EG_F32, dtypes[d], around[i]);
            }
        }
    }
}

static void ends_of_the_range(void **state) {
    (void)state;
    static const double ends[] = {0.0,
                                  65504,
                                  65519,
                                  65519.999999999993,
                                  65520,
                                  0x1p-24,
                                  0x1p-25,
                                  0x1.0000000001p-25,
                                  0x1p-133,
                                  0x1p-134,
                                  0x1.8p-134,
                                  3.3895313892515355e38,
                                  3.3961775292304601e38,
                                  3.4e38,
                                  3.4028234663852886e38,
                                  3.4028235677973366e38,
                                  1e300,
                                  5e-324,
                                  0x1p-149,
                                  0x1p-150,
                                  0x1.8p-150,
                                  INFINITY,
                                  NAN};
    for (size_t i = 0; i < LENGTH(ends); i++) {
        for (size_t from = 0; from < LENGTH(dtypes); from++) {
            for (size_t to = 0; to < LENGTH(dtypes); to++) {
                check_one(dtypes[from], dtypes[to], ends[i]);
                check_one(dtypes[from], dtypes[to], -ends[i]);
            }
        }
    }
}

static void arrays_of_any_alignment(void **state) {
    (void)state;
    float source[33];
    uint16_t result[35];
    for (int i = 0; i < 33; i++) source[i] = (float)i * 0.37F;
    for (size_t count = 0; count <= 33; count++) {
        memset(result, 0xff, sizeof result);
        assert_ok(eg_convert(result + 1, EG_F16, source, EG_F32, count));
        for (size_t i = 0; i < count; i++)
            assert_true(oracle_get(result, i + 1, EG_F16) == oracle_round((double)source[i], EG_F16));
        assert_int_equal(result[0], 0xffff);
        assert_int_equal(result[count + 1], 0xffff);
    }
}

/* ---- Results ------------------------------------------------------------------------------------ */

enum { FRACTIONS = 1024, COLS = 17 }; /* one vector of any kernel and a part */

/* y = x + half of its last place + `beyond` 64ths of that, each a term: exact in f32. */
static void check_results(eg_context *context, eg_dtype dtype, double scale, int beyond) {
    static uint16_t a[FRACTIONS * 3], b[3 * COLS], y[FRACTIONS * COLS];
    double x[FRACTIONS];
    for (int i = 0; i < FRACTIONS; i++) {
        x[i] = oracle_round(scale * (1 + i / (double)FRACTIONS), dtype);
        const double half = oracle_spacing(x[i], dtype) / 2;
        oracle_put(a, (size_t)i * 3, dtype, x[i]);
        oracle_put(a, (size_t)i * 3 + 1, dtype, half);
        oracle_put(a, (size_t)i * 3 + 2, dtype, half * beyond / 64);
    }
    for (size_t j = 0; j < LENGTH(b); j++) oracle_put(b, j, dtype, 1);
    const eg_layer layer = {
        .size = sizeof layer, .m = FRACTIONS, .k = 3, .n = COLS, .batch = 1, .dtype = dtype};
    const eg_forward_args args = {.size = sizeof args, .a = {.data = a}, .b = {.data = b}, .y = {.data = y}};
    assert_ok(eg_forward(context, &layer, &args));
    for (int i = 0; i < FRACTIONS * COLS; i++) {
        const double from = x[i / COLS], half = oracle_spacing(from, dtype) / 2;
        const double exact = from + half + half * beyond / 64, got = oracle_get(y, (size_t)i, dtype);
        if (got != oracle_round(exact, dtype))
            fail_msg("%s: %.17g is stored as %.17g", eg_dtype_name(dtype), exact, got);
    }
}

/* What a kernel stores is rounded as numbers are converted, ties to even, on every row that takes the type.
 */
static void results_are_rounded_alike(void **state) {
    (void)state;
    eg_context *table = open_cpu(1);
    eg_kernel_info row = {.size = sizeof row};
    for (int i = 0; eg_get_kernel_info(table, i, &row) == EG_OK; i++) {
        const bool own_type = strstr(row.name, "amx") != NULL || strstr(row.name, "bf16") != NULL;
        if (!row.usable || row.compute != EG_F32 || own_type) continue;
        eg_context *context = NULL;
        assert_ok(eg_open(&(eg_open_info){.size = sizeof(eg_open_info), .kernel = row.name}, &context));
        for (int j = 0; j < 2 * 3 * 2; j++)
            check_results(context, dtypes[2 + j % 2], j / 6 % 2 == 0 ? 1 : -0.125, j / 2 % 3 - 1);
        eg_close(context);
    }
    eg_close(table);
}

/* What is added to a product is not one: a subnormal residual stays, also where subnormal factors are zeros.
 */
static void a_subnormal_residual_stays(void **state) {
    (void)state;
    eg_context *table = open_cpu(1);
    eg_kernel_info row = {.size = sizeof row};
    for (int i = 0; eg_get_kernel_info(table, i, &row) == EG_OK; i++) {
        if (!row.usable || strstr(row.name, "bf16") == NULL) continue;
        enum { ROWS = 32, NUMBERS = ROWS * ROWS };
        static uint16_t zeros[NUMBERS], residual[NUMBERS], y[NUMBERS];
        for (int j = 0; j < NUMBERS; j++) residual[j] = (uint16_t)(1 + j % 0x7f); /* the sign is + */
        const eg_layer layer = {
            .size = sizeof layer, .m = ROWS, .k = ROWS, .n = ROWS, .batch = 1, .dtype = EG_BF16};
        const eg_forward_args args = {.size = sizeof args,
                                      .a = {.data = zeros},
                                      .b = {.data = zeros},
                                      .residual = {.data = residual},
                                      .y = {.data = y}};
        eg_context *context = NULL;
        assert_ok(eg_open(&(eg_open_info){.size = sizeof(eg_open_info), .kernel = row.name}, &context));
        assert_ok(eg_forward(context, &layer, &args));
        assert_memory_equal(y, residual, sizeof y);
        eg_close(context);
    }
    eg_close(table);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_half_survives),       cmocka_unit_test(ties_go_to_even),
        cmocka_unit_test(ends_of_the_range),         cmocka_unit_test(arrays_of_any_alignment),
        cmocka_unit_test(results_are_rounded_alike), cmocka_unit_test(a_subnormal_residual_stays),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
