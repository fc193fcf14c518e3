/* SPDX-License-Identifier: Apache-2.0 */
/* What a plan prints is what is launched: the kernels of both, in order, for many calls. Over a driver and a
 * library that run nothing. */
#define _DEFAULT_SOURCE
#include "cuda/depth_groups.h"
#include "host.h"

enum { CALLS = 600, PLAN = 16384 };

/* ---- A plan's launches -------------------------------------------------------------------------- */

typedef struct launches {
    int count;
    char name[FAKE_LAUNCHES][64];
} launches;

static void add(launches *x, const char *name, size_t length) {
    if (x->count < FAKE_LAUNCHES) snprintf(x->name[x->count], sizeof x->name[0], "%.*s", (int)length, name);
    x->count++;
}

/* Fields of a step's line are two blanks apart, or more: its number, kind, what it does, its kernel, and how
 * that is launched. */
static const char *next_field(const char *at) {
    at = strstr(at, "  ");
    assert_non_null(at);
    return at + strspn(at, " ");
}

static void add_step(launches *x, const char *line) {
    const char *kernel = next_field(next_field(next_field(line + strspn(line, " "))));
    const size_t length = strcspn(kernel, " ,");
    const char *times = strstr(kernel, "  x "), *after = strstr(kernel, ", each with ");
    const int count = times != NULL ? atoi(times + sizeof "  x " - 1) : 1;
    assert_int_equal(times != NULL, after != NULL); /* what is made in portions has its sums added up */
    for (int i = 0; i < count; i++) {
        add(x, kernel, length);
        if (after == NULL) continue;
        after = strstr(kernel, ", each with ") + sizeof ", each with " - 1;
        add(x, after, strcspn(after, " "));
    }
}

/* Of a program in a plan; returns where the next one begins, NULL: there is none. */
static const char *read_program(const char *text, launches *x) {
    char line[512];
    x->count = 0;
    while (*text != '\0') {
        const size_t length = strcspn(text, "\n");
        snprintf(line, sizeof line, "%.*s", (int)length, text);
        text += length + (text[length] != '\0');
        if (strncmp(line, "where a number or the library refuses", 37) == 0) return text;
        if (line[strspn(line, " ")] >= '0' && line[strspn(line, " ")] <= '9') add_step(x, line);
    }
    return NULL;
}

static bool same(const launches *x, int count, char name[][64]) {
    if (x->count != count) return false;
    for (int i = 0; i < count && i < FAKE_LAUNCHES; i++) {
        if (strcmp(x->name[i], name[i]) != 0) return false;
    }
    return true;
}

static bool uses_the_library(const launches *x) {
    for (int i = 0; i < x->count && i < FAKE_LAUNCHES; i++) {
        if (strncmp(x->name[i], "cublaslt", 8) == 0) return true;
    }
    return false;
}

/* ---- Calls -------------------------------------------------------------------------------------- */

static uint64_t seed;

static int64_t random_below(int64_t n) {
    seed = seed * 6364136223846793005U + 1442695040888963407U;
    return (int64_t)(seed >> 33) % n;
}

static bool one_in(int64_t n) { return random_below(n) == 0; }

/* Addresses that nobody reads. */
static void *place(int index) { return (void *)((uintptr_t)(index + 1) << 44); }

static eg_matrix matrix(int index, int64_t rows, int64_t cols, bool odd) {
    eg_matrix x = {.data = place(index)};
    if (one_in(6)) x.layout = EG_COL_MAJOR;
    const int64_t least = x.layout == EG_COL_MAJOR ? rows : cols;
    x.ld = odd ? least + random_below(5) : (least + 7) / 8 * 8;
    if (odd && one_in(4)) x.offset = 8;
    return x;
}

