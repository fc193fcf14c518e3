/* SPDX-License-Identifier: Apache-2.0 */
/* Memory that runs out at the n-th request, for every n: each call then says EG_ERR_OUT_OF_MEMORY, has
 * written nothing, and leaves the context usable; nothing leaks. */
#include "fixture.h"

typedef struct scarce {
    int requests, fail_at; /* the request that fails, counted from 1; 0: none */
    int live;              /* pieces handed out and not yet given back */
} scarce;

static void *scarce_alloc(size_t bytes, void *user) {
    scarce *s = user;
    if (++s->requests == s->fail_at || bytes == 0) return NULL; /* as some do: nothing is no memory */
    void *memory = aligned_alloc(64, (bytes / 64 + 1) * 64);
    if (memory != NULL) {
        memset(memory, 0xff, bytes); /* new memory is not initialised: whoever reads it reads NaN */
        s->live++;
    }
    return memory;
}

static void scarce_free(void *memory, void *user) {
    ((scarce *)user)->live--;
    free(memory);
}

static eg_open_info scarce_info(scarce *s) {
    return (eg_open_info){.size = sizeof(eg_open_info),
                          .threads = 2,
                          .kernel = "portable_f32_4x8", /* a name to copy: one more request */
                          .allocator = {scarce_alloc, scarce_free, s}};
}

/* True if the call succeeded; if not, it was for want of memory and has written nothing. */
static bool held(eg_status status, const scarce *s, const fixture *f) {
    if (status == EG_OK) return true;
    assert_int_equal(status, EG_ERR_OUT_OF_MEMORY);
    assert_true(s->requests >= s->fail_at);
    assert_true(strlen(eg_last_error()) > 0);
    assert_true(fixture_untouched(f));
    return false;
}

/* A session that asks for memory in every way there is. Calls that fail are tried again, and succeed. */
static void session(scarce *s, fixture *f) {
    eg_context *context = NULL;
    const eg_open_info info = scarce_info(s);
    fixture_poison(f);
    if (!held(eg_open(&info, &context), s, f)) {
        assert_null(context);
        assert_int_equal(s->live, 0);
        assert_ok(eg_open(&info, &context));
    }
    void *memory = f, *nothing = NULL; /* what fails leaves NULL */
    if (!held(eg_alloc(context, 1000, &memory), s, f)) {
        assert_null(memory);
        assert_ok(eg_alloc(context, 1000, &memory));
    }
    if (!held(eg_alloc(context, 0, &nothing), s, f)) assert_ok(eg_alloc(context, 0, &nothing));
    eg_packed *packed = (eg_packed *)(void *)f;
    if (!held(eg_pack_b(context, &f->layer, &f->forward.b, &packed), s, f)) {
        assert_null(packed);
        assert_ok(eg_pack_b(context, &f->layer, &f->forward.b, &packed));
    }
    if (!held(eg_packed_update(context, packed, &f->forward.b), s, f))
        assert_ok(eg_packed_update(context, packed, &f->forward.b));
    if (!held(eg_forward(context, &f->layer, &f->forward), s, f))
        assert_ok(eg_forward(context, &f->layer, &f->forward));
    fixture_poison(f);
    if (!held(eg_backward(context, &f->layer, &f->backward), s, f)) {
        assert_ok(eg_forward(context, &f->layer, &f->forward)); /* needs less, and must not think it has it */
        assert_ok(eg_backward(context, &f->layer, &f->backward));
    }
    eg_packed_free(context, packed);
    eg_free(context, memory);
    eg_free(context, nothing);
    eg_close(context);
    assert_int_equal(s->live, 0);
}

static void every_request_may_fail(void **state) {
    (void)state;
    fixture f;
    fixture_make(&f, small_layer());
    scarce plenty = {0};
    session(&plenty, &f);
    assert_true(plenty.requests >= 6); /* context, name, pack, workspaces, ... */
    for (int n = 1; n <= plenty.requests; n++) {
        scarce s = {.fail_at = n};
        session(&s, &f);
        assert_true(s.requests >= n);
    }
    fixture_free(&f);
}

/* The caller's workspace makes a call that asks for no memory at all; in chunks, too. */
static void check_own_workspace(int64_t rows, size_t limit) {
    fixture f;
    eg_layer layer = small_layer();
    layer.m = rows;
    fixture_make(&f, layer);
    f.forward.workspace_limit = f.backward.workspace_limit = limit;
    scarce s = {0};
    const eg_open_info info = scarce_info(&s);
    eg_context *context = NULL;
    assert_ok(eg_open(&info, &context));
    size_t forward = 0, backward = 0;
    assert_ok(eg_forward_workspace(context, &f.layer, &f.forward, &forward));
    assert_ok(eg_backward_workspace(context, &f.layer, &f.backward, &backward));
    const size_t bytes = (forward > backward ? forward : backward) + 64;
    void *memory = aligned_alloc(64, (bytes + 63) / 64 * 64);
    assert_non_null(memory);
    f.forward.workspace = (eg_workspace){.data = memory, .bytes = forward};
    f.backward.workspace = (eg_workspace){.data = memory, .bytes = backward};
    const int before = s.requests;
    assert_ok(eg_forward(context, &f.layer, &f.forward));
    assert_ok(eg_backward(context, &f.layer, &f.backward));
    assert_int_equal(s.requests, before);
    eg_close(context);
    assert_int_equal(s.live, 0);
    free(memory);
    fixture_free(&f);
}

static void own_workspace_asks_for_nothing(void **state) {
    (void)state;
    check_own_workspace(5, 0);
    check_own_workspace(20000, 1 << 20);
}

/* The context's workspace grows to the largest call and then no more. */
static void workspace_only_grows(void **state) {
    (void)state;
    fixture small, large;
    fixture_make(&small, small_layer());
    eg_layer layer = small_layer();
    layer.m = layer.k = layer.n = 100;
    fixture_make(&large, layer);
    scarce s = {0};
    const eg_open_info info = scarce_info(&s);
    eg_context *context = NULL;
    assert_ok(eg_open(&info, &context));
    assert_ok(eg_backward(context, &large.layer, &large.backward));
    const int after_large = s.requests, live = s.live;
    for (int i = 0; i < 3; i++) {
        assert_ok(eg_backward(context, &small.layer, &small.backward));
        assert_ok(eg_backward(context, &large.layer, &large.backward));
    }
    assert_int_equal(s.requests, after_large);
    assert_int_equal(s.live, live);
    eg_close(context);
    assert_int_equal(s.live, 0);
    fixture_free(&small);
    fixture_free(&large);
}

/* A size that no memory could hold is refused before anything is touched. */
static void absurd_sizes_are_refused(void **state) {
    (void)state;
    eg_context *context = open_cpu(1);
    void *memory = &memory;
    assert_status(eg_alloc(context, SIZE_MAX, &memory), EG_ERR_OUT_OF_MEMORY);
    assert_null(memory);
    eg_close(context);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_request_may_fail),
        cmocka_unit_test(own_workspace_asks_for_nothing),
        cmocka_unit_test(workspace_only_grows),
        cmocka_unit_test(absurd_sizes_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
