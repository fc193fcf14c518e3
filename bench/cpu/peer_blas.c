/* SPDX-License-Identifier: Apache-2.0 */
/* The backward pass by a library with the C interface of BLAS: three products, and a loop between them.
 *
 *     peer_blas LIBRARY.so
 *
 * The library is opened at run time, so that OpenBLAS, BLIS and MKL need neither headers nor a build each. */
#define _GNU_SOURCE
#include "act_grad.h"

#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

/* The interface's numbers. */
enum { ROW_MAJOR = 101, PLAIN = 111, TRANSPOSED = 112 };

typedef void sgemm(int order, int ta, int tb, int m, int n, int k, float alpha, const float *a, int lda,
                   const float *b, int ldb, float beta, float *c, int ldc);
typedef void dgemm(int order, int ta, int tb, int m, int n, int k, double alpha, const double *a, int lda,
                   const double *b, int ldb, double beta, double *c, int ldc);
typedef void bgemm(int order, int ta, int tb, int m, int n, int k, float alpha, const uint16_t *a, int lda,
                   const uint16_t *b, int ldb, float beta, float *c, int ldc);

static struct {
    void *library;
    sgemm *f32;
    dgemm *f64;
    bgemm *bf16; /* MKL's: bf16 operands, f32 result */
    problem problem;
    void *pre, *grad_pre;
    float *wide; /* a bf16 result before it is rounded */
} peer;

/* POSIX lets a data pointer hold a function's address; ISO C has no cast for it. */
#define LOOK_UP(function, name)                                                                              \
    do {                                                                                                     \
        void *found = dlsym(peer.library, name);                                                             \
        memcpy(&(function), &found, sizeof found);                                                           \
    } while (0)

bool peer_open(int count, char **arguments) {
    if (count != 1) return peer_refusal("usage: peer_blas LIBRARY.so");
    peer.library = dlopen(arguments[0], RTLD_NOW | RTLD_GLOBAL);
    if (peer.library == NULL) return peer_refusal("%s", dlerror());
    LOOK_UP(peer.f32, "cblas_sgemm");
    LOOK_UP(peer.f64, "cblas_dgemm");
    LOOK_UP(peer.bf16, "cblas_gemm_bf16bf16f32");
    return (peer.f32 != NULL && peer.f64 != NULL) || peer_refusal("%s has no cblas_sgemm", arguments[0]);
}

/* ---- Names -------------------------------------------------------------------------------------- */

static const char *openblas_about(char *text, size_t capacity) {
    char *(*config)(void) = NULL, *(*core)(void) = NULL;
    LOOK_UP(config, "openblas_get_config");
    LOOK_UP(core, "openblas_get_corename");
    if (config == NULL || core == NULL) return NULL;
    char name[32] = "OpenBLAS", version[32] = "";
    sscanf(config(), "%31s %31s", name, version);
    snprintf(text, capacity, "%s %s, %s kernels", name, version, core());
    return text;
}

static const char *blis_about(char *text, size_t capacity) {
    const char *(*version)(void) = NULL, *(*name)(int) = NULL;
    int (*arch)(void) = NULL;
    void (*begin)(void) = NULL; /* an architecture that is forced can be asked for only after this */
    LOOK_UP(begin, "bli_init");
    LOOK_UP(version, "bli_info_get_version_str");
    LOOK_UP(arch, "bli_arch_query_id");
    LOOK_UP(name, "bli_arch_string");
    if (begin == NULL || version == NULL || arch == NULL || name == NULL) return NULL;
    begin();
    snprintf(text, capacity, "BLIS %s, %s kernels", version(), name(arch()));
    return text;
}

static const char *mkl_about(char *text, size_t capacity) {
    void (*version)(char *, int) = NULL;
    LOOK_UP(version, "mkl_get_version_string");
    if (version == NULL) LOOK_UP(version, "MKL_Get_Version_String");
    if (version == NULL) return NULL;
    memset(text, 0, capacity);
    version(text, (int)capacity - 1);
    for (char *end = text + strlen(text); end > text && end[-1] == ' ';) *--end = '\0';
    return text;
}

const char *peer_about(void) {
    static char text[200];
    if (openblas_about(text, sizeof text) || blis_about(text, sizeof text) || mkl_about(text, sizeof text))
        return text;
    return "a BLAS";
}

const char *peer_details(void) { return ""; }

double peer_peak(void) { return 0; }

/* ---- The backward pass -------------------------------------------------------------------------- */

static int64_t larger(int64_t x, int64_t y) { return x > y ? x : y; }

bool peer_prepare(const problem *p) {
    if (p->type == F16) return peer_refusal("no f16 products");
    if (p->type == BF16 && peer.bf16 == NULL) return peer_refusal("no bf16 products");
    const size_t elements = (size_t)(p->m * p->n), wide = (size_t)(larger(p->m, p->n) * p->k);
    big_free(peer.pre);
    if (peer.wide != NULL) big_free(peer.grad_pre);
    big_free(peer.wide);
    peer.problem = *p;
    peer.pre = big_alloc(elements * (p->type == F64 ? 8 : 4));
    peer.grad_pre = p->type == BF16 ? big_alloc(elements * 2) : peer.pre;
    peer.wide = p->type == BF16 ? big_alloc(wide * 4) : NULL;
    return true;
}

typedef struct factor {
    const void *data;
    int transposed, ld; /* of the matrix as it lies in memory */
} factor;

/* c [m, n] = x y, in the type of pre: the layer's, or f32 for bf16. */
static void multiply(int64_t m, int64_t n, int64_t k, factor x, factor y, void *c) {
    const int tx = x.transposed ? TRANSPOSED : PLAIN, ty = y.transposed ? TRANSPOSED : PLAIN;
    const int rows = (int)m, columns = (int)n, terms = (int)k;
    switch (peer.problem.type) {
    case F64:
        peer.f64(ROW_MAJOR, tx, ty, rows, columns, terms, 1, x.data, x.ld, y.data, y.ld, 0, c, columns);
        break;
    case BF16:
        peer.bf16(ROW_MAJOR, tx, ty, rows, columns, terms, 1, x.data, x.ld, y.data, y.ld, 0, c, columns);
        break;
    default:
        peer.f32(ROW_MAJOR, tx, ty, rows, columns, terms, 1, x.data, x.ld, y.data, y.ld, 0, c, columns);
    }
}

static void multiply_into(int64_t m, int64_t n, int64_t k, factor x, factor y, void *c) {
    const bool rounded = peer.problem.type == BF16;
    multiply(m, n, k, x, y, rounded ? peer.wide : c);
    if (rounded) round_to_bf16(c, peer.wide, m * n);
}

void peer_backward(const operands *x) {
    const problem *p = &peer.problem;
    const int k = (int)p->k, n = (int)p->n;
    const factor a = {x->a, 0, k}, a_t = {x->a, 1, k}, b = {x->b, 0, n}, b_t = {x->b, 1, n};
    const factor g = {peer.grad_pre, 0, n};
    multiply(p->m, p->n, p->k, a, b, peer.pre);
    act_grad(p, peer.pre, x, peer.grad_pre);
    multiply_into(p->m, p->k, p->n, g, b_t, x->d_a);
    multiply_into(p->k, p->n, p->m, a_t, g, x->d_b);
}