static eg_layer random_layer(bool *odd) {
    static const int64_t usual[] = {64, 256, 512, 768, 1024, 2048, 3072, 4096, 8192};
    static const eg_dtype dtypes[] = {EG_BF16, EG_BF16, EG_F16, EG_F32, EG_F64};
    int64_t size[3];
    *odd = one_in(3);
    for (int i = 0; i < 3; i++) size[i] = *odd ? random_below(300) : usual[random_below(LENGTH(usual))];
    if (one_in(12)) size[0] = (int64_t)1 << (18 + random_below(6)); /* sums in portions */
    return (eg_layer){.size = sizeof(eg_layer),
                      .m = size[0],
                      .k = size[1],
                      .n = size[2],
                      .batch = 1,
                      .dtype = dtypes[random_below(LENGTH(dtypes))],
                      .activation = one_in(5) ? EG_ACT_NONE : EG_ACT_RELU,
                      .math = one_in(6) ? EG_MATH_STRICT : EG_MATH_DEFAULT};
}

static const eg_workspace workspace = {.data = (void *)((uintptr_t)40 << 44), .bytes = (size_t)1 << 43};

static eg_forward_args random_forward(const eg_layer *l, bool odd) {
    eg_forward_args args = {.size = sizeof args, .workspace = workspace};
    args.a = matrix(0, l->m, l->k, odd), args.b = matrix(1, l->k, l->n, odd);
    args.y = matrix(2, l->m, l->n, odd);
    if (one_in(2)) args.bias.data = place(3);
    if (one_in(2)) args.pre = matrix(4, l->m, l->n, odd);
    if (l->activation == EG_ACT_NONE && one_in(2)) args.residual = matrix(5, l->m, l->n, odd);
    if (args.residual.data != NULL || !one_in(3)) return args;
    args.b_up = matrix(11, l->k, l->n, odd);
    if (one_in(2)) args.bias_up.data = place(12);
    if (args.pre.data != NULL) args.pre_up = matrix(13, l->m, l->n, odd);
    return args;
}

/* The other half of a gated unit. */
static void gate(const eg_layer *l, bool odd, eg_backward_args *args) {
    args->b_up = matrix(11, l->k, l->n, odd);
    if (args->source == EG_SOURCE_PRE) args->pre_up = matrix(12, l->m, l->n, odd);
    if (l->activation == EG_ACT_NONE && one_in(2)) args->grad_up = matrix(13, l->m, l->n, odd);
    if (!one_in(5)) args->d_b_up = matrix(14, l->k, l->n, odd);
    if (!one_in(3)) args->d_bias_up.data = place(15);
    if (one_in(5)) args->grad_pre_up = matrix(16, l->m, l->n, odd);
}

static void gate_below(const eg_layer *l, bool odd, eg_backward_args *args) {
    args->chain_up.saved = matrix(17, l->m, l->k, odd);
    args->chain_up.d_up = matrix(18, l->m, l->k, odd);
    if (one_in(2)) args->chain_up.y = matrix(19, l->m, l->k, odd);
    if (one_in(2)) args->chain_up.d_bias.data = place(20);
}

static eg_backward_args random_backward(const eg_layer *l, bool odd) {
    eg_backward_args args = {.size = sizeof args, .workspace = workspace, .accumulate = one_in(3)};
    args.a = matrix(0, l->m, l->k, odd), args.b = matrix(1, l->k, l->n, odd);
    args.grad = matrix(2, l->m, l->n, odd);
    args.source = (eg_source)random_below(3);
    if (args.source == EG_SOURCE_RECOMPUTE && one_in(2)) args.bias.data = place(3);
    if (args.source == EG_SOURCE_PRE) args.pre = matrix(4, l->m, l->n, odd);
    if (args.source == EG_SOURCE_Y) args.y = matrix(4, l->m, l->n, odd);
    if (!one_in(5)) args.d_a = matrix(5, l->m, l->k, odd);
    if (!one_in(5)) args.d_b = matrix(6, l->k, l->n, odd);
    if (!one_in(3)) args.d_bias.data = place(7);
    if (one_in(5)) args.grad_pre = matrix(8, l->m, l->n, odd);
    if (args.source != EG_SOURCE_Y && one_in(3)) gate(l, odd, &args);
    if (args.d_a.data == NULL || !one_in(3)) return args;
    args.chain.saved = matrix(9, l->m, l->k, odd);
    args.chain.source = EG_SOURCE_PRE, args.chain.activation = EG_ACT_GELU;
    if (one_in(2)) args.chain.d_bias.data = place(10);
    if (one_in(2)) gate_below(l, odd, &args);
    return args;
}

