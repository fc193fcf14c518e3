/* SPDX-License-Identifier: Apache-2.0 */
/* The backward pass by oneDNN 2: a product of onednn_product.c for each, and the loop of act_grad.c between
 * them (its own eltwise_backward would be a second pass, and d_bias a third). */
#include "act_grad.h"
#include "onednn_product.h"

#include <stdio.h>

static struct {
    problem problem;
    product pre, d_a, d_b;
    void *pre_memory, *grad_pre;
} peer;

bool peer_open(int count, char **arguments) {
    (void)arguments;
    if (count != 0) return peer_refusal("usage: peer_onednn");
    return onednn_open() || peer_refusal("oneDNN has no CPU engine");
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
    const dnnl_memory_desc_t a = onednn_matrix(p->m, p->k, type, false),
                             b = onednn_matrix(p->k, p->n, type, false);
    const dnnl_memory_desc_t a_t = onednn_matrix(p->k, p->m, type, true),
                             b_t = onednn_matrix(p->n, p->k, type, true);
    const dnnl_memory_desc_t g = onednn_matrix(p->m, p->n, type, false),
                             pre = onednn_matrix(p->m, p->n, dnnl_f32, false);
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
