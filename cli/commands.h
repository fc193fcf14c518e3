/* SPDX-License-Identifier: Apache-2.0 */
/* The commands: each takes its parsed options and returns an exit code. */
#ifndef CLI_COMMANDS_H
#define CLI_COMMANDS_H

#include "options.h"

int command_run(const options *o); /* forward and backward */
int command_plan(const options *o);
int command_info(const options *o);
int command_check(const options *o);
int command_bench(const options *o);

extern const char help_text[];

#endif