/* Of a dense transformer's layer: large, and everything wanted. */
static void make_large(eg_layer *l, eg_backward_args *args) {
    static const int64_t widths[] = {768, 1024, 2048, 3072, 4096, 14336};
    *l = (eg_layer){.size = sizeof *l, .dtype = EG_BF16, .activation = EG_ACT_GELU};
    l->m = 1024 << random_below(4), l->batch = 1;
    l->k = widths[random_below(LENGTH(widths))], l->n = widths[random_below(LENGTH(widths))];
    *args = (eg_backward_args){.size = sizeof *args, .workspace = workspace, .accumulate = one_in(2)};
    args->a.data = place(0), args->b.data = place(1), args->grad.data = place(2);
    args->d_a.data = place(5), args->d_b.data = place(6);
    if (!one_in(4)) args->d_bias.data = place(7);
    args->source = one_in(3) ? EG_SOURCE_RECOMPUTE : EG_SOURCE_PRE;
    if (args->source == EG_SOURCE_PRE) args->pre.data = place(4);
}

/* A mixture of experts of as many rows: the matrices without rows have one a group. */
static void group(eg_layer *l, eg_forward_args *up, eg_backward_args *down) {
    static const int64_t groups[] = {1, 2, 8, 64, 160};
    const int64_t apart = (l->k + 8) * (l->n + 16) / 8 * 8;
    l->groups = groups[random_below(LENGTH(groups))], l->batch = 0;
    up->b.batch_stride = up->b_up.batch_stride = apart;
    down->b.batch_stride = down->b_up.batch_stride = down->d_b.batch_stride = down->d_b_up.batch_stride =
        apart;
    up->offsets.data = down->offsets.data = place(21);
}

/* ---- The comparison ----------------------------------------------------------------------------- */

/* What the tests have seen, so that none of it is missing. */
typedef struct seen {
    int library, refused, portions, cleared, beside, grouped, by_k_blocks, gated, paired;
} seen;

static void look_at(const char *plan, bool refused, seen *x) {
    x->library += strstr(plan, "  cublaslt") != NULL;
    x->refused += refused;
    x->portions += strstr(plan, ", each with ") != NULL;
    x->cleared += strstr(plan, "clear counters") != NULL;
    x->beside += strstr(plan, "beside the next") != NULL;
    x->gated += strstr(plan, "  gated_grad_") != NULL;
    x->paired += strstr(plan, "_gated_") != NULL || strstr(plan, "_pair_") != NULL;
}

static bool begins(const char *text, const char *with) { return strncmp(text, with, strlen(with)) == 0; }

/* Kernels that do not read the ends would take all rows for those of the first group. */
static void look_at_kernels(const eg_layer *l, int call) {
    for (int i = 0; l->groups > 0 && i < driver->launches && i < FAKE_LAUNCHES; i++) {
        const char *name = driver->launch[i];
        const bool hopper = begins(name, "hopper_bf16") || begins(name, "hopper_f16");
        const bool reads = strstr(name, "_split_") != NULL || strstr(name, "_grouped_") != NULL;
        if (begins(name, "cublaslt") || begins(name, "pad") || begins(name, "copy") || (hopper && !reads))
            fail_msg("call %d: %s", call, name);
    }
}

/* An item for each row: a k-block from there on, of rows that are those of the matrix. */
static bool is_by_k_blocks(const eg_layer *l, const fake_map *map) {
    return map->items == l->m && map->rows == 64 && map->item_pitch == map->pitch;
}

/* What has the rows of groups is one matrix, of the caller's or in the workspace: kernels name no item of it,
 * but k-blocks where the depth is that of groups. */
