/* SPDX-License-Identifier: Apache-2.0 */
/* The check: calls of the library, drawn from a table, run on any context and compared with the oracle.
 * The tests and `epigrad check` run the same cases.
 *
 *     for (int i = 0; i < check_count(EG_F32); i++) {
 *         check_case c;
 *         check_make(EG_F32, i, &c);
 *         check_report report;
 *         if (check_run(context, &c, &report) == CHECK_FAILED) puts(report.message);
 *     }
 *
 * On the CPU every operand stands against a page that cannot be touched, once behind its last byte and
 * once before its first; elsewhere operands come from eg_alloc, with room behind them. What lies between rows
 * and matrices, before the first of them (`offset`) and in that room is poisoned, and verified to be as it
 * was. */
#ifndef ORACLE_CHECK_H
#define ORACLE_CHECK_H

#include "case.h"

typedef enum check_result { CHECK_PASSED, CHECK_FAILED, CHECK_UNSUPPORTED } check_result;

typedef struct check_report {
    double worst;       /* the largest error of an element beyond its rounding, as a part of its bound */
    bool chunks;        /* the call was cut into several, */
    bool in_result;     /* with half of d_b added up in its own memory */
    char message[1280]; /* of a case that failed or is unsupported: what, where, got, expected */
} check_report;

/* Runs one case. CHECK_UNSUPPORTED only where the library said EG_ERR_UNSUPPORTED. */
check_result check_run(eg_context *context, const check_case *c, check_report *report);

/* Likewise, the second run on another context of the same device, which may have other threads. Devices other
 * than the CPU have a second run where the case is `repeated`. */
check_result check_run_on(eg_context *const contexts[2], const check_case *c, check_report *report);

#endif
