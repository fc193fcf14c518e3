/* eg_convert against the oracle's arithmetic: every number of the 16-bit types, and the neighbourhood of
 * every rounding decision between them. */
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

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_half_survives),
        cmocka_unit_test(ties_go_to_even),
        cmocka_unit_test(ends_of_the_range),
        cmocka_unit_test(arrays_of_any_alignment),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