static void look_at_maps(const eg_layer *l, int call, seen *x) {
    for (int i = 0; l->groups > 0 && i < driver->maps && i < FAKE_MAPS; i++) {
        const uint64_t at = driver->map[i].address;
        const bool weights = at >> 44 == (uintptr_t)place(1) >> 44 || at >> 44 == (uintptr_t)place(6) >> 44 ||
                             at >> 44 == (uintptr_t)place(11) >> 44 || at >> 44 == (uintptr_t)place(14) >> 44;
        const bool k_blocks = !weights && l->m > 1 && is_by_k_blocks(l, &driver->map[i]);
        x->by_k_blocks += k_blocks;
        if (!k_blocks && driver->map[i].items != (weights ? l->groups : 1))
            fail_msg("call %d: %u items at %llx", call, driver->map[i].items, (unsigned long long)at);
    }
}

/* A call is made one by one, then captured as a graph, then replayed. */
static void compare(int call, const char *plan, int turn, seen *x) {
    static launches first, other;
    const char *rest = read_program(plan, &first);
    bool refused = false;
    if (rest != NULL) read_program(rest, &other);
    const bool planned = same(&first, driver->launches, driver->launch);
    if (!planned && rest != NULL && uses_the_library(&first))
        refused = driver->library_refuses != 0 && same(&other, driver->launches, driver->launch);
    const bool must_refuse = driver->library_refuses == 1 && uses_the_library(&first);
    if ((planned && !must_refuse) || refused) {
        look_at(plan, refused, x);
        return;
    }
    for (int i = 0; i < driver->launches && i < FAKE_LAUNCHES; i++)
        fprintf(stderr, "%s\n", driver->launch[i]);
    fail_msg("call %d, turn %d: %d launches are not those of\n%s", call, turn, driver->launches, plan);
}

static void make_call(eg_context *context, int call, seen *x) {
    static char plan[PLAN];
    bool odd;
    seed = (uint64_t)call * 7919 + 1;
    random_below(2);
    eg_layer layer = random_layer(&odd);
    const bool large = one_in(4), forward = !large && one_in(4);
    eg_forward_args up = random_forward(&layer, odd);
    eg_backward_args down = random_backward(&layer, odd);
    if (large) make_large(&layer, &down);
    if (one_in(4)) group(&layer, &up, &down);
    if (forward) {
        assert_ok(eg_forward_plan(context, &layer, &up, plan, sizeof plan));
    } else {
        assert_ok(eg_backward_plan(context, &layer, &down, plan, sizeof plan));
    }
    for (int turn = 0; turn < 3; turn++) {
        const int replays = driver->replays;
        driver->launches = driver->maps = 0;
        assert_ok(forward ? eg_forward(context, &layer, &up) : eg_backward(context, &layer, &down));
        look_at_maps(&layer, call, x);
        look_at_kernels(&layer, call);
        if (driver->replays > replays && driver->launches == 0) continue; /* a graph that was compared */
        compare(call, layer.groups > 0 ? strstr(plan, "in all: ") : plan, turn, x);
        x->grouped += layer.groups > 0;
    }
}

static void what_is_launched_is_what_the_plan_prints(void **state) {
    (void)state;
    seen x = {0};
    for (int refuses = 0; refuses < 3; refuses++) {
        session s;
        open_session(&s);
        driver->library_refuses = refuses;
        for (int call = 0; call < CALLS; call++) make_call(s.context, call, &x);
        driver->library_refuses = 0;
        close_session(&s);
    }
    assert_true(x.library > 0 && x.refused > 0);
    assert_true(x.portions > 0 && x.cleared > 0 && x.beside > 0 && x.grouped > 0 && x.by_k_blocks > 0 &&
                x.gated > 0 && x.paired > 0);
}

/* How many products of a backward call the plan gives to the library. */
static int by_library(session *s, const eg_layer *layer, const eg_backward_args *args) {
    char text[8192];
    int count = 0;
    assert_ok(eg_backward_plan(s->context, layer, args, text, sizeof text));
    char *end = strstr(text, "where a number or the library refuses");
    if (end != NULL) *end = '\0';
    for (const char *at = text; (at = strstr(at, "  cublaslt")) != NULL; at++) count++;
    return count;
}

