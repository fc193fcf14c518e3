/* SPDX-License-Identifier: Apache-2.0 */
/* What the cases of a seed are, without a library to run them. */
#ifndef CAMPAIGN_DESCRIBE_H
#define CAMPAIGN_DESCRIBE_H

#include <stdbool.h>
#include <stdint.h>

/* One case in words, several in counts. */
void describe_cases(uint64_t seed, uint64_t first, uint64_t last, bool addresses);

#endif
