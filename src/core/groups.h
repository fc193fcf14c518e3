/* SPDX-License-Identifier: Apache-2.0 */
/* Grouped calls where the host knows the groups' rows: a group is a plain layer of its own.
 *
 * How many rows a group has is known when the call runs, and differs from call to call. So programs are made
 * for classes of rows, once a layer: none, 1, 2, up to 4, 8, ... A group runs by the one of its class, with
 * the rows that it has (eg_list_of_rows). A program for more rows takes fewer: its blocks and regions are
 * large enough, and few rows have a class, and so kernels, of their own. */
#ifndef EG_GROUPS_H
#define EG_GROUPS_H

#include "backend.h"

enum { EG_MOST_ROW_CLASSES = 14 };

typedef struct eg_row_class {
    int64_t rows; /* of a group, at most */
    eg_program *program;
    eg_program *other; /* NULL, or what does a group whose numbers `program` refuses */
} eg_row_class;

struct eg_groups {
    int64_t groups, m;
    int classes;
    eg_row_class of[EG_MOST_ROW_CLASSES]; /* by rows; the last is of m */
    size_t workspace;                     /* bytes, of any call */
};

/* Makes the programs. *made belongs to the caller, to be freed from the same context. */
eg_status eg_groups_make(const eg_context *context, const eg_problem *problem, eg_groups **made);
void eg_groups_free(const eg_context *context, eg_groups *groups); /* NULL is allowed */
void eg_groups_print(const eg_groups *groups, eg_text *out);

const eg_row_class *eg_class_of_rows(const eg_groups *groups, int64_t rows);

/* Whether the ends of a call's groups are in order: its offsets are in host memory. */
eg_status eg_groups_check(const eg_problem *problem);

eg_row_range eg_rows_of(const eg_problem *problem, int64_t group);

/* The call of one group, whose workspace is set. */
void eg_group_bind(const eg_problem *problem, int64_t group, const eg_program *program, eg_call *call);

#endif
