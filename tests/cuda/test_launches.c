/* SPDX-License-Identifier: Apache-2.0 */
/* What a plan prints is what is launched: the kernels of both, in order, for many calls. Over a driver and a
 * library that run nothing. */
#define _DEFAULT_SOURCE
#include "host.h"

enum { CALLS = 4000, PLAN = 16384 };

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
    int changed, changed_library, changed_clears; /* graphs given other addresses */
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

/* A call is made one by one, then captured as a graph, then replayed. With a elsewhere its program's graph
 * for any addresses is captured, and then changed. */
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
    for (int turn = 0; turn < 5; turn++) {
        const int replays = driver->replays, changed = driver->changed;
        if (turn > 2) up.a.offset += 256, down.a.offset += 256;
        driver->launches = driver->maps = 0;
        assert_ok(forward ? eg_forward(context, &layer, &up) : eg_backward(context, &layer, &down));
        look_at_maps(&layer, call, x);
        look_at_kernels(&layer, call);
        if (driver->replays > replays && driver->launches == 0) continue; /* a graph that was compared */
        compare(call, layer.groups > 0 ? strstr(plan, "in all: ") : plan, turn, x);
        const bool library = driver->library_refuses == 0 && strstr(plan, "  cublaslt") != NULL;
        x->changed += driver->changed > changed;
        x->changed_library += library && driver->changed > changed;
        x->changed_clears += driver->changed > changed && strstr(plan, "clear counters") != NULL;
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
    assert_true(x.changed > 0 && x.changed_library > 0 && x.changed_clears > 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(what_is_launched_is_what_the_plan_prints)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
