/* SPDX-License-Identifier: Apache-2.0 */
/* The choice among the candidates of cublasLt's heuristics. Pure. */
#ifndef EG_CUDA_LT_CHOOSE_H
#define EG_CUDA_LT_CHOOSE_H

#include <stdbool.h>
#include <stdint.h>

/* The key of a product, as the library sees it: column-major, so that its columns are our rows. It has no
 * padding, for keys are compared by their bytes. */
typedef struct eg_cuda_lt_key {
    int64_t rows, cols, depth, items;
    int64_t ld[3], stride[3]; /* left, right, result */
    int64_t scratch;
    int32_t dtype, result_dtype, math;
    uint8_t transposed[2], accumulate, alignment; /* of all addresses: 256 bytes, or log2 of less */
    uint32_t epilogue;                            /* cublasLtEpilogue_t */
    uint32_t algorithm;                           /* 0: the one that eg_cuda_lt_choose takes */
} eg_cuda_lt_key;

/* What the library says of a candidate: internal numbers of its kernels, tiles and stages. */
typedef struct eg_cuda_lt_candidate {
    uint32_t id, tile, stages, custom;
    uint32_t splits, reduction; /* of the depth; cublasLtReductionScheme_t */
    float waves;                /* of the blocks that the device has room for */
} eg_cuda_lt_candidate;

/* Whether the depth must not be split: the library rounds such a sum to 16 bits before it adds a bias to it.
 */
bool eg_cuda_lt_is_whole(const eg_cuda_lt_key *key);

/* Whether the product reads a large matrix, of 16 bits, for few columns: candidates that do not split its
 * depth are looked at, too. */
bool eg_cuda_lt_is_stream(const eg_cuda_lt_key *key);

/* Whether it is a kernel for Hopper: others that do not split a depth are slower than our own. */
bool eg_cuda_lt_is_fast(const eg_cuda_lt_candidate *candidate);

/* Whether a candidate rounds a result once, and passes a NaN on. */
bool eg_cuda_lt_keeps(const eg_cuda_lt_key *key, const eg_cuda_lt_candidate *candidate);

/* Which of the candidates, in the heuristics' order, is taken; there is one at least. */
int eg_cuda_lt_choose(const eg_cuda_lt_key *key, int count, const eg_cuda_lt_candidate *candidates);

#endif
