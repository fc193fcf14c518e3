/* SPDX-License-Identifier: Apache-2.0 */
/* Overlaps against what they mean: two operands overlap where they share a byte, found by brute force. */
#include "support.h"

#include "number.h"
#include "core/overlap.h"
#include "core/validate.h"

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

static void small_operands(void **state) {
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
        const eg_overlap_verdict expected = share_a_byte(&p, &x, &y) ? EG_OVERLAP : EG_APART;
        if (eg_overlap(&p, &x, &y) != expected || eg_overlap(&p, &y, &x) != expected)
            fail_msg("pair %d: expected %d, got %d", i, expected, eg_overlap(&p, &x, &y));
        shared += expected == EG_OVERLAP;
        told_apart += expected == EG_APART;
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
        assert_true(eg_overlap(&p, &x, &y) == (share_a_byte(&p, &x, &y) ? EG_OVERLAP : EG_APART));
    }
}

/* ---- Far apart ---------------------------------------------------------------------------------- */

typedef struct line {
    uint64_t first, end;
} line;

typedef struct lines {
    line *at;
    size_t count;
} lines;

/* The places of an operand's contiguous lines, in bytes. */
static lines lines_of(const eg_problem *p, const eg_operand *x) {
    const bool row_major = x->col_stride == 1;
    const int64_t many = row_major ? x->rows : x->cols, length = row_major ? x->cols : x->rows;
    const int64_t ld = row_major ? x->row_stride : x->col_stride;
    lines all = {need_memory((size_t)(many * p->batch) * sizeof *all.at), 0};
    for (int64_t i = 0; i < many * p->batch; i++) {
        const int64_t element = i / many * x->batch_stride + i % many * ld;
        const uint64_t first = x->offset + (uint64_t)element * eg_size_of(x->dtype);
        all.at[all.count++] = (line){first, first + (uint64_t)length * eg_size_of(x->dtype)};
    }
    return all;
}

static int by_place(const void *a, const void *b) {
    const uint64_t x = ((const line *)a)->first, y = ((const line *)b)->first;
    return (x > y) - (x < y);
}

static bool lines_meet(const eg_problem *p, const eg_operand *x, const eg_operand *y) {
    const lines a = lines_of(p, x), b = lines_of(p, y);
    uint64_t end_a = 0, end_b = 0; /* of the lines so far */
    bool met = false;
    qsort(a.at, a.count, sizeof *a.at, by_place);
    qsort(b.at, b.count, sizeof *b.at, by_place);
    for (size_t i = 0, j = 0; !met && (i < a.count || j < b.count);) {
        if (j == b.count || (i < a.count && a.at[i].first <= b.at[j].first)) {
            met = a.at[i].first < end_b;
            if (a.at[i].end > end_a) end_a = a.at[i].end;
            i++;
        } else {
            met = b.at[j].first < end_a;
            if (b.at[j].end > end_b) end_b = b.at[j].end;
            j++;
        }
    }
    free(a.at);
    free(b.at);
    return met;
}

/* Strides of any size and kind: nested, in a proportion, interleaved, or nothing of the kind. */
static eg_operand scattered(oracle_random *random, const eg_problem *p, int64_t common) {
    static const eg_dtype dtypes[] = {EG_F32, EG_F16, EG_F64};
    const int64_t sizes[] = {1, 3, 8, 30}, lines = 1 + below(random, sizes[below(random, 4)]);
    const int64_t length = 1 + below(random, sizes[below(random, 4)]);
    const int64_t wide = (int64_t)1 << below(random, 40);
    const int64_t lds[] = {length, common, common * (1 + below(random, 3)), length + below(random, 50),
                           wide + below(random, wide)};
    int64_t ld = lds[below(random, 5)];
    if (ld < length) ld = length;
    const int64_t items[] = {
        0, ld * lines, length, common, ld * below(random, 5), below(random, 100), wide + below(random, wide)};
    const bool row_major = below(random, 2) == 0;
    return (eg_operand){.dtype = dtypes[below(random, 3)],
                        .rows = row_major ? lines : length,
                        .cols = row_major ? length : lines,
                        .row_stride = row_major ? ld : 1,
                        .col_stride = row_major ? 1 : ld,
                        .batch_stride = p->batch > 1 ? items[below(random, 7)] : 0};
}

/* Where one of its elements is, from its first, in bytes. */
static uint64_t some_place(oracle_random *random, const eg_problem *p, const eg_operand *x) {
    const int64_t element = below(random, x->rows) * x->row_stride + below(random, x->cols) * x->col_stride +
                            below(random, p->batch) * x->batch_stride;
    return (uint64_t)element * eg_size_of(x->dtype);
}

