/* SPDX-License-Identifier: Apache-2.0 */
/* Memory of a context for what is only needed while a call is looked at or compiled. A program is 40 KB, and
 * some calls need several at once: on the stack they would not fit where threads have small ones (musl: 128
 * KiB), and to allocate them would make a valid call fail for want of memory. A context is used by one thread
 * at a time, and so is this. */
#ifndef EG_COMPILE_SCRATCH_H
#define EG_COMPILE_SCRATCH_H

#include "low_memory.h"

struct eg_compile_scratch {
    eg_low_memory low;  /* the call in chunks that is being made */
    eg_program plain;   /* what a tensor-parallel call without overlap would run: cache.c */
    eg_program refused; /* the program that takes any numbers, to know its workspace: program.c */
    eg_program ranked;  /* by another choice than the estimates', to know its workspace: choice.c */
    eg_program trial;   /* that of a kernel row, to compare its time: the CPU's choose.c */
};

#endif
