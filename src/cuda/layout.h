/* SPDX-License-Identifier: Apache-2.0 */
/* The shared memory of the kernels: what lies where, in bytes. It is defined here once, for the host, which
 * asks for it in a launch (table.c), and for the kernels, which use it. Everything is an integer constant in
 * C and in CUDA C, so tables and templates can be filled with it. */
#ifndef EG_CUDA_LAYOUT_H
#define EG_CUDA_LAYOUT_H

enum { EG_BARRIER_BYTES = 8 }; /* an mbarrier */

/* ---- 16-bit matrices on Hopper (kernels/hopper_gemm.cuh) -------------------------------------------- */

/* From the beginning:
 *
 *     stages of left and right                  STAGES
 *     TMA boxes of the epilogue                 for each consumer warp one for every 64 columns
 *     bias of each consumer, later column sums of two of its warps
 *     barriers of the stages                    full, empty, read
 *     barriers of the boxes                     full, of each consumer warp: one for all of its boxes
 *     sums of sixteen columns of left           of each warp that neither loads nor multiplies
 */
enum {
    EG_HOPPER_ROWS = 128, /* of a block's tile; its columns are 128, 192 or 256 */
    EG_HOPPER_DEPTH = 64, /* of a k-block: the 128 bytes that TMA swizzles */
    EG_HOPPER_CONSUMERS = 2,
    EG_HOPPER_CONSUMER_WARPS = 4 * EG_HOPPER_CONSUMERS,
    EG_HOPPER_THREADS = 32 * EG_HOPPER_CONSUMER_WARPS + 128, /* and the producer's warp group */
    EG_LEFT_SUMS_BYTES = 3 * 16 * 4,                         /* f32 */
    EG_HOPPER_BOX_BYTES = 16 * 128 /* 16 rows of 128 bytes: what a warp reads and stores at once */
};
#define EG_HOPPER_LEFT_BYTES        (EG_HOPPER_ROWS * EG_HOPPER_DEPTH * 2)
#define EG_HOPPER_RIGHT_BYTES(cols) (EG_HOPPER_DEPTH * (cols)*2)
#define EG_HOPPER_STAGE_BYTES(cols) (EG_HOPPER_LEFT_BYTES + EG_HOPPER_RIGHT_BYTES(cols))
/* As many stages as the boxes leave room for, and boxes of each warp. */
#define EG_HOPPER_STAGES(cols) ((cols) == 256 ? 3 : 5)
#define EG_HOPPER_BOXES(cols)  ((cols) / 64)

#define EG_HOPPER_BOXES_AT(cols) (EG_HOPPER_STAGES(cols) * EG_HOPPER_STAGE_BYTES(cols))
#define EG_HOPPER_EXCHANGE_AT(cols)                                                                          \
    (EG_HOPPER_BOXES_AT(cols) + EG_HOPPER_CONSUMER_WARPS * EG_HOPPER_BOXES(cols) * EG_HOPPER_BOX_BYTES)
#define EG_HOPPER_EXCHANGE_BYTES(cols) (EG_HOPPER_CONSUMERS * 2 * (cols)*4)
#define EG_HOPPER_BARRIERS_AT(cols)    (EG_HOPPER_EXCHANGE_AT(cols) + EG_HOPPER_EXCHANGE_BYTES(cols))
#define EG_HOPPER_BOX_BARRIERS_AT(cols)                                                                      \
    (EG_HOPPER_BARRIERS_AT(cols) + 3 * EG_HOPPER_STAGES(cols) * EG_BARRIER_BYTES)
#define EG_HOPPER_LEFT_SUMS_AT(cols)                                                                         \
    (EG_HOPPER_BOX_BARRIERS_AT(cols) + EG_HOPPER_CONSUMER_WARPS * EG_BARRIER_BYTES)
#define EG_HOPPER_SHARED(cols) (EG_HOPPER_LEFT_SUMS_AT(cols) + EG_LEFT_SUMS_BYTES)

/* ---- And with a tile for each consumer (kernels/hopper_pingpong.cuh): the same parts ------------------ */

/* A warp's part of a tile of 128 columns has a box each; with 192 columns parts take turns, and no column
 * sums are exchanged. Boxes have a barrier each. */
