/* SPDX-License-Identifier: Apache-2.0 */
/* The backward pass by oneDNN 2: a matmul primitive for each product, made once for a shape, and the loop of
 * act_grad.c between them (its own eltwise_backward would be a second pass, and d_bias a third).
 *
 * Factors lie row-major in memory. Each product is tried as they lie and with one or both brought into the
 * layout that oneDNN likes best, that reorder counted, and the fastest way is kept. */
#include "act_grad.h"

#include <oneapi/dnnl/dnnl.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct side { /* src or weights of a product */
    dnnl_memory_t plain, packed;
    dnnl_primitive_t reorder; /* NULL: used as it lies */
    void *memory;
} side;

typedef struct product {
    side left, right;
    dnnl_memory_t result;
    dnnl_primitive_t matmul; /* NULL: none */
    char layouts[8];         /* for people: "--" both as they lie, "-p" the right one packed */
} product;

static struct {
    dnnl_engine_t engine;
    dnnl_stream_t stream;
    problem problem;
    product pre, d_a, d_b;
    void *pre_memory, *grad_pre;
} peer;

bool peer_open(int count, char **arguments) {
    (void)arguments;
    if (count != 0) return peer_refusal("usage: peer_onednn");
    if (dnnl_engine_create(&peer.engine, dnnl_cpu, 0) != dnnl_success ||
        dnnl_stream_create(&peer.stream, peer.engine, dnnl_stream_default_flags) != dnnl_success)
        return peer_refusal("oneDNN has no CPU engine");
    return true;
}

const char *peer_about(void) {
    static char text[100];
    const dnnl_version_t *v = dnnl_version();
    const int isa = (int)dnnl_get_effective_cpu_isa();
    const char *name = isa >= dnnl_cpu_isa_avx512_core_amx && (isa & 0x20) != 0    ? "AVX-512 and AMX"
                       : isa >= dnnl_cpu_isa_avx512_core_bf16 && (isa & 0x20) != 0 ? "AVX-512 BF16"
                       : (isa & 0x20) != 0                                         ? "AVX-512"
                                                                                   : "AVX2 or less";
    snprintf(text, sizeof text, "oneDNN %d.%d.%d, %s", v->major, v->minor, v->patch, name);
    return text;
}

double peer_peak(void) { return 0; }

const char *peer_details(void) {
    static char text[100];
    snprintf(text, sizeof text, "layouts %s %s %s", peer.pre.layouts, peer.d_a.layouts, peer.d_b.layouts);
    return text;
}

/* ---- Making a product --------------------------------------------------------------------------- */

static void *needed(void *made, dnnl_status_t status) {
    if (status != dnnl_success) {
        fprintf(stderr, "oneDNN: status %d\n", (int)status);
        exit(1);
    }
    return made;
}

/* rows x columns, row-major, or the transpose of what lies so. */
static dnnl_memory_desc_t matrix(int64_t rows, int64_t columns, dnnl_data_type_t type, bool transposed) {
    dnnl_memory_desc_t d;
    const dnnl_dims_t sizes = {rows, columns};
    needed(NULL, dnnl_memory_desc_init_by_tag(&d, 2, sizes, type, transposed ? dnnl_ba : dnnl_ab));
    return d;
}

static dnnl_memory_desc_t any_layout(const dnnl_memory_desc_t *of) {
    dnnl_memory_desc_t d;
    needed(NULL, dnnl_memory_desc_init_by_tag(&d, 2, of->dims, of->data_type, dnnl_format_tag_any));
    return d;
}

static dnnl_memory_t memory_of(const dnnl_memory_desc_t *d, void *data) {
    dnnl_memory_t memory = NULL;
    const dnnl_status_t status = dnnl_memory_create(&memory, d, peer.engine, data);
    return needed(memory, status);
}

static size_t desc_bytes(const dnnl_memory_desc_t *d) { return dnnl_memory_desc_get_size(d); }

static void side_make(side *s, const dnnl_memory_desc_t *lies, const dnnl_memory_desc_t *wanted) {
    *s = (side){.plain = memory_of(lies, NULL)};
    if (dnnl_memory_desc_equal(lies, wanted)) return;
    dnnl_primitive_desc_t desc = NULL;
    needed(NULL, dnnl_reorder_primitive_desc_create(&desc, lies, peer.engine, wanted, peer.engine, NULL));
    needed(NULL, dnnl_primitive_create(&s->reorder, desc));
    dnnl_primitive_desc_destroy(desc);
    s->memory = big_alloc(desc_bytes(wanted));
    s->packed = memory_of(wanted, s->memory);
}

static void side_free(side *s) {
    if (s->plain != NULL) dnnl_memory_destroy(s->plain);
    if (s->packed != NULL) dnnl_memory_destroy(s->packed);
    if (s->reorder != NULL) dnnl_primitive_destroy(s->reorder);
    big_free(s->memory);
}

static void product_free(product *p) {
    if (p->matmul == NULL) return;
    side_free(&p->left);
    side_free(&p->right);
    dnnl_memory_destroy(p->result);
    dnnl_primitive_destroy(p->matmul);
    *p = (product){0};
}

