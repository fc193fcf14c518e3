/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include "onednn_product.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static dnnl_engine_t engine;
static dnnl_stream_t stream;

bool onednn_open(void) {
    return dnnl_engine_create(&engine, dnnl_cpu, 0) == dnnl_success &&
           dnnl_stream_create(&stream, engine, dnnl_stream_default_flags) == dnnl_success;
}

/* ---- Making a product --------------------------------------------------------------------------- */

static void *needed(void *made, dnnl_status_t status) {
    if (status != dnnl_success) {
        fprintf(stderr, "oneDNN: status %d\n", (int)status);
        exit(1);
    }
    return made;
}

dnnl_memory_desc_t onednn_matrix(int64_t rows, int64_t columns, dnnl_data_type_t type, bool transposed) {
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
    const dnnl_status_t status = dnnl_memory_create(&memory, d, engine, data);
    return needed(memory, status);
}

static size_t desc_bytes(const dnnl_memory_desc_t *d) { return dnnl_memory_desc_get_size(d); }

static void *memory_for(const dnnl_memory_desc_t *d) {
    enum { PAGE = 4096 };
    void *memory = aligned_alloc(PAGE, (desc_bytes(d) / PAGE + 1) * PAGE);
    return needed(memory, memory != NULL ? dnnl_success : dnnl_out_of_memory);
}

static void side_make(side *s, const dnnl_memory_desc_t *lies, const dnnl_memory_desc_t *wanted) {
    *s = (side){.plain = memory_of(lies, NULL)};
    if (dnnl_memory_desc_equal(lies, wanted)) return;
    dnnl_primitive_desc_t desc = NULL;
    needed(NULL, dnnl_reorder_primitive_desc_create(&desc, lies, engine, wanted, engine, NULL));
    needed(NULL, dnnl_primitive_create(&s->reorder, desc));
    dnnl_primitive_desc_destroy(desc);
    s->memory = memory_for(wanted);
    s->packed = memory_of(wanted, s->memory);
}

static void side_free(side *s) {
    if (s->plain != NULL) dnnl_memory_destroy(s->plain);
    if (s->packed != NULL) dnnl_memory_destroy(s->packed);
    if (s->reorder != NULL) dnnl_primitive_destroy(s->reorder);
    free(s->memory);
}

void product_free(product *p) {
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
        dnnl_primitive_desc_create(&made, &desc, NULL, engine, NULL) != dnnl_success)
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
    needed(NULL, dnnl_primitive_execute(s->reorder, stream, 2, args));
    return s->packed;
}

void product_run(product *p, void *left, void *right, void *result) {
    needed(NULL, dnnl_memory_set_data_handle(p->result, result));
    const dnnl_exec_arg_t args[] = {{DNNL_ARG_SRC, bring(&p->left, left)},
                                    {DNNL_ARG_WEIGHTS, bring(&p->right, right)},
                                    {DNNL_ARG_DST, p->result}};
    needed(NULL, dnnl_primitive_execute(p->matmul, stream, 3, args));
    needed(NULL, dnnl_stream_wait(stream));
}

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
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

bool product_choose(product *chosen, const dnnl_memory_desc_t lies[3]) {
    void *memory[3];
    for (int i = 0; i < 3; i++) memory[i] = memset(memory_for(&lies[i]), 0, desc_bytes(&lies[i]));
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
    for (int i = 0; i < 3; i++) free(memory[i]);
    return chosen->matmul != NULL;
}
