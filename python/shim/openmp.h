/* SPDX-License-Identifier: Apache-2.0 */
/* The threads of an OpenMP runtime that the process has anyway, torch's. Two sets of threads would want the same
 * processors: OpenMP's spin there for milliseconds after each of torch's loops. */
#ifndef EG_PYTHON_OPENMP_H
#define EG_PYTHON_OPENMP_H

#include <stdbool.h>

#include <epigrad/epigrad.h>

/* From now on, by these functions of the runtime: GOMP_parallel, which GNU's, LLVM's and Intel's have,
 * omp_get_thread_num and omp_get_max_threads. */
void eg_py_openmp_use(void *parallel, void *thread_num, void *max_threads);

/* False also in a child of a process that used them: GNU's runtime hangs there. */
bool eg_py_openmp_is_used(void);

/* As many as a parallel loop of this thread takes, torch.set_num_threads, also in a child; 0: no runtime is
 * known. */
int eg_py_openmp_threads(void);

/* An eg_parallel_for. */
void eg_py_openmp_run(void *user, int tasks, eg_task task, void *arg);

#endif