enum { EG_PINGPONG_BOXES = 4 /* of each warp */ };
#define EG_PINGPONG_STAGES(cols)        ((cols) == 128 ? 5 : 4)
#define EG_PINGPONG_EXCHANGE_ROWS(cols) ((cols) == 128 ? 2 : 1)
#define EG_PINGPONG_BOXES_AT(cols)      (EG_PINGPONG_STAGES(cols) * EG_HOPPER_STAGE_BYTES(cols))
#define EG_PINGPONG_EXCHANGE_AT(cols)                                                                        \
    (EG_PINGPONG_BOXES_AT(cols) + EG_HOPPER_CONSUMER_WARPS * EG_PINGPONG_BOXES * EG_HOPPER_BOX_BYTES)
#define EG_PINGPONG_BARRIERS_AT(cols)                                                                        \
    (EG_PINGPONG_EXCHANGE_AT(cols) + EG_HOPPER_CONSUMERS * EG_PINGPONG_EXCHANGE_ROWS(cols) * (cols)*4)
#define EG_PINGPONG_BOX_BARRIERS_AT(cols)                                                                    \
    (EG_PINGPONG_BARRIERS_AT(cols) + 3 * EG_PINGPONG_STAGES(cols) * EG_BARRIER_BYTES)
#define EG_PINGPONG_LEFT_SUMS_AT(cols)                                                                       \
    (EG_PINGPONG_BOX_BARRIERS_AT(cols) + EG_HOPPER_CONSUMER_WARPS * EG_PINGPONG_BOXES * EG_BARRIER_BYTES)
#define EG_PINGPONG_SHARED(cols) (EG_PINGPONG_LEFT_SUMS_AT(cols) + EG_LEFT_SUMS_BYTES)

/* ---- f32 and f64 on Hopper (kernels/hopper_f32.cu, hopper_f64.cu): stages, two barriers of each ------ */

enum {
    EG_HOPPER_F32_SIDE = 128,
    EG_HOPPER_F32_DEPTH = 32,
    EG_HOPPER_F32_STAGES = 3,
    EG_HOPPER_F32_STAGE_BYTES = 2 * EG_HOPPER_F32_SIDE * EG_HOPPER_F32_DEPTH * 4,
    EG_HOPPER_F32_SHARED = EG_HOPPER_F32_STAGES * (EG_HOPPER_F32_STAGE_BYTES + 2 * EG_BARRIER_BYTES),

    EG_HOPPER_F64_ROWS = 128,
    EG_HOPPER_F64_COLS = 64,
    EG_HOPPER_F64_DEPTH = 16,
    EG_HOPPER_F64_STAGES = 4,
    EG_HOPPER_F64_STAGE_BYTES = (EG_HOPPER_F64_ROWS + EG_HOPPER_F64_COLS) * EG_HOPPER_F64_DEPTH * 8,
    EG_HOPPER_F64_SHARED = EG_HOPPER_F64_STAGES * (EG_HOPPER_F64_STAGE_BYTES + 2 * EG_BARRIER_BYTES)
};

/* ---- Any strides (kernels/gemm_mma.cu, gemm_f32.cu, gemm_f64.cu) ------------------------------------- */

/* Tiles of 128 x 128. Lines of an operand are padded so that a warp's accesses meet no bank twice. The stages
 * and, after the last of them, the finished tile use the same memory. */
enum {
    EG_STRIDED_SIDE = 128,
    EG_STRIDED_PADDED_SIDE = EG_STRIDED_SIDE + 4, /* a line of the finished tile */

    EG_MMA_16_DEPTH = 32,
    EG_MMA_16_STAGES = 4,
    EG_MMA_16_LINE = EG_MMA_16_DEPTH + 8,
    EG_MMA_16_OPERAND = EG_STRIDED_SIDE * EG_MMA_16_LINE, /* numbers of a stage of one operand */
    EG_MMA_16_SHARED = EG_MMA_16_STAGES * 2 * EG_MMA_16_OPERAND * 2,

    EG_FMA_F32_DEPTH = 16,
    EG_FMA_F32_STAGES = 4,
    EG_FMA_F32_OPERAND = EG_FMA_F32_DEPTH * EG_STRIDED_PADDED_SIDE,
    EG_FMA_F32_SHARED = EG_FMA_F32_STAGES * 2 * EG_FMA_F32_OPERAND * 4,

    EG_MMA_F64_DEPTH = 16,
    EG_MMA_F64_STAGES = 3,
    EG_MMA_F64_LINE = EG_MMA_F64_DEPTH + 4,
    EG_MMA_F64_OPERAND = EG_STRIDED_SIDE * EG_MMA_F64_LINE,
    EG_MMA_F64_SHARED = EG_STRIDED_SIDE * EG_STRIDED_PADDED_SIDE * 8 /* more than the stages take */
};

/* ---- Tiles whose depth the blocks of a cluster share (kernels/split_tile.cuh) ------------------------- */

