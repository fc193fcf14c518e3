/* SPDX-License-Identifier: Apache-2.0 */
/* Everything in the header but the operation itself: contexts, memory, queries, names, and how each
 * of them refuses what it cannot do. */
#define _DEFAULT_SOURCE
#include <limits.h>
#include <pthread.h>

#include "core/error.h"
#include "refused.h"

/* ---- Names -------------------------------------------------------------------------------------- */

static void names(void **state) {
    (void)state;
    assert_string_equal(eg_status_name(EG_OK), "EG_OK");
    assert_string_equal(eg_status_name(EG_ERR_DEVICE), "EG_ERR_DEVICE");
    assert_string_equal(eg_status_name((eg_status)6), "unknown status");
    assert_string_equal(eg_status_name((eg_status)-1), "unknown status");
    assert_string_equal(eg_backend_name(EG_BACKEND_CPU), "cpu");
    assert_string_equal(eg_backend_name(EG_BACKEND_CUDA), "cuda");
    assert_string_equal(eg_backend_name(EG_BACKEND_WEBGPU), "webgpu");
    assert_string_equal(eg_backend_name((eg_backend)3), "unknown");
    assert_string_equal(eg_dtype_name(EG_BF16), "bf16");
    assert_string_equal(eg_dtype_name((eg_dtype)9), "unknown");
    static const size_t sizes[] = {0, 4, 8, 2, 2, 0};
    for (int i = 0; i < 6; i++) assert_int_equal(eg_dtype_size((eg_dtype)i), sizes[i]);
    assert_null(eg_activation_name((eg_activation)ACTIVATIONS));
    assert_null(eg_activation_name((eg_activation)-1));
    char version[32];
    snprintf(version, sizeof version, "%d.%d.%d", EG_VERSION_MAJOR, EG_VERSION_MINOR, EG_VERSION_PATCH);
    assert_string_equal(eg_version(), version);
}

/* The table is ABI: these numbers never change. */
static void activations_are_pinned(void **state) {
    (void)state;
    static const char *const pinned[] = {"none",     "relu",       "gelu",  "silu",     "sigmoid",   "tanh",
                                         "gelu_erf", "quick_gelu", "relu2", "softplus", "hardswish", "mish"};
    for (size_t i = 0; i < LENGTH(pinned); i++) {
        const eg_activation activation = (eg_activation)i;
        assert_string_equal(eg_activation_name(activation), pinned[i]);
        const bool from_y = i == EG_ACT_NONE || i == EG_ACT_RELU || i == EG_ACT_SIGMOID || i == EG_ACT_TANH;
        assert_int_equal(eg_activation_from_y(activation), from_y);
    }
    assert_int_equal(eg_activation_from_y((eg_activation)99), 0);
}

static void *error_of_a_new_thread(void *unused) {
    (void)unused;
    static char copy[64];
    snprintf(copy, sizeof copy, "%s", eg_last_error());
    return copy;
}

static void errors_are_per_thread(void **state) {
    (void)state;
    assert_status(eg_sync(NULL), EG_ERR_ARGUMENT);
    assert_true(strlen(eg_last_error()) > 0);
    pthread_t thread;
    void *text = NULL;
    assert_int_equal(pthread_create(&thread, NULL, error_of_a_new_thread, NULL), 0);
    assert_int_equal(pthread_join(thread, &text), 0);
    assert_string_equal(text, "");
    assert_message("context is NULL", "", "expected");
}

/* A driver's text or a path may hold anything, and be of any length. */
static void messages_are_one_line_and_say_what_was_expected(void **state) {
    (void)state;
    char path[900];
    memset(path, 'p', sizeof path);
    for (int length = 400; length < (int)sizeof path; length++) {
        eg_fail(EG_ERR_ARGUMENT, "the path is %.*s; expected another path", length, path);
        const char *text = eg_last_error();
        assert_true(strncmp(text, "the path is ppp", 15) == 0 && strlen(text) < sizeof(eg_message));
        assert_string_equal(strstr(text, "; expected"), "; expected another path");
        assert_int_equal(strstr(text, "...") != NULL, length + 35 >= (int)sizeof(eg_message));
    }
    eg_fail(EG_ERR_ARGUMENT, "x is 1; expected %.700s", path);
    assert_int_equal(strncmp(eg_last_error(), "x is 1; expected ppp", 20), 0);
    assert_null(strstr(eg_last_error(), "p; expected"));
    eg_fail(EG_ERR_DEVICE, "%.700s", path);
    assert_int_equal(strlen(eg_last_error()), sizeof(eg_message) - 1);
    eg_fail(EG_ERR_DEVICE, "the driver says \x1b[31mno\r\n\tnever\x7f");
    assert_string_equal(eg_last_error(), "the driver says ?[31mno   never?");
}

