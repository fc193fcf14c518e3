/* SPDX-License-Identifier: Apache-2.0 */
/* The part of every peer that is the same: see worker.h. */
#define _GNU_SOURCE
#include "worker.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

enum { INPUTS = 4, PARTS = 7, MOST_RUNS = 4096 };

typedef struct state {
    problem problem;
    size_t bytes[PARTS]; /* of a, b, bias, grad, d_a, d_b, d_bias */
    operands *sets;      /* NULL: nothing is loaded */
    int count, next;
} state;

/* ---- Memory ------------------------------------------------------------------------------------- */

size_t dtype_size(dtype type) { return type == F64 ? 8 : type == F32 ? 4 : 2; }

void *big_alloc(size_t bytes) {
    const size_t page = (size_t)2 << 20, rounded = (bytes / page + 1) * page;
    void *memory = aligned_alloc(page, rounded);
    if (memory == NULL) {
        fprintf(stderr, "out of memory: %zu bytes\n", rounded);
        exit(1);
    }
    madvise(memory, rounded, MADV_HUGEPAGE);
    return memory;
}

void big_free(void *memory) { free(memory); }

static void **part(operands *x, int i) {
    void **const parts[PARTS] = {&x->a, &x->b, &x->bias, &x->grad, &x->d_a, &x->d_b, &x->d_bias};
    return parts[i];
}

static void unload(state *s) {
    for (int i = 0; s->sets != NULL && i < s->count; i++) big_free(s->sets[i].a);
    free(s->sets);
    s->sets = NULL;
}

/* One block a set, each operand on a page of its own, an odd number of cache lines further on each time:
 * operands that start at the same offset of a page would fight for the same few lines of the L1 cache. */
static void allocate(state *s, operands *x) {
    size_t offset[PARTS], total = 0;
    for (int i = 0; i < PARTS; i++) {
        offset[i] = total + (size_t)i * 5 * 64;
        total = (offset[i] + s->bytes[i] + 4095) / 4096 * 4096;
    }
    char *block = big_alloc(total);
    for (int i = 0; i < PARTS; i++) *part(x, i) = block + offset[i];
    memset(block + offset[INPUTS], 0,
           total - offset[INPUTS]); /* so that no run meets a page for the first time */
}

/* ---- Requests ----------------------------------------------------------------------------------- */

static char refusal[256];

bool peer_refusal(const char *format, ...) {
    va_list list;
    va_start(list, format);
    vsnprintf(refusal, sizeof refusal, format, list);
    va_end(list);
    return false;
}

static bool parse_problem(problem *p, const char *name) {
    static const char *const names[] = {[F32] = "f32", [F64] = "f64", [F16] = "f16", [BF16] = "bf16"};
    for (int i = 0; i < 4; i++) {
        p->type = (dtype)i;
        if (strcmp(name, names[i]) == 0) return p->m > 0 && p->k > 0 && p->n > 0;
    }
    return false;
}

static bool read_inputs(state *s, const char *path) {
    FILE *file = fopen(path, "rb");
    if (file == NULL) return peer_refusal("cannot open %s", path);
    operands *first = &s->sets[0];
    bool whole = true;
    for (int i = 0; i < INPUTS; i++) {
        whole = whole && fread(*part(first, i), 1, s->bytes[i], file) == s->bytes[i];
    }
    fclose(file);
    for (int copy = 1; copy < s->count; copy++) {
        for (int i = 0; i < INPUTS; i++) memcpy(*part(&s->sets[copy], i), *part(first, i), s->bytes[i]);
    }
    return whole || peer_refusal("%s is too short", path);
}

static bool load(state *s, const char *arguments) {
    char path[512], name[8];
    problem p = {0};
    int count = 0;
    unload(s);
    const int found = sscanf(arguments, "%511s %ld %ld %ld %7s %d", path, &p.m, &p.k, &p.n, name, &count);
    if (found != 6 || count < 1 || !parse_problem(&p, name)) return peer_refusal("load what?");
    if (!peer_prepare(&p)) return false;
    const int64_t elements[PARTS] = {p.m * p.k, p.k * p.n, p.n, p.m * p.n, p.m * p.k, p.k * p.n, p.n};
    for (int i = 0; i < PARTS; i++) s->bytes[i] = (size_t)elements[i] * dtype_size(p.type);
    s->problem = p;
    s->count = count;
    s->next = 0;
    s->sets = calloc((size_t)count, sizeof *s->sets);
    if (s->sets == NULL) return peer_refusal("out of memory");
    for (int i = 0; i < count; i++) allocate(s, &s->sets[i]);
    return read_inputs(s, path);
}

double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

/* All bits set is a NaN in every type: an element that is not written cannot pass. */
static bool check(state *s, const char *path) {
    operands *x = &s->sets[0];
    for (int i = INPUTS; i < PARTS; i++) memset(*part(x, i), 0xff, s->bytes[i]);
    const double begin = now();
    peer_backward(x);
    const double time = now() - begin;
    FILE *file = fopen(path, "wb");
    if (file == NULL) return peer_refusal("cannot write %s", path);
    bool whole = true;
    for (int i = INPUTS; i < PARTS; i++) {
        whole = whole && fwrite(*part(x, i), 1, s->bytes[i], file) == s->bytes[i];
    }
    whole = fclose(file) == 0 && whole;
    if (whole) printf("ok %.9g\n", time);
    return whole || peer_refusal("cannot write %s", path);
}

static void backward(state *s) {
    peer_backward(&s->sets[s->next]);
    s->next = (s->next + 1) % s->count;
}

static bool run(state *s, const char *arguments) {
    static double times[MOST_RUNS];
    int warm = 0, runs = 0;
    if (sscanf(arguments, "%d %d", &warm, &runs) != 2 || runs > MOST_RUNS) return peer_refusal("run what?");
    for (int i = 0; i < warm; i++) backward(s);
    for (int i = 0; i < runs; i++) {
        const double begin = now();
        backward(s);
        times[i] = now() - begin;
    }
    printf("ok");
    for (int i = 0; i < runs; i++) printf(" %.9g", times[i]);
    printf("\n");
    return true;
}

static void answer(state *s, char *line) {
    char verb[16] = "";
    int length = 0;
    sscanf(line, "%15s %n", verb, &length);
    const char *rest = line + length;
    bool done = true;
    if (strcmp(verb, "about") == 0) {
        printf("ok %s\n", peer_about());
    } else if (strcmp(verb, "load") == 0) {
        done = load(s, rest);
        if (done) printf("ok %s\n", peer_details());
        if (!done) unload(s);
    } else if (s->sets == NULL) {
        done = peer_refusal("nothing is loaded");
    } else if (strcmp(verb, "check") == 0) {
        done = check(s, rest);
    } else if (strcmp(verb, "run") == 0) {
        done = run(s, rest);
    } else if (strcmp(verb, "peak") == 0) {
        printf("ok %.6g\n", peer_peak());
    } else {
        done = peer_refusal("unknown request %s", verb);
    }
    if (!done) printf("no %s\n", refusal);
    fflush(stdout);
}

int main(int argc, char **argv) {
    static char line[1024];
    state s = {0};
    if (!peer_open(argc - 1, argv + 1)) {
        printf("no %s\n", refusal);
        return 1;
    }
    while (fgets(line, sizeof line, stdin) != NULL) {
        line[strcspn(line, "\n")] = '\0';
        answer(&s, line);
    }
    unload(&s);
    return 0;
}
