/* SPDX-License-Identifier: Apache-2.0 */
/* The groups of a layer that is made of sizes alone. */
#ifndef CLI_GROUPS_H
#define CLI_GROUPS_H

#include "options.h"

/* The end of each group, counted in rows, as the routing shares them out; the caller frees them. NULL: there
 * is no memory. */
int32_t *groups_ends(const eg_layer *layer, routing how);

#endif
