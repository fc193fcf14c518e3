/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GPT_GRADIENT_CHECK_H
#define GPT_GRADIENT_CHECK_H

#include "real.h"

#include <stdbool.h>
#include <stdint.h>

/* Compares gradients of a tiny model with finite differences, tensor by tensor, and prints the worst of each;
 * and looks whether a letter is seen by later ones only. Returns whether all is as it should be. */
bool gradient_check(eg_context *context, uint64_t seed, int experts);

#endif
