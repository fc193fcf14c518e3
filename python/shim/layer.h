/* SPDX-License-Identifier: Apache-2.0 */
/* From views of arrays to the structs of a call: sizes, batch, layouts. */
#ifndef EG_PYTHON_LAYER_H
#define EG_PYTHON_LAYER_H

#include "view.h"

/* What an array is to the layer: rows are x-like [..., M, K] or y-like [..., M, N]. */
typedef enum eg_py_kind { EG_PY_X, EG_PY_Y, EG_PY_W, EG_PY_BIAS, EG_PY_OFFSETS } eg_py_kind;

typedef struct eg_py_operand {
    eg_py_kind kind;
    bool output, wide; /* wide: may be f32 where the layer is of 16 bits */
    eg_py_view *view;
    void *place; /* eg_matrix; for a bias eg_vector, for offsets eg_offsets: what is filled in */
} eg_py_operand;

/* operands[0] is x, or what stands for its shape; operands[1] is w. Checks all of them against each other,
 * and fills in the layer's sizes and dtype, and every place. Offsets, where there are any, come last.
 * `parts`: NULL, or how the layer is divided over processes, where it has a comm: the first sizes of x-like
 * or of y-like arrays are then this process's part. */
bool eg_py_lay_out(const eg_py_operand *operands, int count, const eg_tensor_parallel *parts,
                   eg_layer *layer);

#endif
