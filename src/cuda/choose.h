/* SPDX-License-Identifier: Apache-2.0 */
/* Which kernel row makes an operation. */
#ifndef EG_CUDA_CHOOSE_H
#define EG_CUDA_CHOOSE_H

#include "pairs.h"

/* What has been decided of a program so far. */
typedef struct eg_cuda_compiler {
    const eg_caps *caps;
    int multiprocessors;
    eg_program *program;
    const eg_op_list *list;
    const eg_choice *choice;                   /* eg_caps */
    const eg_cuda_kernel *row[EG_MAX_OPS];     /* of the operation, or of what finishes it */
    const eg_cuda_kernel *product[EG_MAX_OPS]; /* of its product alone; NULL: of no part */
    const eg_cuda_kernel *pair[EG_MAX_OPS];    /* of two products, at the first one's operation */
    uint32_t paired;                           /* operations that it makes, a bit each */
    bool left_sums;                            /* operation 0 is made beside the product that follows it */
    bool aligned;                              /* eg_cuda_binding */
    bool lacks_copies;                         /* the choice asks for some that there are not */
    double cost[EG_MAX_OPS];                   /* of an operation, in microseconds */
    double microseconds;                       /* of all operations that are decided */
} eg_cuda_compiler;

/* All operations, and which of them one kernel makes. */
eg_status eg_cuda_choose_all(eg_cuda_compiler *c);

/* Estimated microseconds of a row for two products. */
double eg_cuda_time_of_pair(const eg_cuda_compiler *c, const eg_cuda_kernel *row, const eg_cuda_pair *x,
                            int index);

/* Whether there is a product after an operation, beside which the side stream's work costs little. */
bool eg_cuda_has_product_after(const eg_op_list *list, int op);

/* What is estimated to take much longer than the best is not worth a trial. */
bool eg_cuda_is_worth_a_trial(double time, double least);

/* The row that makes padded copies. */
const eg_cuda_kernel *eg_cuda_pad_row(eg_dtype dtype);

/* The tail of a product that a row makes, with `saved`, in waves of tiles. */
eg_cuda_tail eg_cuda_choose_tail(const eg_cuda_compiler *c, const eg_cuda_kernel *row, const eg_cuda_gemm *x,
                                 double *saved);

/* Estimated microseconds of a row for a product, copy or map: operation `index`. */
double eg_cuda_time_of(const eg_cuda_compiler *c, const eg_cuda_kernel *row, const eg_cuda_gemm *x,
                       int index);
eg_cuda_machine eg_cuda_machine_of(const eg_cuda_compiler *c);

/* Bytes of workspace for the split-K partial products of an operation; 0: it cannot be split so. */
int64_t eg_cuda_chunk_bytes(const eg_cuda_compiler *c, int index);

/* ---- The workspace (workspace.c) ------------------------------------------------------------------ */

/* Products before an operation; three of any call have counters, so that its workspace is that of most. */
int eg_cuda_products_before(const eg_op_list *list, int op);

/* What the choice of kernels asks: whether there is room for partial tiles, and for their counters. */
void eg_cuda_promise_tails(const eg_cuda_compiler *c);

/* Of a product that is not made as a whole, whether it is one of each chunk of its depth. */
bool eg_cuda_is_in_chunks(const eg_cuda_compiler *c, int op);

/* The regions of what is chosen; false where no memory could hold them. Results of operations, and 64 MiB at
 * most beside them (but for sums of a million columns). */
bool eg_cuda_add_workspace(const eg_cuda_compiler *c);

#endif
