/* Overlaps against what they mean: two operands overlap where they share a byte. Whatever their layouts, no
 * overlap may be missed; and there are layouts for which none may be seen where there is none. */
#include "support.h"

#include "number.h"
#include "overlap.h"

enum { BYTES = 2048, PAIRS = 200000 };

/* The bytes of every element. */
static void paint(const eg_problem *p, const eg_operand *x, bool bytes[BYTES]) {
    memset(bytes, 0, BYTES * sizeof *bytes);
    for (int64_t item = 0; item < p->batch; item++) {
        for (int64_t i = 0; i < x->rows; i++) {
            for (int64_t j = 0; j < x->cols; j++) {
                const int64_t element = item * x->batch_stride + i * x->row_stride + j * x->col_stride;
                const size_t at = x->offset + (size_t)element * eg_size_of(x->dtype);
                assert_in_range(at, 0, BYTES - 8);
                for (size_t byte = 0; byte < eg_size_of(x->dtype); byte++) bytes[at + byte] = true;
            }
        }
    }
}

static bool share_a_byte(const eg_problem *p, const eg_operand *x, const eg_operand *y) {
    static bool of_x[BYTES], of_y[BYTES];
    paint(p, x, of_x);
    paint(p, y, of_y);
    for (int i = 0; i < BYTES; i++) {
        if (of_x[i] && of_y[i]) return true;
    }
    return false;
}

static int64_t below(oracle_random *random, int64_t count) { return oracle_random_below(random, count); }

static eg_operand operand(oracle_random *random, const eg_problem *p, int64_t pitch) {
    static const eg_dtype dtypes[] = {EG_F32, EG_F16, EG_F64};
    eg_operand x = {.dtype = dtypes[below(random, 3)], .rows = below(random, 4), .cols = below(random, 5)};
    const bool row_major = below(random, 2) == 0;
    const int64_t length = row_major ? x.cols : x.rows, lines = row_major ? x.rows : x.cols;
    const int64_t ld = below(random, 2) == 0 && pitch >= length ? pitch : length + below(random, 3);
    const int64_t stride = lines > 1 ? ld : length; /* as validation has it */
    x.row_stride = row_major ? stride : 1;
    x.col_stride = row_major ? 1 : stride;
    const int64_t strides[] = {0, lines * ld, below(random, 20), ld * below(random, 4)};
    x.batch_stride = p->batch > 1 ? strides[below(random, 4)] : below(random, 100);
    x.offset = (size_t)below(random, 32) * eg_size_of(x.dtype);
    return x;
}

static void no_overlap_is_missed(void **state) {
    (void)state;
    static char memory[1];
    oracle_random random = {1};
    int shared = 0, told_apart = 0;
    for (int i = 0; i < PAIRS; i++) {
        const eg_problem p = {.addressing = i % 2 == 0 ? EG_ADDRESSES : EG_HANDLES,
                              .batch = 1 + below(&random, 3)};
        const int64_t pitch = below(&random, 9);
        eg_operand x = operand(&random, &p, pitch), y = operand(&random, &p, pitch);
        x.data = y.data = memory;
        const bool expected = share_a_byte(&p, &x, &y), got = eg_overlap(&p, &x, &y);
        if (expected && !got) fail_msg("pair %d: an overlap was not seen", i);
        assert_true(got == eg_overlap(&p, &y, &x));
        shared += expected;
        told_apart += !got;
    }
    assert_true(shared > PAIRS / 20 && told_apart > PAIRS / 20);
}

/* A window of rows of `pitch` elements, or of columns. */
static eg_operand window(oracle_random *random, bool row_major, int64_t pitch) {
    const int64_t length = 1 + below(random, pitch - 1), lines = 2 + below(random, 3);
    const int64_t line = below(random, 5), first = below(random, pitch - length + 1);
    return (eg_operand){.dtype = EG_F32,
                        .rows = row_major ? lines : length,
                        .cols = row_major ? length : lines,
                        .row_stride = row_major ? pitch : 1,
                        .col_stride = row_major ? 1 : pitch,
                        .offset = (size_t)(line * pitch + first) * sizeof(float)};
}

static void windows_are_told_apart(void **state) {
    (void)state;
    static char memory[1];
    oracle_random random = {2};
    for (int i = 0; i < PAIRS / 4; i++) {
        const eg_problem p = {.batch = 1};
        const int64_t pitch = 2 + below(&random, 8);
        const bool row_major = i % 2 == 0;
        eg_operand x = window(&random, row_major, pitch), y = window(&random, row_major, pitch);
        x.data = y.data = memory;
        assert_true(eg_overlap(&p, &x, &y) == share_a_byte(&p, &x, &y));
    }
}

/* Of handles, other buffers are other memory; and marks are none. */
static void only_memory_overlaps(void **state) {
    (void)state;
    static char memory[2];
    eg_operand x = {.data = memory, .dtype = EG_F32, .rows = 2, .cols = 2, .row_stride = 2, .col_stride = 1};
    eg_operand y = x;
    eg_problem p = {.addressing = EG_HANDLES, .batch = 1};
    assert_true(eg_overlap(&p, &x, &y));
    y.data = memory + 1;
    assert_false(eg_overlap(&p, &x, &y));
    p.addressing = EG_ADDRESSES;
    assert_true(eg_overlap(&p, &x, &y));
    p.addressing = EG_PRESENCE;
    assert_false(eg_overlap(&p, &x, &x));
}

static void a_workspace_is_as_long_as_it_is(void **state) {
    (void)state;
    static char memory[1];
    const eg_problem p = {.addressing = EG_HANDLES, .batch = 1};
    const eg_operand x = {.data = memory,
                          .offset = 128,
                          .dtype = EG_F32,
                          .rows = 4,
                          .cols = 4,
                          .row_stride = 4,
                          .col_stride = 1};
    for (size_t offset = 0; offset < 256; offset += 64) {
        for (size_t bytes = 0; bytes < 256; bytes++) {
            const eg_workspace workspace = {.data = memory, .offset = offset};
            const bool expected = bytes > 0 && offset < 192 && offset + bytes > 128;
            assert_true(eg_overlaps_workspace(&p, &x, &workspace, bytes) == expected);
        }
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(no_overlap_is_missed),
        cmocka_unit_test(windows_are_told_apart),
        cmocka_unit_test(only_memory_overlaps),
        cmocka_unit_test(a_workspace_is_as_long_as_it_is),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