/* It rounds some sums of 16 bits before it adds them to what is there, and knows no lines that overlap. */
static void the_library_is_given_what_it_does_right(void **state) {
    (void)state;
    session s;
    open_session(&s);
    eg_layer layer = {.size = sizeof layer, .m = 64, .k = 64, .n = 64, .batch = 1, .dtype = EG_BF16};
    eg_backward_args args = {.size = sizeof args,
                             .a = matrix(0, 64, 64, false),
                             .grad = matrix(1, 64, 64, false),
                             .d_b = matrix(2, 64, 64, false)};
    assert_int_equal(by_library(&s, &layer, &args), 1);
    args.accumulate = 1;
    assert_int_equal(by_library(&s, &layer, &args), 0);
    args.d_b.dtype = EG_F32;
    assert_int_equal(by_library(&s, &layer, &args), 1);
    args.accumulate = 0, args.d_b.dtype = EG_DTYPE_DEFAULT;
    layer.dtype = EG_F64, layer.m = 1, layer.batch = 5; /* a[i, j] at i + j */
    args.a = (eg_matrix){.data = place(0), .ld = 1, .batch_stride = 1, .layout = EG_COL_MAJOR};
    args.grad = (eg_matrix){.data = place(1), .ld = 64, .batch_stride = 64};
    assert_int_equal(by_library(&s, &layer, &args), 0);
    layer.m = 33, layer.batch = 1; /* more than outer products are made of */
    args.a = matrix(0, 33, 64, false);
    assert_int_equal(by_library(&s, &layer, &args), 1);
    close_session(&s);
}

/* It reads a bias as numbers of the result's type: f32 is what a gated unit keeps its pre in. */
static void the_library_adds_no_bias_of_another_type(void **state) {
    (void)state;
    session s;
    open_session(&s);
    const eg_open_info info = {.size = sizeof info, .backend = EG_BACKEND_CUDA, .kernel = "cublaslt_bf16"};
    eg_context *named = NULL;
    assert_ok(eg_open(&info, &named));
    const eg_layer layer = {.size = sizeof layer, .m = 64, .k = 64, .n = 64, .batch = 1, .dtype = EG_BF16};
    const eg_backward_args args = {.size = sizeof args,
                                   .a = matrix(0, 64, 64, false),
                                   .b = matrix(1, 64, 64, false),
                                   .b_up = matrix(2, 64, 64, false),
                                   .bias = {.data = place(3)},
                                   .grad = matrix(4, 64, 64, false),
                                   .grad_pre = matrix(5, 64, 64, false)};
    char text[8192];
    assert_ok(eg_backward_plan(named, &layer, &args, text, sizeof text));
    char *pre = strstr(text, "pre = a.b + bias");
    assert_non_null(pre);
    pre[strcspn(pre, "\n")] = '\0';
    assert_null(strstr(pre, "cublaslt"));
    eg_close(named);
    close_session(&s);
}

/* q·kᵀ of a packed [B, T, 3, H, d]: a launch for each sequence. A d_a that is summed over both levels is
 * added to by each, in f32, and rounded at the end. */
static void two_levels_are_launched_one_by_one(void **state) {
    enum { B = 4, H = 2, T = 64, D = 64, ROW = 3 * H * D };
    (void)state;
    session s;
    open_session(&s);
    const eg_layer layer = {
        .size = sizeof layer, .m = T, .k = D, .n = T, .batch = H, .dtype = EG_BF16, .outer_batch = B};
    const eg_forward_args args = {
        .size = sizeof args,
        .a = {.data = place(0), .ld = ROW, .batch_stride = D},
        .b = {.data = place(1), .ld = ROW, .batch_stride = D, .layout = EG_COL_MAJOR},
        .y = {.data = place(2), .batch_stride = T * T},
        .outer = {.a = T * ROW, .b = T * ROW, .y = H * T * T}};
    driver->launches = 0;
    assert_ok(eg_forward(s.context, &layer, &args));
    assert_int_equal(driver->launches, B);
    const eg_backward_args sums = {.size = sizeof sums,
                                   .a = args.a,
                                   .b = args.b,
                                   .grad = args.y,
                                   .d_a = {.data = place(3)},
                                   .outer = {.a = T * ROW, .b = T * ROW, .grad = H * T * T}};
    driver->launches = 0;
    assert_ok(eg_backward(s.context, &layer, &sums));
    assert_int_equal(driver->launches, B + 1);
    for (int i = 0; i < B; i++) assert_string_not_equal(driver->launch[i], "copy_f32");
    assert_string_equal(driver->launch[B], "copy_f32");
    close_session(&s);
}

