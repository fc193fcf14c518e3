/* SPDX-License-Identifier: Apache-2.0 */
#include "operations.h"

#include "adamw.h"
#include "attention.h"
#include "embedding.h"
#include "experts.h"
#include "loss.h"
#include "norm.h"

#include <string.h>

static void clear(real *x, size_t count) { memset(x, 0, count * sizeof *x); }

const operations cpu_operations = {
    .clear = clear,
    .embed = embed,
    .embed_backward = embed_backward,
    .norm_forward = norm_forward,
    .norm_backward = norm_backward,
    .rotate = rotate,
    .causal_softmax = causal_softmax,
    .softmax_backward = softmax_backward,
    .route = route,
    .sort_rows = sort_rows,
    .unsort_rows = unsort_rows,
    .add_results = add_results,
    .add_results_backward = add_results_backward,
    .cross_entropy = cross_entropy,
    .adamw_update = adamw_update,
};