/* Pairs of which an element of one is near an element of the other; and of which they are in a proportion. */
static void scattered_operands(void **state) {
    (void)state;
    enum { SCATTERED = 30000 };
    static char memory[1];
    oracle_random random = {3};
    int shared = 0, undecided = 0;
    for (int i = 0; i < SCATTERED; i++) {
        const eg_problem p = {.addressing = EG_HANDLES, .batch = 1 + below(&random, 1 + below(&random, 30))};
        const int64_t common = 1 + below(&random, 200);
        eg_operand x = scattered(&random, &p, common), y = scattered(&random, &p, common);
        const uint64_t far = (uint64_t)1 << 55, near = (uint64_t)below(&random, 64);
        x.data = y.data = memory;
        x.offset = far - some_place(&random, &p, &x) / 8 * 8;
        y.offset = far - some_place(&random, &p, &y) / 8 * 8 + near * eg_size_of(y.dtype);
        const eg_overlap_verdict expected = lines_meet(&p, &x, &y) ? EG_OVERLAP : EG_APART;
        const eg_overlap_verdict got = eg_overlap(&p, &x, &y);
        if (got != expected && got != EG_MAY_OVERLAP)
            fail_msg("pair %d: expected %d, got %d", i, expected, got);
        assert_true(got == eg_overlap(&p, &y, &x));
        shared += expected == EG_OVERLAP;
        undecided += got == EG_MAY_OVERLAP;
    }
    printf("           %d pairs, %d overlap, %d undecided\n", SCATTERED, shared, undecided);
    assert_true(shared > SCATTERED / 10 && shared < SCATTERED - SCATTERED / 10);
    assert_int_equal(undecided, 0);
}

/* Four strides of which none is in a proportion to another, and thousands of each: refused, and in other
 * words than what does overlap. */
static void what_is_not_decided_is_said_so(void **state) {
    (void)state;
    static char memory[1];
    eg_problem p = {.addressing = EG_HANDLES, .batch = 3000};
    eg_operand x = {.data = memory, .dtype = EG_F32, .rows = 3000, .cols = 1, .col_stride = 1};
    eg_operand y = x;
    x.row_stride = INT64_C(1000000000039), x.batch_stride = INT64_C(1414213562377);
    y.row_stride = INT64_C(1732050807571), y.batch_stride = INT64_C(1259921049899);
    y.offset = 4096;
    assert_int_equal(eg_overlap(&p, &x, &y), EG_MAY_OVERLAP);
    assert_int_equal(eg_overlap(&p, &x, &x), EG_OVERLAP);
    p.batch = 3;
    assert_int_equal(eg_overlap(&p, &x, &y), EG_APART);
}

/* One byte before the first that is too far is still taken, but for an address that would wrap around. */
static void offsets_are_bounded_however_memory_is_named(void **state) {
    (void)state;
    static const size_t most = (size_t)1 << 62;
    static _Alignas(64) char memory[64];
    const eg_layer layer = {.size = sizeof layer, .m = 1, .k = 0, .n = 4};
    for (int addressing = EG_ADDRESSES; addressing <= EG_PRESENCE; addressing++) {
        eg_problem p;
        const size_t given[] = {most - 16, most - 12, (size_t)1 << 63, SIZE_MAX - 15, SIZE_MAX - 3};
        for (size_t i = 0; i < LENGTH(given); i++) {
            const eg_status expected = i == 0 ? EG_OK : EG_ERR_ARGUMENT;
            const eg_forward_args matrix = {.size = sizeof matrix, .y = {.data = memory, .offset = given[i]}};
            assert_status(eg_validate_forward((eg_addressing)addressing, &layer, &matrix, &p), expected);
            eg_forward_args vector = {.size = sizeof vector, .y = {.data = memory}};
            vector.bias = (eg_vector){.data = memory, .offset = given[i]};
            assert_status(eg_validate_forward((eg_addressing)addressing, &layer, &vector, &p), expected);
        }
        const eg_workspace spaces[] = {{memory, most - 64, 64},      {memory, most - 64, 65},
                                       {memory, (size_t)1 << 63, 0}, {memory, 0, SIZE_MAX},
                                       {memory, 64, SIZE_MAX - 63},  {memory, SIZE_MAX - 63, 64}};
        for (size_t i = 0; i < LENGTH(spaces); i++) {
            eg_forward_args args = {.size = sizeof args, .y = {.data = memory}};
            args.workspace = spaces[i];
            const eg_status expected = i == 0 ? EG_OK : EG_ERR_ARGUMENT;
            assert_status(eg_validate_forward((eg_addressing)addressing, &layer, &args, &p), expected);
        }
    }
}

/* Of handles, other buffers are other memory; and marks are none. */
static void only_memory_overlaps(void **state) {
    (void)state;
    static char memory[2];
    eg_operand x = {.data = memory, .dtype = EG_F32, .rows = 2, .cols = 2, .row_stride = 2, .col_stride = 1};
    eg_operand y = x;
    eg_problem p = {.addressing = EG_HANDLES, .batch = 1};
    assert_int_equal(eg_overlap(&p, &x, &y), EG_OVERLAP);
    y.data = memory + 1;
    assert_int_equal(eg_overlap(&p, &x, &y), EG_APART);
    p.addressing = EG_ADDRESSES;
    assert_int_equal(eg_overlap(&p, &x, &y), EG_OVERLAP);
    p.addressing = EG_PRESENCE;
    assert_int_equal(eg_overlap(&p, &x, &x), EG_APART);
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
        cmocka_unit_test(small_operands),
        cmocka_unit_test(scattered_operands),
        cmocka_unit_test(what_is_not_decided_is_said_so),
        cmocka_unit_test(offsets_are_bounded_however_memory_is_named),
        cmocka_unit_test(windows_are_told_apart),
        cmocka_unit_test(only_memory_overlaps),
        cmocka_unit_test(a_workspace_is_as_long_as_it_is),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
