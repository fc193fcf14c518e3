/* SPDX-License-Identifier: Apache-2.0 */
/* Four k of a tile of 4 rows and 3 vectors by AVX2, both operands packed. Part of packed_template.h.
 *
 * As instructions, since gcc 12 moves sums from register to register and reads vectors more than once. Here a k
 * is 3 loads, 4 broadcasts and 12 multiply-adds. On a Zen 3 that is 3% faster, and 7 to 9% where another thread
 * shares the core and the instructions that it starts in a cycle (docs/lab/cpu.md). */
#if EG_MR != 4 || EG_NV != 3 || EG_VECTOR_BYTES != 32
#error "a tile is 4 rows of 3 vectors of 32 bytes"
#endif

#if EG_REAL_BITS == 64
#define EG_BROADCAST "vbroadcastsd "
#define EG_ADD       "vfmadd231pd "
#define EG_BYTES     "*8"
#else
#define EG_BROADCAST "vbroadcastss "
#define EG_ADD       "vfmadd231ps "
#define EG_BYTES     "*4"
#endif

/* Row i of k: its number is in ymm12, the k's vectors of the right operand in ymm13 to ymm15. Numbers of a row
 * are `k_step` apart, rows `row_step`. */
#define EG_ROW(i, k, k_step, row_step)                                                                       \
    EG_BROADCAST "(" #k "*" #k_step "+" #i "*" #row_step ")" EG_BYTES "(%[left]), %%ymm12\n\t" EG_ADD        \
                 "%%ymm13, %%ymm12, %[sum" #i "0]\n\t" EG_ADD "%%ymm14, %%ymm12, %[sum" #i "1]\n\t" EG_ADD   \
                 "%%ymm15, %%ymm12, %[sum" #i "2]\n\t"
#define EG_K(k, k_step, row_step)                                                                            \
    "vmovups " #k "*96(%[right]), %%ymm13\n\t"                                                               \
    "vmovups " #k "*96+32(%[right]), %%ymm14\n\t"                                                            \
    "vmovups " #k "*96+64(%[right]), %%ymm15\n\t" EG_ROW(0, k, k_step, row_step)                             \
        EG_ROW(1, k, k_step, row_step) EG_ROW(2, k, k_step, row_step) EG_ROW(3, k, k_step, row_step)
#define EG_SUM(i, j) [sum##i##j] "+x"(sum[i][j])
#define EG_SUMS(i)   EG_SUM(i, 0), EG_SUM(i, 1), EG_SUM(i, 2)
#define EG_FOUR(k_step, row_step, a, b, c, d)                                                                \
    __asm__(EG_K(a, k_step, row_step) EG_K(b, k_step, row_step) EG_K(c, k_step, row_step)                    \
                EG_K(d, k_step, row_step)                                                                    \
            : EG_SUMS(0), EG_SUMS(1), EG_SUMS(2), EG_SUMS(3)                                                 \
            : [left] "r"(left), [right] "r"(right)                                                           \
            : "xmm12", "xmm13", "xmm14", "xmm15", "memory")

/* The four k of a step that begin with number `first` of it. `first` and `by_rows` are constants where this is
 * inlined: a step of the left operand is 4 rows of 12 k, or 12 k of 4 rows. */
EG_INLINE void EG_V(multiply_four)(EG_T sum[EG_MR][EG_NV], const EG_R *left, const EG_R *right,
                                   const int first, const bool by_rows) {
    _Static_assert(EG_STEP == 12 && EG_CPU_PART == 4, "three times four k");
    if (by_rows && first == 0) EG_FOUR(1, 12, 0, 1, 2, 3);
    if (by_rows && first == 4) EG_FOUR(1, 12, 4, 5, 6, 7);
    if (by_rows && first == 8) EG_FOUR(1, 12, 8, 9, 10, 11);
    if (!by_rows && first == 0) EG_FOUR(4, 1, 0, 1, 2, 3);
    if (!by_rows && first == 4) EG_FOUR(4, 1, 4, 5, 6, 7);
    if (!by_rows && first == 8) EG_FOUR(4, 1, 8, 9, 10, 11);
}

#undef EG_BROADCAST
#undef EG_ADD
#undef EG_BYTES
#undef EG_ROW
#undef EG_K
#undef EG_SUM
#undef EG_SUMS
#undef EG_FOUR