static void names_are_quoted(void **state) {
    (void)state;
    assert_string_equal(eg_quote("").text, "\"\"");
    assert_string_equal(eg_quote("tile_128x256").text, "\"tile_128x256\"");
    assert_string_equal(eg_quote("a\nb\x1b[31m\"\\\xc3\xa4").text, "\"a\\nb\\x1b[31m\\\"\\\\\\xc3\\xa4\"");
    char name[80];
    for (size_t length = 1; length < sizeof name; length++) {
        for (int escaped = 0; escaped < 2; escaped++) {
            memset(name, escaped ? '\x1b' : 'k', length);
            name[length] = '\0';
            const eg_quoted quoted = eg_quote(name);
            const size_t whole = 2 + length * (escaped ? 4 : 1), used = strlen(quoted.text);
            const bool is_cut = strcmp(quoted.text + used - 3, "...") == 0;
            assert_true(quoted.text[0] == '"' && used < sizeof quoted.text && (is_cut || used == whole));
            assert_int_equal(is_cut, whole + sizeof "..." > sizeof quoted.text);
        }
    }
}

/* ---- Constructors ------------------------------------------------------------------------------- */

/* A call in three lines, on const inputs, b as a PyTorch weight; every field that is not given is its
 * default. */
static void a_call_in_three_lines(void **state) {
    (void)state;
    static const float a[2][3] = {{1, 2, 3}, {4, 5, 6}}, weight[2][3] = {{1, 0, -1}, {2, 1, 0}},
                       bias[2] = {10, 20};
    float y[2][2], d_a[2][3];
    eg_context *context = open_cpu(1);
    eg_layer layer = eg_layer_of(2, 3, 2, EG_ACT_RELU);
    eg_forward_args forward = eg_forward_of(eg_const_row_major(a), eg_const_col_major(weight),
                                            eg_const_elements(bias), eg_row_major(y));
    assert_ok(eg_forward(context, &layer, &forward));
    const float expected_y[2][2] = {{8, 24}, {8, 33}}, expected_d_a[2][3] = {{56, 24, -8}, {74, 33, -8}};
    assert_memory_equal(y, expected_y, sizeof y);
    eg_backward_args backward = eg_backward_of(forward.a, forward.b, forward.bias, forward.y);
    backward.d_a = eg_row_major(d_a);
    assert_ok(eg_backward(context, &layer, &backward));
    assert_memory_equal(d_a, expected_d_a, sizeof d_a);
    eg_close(context);

    const eg_layer plain = {.size = sizeof plain, .m = 2, .k = 3, .n = 2, .activation = EG_ACT_RELU};
    assert_memory_equal(&layer, &plain, sizeof plain);
    const eg_matrix rows = eg_row_major(y), columns = eg_col_major(y);
    assert_true(rows.data == y && rows.layout == EG_ROW_MAJOR && columns.layout == EG_COL_MAJOR);
    assert_true(rows.offset == 0 && rows.ld == 0 && rows.batch_stride == 0 && rows.dtype == EG_DTYPE_DEFAULT);
    assert_true(backward.size == sizeof backward && backward.source == EG_SOURCE_RECOMPUTE);
    assert_true(forward.size == sizeof forward && forward.packed_b == NULL && forward.workspace_limit == 0);
}

/* ---- Contexts ----------------------------------------------------------------------------------- */

static void refuse_open(eg_open_info info, eg_status expected, const char *argument, const char *value) {
    eg_context *context = (eg_context *)&info;
    assert_status(eg_open(&info, &context), expected);
    assert_null(context);
    assert_message(argument, value, "");
}

static void *some_alloc(size_t bytes, void *user) {
    (void)bytes;
    (void)user;
    return NULL;
}

