/* SPDX-License-Identifier: Apache-2.0 */
/* A product by oneDNN 2: a matmul primitive, made once for a shape. Each is tried with its factors as they
 * lie and with one or both brought into the layout that oneDNN likes best, that reorder counted, and the
 * fastest way is kept. */
#ifndef BENCH_CPU_ONEDNN_PRODUCT_H
#define BENCH_CPU_ONEDNN_PRODUCT_H

#include <oneapi/dnnl/dnnl.h>

#include <stdbool.h>
#include <stdint.h>

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

/* False: oneDNN has no CPU engine. */
bool onednn_open(void);

/* rows x columns, row-major, or the transpose of what lies so. */
dnnl_memory_desc_t onednn_matrix(int64_t rows, int64_t columns, dnnl_data_type_t type, bool transposed);

/* `lies`: the descriptors of left, right and result. False where there is no way to do it. */
bool product_choose(product *chosen, const dnnl_memory_desc_t lies[3]);
void product_run(product *p, void *left, void *right, void *result);
void product_free(product *p);

#endif
