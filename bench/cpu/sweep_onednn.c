/* SPDX-License-Identifier: Apache-2.0 */
/* The products of a backward call by oneDNN, for sweep.py: a library that it opens with ctypes. */
#include "onednn_product.h"

#include <stdlib.h>

typedef struct products {
    product d_a, d_b;
} products;

void sweep_onednn_free(products *p) {
    product_free(&p->d_a);
    product_free(&p->d_b);
    free(p);
}

/* a [M, K], grad_pre [M, N], and b [K, N], or [N, K] where it `is_nk`; d_a and d_b like a and b. NULL where
 * oneDNN has no such products. */
products *sweep_onednn_make(int64_t m, int64_t k, int64_t n, bool bf16, bool is_nk) {
    static bool is_open;
    const dnnl_data_type_t type = bf16 ? dnnl_bf16 : dnnl_f32;
    if (!is_open && !onednn_open()) return NULL;
    is_open = true;
    const dnnl_memory_desc_t a = onednn_matrix(m, k, type, false), g = onednn_matrix(m, n, type, false),
                             b_t = onednn_matrix(n, k, type, !is_nk);
    const dnnl_memory_desc_t a_t = onednn_matrix(k, m, type, true), g_t = onednn_matrix(n, m, type, true);
    const dnnl_memory_desc_t d_a[] = {g, b_t, a};
    const dnnl_memory_desc_t d_b[] = {is_nk ? g_t : a_t, is_nk ? a : g,
                                      onednn_matrix(is_nk ? n : k, is_nk ? k : n, type, false)};
    products *made = calloc(1, sizeof *made);
    if (made != NULL && product_choose(&made->d_a, d_a) && product_choose(&made->d_b, d_b)) return made;
    if (made != NULL) sweep_onednn_free(made);
    return NULL;
}

void sweep_onednn_d_a(products *p, void *grad_pre, void *b, void *d_a) {
    product_run(&p->d_a, grad_pre, b, d_a);
}

void sweep_onednn_d_b(products *p, void *left, void *right, void *d_b) {
    product_run(&p->d_b, left, right, d_b);
}