static void open_refuses(void **state) {
    (void)state;
    enum { SIZE = sizeof(eg_open_info) };
    assert_refused(eg_open(NULL, NULL), "context", "NULL", "expected");
    refuse_open((eg_open_info){.size = 0}, EG_ERR_ARGUMENT, "info.size", "0");
    refuse_open((eg_open_info){.size = SIZE_MAX}, EG_ERR_ARGUMENT, "info.size", "18446744073709551615");
    refuse_open((eg_open_info){.size = SIZE, .backend = (eg_backend)7}, EG_ERR_ARGUMENT, "info.backend", "7");
    refuse_open((eg_open_info){.size = SIZE, .backend = (eg_backend)-1}, EG_ERR_ARGUMENT, "info.backend",
                "-1");
    refuse_open((eg_open_info){.size = SIZE, .threads = -1}, EG_ERR_ARGUMENT, "info.threads", "-1");
    refuse_open((eg_open_info){.size = SIZE, .threads = 1000000}, EG_ERR_ARGUMENT, "info.threads", "1000000");
    refuse_open((eg_open_info){.size = SIZE, .device = -1}, EG_ERR_ARGUMENT, "info.device", "-1");
    refuse_open((eg_open_info){.size = SIZE, .parallel_user = &(int){0}}, EG_ERR_ARGUMENT,
                "info.parallel_user", "NULL");
    refuse_open((eg_open_info){.size = SIZE, .allocator = {.alloc = some_alloc}}, EG_ERR_ARGUMENT,
                "info.allocator", "");
}

/* A backend that this build or machine lacks is refused by its name. */
static void open_names_what_is_missing(void **state) {
    (void)state;
    for (int i = EG_BACKEND_CUDA; i <= EG_BACKEND_WEBGPU; i++) {
        eg_context *context = NULL;
        const eg_open_info info = {.size = sizeof info, .backend = (eg_backend)i};
        const eg_status status = eg_open(&info, &context);
        if (status != EG_OK) {
            assert_int_equal(status, EG_ERR_UNAVAILABLE);
            assert_null(context);
            assert_true(strlen(eg_last_error()) > 10);
        }
        eg_close(context);
    }
}

/* On every backend that is here: of what no row has the name, and near misses of what one has. */
static void open_refuses_unknown_kernels(void **state) {
    (void)state;
    for (int i = EG_BACKEND_CPU; i <= EG_BACKEND_WEBGPU; i++) {
        eg_open_info info = {.size = sizeof info, .backend = (eg_backend)i};
        eg_context *context = NULL;
        if (eg_open(&info, &context) != EG_OK) continue;
        eg_kernel_info row = {.size = sizeof row};
        assert_ok(eg_get_kernel_info(context, 0, &row));
        char name[64], longer[72];
        snprintf(name, sizeof name, "%s", row.name);
        snprintf(longer, sizeof longer, "%sx", name);
        eg_close(context);
        const char *const unknown[] = {"no_such_row", "", longer};
        for (size_t j = 0; j < LENGTH(unknown); j++) {
            info.kernel = unknown[j];
            refuse_open(info, EG_ERR_ARGUMENT, "info.kernel is \"", unknown[j]);
            assert_message(eg_backend_name(info.backend), name, "expected a row of");
        }
        info.kernel = name;
        assert_ok(eg_open(&info, &context));
        eg_close(context);
    }
}

/* A row of another type is known, and refuses the calls that it is not for. */
static void known_kernels_refuse_other_types(void **state) {
    (void)state;
    eg_context *context = NULL;
    const eg_open_info info = {.size = sizeof info, .kernel = "portable_f64_4x4"};
    assert_ok(eg_open(&info, &context));
    fixture f;
    fixture_make(&f, small_layer());
    fixture_poison(&f);
    assert_status(eg_forward(context, &f.layer, &f.forward), EG_ERR_UNSUPPORTED);
    assert_message("portable_f64_4x4", "f32", "");
    eg_packed *packed = NULL;
    assert_status(eg_pack_b(context, &f.layer, &f.forward.b, &packed), EG_ERR_UNSUPPORTED);
    assert_true(fixture_untouched(&f));
    fixture_free(&f);
    eg_close(context);
}