/* An outer item's matrices of a pack begin where those of the one before end. */
static void each_launch_reads_its_part_of_a_pack(void **state) {
    enum { B = 4, H = 2, T = 256, D = 256, ROW = H * D };
    (void)state;
    session s;
    open_session(&s);
    const eg_open_info info = {
        .size = sizeof info, .backend = EG_BACKEND_CUDA, .kernel = "hopper_bf16_pingpong_nn_128x128"};
    eg_context *named = NULL;
    assert_ok(eg_open(&info, &named));
    eg_layer layer = {.size = sizeof layer, .m = T, .k = D, .n = D, .batch = B * H, .dtype = EG_BF16};
    const eg_matrix b = {.data = place(1), .batch_stride = D * D};
    eg_packed *packed = NULL;
    assert_ok(eg_pack_b(named, &layer, &b, &packed));
    layer.batch = H, layer.outer_batch = B;
    const eg_forward_args args = {.size = sizeof args,
                                  .a = {.data = place(0), .ld = ROW, .batch_stride = D},
                                  .packed_b = packed,
                                  .y = {.data = place(2), .ld = ROW, .batch_stride = D},
                                  .outer = {.a = T * ROW, .y = T * ROW}};
    driver->maps = 0;
    assert_ok(eg_forward(named, &layer, &args));
    uint64_t first = 0;
    int found = 0;
    for (int i = 0; i < driver->maps && i < FAKE_MAPS; i++) {
        const uint64_t at = driver->map[i].address;
        if (at >= (uintptr_t)place(0) && at < (uintptr_t)place(3)) continue; /* of a, or of y */
        if (found == 0) first = at;
        assert_int_equal(at, first + (uint64_t)found * H * D * D * sizeof(uint16_t));
        found++;
    }
    assert_int_equal(found, B);
    eg_packed_free(named, packed);
    eg_close(named);
    close_session(&s);
}

/* The sums of a gradient are made on the side stream, and read the copy that its product reads: they wait for
 * it, and not for the product. */
static void sums_beside_a_product_wait_for_the_padded_copy(void **state) {
    enum { M = 64, K = 128, N = 100 };
    (void)state;
    session s;
    open_session(&s);
    const eg_open_info info = {
        .size = sizeof info, .backend = EG_BACKEND_CUDA, .kernel = "hopper_bf16_pingpong_nn_128x128"};
    eg_context *named = NULL;
    assert_ok(eg_open(&info, &named));
    const eg_layer layer = {.size = sizeof layer, .m = M, .k = K, .n = N, .batch = 1, .dtype = EG_BF16};
    const eg_backward_args args = {.size = sizeof args,
                                   .a = {.data = place(0), .layout = EG_COL_MAJOR},
                                   .b = {.data = place(1)},
                                   .grad = {.data = place(2), .ld = N + 1},
                                   .d_b = {.data = place(3)},
                                   .d_bias = {.data = place(4)}};
    driver->launches = driver->waits = 0;
    assert_ok(eg_backward(named, &layer, &args));
    assert_true(driver->waits > 0);
    assert_string_equal(driver->launch[0], "pad_16");
    assert_string_equal(driver->launch[1], info.kernel);
    assert_int_equal(driver->launches_before_wait, 1);
    eg_close(named);
    close_session(&s);
}

