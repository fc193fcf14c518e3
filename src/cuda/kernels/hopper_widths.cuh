/* SPDX-License-Identifier: Apache-2.0 */
/* Products of the matrix unit (hopper_ptx.cuh) of other numbers of columns: any multiple of eight can be. */
#ifndef EG_CUDA_HOPPER_WIDTHS_CUH
#define EG_CUDA_HOPPER_WIDTHS_CUH

#include "hopper_ptx.cuh"

/* clang-format off */
#define EG_ACC_4_AT(i) "+f"(acc[i]), "+f"(acc[i + 1]), "+f"(acc[i + 2]), "+f"(acc[i + 3])
#define EG_NAMES_52 EG_NAMES_32 ", "                                                                         \
    "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, %48, %49, %50, %51"
#define EG_NAMES_60 EG_NAMES_52 ", "                                                                         \
    "%52, %53, %54, %55, %56, %57, %58, %59"
#define EG_NAMES_68 EG_NAMES_64 ", "                                                                         \
    "%64, %65, %66, %67"
#define EG_NAMES_76 EG_NAMES_68 ", "                                                                         \
    "%68, %69, %70, %71, %72, %73, %74, %75"
#define EG_NAMES_84 EG_NAMES_76 ", "                                                                         \
    "%76, %77, %78, %79, %80, %81, %82, %83"
#define EG_NAMES_92 EG_NAMES_84 ", "                                                                         \
    "%84, %85, %86, %87, %88, %89, %90, %91"
#define EG_NAMES_96 EG_NAMES_92 ", "                                                                         \
    "%92, %93, %94, %95"
#define EG_NAMES_100 EG_NAMES_96 ", "                                                                        \
    "%96, %97, %98, %99"
#define EG_ACC_52 EG_ACC_32, EG_ACC_8_AT(32), EG_ACC_8_AT(40), EG_ACC_4_AT(48)
#define EG_ACC_60 EG_ACC_32, EG_ACC_8_AT(32), EG_ACC_8_AT(40), EG_ACC_8_AT(48), EG_ACC_4_AT(56)
#define EG_ACC_68 EG_ACC_64, EG_ACC_4_AT(64)
#define EG_ACC_76 EG_ACC_64, EG_ACC_8_AT(64), EG_ACC_4_AT(72)
#define EG_ACC_84 EG_ACC_64, EG_ACC_8_AT(64), EG_ACC_8_AT(72), EG_ACC_4_AT(80)
#define EG_ACC_92 EG_ACC_64, EG_ACC_8_AT(64), EG_ACC_8_AT(72), EG_ACC_8_AT(80), EG_ACC_4_AT(88)
#define EG_ACC_96 EG_ACC_64, EG_ACC_32_AT(64)
#define EG_ACC_100 EG_ACC_64, EG_ACC_32_AT(64), EG_ACC_4_AT(96)
EG_MULTIPLY(104, 52, 52, 53, 54, 55, 56)
EG_MULTIPLY(120, 60, 60, 61, 62, 63, 64)
EG_MULTIPLY(136, 68, 68, 69, 70, 71, 72)
EG_MULTIPLY(152, 76, 76, 77, 78, 79, 80)
EG_MULTIPLY(168, 84, 84, 85, 86, 87, 88)
EG_MULTIPLY(184, 92, 92, 93, 94, 95, 96)
EG_MULTIPLY(192, 96, 96, 97, 98, 99, 100)
EG_MULTIPLY(200, 100, 100, 101, 102, 103, 104)
/* clang-format on */

#endif