/* A name may be of any bytes and of any length. */
static void names_that_are_printed_are_safe(void **state) {
    (void)state;
    eg_context *context = NULL;
    char longer[2000];
    memset(longer, 'k', sizeof longer);
    longer[sizeof longer - 1] = '\0';
    const char *const names[] = {"one\ntwo", "\x1b[31mred", "a\tb\r", "\x7f", "\xc2\x9b", longer};
    for (size_t i = 0; i < LENGTH(names); i++) {
        const eg_open_info info = {.size = sizeof info, .kernel = names[i]};
        assert_refused(eg_open(&info, &context), "info.kernel is \"", "",
                       "expected a row of the cpu kernel table");
        for (const char *c = eg_last_error(); *c != '\0'; c++) assert_true(*c >= ' ' && *c <= '~');
    }
    assert_message("\"kkkkkkkk", "k\"...", ", ...");
}

static void instruction_sets_can_be_capped(void **state) {
    (void)state;
    const char *was = getenv("EPIGRAD_CPU_ISA");
    char saved[64];
    snprintf(saved, sizeof saved, "%s", was != NULL ? was : "");
    eg_context *context = NULL;
    setenv("EPIGRAD_CPU_ISA", "sse\x1b\n", 1);
    assert_refused(eg_open(NULL, &context), "EPIGRAD_CPU_ISA", "\"sse\\x1b\\n\"", "expected portable");
    setenv("EPIGRAD_CPU_ISA", "mmx", 1);
    assert_refused(eg_open(NULL, &context), "EPIGRAD_CPU_ISA", "mmx", "expected portable");
    assert_null(context);
    setenv("EPIGRAD_CPU_ISA", "portable", 1);
    assert_ok(eg_open(NULL, &context));
    eg_kernel_info row = {.size = sizeof row};
    for (int i = 0; eg_get_kernel_info(context, i, &row) == EG_OK; i++) {
        assert_int_equal(row.usable, strcmp(row.needs, "portable") == 0);
    }
    eg_device_info device = {.size = sizeof device};
    assert_ok(eg_get_device_info(context, &device));
    assert_string_equal(device.features, "portable");
    eg_close(context);
    setenv("EPIGRAD_CPU_ISA", "", 1); /* no cap */
    assert_ok(eg_open(NULL, &context));
    eg_close(context);
    if (was != NULL) {
        setenv("EPIGRAD_CPU_ISA", saved, 1);
    } else {
        unsetenv("EPIGRAD_CPU_ISA");
    }
}

static void nothing_is_closed_and_freed(void **state) {
    (void)state;
    eg_close(NULL);
    eg_free(NULL, NULL);
    eg_packed_free(NULL, NULL);
    eg_context *context = open_cpu(1);
    eg_free(context, NULL);
    eg_packed_free(context, NULL);
    assert_ok(eg_sync(context));
    eg_close(context);
}

/* ---- Memory ------------------------------------------------------------------------------------- */

static void memory_goes_there_and_back(void **state) {
    (void)state;
    eg_context *context = open_cpu(1);
    void *memory = NULL;
    assert_ok(eg_alloc(context, 100, &memory));
    assert_int_equal((uintptr_t)memory % 64, 0);
    const char sent[5] = "sent";
    char got[5] = "";
    assert_ok(eg_upload(context, memory, 95, sent, sizeof sent));
    assert_ok(eg_download(context, got, memory, 95, sizeof got));
    assert_string_equal(got, "sent");
    assert_ok(eg_upload(context, NULL, 0, NULL, 0));
    assert_ok(eg_download(context, NULL, NULL, 0, 0));
    void *empty = NULL;
    assert_ok(eg_alloc(context, 0, &empty));
    eg_free(context, empty);

    assert_refused(eg_alloc(NULL, 1, &empty), "context", "NULL", "expected");
    assert_refused(eg_alloc(context, 1, NULL), "memory", "NULL", "expected");
    assert_refused(eg_upload(NULL, memory, 0, sent, 1), "context", "NULL", "expected");
    assert_refused(eg_upload(context, NULL, 0, sent, 1), "memory", "NULL", "expected");
    assert_refused(eg_upload(context, memory, 0, NULL, 1), "host", "NULL", "expected");
    assert_refused(eg_download(NULL, got, memory, 0, 1), "context", "NULL", "expected");
    assert_refused(eg_download(context, NULL, memory, 0, 1), "host", "NULL", "expected");
    assert_refused(eg_download(context, got, NULL, 0, 1), "memory", "NULL", "expected");
    const size_t half = SIZE_MAX / 2 + 1;
    assert_refused(eg_upload(context, memory, half, sent, 1), "offset", "9223372036854775808", "expected");
    assert_refused(eg_upload(context, memory, 0, sent, half), "bytes", "9223372036854775808", "expected");
    assert_refused(eg_upload(context, memory, SIZE_MAX, sent, 2), "offset", "18446744073709551615",
                   "expected");
    assert_refused(eg_download(context, got, memory, half, 1), "offset", "9223372036854775808", "expected");
    assert_refused(eg_download(context, got, memory, 64, SIZE_MAX), "bytes", "18446744073709551615",
                   "expected");
    assert_status(eg_alloc(context, SIZE_MAX, &empty), EG_ERR_OUT_OF_MEMORY);
    assert_status(eg_alloc(context, half, &empty), EG_ERR_OUT_OF_MEMORY);
    assert_null(empty);
    eg_free(context, memory);
    eg_close(context);
}

