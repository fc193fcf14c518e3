/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GPT_GRADIENT_CHECK_H
#define GPT_GRADIENT_CHECK_H

#include "operations.h"

#include <stdbool.h>
#include <stdint.h>

/* Compares gradients of a tiny model with finite differences, tensor by tensor, and prints the worst of each;
 * and looks whether a letter is seen by later ones only. Returns whether all is as it should be. */
bool gradient_check(device on, uint64_t seed, int experts);

/* Compares the gradients of the same tiny model on two devices, and what a step makes of the same gradients.
 */
bool compare_devices(device one, device other, uint64_t seed, int experts);

#endif
