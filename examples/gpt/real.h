/* SPDX-License-Identifier: Apache-2.0 */
/* The type of every number of the model: f32, and f64 in the program gpt_f64, which is built of the same
 * source so that gradients can be checked without rounding in the way. Functions of <tgmath.h> take either.
 */
#ifndef GPT_REAL_H
#define GPT_REAL_H

#include <epigrad/epigrad.h>

#ifdef GPT_F64
typedef double real;
#define REAL_DTYPE EG_F64
#else
typedef float real;
#define REAL_DTYPE EG_F32
#endif

#endif