/* ---- Queries ------------------------------------------------------------------------------------ */

static void calls_refuse_null(void **state) {
    (void)state;
    eg_context *context = open_cpu(1);
    fixture f;
    fixture_make(&f, small_layer());
    fixture_poison(&f);
    size_t bytes;
    char text[64];
    assert_refused(eg_forward(NULL, &f.layer, &f.forward), "context", "NULL", "expected");
    assert_refused(eg_forward(context, NULL, &f.forward), "layer", "NULL", "expected");
    assert_refused(eg_forward(context, &f.layer, NULL), "args", "NULL", "expected");
    assert_refused(eg_backward(NULL, &f.layer, &f.backward), "context", "NULL", "expected");
    assert_refused(eg_backward(context, NULL, &f.backward), "layer", "NULL", "expected");
    assert_refused(eg_backward(context, &f.layer, NULL), "args", "NULL", "expected");
    assert_refused(eg_forward_workspace(NULL, &f.layer, &f.forward, &bytes), "context", "NULL", "expected");
    assert_refused(eg_forward_workspace(context, &f.layer, &f.forward, NULL), "bytes", "NULL", "expected");
    assert_refused(eg_backward_workspace(context, &f.layer, NULL, &bytes), "args", "NULL", "expected");
    assert_refused(eg_backward_workspace(context, &f.layer, &f.backward, NULL), "bytes", "NULL", "expected");
    assert_refused(eg_forward_plan(context, NULL, &f.forward, text, sizeof text), "layer", "NULL",
                   "expected");
    assert_refused(eg_forward_plan(context, &f.layer, &f.forward, NULL, 64), "text", "64", "expected");
    assert_refused(eg_backward_plan(context, &f.layer, &f.backward, text, 0), "text", "0", "expected");
    assert_refused(eg_sync(NULL), "context", "NULL", "expected");
    assert_true(fixture_untouched(&f));
    fixture_free(&f);
    eg_close(context);
}

static void devices_and_kernels_are_described(void **state) {
    (void)state;
    eg_context *context = open_cpu(3);
    eg_device_info device = {.size = sizeof device};
    assert_ok(eg_get_device_info(context, &device));
    assert_int_equal(device.backend, EG_BACKEND_CPU);
    assert_int_equal(device.threads, 3);
    assert_true(device.size == sizeof device && strlen(device.name) > 0 && strlen(device.features) > 0);
    eg_kernel_info row = {.size = sizeof row};
    int rows = 0, usable = 0;
    for (; eg_get_kernel_info(context, rows, &row) == EG_OK; rows++) {
        assert_true(row.size == sizeof row && strlen(row.name) > 0 && strlen(row.tile) > 0);
        assert_true(strlen(row.needs) > 0 && eg_dtype_size(row.compute) > 0);
        usable += row.usable;
    }
    assert_true(usable >= 2); /* f32 and f64 at least */
    char past[32], last[64];
    snprintf(past, sizeof past, "index is %d;", rows);
    snprintf(last, sizeof last, "expected 0 to %d, the last row of the cpu", rows - 1);
    assert_message("index", past, last);
    assert_refused(eg_get_kernel_info(context, -1, &row), "index", "-1", last);
    assert_refused(eg_get_kernel_info(context, INT_MAX, &row), "index", "2147483647", last);
    assert_refused(eg_get_kernel_info(context, 0, NULL), "info", "NULL", "expected");
    assert_refused(eg_get_kernel_info(NULL, 0, &row), "context", "NULL", "expected");
    row.size = 1;
    assert_refused(eg_get_kernel_info(context, 0, &row), "info.size", "1", "expected");
    device.size = 1;
    assert_refused(eg_get_device_info(context, &device), "info.size", "1", "expected");
    device.size = SIZE_MAX;
    assert_refused(eg_get_device_info(context, &device), "info.size", "18446744073709551615", "expected");
    assert_refused(eg_get_device_info(context, NULL), "info", "NULL", "expected");
    assert_refused(eg_get_device_info(NULL, &device), "context", "NULL", "expected");
    eg_close(context);
}

