/* SPDX-License-Identifier: Apache-2.0 */
/* Programs of calls seen before, so that a repeated call is compiled once. */
#ifndef EG_CACHE_H
#define EG_CACHE_H

#include "backend.h"

/* The context's cache; NULL where there is no memory for it. */
eg_cache *eg_cache_make(const eg_context *context);
void eg_cache_free(const eg_context *context, eg_cache *cache); /* NULL is allowed */

/* The program of a call, compiled now if it has not been seen. `refused`: the one without kernels that may
 * refuse. Stays valid until the context's next use of the cache but one. */
__attribute__((nonnull)) eg_status eg_cache_find(eg_context *context, const eg_problem *problem, bool refused,
                                                 const eg_program **program);

/* Those of a grouped call. Stay valid until the context's next use of the cache. */
eg_status eg_cache_find_groups(eg_context *context, const eg_problem *problem, const eg_groups **groups);

/* Keeps what trials have found to be best for a call, and makes its program. */
eg_status eg_cache_keep_choice(eg_context *context, const eg_problem *problem, const eg_choice *choice,
                               const eg_program **program);

/* A program's addresses in a call. */
void eg_cache_bind(const eg_problem *problem, const eg_program *program, eg_address workspace, eg_call *call);

/* Runs the program of a call; where it refuses, the one that takes anything. */
eg_status eg_cache_run(eg_context *context, const eg_program *program, const eg_problem *problem,
                       void *workspace, size_t offset);

/* Operations that are no whole call, such as a chunk of one: found by what they are, compiled and run. */
eg_status eg_cache_run_list(eg_context *context, const eg_op_list *list, eg_call *call);

/* The chunks of a call with a workspace limit (low_memory.h), which take long to search for. */
typedef struct eg_chunks {
    int64_t items, rows;
    bool in_result; /* whose memory holds part of its sums */
} eg_chunks;
bool eg_cache_find_chunks(eg_context *context, const eg_problem *problem, size_t limit, eg_chunks *chunks);
void eg_cache_keep_chunks(eg_context *context, const eg_problem *problem, size_t limit, eg_chunks chunks);

#endif
