/* SPDX-License-Identifier: Apache-2.0 */
/* An open CUDA device, and the parts of the backend. */
#ifndef EG_CUDA_DEVICE_H
#define EG_CUDA_DEVICE_H

#include "step.h"
#include "driver.h"

typedef struct eg_cuda_lt eg_cuda_lt;         /* cublasLt and what it chose so far: lt.c */
typedef struct eg_cuda_graphs eg_cuda_graphs; /* of calls made before: graphs.c */

enum { EG_CUDA_MAX_MODULES = 56 };

typedef struct eg_cuda_device {
    const eg_cuda_driver *driver;
    CUdevice ordinal;
    CUcontext context;
    bool primary; /* retained by us */
    CUstream stream;
    CUstream side; /* for what runs beside the products */
    CUevent fork, join;
    eg_cuda_caps caps;
    CUmodule modules[EG_CUDA_MAX_MODULES];     /* NULL: not loaded yet */
    CUfunction functions[EG_CUDA_MAX_KERNELS]; /* by row of the kernel table; NULL likewise */
    eg_cuda_lt *lt;                            /* NULL: no cublasLt */
    eg_cuda_graphs *graphs;                    /* NULL: there are none */
    bool checked;                              /* every kernel is waited for: EPIGRAD_CUDA_CHECK */
    const char *name[EG_MAX_STEPS];            /* the kernels of the last program */
    int names;
    volatile uint32_t *wrong; /* host memory that kernels set to 1 where the ends of groups are wrong, */
    CUdeviceptr wrong_at;     /* as they see it */
    const eg_comm *comm;      /* of calls since the last eg_sync; NULL: none */
    CUresult broken;          /* a failure that the CUDA context does not outlive */
} eg_cuda_device;

/* The status of a driver call; remembers failures that the CUDA context does not outlive. */
eg_status eg_cuda_check(eg_cuda_device *device, CUresult result, const char *what);

/* Makes the CUDA context current, unless it has failed for good. Each enter has its leave. */
eg_status eg_cuda_enter(eg_cuda_device *device);
eg_status eg_cuda_leave(eg_cuda_device *device, eg_status status);

/* Of this thread; returns the mode before. While any thread captures a stream, the driver refuses modules and
 * memory to all that have not said that they mean it: CU_STREAM_CAPTURE_MODE_RELAXED. Both are apart from
 * what is captured. */
CUstreamCaptureMode eg_cuda_set_capture_mode(const eg_cuda_device *device, CUstreamCaptureMode mode);

/* Loads a row's kernel, if it is not loaded. Any thread may be capturing a stream. */
eg_status eg_cuda_load_row(eg_cuda_device *device, const eg_cuda_kernel *row);
void eg_cuda_unload_kernels(eg_cuda_device *device);
/* The entry point eg_`kernel`, whose module is loaded if it is not. */
eg_status eg_cuda_find_function(eg_cuda_device *device, const char *kernel, CUfunction *function);

/* nodes.c: what a graph launches, in the order in which it was captured. */
enum { EG_CUDA_MOST_NODES = 32 };
typedef struct eg_cuda_nodes {
    CUgraph graph;
    CUgraphExec made; /* NULL: it is being captured */
    CUgraphNode node[EG_CUDA_MOST_NODES];
    int count, next; /* next: the one to be changed */
} eg_cuda_nodes;
/* Whether all that a program launches are kernels of ours, so that a graph of it can be given other
 * addresses. */
bool eg_cuda_has_nodes(const eg_program *program);
/* The last node of a stream that is being captured. More than there is room for are counted only. */
eg_status eg_cuda_note_node(eg_cuda_device *device, eg_cuda_nodes *nodes, CUstream stream);
/* The next node launches this instead. Launches of the graph that are enqueued stay as they were. */
eg_status eg_cuda_change_kernel(eg_cuda_device *device, eg_cuda_nodes *nodes, const CUlaunchConfig *config,
                                CUfunction function, void **parameters);

/* run.c: the kernels of a program. With nodes: noted while a stream is captured, or those of a graph changed,
 * and nothing launched. */
eg_status eg_cuda_enqueue(eg_cuda_device *device, const eg_program *program, const eg_call *call,
                          CUstream stream, eg_cuda_nodes *nodes);
void eg_cuda_name_kernels(eg_cuda_device *device, const eg_program *program);
/* Whether the library has an algorithm for each product that it is to make. */
bool eg_cuda_library_takes(eg_cuda_device *device, const eg_program *program, const eg_call *call);

/* time.c: as eg_backend_ops. */
bool eg_cuda_may_time(const eg_cuda_device *device);
eg_status eg_cuda_record(const eg_context *context, eg_cuda_device *device, const eg_program *program,
                         const eg_call *calls, int count, void **made);
eg_status eg_cuda_replay_recording(eg_cuda_device *device, void *made, double *microseconds);
void eg_cuda_forget_recording(const eg_context *context, eg_cuda_device *device, void *made);

/* graphs.c: a call made before is one launch, and so is one like it with other addresses. *done is false, and
 * nothing enqueued, where it is neither, or where the library refuses it (*refused). */
eg_status eg_cuda_graphs_open(const eg_context *context, eg_cuda_device *device);
void eg_cuda_graphs_close(const eg_context *context, eg_cuda_device *device);
eg_status eg_cuda_replay(eg_cuda_device *device, const eg_program *program, const eg_call *call, bool *done,
                         bool *refused);
/* Calls one after the other as a graph, captured on a stream that may be; NULL where something of them cannot
 * be captured. */
CUgraphExec eg_cuda_capture(eg_cuda_device *device, const eg_program *program, const eg_call *calls,
                            int count, CUstream stream);

/* peak.c: GFLOP/s of multiply-adds in registers; `out` is device memory of EG_CUDA_PEAK_BYTES. */
enum { EG_CUDA_PEAK_BYTES = 1 << 25 };
eg_status eg_cuda_measure_peak(eg_cuda_device *device, uint32_t features, eg_dtype dtype, uint64_t out,
                               double *gflops);

/* lt.c: plain products through cublasLt. */
eg_cuda_lt *eg_cuda_lt_open(const eg_context *context);
void eg_cuda_lt_close(const eg_context *context, eg_cuda_lt *lt);
/* Whether the library has the algorithm (eg_cuda_step) for the product, with `bytes` of workspace. */
bool eg_cuda_lt_takes(eg_cuda_device *device, const eg_cuda_gemm *gemm, eg_math math, int algorithm,
                      size_t bytes);
/* A product that it takes. */
eg_status eg_cuda_lt_enqueue(eg_cuda_device *device, const eg_cuda_gemm *gemm, eg_math math, int algorithm,
                             uint64_t workspace, size_t bytes, CUstream stream);

#endif
