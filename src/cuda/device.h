/* An open CUDA device, and the pieces the backend is made of. */
#ifndef EG_CUDA_DEVICE_H
#define EG_CUDA_DEVICE_H

#include "../backend.h"
#include "driver.h"
#include "kernels.h"

/* eg_caps.detail: what a plan depends on beside the feature bits. */
typedef struct eg_cuda_caps {
    int multiprocessors;
    int shared; /* bytes of shared memory a block may have */
} eg_cuda_caps;

typedef struct eg_cuda_lt eg_cuda_lt;           /* cublasLt and what it chose so far: lt.c */
typedef struct eg_cuda_records eg_cuda_records; /* calls recorded as graphs: record.c */

enum { EG_CUDA_MAX_KERNELS = 64, EG_CUDA_MAX_MODULES = 24 };

typedef struct eg_cuda_device {
    const eg_cuda_driver *driver;
    CUdevice ordinal;
    CUcontext context;
    bool primary; /* retained by us */
    CUstream stream;
    CUstream side; /* for what runs beside the products */
    CUevent fork, join;
    eg_cuda_caps caps;
    CUmodule modules[EG_CUDA_MAX_MODULES];
    CUfunction functions[EG_CUDA_MAX_KERNELS]; /* by row of the kernel table */
    eg_cuda_lt *lt;                            /* NULL: no cublasLt */
    eg_cuda_records *records;                  /* NULL: none are kept */
    bool checked;                              /* every kernel is waited for: EPIGRAD_CUDA_CHECK */
    const char *name[EG_MAX_STEPS];            /* the kernels of the last call */
    int names;
    CUresult broken; /* a failure that the CUDA context does not outlive */
} eg_cuda_device;

/* The status of a driver call; remembers failures that the CUDA context does not outlive. */
eg_status eg_cuda_check(eg_cuda_device *device, CUresult result, const char *what);

/* Modules and functions of the embedded kernels. */
eg_status eg_cuda_load_kernels(eg_cuda_device *device, uint32_t features);
void eg_cuda_unload_kernels(eg_cuda_device *device);
/* The entry point eg_`kernel`. */
eg_status eg_cuda_find_function(eg_cuda_device *device, const char *kernel, CUfunction *function);

/* select.c. Pure: the kernel row of each step, its tile and its workspace. */
eg_status eg_cuda_select(const eg_caps *caps, eg_plan *plan);
/* The product of a step, its matrices at `workspace`; without one, addresses are those of offsets. */
eg_cuda_gemm eg_cuda_product(const eg_plan *plan, const eg_step *step, uint64_t workspace);
/* What the element-wise step writes: absent where act' is 1 and no grad_pre is wanted. */
eg_cuda_matrix eg_cuda_act_grad_out(const eg_plan *plan, uint64_t workspace);
eg_cuda_matrix eg_cuda_matrix_of(const eg_problem *p, eg_operand_id id);
/* Whether a row can do this product. */
bool eg_cuda_takes(const eg_cuda_kernel *row, const eg_cuda_gemm *gemm);
/* Rows of the result that a row of its column sums covers. */
int64_t eg_cuda_sum_rows(const eg_cuda_kernel *row);
int64_t eg_cuda_tiles(const eg_cuda_kernel *row, eg_cuda_gemm *gemm);

/* The element-wise step as the kernels of any strides take it. */
eg_cuda_gemm eg_cuda_act_grad_gemm(const eg_plan *plan, uint64_t workspace);

/* parts.c. Pure: how a step with column sums is cut.
 *
 * The product whose kernel makes the last rows of grad_pre itself; NULL: there is none. */
const eg_step *eg_cuda_rest_step(const eg_plan *plan);
/* Whether that kernel makes all that follows, too (hopper_pool.cuh); the clusters of it that make grad_pre
 * before they multiply; and whether that is faster than a kernel for each step. */