/* What a struct of a newer header has beyond this library's is no business of ours, whatever it holds. */
static void longer_structs_are_filled_as_far_as_known(void **state) {
    (void)state;
    eg_context *context = open_cpu(3);
    struct {
        eg_device_info info;
        int64_t newer;
    } device = {.info.size = sizeof device, .newer = 7};
    struct {
        eg_kernel_info info;
        int64_t newer;
    } row = {.info.size = sizeof row, .newer = 7};
    assert_ok(eg_get_device_info(context, &device.info));
    assert_ok(eg_get_kernel_info(context, 0, &row.info));
    assert_true(device.info.threads == 3 && strlen(row.info.name) > 0);
    assert_true(device.newer == 7 && row.newer == 7);
    assert_true(device.info.size == sizeof device && row.info.size == sizeof row);
    eg_close(context);
}

static void the_peak_is_measured(void **state) {
    (void)state;
    eg_context *context = open_cpu(1);
    double f32 = 0, f64 = 0;
    assert_ok(eg_measure_peak(context, EG_F32, &f32));
    assert_ok(eg_measure_peak(context, EG_F64, &f64));
    assert_true(f32 > 0.1 && f32 < 1e5 && f64 > 0.1 && f64 < 1e5);
    assert_refused(eg_measure_peak(context, EG_DTYPE_DEFAULT, &f32), "dtype", "0", "EG_F32");
    assert_refused(eg_measure_peak(context, (eg_dtype)9, &f32), "dtype", "9", "EG_F32");
    assert_refused(eg_measure_peak(context, EG_F32, NULL), "gflops", "NULL", "expected");
    assert_refused(eg_measure_peak(NULL, EG_F32, &f32), "context", "NULL", "expected");
    eg_close(context);
}

static void convert_refuses(void **state) {
    (void)state;
    float x = 1, y = 2;
    assert_refused(eg_convert(&y, EG_DTYPE_DEFAULT, &x, EG_F32, 1), "to", "0", "EG_F32");
    assert_refused(eg_convert(&y, EG_F32, &x, (eg_dtype)5, 1), "from", "5", "EG_F32");
    assert_refused(eg_convert(NULL, EG_F32, &x, EG_F32, 1), "dst", "NULL", "expected");
    assert_refused(eg_convert((char *)&y + 1, EG_F32, &x, EG_F32, 1), "dst", "0x", "multiple of 4 bytes");
    assert_refused(eg_convert(&y, EG_F32, (char *)&x + 1, EG_F16, 1), "src", "0x", "multiple of 2 bytes");
    assert_refused(eg_convert(&y, EG_F32, NULL, EG_F32, 1), "src", "NULL", "expected");
    assert_refused(eg_convert(&y, EG_F32, &x, EG_F32, SIZE_MAX / 2), "count", "9223372036854775807",
                   "expected");
    assert_true(y == 2);
    assert_ok(eg_convert(NULL, EG_F32, NULL, EG_F16, 0));
}