/* TMA reads from 16 bytes on, and so each outer item has to begin there, not only the first. */
static void every_outer_item_has_to_be_aligned(void **state) {
    enum { B = 2, H = 2, T = 256, D = 256, ROW = H * D };
    (void)state;
    session s;
    open_session(&s);
    const eg_open_info info = {
        .size = sizeof info, .backend = EG_BACKEND_CUDA, .kernel = "hopper_bf16_pingpong_nn_128x128"};
    eg_context *named = NULL;
    assert_ok(eg_open(&info, &named));
    const eg_layer layer = {
        .size = sizeof layer, .m = T, .k = D, .n = D, .batch = H, .dtype = EG_BF16, .outer_batch = B};
    eg_forward_args args = {.size = sizeof args,
                            .a = {.data = place(0), .ld = ROW, .batch_stride = D},
                            .b = {.data = place(1)},
                            .y = {.data = place(2), .ld = ROW, .batch_stride = D},
                            .outer = {.a = T * ROW, .y = T * ROW}};
    assert_ok(eg_forward(named, &layer, &args));
    args.outer.a += 4; /* 8 bytes */
    assert_int_equal(eg_forward(named, &layer, &args), EG_ERR_UNSUPPORTED);
    eg_close(named);
    close_session(&s);
}

static const fake_map *map_at(uintptr_t address) {
    for (int i = 0; i < driver->maps && i < FAKE_MAPS; i++) {
        if (driver->map[i].address == address) return &driver->map[i];
    }
    return NULL;
}

/* Rows of a k-block that TMA reads, each of which is one of the group's, once: a box has what is inside of
 * its tensor, and zeros. */
static void read_k_block(const fake_map *map, uint32_t first, uint32_t end, uint32_t k_block,
                         uint8_t *reads) {
    const eg_cuda_rows_of_k_block rows = eg_cuda_k_block_of_group(first, end, 64, k_block);
    assert_true(rows.row < map->items);
    for (int32_t row = rows.before; row < rows.before + 64; row++) {
        if (row < 0 || row >= (int32_t)map->rows) continue;
        const uint64_t at = ((uint64_t)rows.row * map->item_pitch + (uint64_t)row * map->pitch) / map->pitch;
        assert_in_range(at, first, end - 1);
        reads[at]++;
    }
}

/* d_b of groups: boxes of A and of grad, whatever the ends, hold each row of the group and none of another.
 */
static void k_blocks_have_the_rows_of_their_group(void **state) {
    enum { M = 1000, K = 512, N = 768, GROUPS = 8 };
    static const uint32_t ends[GROUPS] = {1, 1, 64, 127, 255, 300, 940, M - 3};
    (void)state;
    session s;
    open_session(&s);
    const eg_open_info info = {
        .size = sizeof info, .backend = EG_BACKEND_CUDA, .kernel = "hopper_bf16_grouped_tn_128x128"};
    eg_context *named = NULL;
    assert_ok(eg_open(&info, &named));
    const eg_layer layer = {.size = sizeof layer, .m = M, .k = K, .n = N, .dtype = EG_BF16, .groups = GROUPS};
    for (int turned = 0; turned < 2; turned++) {
        const eg_backward_args args = {
            .size = sizeof args,
            .a = {.data = place(0), .ld = K + 8},
            .grad = {.data = place(1), .ld = N},
            .d_b = {.data = place(2), .layout = turned ? EG_COL_MAJOR : EG_ROW_MAJOR, .batch_stride = K * N},
            .offsets = {.data = place(21)}};
        driver->maps = driver->launches = 0;
        assert_ok(eg_backward(named, &layer, &args));
        assert_string_equal(driver->launch[0], info.kernel);
        for (int i = 0; i < 2; i++) {
            const fake_map *map = map_at((uintptr_t)place(i));
            assert_non_null(map);
            assert_int_equal(map->row_bytes, 2 * (i == 0 ? K : N));
            assert_int_equal(map->pitch, 2 * (i == 0 ? K + 8 : N));
            uint8_t reads[M] = {0};
            for (int group = 0; group < GROUPS; group++) {
                const uint32_t first = group > 0 ? ends[group - 1] : 0, end = ends[group];
                for (uint32_t j = 0; j < eg_cuda_k_blocks_of_rows(end - first, 64); j++)
                    read_k_block(map, first, end, j, reads);
            }
            for (uint32_t row = 0; row < M; row++) assert_int_equal(reads[row], row < ends[GROUPS - 1]);
        }
        assert_int_equal(map_at((uintptr_t)place(2))->items, GROUPS);
    }
    eg_close(named);
    close_session(&s);
}