/* False where oneDNN has no such product. */
static bool product_make(product *p, const dnnl_memory_desc_t lies[3], bool pack_left, bool pack_right) {
    const dnnl_memory_desc_t left = pack_left ? any_layout(&lies[0]) : lies[0];
    const dnnl_memory_desc_t right = pack_right ? any_layout(&lies[1]) : lies[1];
    dnnl_matmul_desc_t desc;
    dnnl_primitive_desc_t made = NULL;
    *p = (product){0};
    if (dnnl_matmul_desc_init(&desc, &left, &right, NULL, &lies[2]) != dnnl_success ||
        dnnl_primitive_desc_create(&made, &desc, NULL, peer.engine, NULL) != dnnl_success)
        return false;
    needed(NULL, dnnl_primitive_create(&p->matmul, made));
    side_make(&p->left, &lies[0], dnnl_primitive_desc_query_md(made, dnnl_query_src_md, 0));
    side_make(&p->right, &lies[1], dnnl_primitive_desc_query_md(made, dnnl_query_weights_md, 0));
    p->result = memory_of(&lies[2], NULL);
    snprintf(p->layouts, sizeof p->layouts, "%c%c", p->left.reorder ? 'p' : '-',
             p->right.reorder ? 'p' : '-');
    dnnl_primitive_desc_destroy(made);
    return true;
}

/* ---- Running one -------------------------------------------------------------------------------- */

static dnnl_memory_t bring(side *s, void *data) {
    needed(NULL, dnnl_memory_set_data_handle(s->plain, data));
    if (s->reorder == NULL) return s->plain;
    const dnnl_exec_arg_t args[] = {{DNNL_ARG_FROM, s->plain}, {DNNL_ARG_TO, s->packed}};
    needed(NULL, dnnl_primitive_execute(s->reorder, peer.stream, 2, args));
    return s->packed;
}

static void product_run(product *p, void *left, void *right, void *result) {
    needed(NULL, dnnl_memory_set_data_handle(p->result, result));
    const dnnl_exec_arg_t args[] = {{DNNL_ARG_SRC, bring(&p->left, left)},
                                    {DNNL_ARG_WEIGHTS, bring(&p->right, right)},
                                    {DNNL_ARG_DST, p->result}};
    needed(NULL, dnnl_primitive_execute(p->matmul, peer.stream, 3, args));
    needed(NULL, dnnl_stream_wait(peer.stream));
}

/* The best of a few runs, or of one where it is long. */
static double product_time(product *p, void *left, void *right, void *result) {
    double best = 1e9, spent = 0;
    for (int i = 0; i < 5 && spent < 0.05; i++) {
        const double begin = now();
        product_run(p, left, right, result);
        const double time = now() - begin;
        best = time < best ? time : best;
        spent += time;
    }
    return best;
}

/* `lies`: the descriptors of left, right and result. False where there is no way to do it. */
static bool product_choose(product *chosen, const dnnl_memory_desc_t lies[3]) {
    void *memory[3];
    for (int i = 0; i < 3; i++) memory[i] = memset(big_alloc(desc_bytes(&lies[i])), 0, desc_bytes(&lies[i]));
    double best = 1e9;
    char tried[32] = "";
    for (int way = 0; way < 4; way++) {
        product p;
        if (!product_make(&p, lies, way & 1, way & 2)) continue;
        const bool known = strstr(tried, p.layouts) != NULL; /* the layout it likes may be the one there is */
        strcat(strcat(tried, p.layouts), " ");
        const double time = known ? 1e9 : product_time(&p, memory[0], memory[1], memory[2]);
        const bool better = time < best;
        product_free(better ? chosen : &p);
        if (better) *chosen = p;
        if (better) best = time;
    }
    for (int i = 0; i < 3; i++) big_free(memory[i]);
    return chosen->matmul != NULL;
}

/* ---- The backward pass -------------------------------------------------------------------------- */

static void release(void) {
    product_free(&peer.pre);
    product_free(&peer.d_a);
    product_free(&peer.d_b);
    big_free(peer.pre_memory);
    if (peer.grad_pre != peer.pre_memory) big_free(peer.grad_pre);
    peer.pre_memory = peer.grad_pre = NULL;
}

bool peer_prepare(const problem *p) {
    release();
    if (p->type == F64 || p->type == F16) return peer_refusal("no products of this type");
    const dnnl_data_type_t type = p->type == F32 ? dnnl_f32 : dnnl_bf16;
    const dnnl_memory_desc_t a = matrix(p->m, p->k, type, false), b = matrix(p->k, p->n, type, false);
    const dnnl_memory_desc_t a_t = matrix(p->k, p->m, type, true), b_t = matrix(p->n, p->k, type, true);
    const dnnl_memory_desc_t g = matrix(p->m, p->n, type, false), pre = matrix(p->m, p->n, dnnl_f32, false);
    const dnnl_memory_desc_t forward[] = {a, b, pre}, d_a[] = {g, b_t, a}, d_b[] = {a_t, g, b};
    if (!product_choose(&peer.pre, forward) || !product_choose(&peer.d_a, d_a) ||
        !product_choose(&peer.d_b, d_b))
        return peer_refusal("no matmul of this type");
    peer.problem = *p;
    peer.pre_memory = big_alloc((size_t)(p->m * p->n) * 4);
    peer.grad_pre = p->type == F32 ? peer.pre_memory : big_alloc((size_t)(p->m * p->n) * 2);
    return true;
}

void peer_backward(const operands *x) {
    product_run(&peer.pre, x->a, x->b, peer.pre_memory);
    act_grad(&peer.problem, peer.pre_memory, x, peer.grad_pre);
    product_run(&peer.d_a, peer.grad_pre, x->b, x->d_a);
    product_run(&peer.d_b, x->a, peer.grad_pre, x->d_b);
}