/* Nor in place: the two types may differ in size. */
static void convert_refuses_overlaps(void **state) {
    (void)state;
    enum { COUNT = 4, BYTES = 12 * sizeof(double) };
    static const eg_dtype dtypes[] = {EG_F64, EG_F32, EG_F16, EG_BF16};
    _Alignas(64) unsigned char memory[BYTES], kept[BYTES];
    for (int i = 0; i < BYTES; i++) memory[i] = kept[i] = (unsigned char)(i * 7);
    for (size_t pair = 0; pair < LENGTH(dtypes) * LENGTH(dtypes); pair++) {
        const eg_dtype from = dtypes[pair / LENGTH(dtypes)], to = dtypes[pair % LENGTH(dtypes)];
        const size_t of_src = eg_dtype_size(from), of_dst = eg_dtype_size(to), src = COUNT * sizeof(double);
        for (size_t dst = 0; dst + COUNT * of_dst <= BYTES; dst += of_dst) {
            const bool apart = dst + COUNT * of_dst <= src || dst >= src + COUNT * of_src;
            const eg_status status = eg_convert(memory + dst, to, memory + src, from, COUNT);
            assert_int_equal(status, apart ? EG_OK : EG_ERR_ARGUMENT);
            if (!apart) assert_message("dst at 0x", "overlaps src at 0x", "expected separate memory");
            if (!apart) assert_memory_equal(memory, kept, BYTES);
            memcpy(memory, kept, BYTES);
        }
    }
    assert_ok(eg_convert(memory, EG_F32, memory, EG_F32, 0));
}

/* On one context, which keeps the programs of calls: what differs in the scale, or in one sum that is added
 * to, is another call. */
static void the_scale_and_every_sum_that_is_added_to_count(void **state) {
    (void)state;
    static const double scales[] = {0, 2, -0.5, 1, 4};
    eg_context *context = open_cpu(1);
    eg_layer layer = eg_layer_of(1, 1, 1, EG_ACT_NONE);
    const double a = 3, b = 5, grad = 7;
    double y = 0, d_a = 0, d_b = 0, d_bias = 0;
    layer.dtype = EG_F64;
    const eg_matrix in_a = eg_const_row_major(&a), in_b = eg_const_row_major(&b);
    const eg_forward_args forward = eg_forward_of(in_a, in_b, eg_elements(NULL), eg_row_major(&y));
    eg_backward_args backward = eg_backward_of(in_a, in_b, eg_elements(NULL), eg_const_row_major(&grad));
    backward.d_a = eg_row_major(&d_a), backward.d_b = eg_row_major(&d_b),
    backward.d_bias = eg_elements(&d_bias);
    for (int i = 0; i < 5 * 8; i++) {
        const double scale = scales[i % 5] == 0 ? 1 : scales[i % 5];
        const unsigned into = (unsigned)i / 5;
        layer.scale = scales[i % 5], backward.accumulate_into = into;
        d_a = d_b = d_bias = 1;
        assert_ok(eg_forward(context, &layer, &forward));
        assert_ok(eg_backward(context, &layer, &backward));
        assert_true(y == 15 * scale);
        assert_true(d_a == 35 * scale + ((into & EG_INTO_D_A) != 0));
        assert_true(d_b == 21 * scale + ((into & EG_INTO_D_B) != 0));
        assert_true(d_bias == 7 + ((into & EG_INTO_D_BIAS) != 0));
    }
    eg_close(context);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_scale_and_every_sum_that_is_added_to_count),
        cmocka_unit_test(names),
        cmocka_unit_test(activations_are_pinned),
        cmocka_unit_test(errors_are_per_thread),
        cmocka_unit_test(messages_are_one_line_and_say_what_was_expected),
        cmocka_unit_test(names_are_quoted),
        cmocka_unit_test(a_call_in_three_lines),
        cmocka_unit_test(open_refuses),
        cmocka_unit_test(open_names_what_is_missing),
        cmocka_unit_test(open_refuses_unknown_kernels),
        cmocka_unit_test(known_kernels_refuse_other_types),
        cmocka_unit_test(names_that_are_printed_are_safe),
        cmocka_unit_test(instruction_sets_can_be_capped),
        cmocka_unit_test(nothing_is_closed_and_freed),
        cmocka_unit_test(memory_goes_there_and_back),
        cmocka_unit_test(calls_refuse_null),
        cmocka_unit_test(devices_and_kernels_are_described),
        cmocka_unit_test(longer_structs_are_filled_as_far_as_known),
        cmocka_unit_test(the_peak_is_measured),
        cmocka_unit_test(convert_refuses),
        cmocka_unit_test(convert_refuses_overlaps),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