/* The blocks of a cluster share an operand, each loading half of its box: right, and the cluster's tile has
 * twice a block's rows; or left, and it has twice its columns, so that a group's last tile loses less. */
static void a_cluster_shares_left_or_right(void **state) {
    enum { M = 1000, K = 512, N = 768, GROUPS = 8 };
    static const struct {
        const char *kernel;
        uint32_t left, right; /* lines of a box */
        unsigned clusters;
    } rows[] = {{"hopper_bf16_grouped_nt_128x128", 64, 128, (M / 128 + GROUPS) * 3},
                {"hopper_bf16_grouped_nt_128x256", 128, 128, (M / 256 + GROUPS) * 3}};
    (void)state;
    for (size_t i = 0; i < LENGTH(rows); i++) {
        session s;
        open_session(&s);
        const eg_open_info info = {.size = sizeof info, .backend = EG_BACKEND_CUDA, .kernel = rows[i].kernel};
        eg_context *named = NULL;
        assert_ok(eg_open(&info, &named));
        const eg_layer layer = {
            .size = sizeof layer, .m = M, .k = K, .n = N, .dtype = EG_BF16, .groups = GROUPS};
        const eg_forward_args args = {.size = sizeof args,
                                      .a = {.data = place(0)},
                                      .b = {.data = place(1), .layout = EG_COL_MAJOR, .batch_stride = K * N},
                                      .y = {.data = place(2)},
                                      .offsets = {.data = place(21)}};
        driver->maps = driver->launches = 0;
        assert_ok(eg_forward(named, &layer, &args));
        assert_string_equal(driver->launch[0], rows[i].kernel);
        assert_int_equal(driver->last_blocks, 2 * rows[i].clusters);
        assert_int_equal(map_at((uintptr_t)place(0))->box_rows, rows[i].left);
        assert_int_equal(map_at((uintptr_t)place(1))->box_rows, rows[i].right);
        eg_close(named);
        close_session(&s);
    }
}

/* So has each item of a batch whose chunks have one: the second chunk begins with the second item. */
static void every_item_of_a_chunk_has_to_be_aligned(void **state) {
    enum { M = 64, K = 32, N = 32 };
    (void)state;
    session s;
    open_session(&s);
    const eg_open_info info = {.size = sizeof info, .backend = EG_BACKEND_CUDA, .kernel = "tall_bf16_32x64"};
    eg_context *named = NULL;
    assert_ok(eg_open(&info, &named));
    eg_layer layer = eg_layer_of(M, K, N, EG_ACT_SILU);
    layer.dtype = EG_BF16, layer.batch = 2;
    eg_forward_args args = {.size = sizeof args,
                            .a = {.data = place(0), .batch_stride = M * K},
                            .b = {.data = place(1)},
                            .b_up = {.data = place(2)},
                            .y = {.data = place(3), .batch_stride = M * N}};
    size_t bytes;
    assert_ok(eg_forward_workspace(named, &layer, &args, &bytes));
    args.workspace_limit = bytes - 1;
    assert_ok(eg_forward(named, &layer, &args));
    args.a.batch_stride += 4; /* 8 bytes */
    assert_int_equal(eg_forward(named, &layer, &args), EG_ERR_UNSUPPORTED);
    eg_close(named);
    close_session(&s);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(a_cluster_shares_left_or_right),
                                       cmocka_unit_test(k_blocks_have_the_rows_of_their_group),
                                       cmocka_unit_test(what_is_launched_is_what_the_plan_prints),
                                       cmocka_unit_test(the_library_is_given_what_it_does_right),
                                       cmocka_unit_test(the_library_adds_no_bias_of_another_type),
                                       cmocka_unit_test(two_levels_are_launched_one_by_one),
                                       cmocka_unit_test(sums_beside_a_product_wait_for_the_padded_copy),
                                       cmocka_unit_test(every_outer_item_has_to_be_aligned),
                                       cmocka_unit_test(every_item_of_a_chunk_has_to_be_aligned),
                                       cmocka_unit_test(each_launch_reads_its_part_of_a_pack)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
