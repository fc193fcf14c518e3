/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GPT_SAMPLE_H
#define GPT_SAMPLE_H

#include "model.h"
#include "text.h"

/* Prints `count` letters that the model draws one after the other, each by the ones before it. */
void write_sample(model *m, const text *t, int count, rng *random);

#endif
