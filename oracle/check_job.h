/* SPDX-License-Identifier: Apache-2.0 */
/* A case while it is checked. */
#ifndef ORACLE_CHECK_JOB_H
#define ORACLE_CHECK_JOB_H

#include "check.h"
#include "operands.h"

typedef struct check_job {
    eg_context *context;
    const check_case *c;
    check_report *report;
    operands set;
    memory workspace;
    eg_workspace given; /* of it, to the call */
    memory ends;        /* of groups */
    eg_packed *packed, *packed_up;
    int run;      /* 0, then 1 */
    size_t limit; /* of the first */
    bool cpu;
    bool rounds_grad_pre; /* this backend rounds grad_pre to 16 bits where it feeds a product */
    bool expects;         /* the oracle's results are there */
} check_job;

/* Has the oracle compute what the case's results should be, for each operand of the set; false where there is
 * no memory. */
bool check_expect(check_job *j);

#endif
