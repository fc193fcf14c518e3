/* SPDX-License-Identifier: Apache-2.0 */
/* The groups of a layer that is made of sizes alone. */
#ifndef CLI_GROUPS_H
#define CLI_GROUPS_H

#include "call.h"

/* Moves the ends of the call's groups to its device, as its routing has them. */
int groups_upload(call *c, eg_context *context);

#endif