bool eg_cuda_pools(const eg_plan *plan);
int64_t eg_cuda_passers(int multiprocessors, const eg_problem *p);
bool eg_cuda_pool_pays(int multiprocessors, const eg_problem *p);
/* Rows of tiles in the block that those of a wave form, in a persistent product. */
int64_t eg_cuda_high(const eg_plan *plan);
/* Rows of an item that the element-wise step makes, and in how many chunks (eg_cuda_act_grad). */
int64_t eg_cuda_head(int multiprocessors, const eg_plan *plan);
int64_t eg_cuda_chunks(int multiprocessors, const eg_plan *plan);
/* Of the other rows. */
int64_t eg_cuda_rest_chunks(int multiprocessors, const eg_plan *plan);
/* Numbers that the two kernels count in; 0 where they are too many. And after those in the workspace, those
 * of the cut tiles of all products. */
int64_t eg_cuda_pass_counts(const eg_plan *plan);
int64_t eg_cuda_cut_counts(int multiprocessors);
/* How the last tiles of a product are cut, where that pays or, with `always`, can be done: the addresses are
 * not set. `saved` is what that saves, in waves of tiles. */
eg_cuda_cut eg_cuda_cut_of(int multiprocessors, const eg_cuda_kernel *row, const eg_cuda_gemm *x, bool always,
                           double *saved);
/* Bytes of the sums of their pieces. */
size_t eg_cuda_cut_bytes(int multiprocessors);
/* Rows of column sums, `cols` wide, that the workspace has; false where memory could not hold them. */
bool eg_cuda_sums_rows(const eg_plan *plan, int64_t cols, int64_t *rows);
/* Items and rows that a kernel takes at once which makes a row of sums for each chunk. Where that is not all,
 * the sums of a portion are added to row `total` of the buffer before the next portion; else `total` is 0. */
typedef struct eg_cuda_portions {
    int64_t items, rows, total;
} eg_cuda_portions;
eg_cuda_portions eg_cuda_portions_of(const eg_plan *plan, int64_t cols, int64_t items, int64_t rows,
                                     int64_t chunk_rows);
/* What the last step for d_bias, or the layer's below, adds up; `out` is not set. */
eg_cuda_column_sum eg_cuda_last_sum(int multiprocessors, const eg_plan *plan, uint64_t workspace,
                                    eg_buffer_id buffer);

/* launch.c: the kernels of a plan. */
eg_status eg_cuda_enqueue(eg_cuda_device *device, const eg_plan *plan, uint64_t workspace, CUstream stream);
void eg_cuda_name_kernels(eg_cuda_device *device, const eg_plan *plan);

/* record.c: a call made before is one launch. *done is false, and nothing enqueued, where it is none. */
eg_status eg_cuda_records_open(const eg_context *context, eg_cuda_device *device);
void eg_cuda_records_close(const eg_context *context, eg_cuda_device *device);
eg_status eg_cuda_replay(eg_cuda_device *device, const eg_plan *plan, uint64_t workspace, bool *done);

/* peak.c: GFLOP/s of multiply-adds in registers; `out` is device memory of EG_CUDA_PEAK_BYTES. */
enum { EG_CUDA_PEAK_BYTES = 1 << 25 };
eg_status eg_cuda_measure_peak(eg_cuda_device *device, uint32_t features, eg_dtype dtype, uint64_t out,
                               double *gflops);

/* lt.c: plain products through cublasLt. */
bool eg_cuda_lt_available(void);
eg_cuda_lt *eg_cuda_lt_open(const eg_context *context);
void eg_cuda_lt_close(const eg_context *context, eg_cuda_lt *lt);
/* *done is false, and nothing enqueued, where the library has no algorithm for the product. */
eg_status eg_cuda_lt_gemm(eg_cuda_device *device, const eg_cuda_gemm *gemm, eg_math math, uint64_t workspace,
                          size_t bytes, CUstream stream, bool *done);

#endif