enum { EG_MOST_SPLITS = 8 /* parts of a depth: blocks of a portable cluster; a power of two */ };

/* ---- Such tiles of 16-bit matrices on Hopper (kernels/hopper_split.cuh) ------------------------------- */

/* A full and an empty barrier of each stage, and a barrier of what other blocks send; stages of left and
 * right, each 64 deep, as many as there is room for, and of low tiles for two blocks a multiprocessor; room
 * for what is sent. The tile lies where the stages were.
 *
 * A launch whose blocks have the whole of a short depth asks for the stages that it fills, and for no room
 * to receive: three blocks of 64 rows then share a multiprocessor. */
enum { EG_TMA_SPLIT_THREADS = 256, EG_TMA_SPLIT_FRONT = 1024 /* of the barriers: stages are swizzled */ };
#define EG_TMA_SPLIT_MOST_BLOCKS(rows) ((rows) > 64 ? 1 : (rows) == 64 ? 3 : 2)
#define EG_TMA_SPLIT_BLOCKS(rows)      ((rows) > 64 ? 1 : 2)
#define EG_TMA_SPLIT_ROOM(rows)        (200 * 1024 / EG_TMA_SPLIT_BLOCKS(rows))
#define EG_TMA_SPLIT_STAGE(rows, cols) (((rows) + (cols)) * EG_HOPPER_DEPTH * 2)
#define EG_TMA_SPLIT_STAGES(rows, cols)                                                                      \
    ((EG_TMA_SPLIT_ROOM(rows) - (rows) * (cols)*4) / EG_TMA_SPLIT_STAGE(rows, cols))
#define EG_TMA_SPLIT_RECEIVED_AT(rows, cols)                                                                 \
    (EG_TMA_SPLIT_FRONT + EG_TMA_SPLIT_STAGES(rows, cols) * EG_TMA_SPLIT_STAGE(rows, cols))
#define EG_TMA_SPLIT_SHARED(rows, cols) (EG_TMA_SPLIT_RECEIVED_AT(rows, cols) + (rows) * (cols)*4)
#define EG_TMA_SPLIT_PITCH(cols)        ((cols) + 4) /* of a row of the tile, in f32 */

/* ---- And of any strides (kernels/small_tile.cuh) ------------------------------------------------------ */

/* A k-block is so many bytes of the depth, whatever the type: more where a tile has few rows or columns,
 * which is a long way to go. A line that is contiguous along the depth takes them and a padding; a term that
 * is contiguous along the lines has the padding after all lines. */
enum {
    EG_SMALL_THREADS = 128,
    EG_SMALL_PADDING = 16,
    EG_SMALL_ROOM = 72 * 1024 /* three blocks a multiprocessor */
};
#define EG_SMALL_K_BYTES(rows, cols)         ((rows) * (cols) <= 1024 ? 256 : 128)
#define EG_SMALL_BY_TERM(bytes, lines)       ((lines) * ((bytes) + EG_SMALL_PADDING))
#define EG_SMALL_BY_LINE(bytes, lines, size) ((bytes) / (size) * ((lines) * (size) + EG_SMALL_PADDING))
#define EG_SMALL_OPERAND(bytes, lines, size)                                                                 \
    (EG_SMALL_BY_TERM(bytes, lines) > EG_SMALL_BY_LINE(bytes, lines, size)                                   \
         ? EG_SMALL_BY_TERM(bytes, lines)                                                                    \
         : EG_SMALL_BY_LINE(bytes, lines, size))
#define EG_SMALL_STAGE(rows, cols, size)                                                                     \
    (EG_SMALL_OPERAND(EG_SMALL_K_BYTES(rows, cols), rows, size) +                                            \
     EG_SMALL_OPERAND(EG_SMALL_K_BYTES(rows, cols), cols, size))
#define EG_SMALL_STAGES(rows, cols, size) (EG_SMALL_ROOM / EG_SMALL_STAGE(rows, cols, size))
#define EG_SMALL_SHARED(rows, cols, size)                                                                    \
    (EG_SMALL_STAGES(rows, cols, size) * EG_SMALL_STAGE(rows, cols, size))

/* ---- The peak of the matrix units (kernels/hopper_peak.cu) ------------------------------------------- */

enum {
    EG_PEAK_LEFT_BYTES = 64 * 128, /* 64 numbers of depth, for each of two warp groups */
    EG_PEAK_RIGHT_BYTES = 256 * 128,
    EG_PEAK_SHARED = 2 * EG_PEAK_LEFT_BYTES + EG_PEAK_RIGHT_BYTES
};

#endif
