/* SPDX-License-Identifier: Apache-2.0 */
/* epigrad: the linear layer with its epilogue, Y = act(A·B + bias), forward and backward.
 *
 * This header is the whole public API, but for communicators (comm.h, mpi.h). A call goes one way:
 *
 *     describe the layer (eg_layer)  +  name the operands (eg_forward_args / eg_backward_args)
 *        -> validated -> lowered to operations -> compiled to a program -> run on the context's device
 *
 * Conventions that hold everywhere
 *   sizes       M, K, N, batch, leading dimensions and batch strides count ELEMENTS (int64_t);
 *               offsets and workspace sizes count BYTES (size_t).
 *   structs     eg_open_info, eg_layer, eg_forward_args, eg_backward_args, eg_device_info, eg_kernel_info and
 *               eg_comm begin with `size`: set it to sizeof the struct. Fields are only ever appended to
 *               these; other structs never grow. The zero value of every option is its default, so
 *               `(eg_layer){.size = sizeof(eg_layer), ...}` stays valid. M, K and N are the exception: they
 *               have no default, 0 means empty. A struct of a newer header is taken where its newer fields
 *               are 0; a size more than 4096 bytes past the library's own is refused. Every enumerator has to
 *               be valid, even where a call does not use it. Of an absent operand only `data` is read.
 *   ownership   the library never frees or keeps a caller's buffer. What eg_open, eg_pack_b and eg_alloc
 *               return is given back with eg_close, eg_packed_free and eg_free.
 *   threads     one context is used by one thread at a time; different contexts are independent and may
 *               run at once. eg_last_error is per thread. Everything else here is thread-safe.
 *               Threads of a context on the CPU are its own: made by the first calls that want them, asleep
 *               between calls, joined by eg_close. After fork the child may use a CPU context on which no
 *               call was running, and it makes its own threads. The shared library stays in memory after
 *               dlclose; a program or plugin that holds the static one closes its contexts before it is
 *               unloaded.
 *   stack       a call on the CPU needs at most 96 KiB of the calling thread's stack; the context's own
 *               threads have theirs. On CUDA and WebGPU the drivers need more.
 *   errors      every fallible function returns an eg_status; eg_last_error() then has one printable line
 *               that names the argument, its value and what was expected; long names in it are shortened. A
 *               call refused by validation has written nothing. Nothing prints, nothing aborts.
 *   order       on the CPU a call has finished when it returns; CUDA and WebGPU calls are enqueued, run in
 *               the order they were made, and eg_sync waits for them. Until then their operands,
 *               workspaces and packs have to exist. */
#ifndef EPIGRAD_EPIGRAD_H
#define EPIGRAD_EPIGRAD_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "activation.h"

#ifdef __cplusplus
extern "C" {
#endif

#if defined(_WIN32)
#define EG_API
#else
#define EG_API __attribute__((visibility("default")))
#endif

#if defined(__GNUC__)
#define EG_CONSTRUCTOR static inline __attribute__((unused))
#else
#define EG_CONSTRUCTOR static inline
#endif

#define EG_VERSION_MAJOR 0
#define EG_VERSION_MINOR 1
#define EG_VERSION_PATCH 0

/* ---- Status ------------------------------------------------------------------------------------- */

/* The numbers are pinned: they are the ABI of every binding. */
typedef enum eg_status {
    EG_OK = 0,
    EG_ERR_ARGUMENT = 1,      /* an argument is wrong; eg_last_error says which, and what was expected */
    EG_ERR_UNSUPPORTED = 2,   /* well-formed, but this backend or device cannot do it */
    EG_ERR_UNAVAILABLE = 3,   /* the backend is not in this build, or its driver or device is missing */
    EG_ERR_OUT_OF_MEMORY = 4, /* host or device memory ran out; nothing was written */
    EG_ERR_DEVICE = 5 /* the device failed while running, or another process of the communicator failed, did
                         not answer or disagreed; outputs are undefined */
} eg_status;

/* The name of a status, such as "EG_ERR_ARGUMENT"; "unknown status" for other values. Never NULL. */
EG_API const char *eg_status_name(eg_status status);

/* The message of this thread's last failed call, "" when none has failed. Owned by the library and
 * valid until this thread's next call into it. */
EG_API const char *eg_last_error(void);

/* "0.1.0": the library in use, which may be newer than the header compiled against. */
EG_API const char *eg_version(void);

/* ---- Vocabulary --------------------------------------------------------------------------------- */

typedef enum eg_backend { EG_BACKEND_CPU = 0, EG_BACKEND_CUDA = 1, EG_BACKEND_WEBGPU = 2 } eg_backend;

/* Storage types. f16 and bf16 are accumulated, and their epilogues computed, in f32. */
typedef enum eg_dtype {
    EG_DTYPE_DEFAULT = 0, /* in eg_layer: f32; in an operand: the layer's dtype */
    EG_F32 = 1,
    EG_F64 = 2,
    EG_F16 = 3, /* IEEE binary16 */
    EG_BF16 = 4 /* upper half of an f32 */
} eg_dtype;

/* act(x), from the rows of activation.h: EG_ACT_NONE, EG_ACT_RELU, EG_ACT_GELU, ... */
typedef enum eg_activation {
#define EG_ROW(NAME, name, value, from_y, text) EG_ACT_##NAME = (value),
    EG_ACTIVATION_TABLE(EG_ROW)
#undef EG_ROW
} eg_activation;

typedef enum eg_layout {
    EG_ROW_MAJOR = 0, /* element (i, j) at i*ld + j */
    EG_COL_MAJOR = 1  /* element (i, j) at i + j*ld; a PyTorch weight [N, K] is a column-major B */
} eg_layout;

/* How exact the arithmetic is. */
typedef enum eg_math {
    EG_MATH_DEFAULT = 0, /* f32 at least as accurate as a chain of f32 FMAs, on the fastest unit */
    EG_MATH_STRICT = 1,  /* FMA units only, no splitting of operands */
    EG_MATH_FAST = 2     /* allows reduced-precision products (TF32, fewer bf16) where a device has them */
} eg_math;

/* What act' is where pre is NaN (EG_ACT_NONE has act' = 1 everywhere). A NaN or infinity in grad propagates
 * in either case. */
typedef enum eg_nonfinite {
    EG_NONFINITE_ZERO = 0,     /* act'(NaN) = 0 */
    EG_NONFINITE_PROPAGATE = 1 /* act'(NaN) = NaN */
} eg_nonfinite;

/* Where the backward pass takes act' from. */
typedef enum eg_source {
    EG_SOURCE_RECOMPUTE = 0, /* pre = A·B + bias is computed again; nothing was saved */
    EG_SOURCE_PRE = 1,       /* the forward pass saved pre */
    EG_SOURCE_Y = 2          /* from Y: activations for which eg_activation_from_y() is 1 */
} eg_source;

/* Of a tensor-parallel layer: how B is divided over the processes. */
typedef enum eg_split {
    EG_SPLIT_COLUMNS = 0, /* each has columns of B: its inputs are gathered */
    EG_SPLIT_ROWS = 1     /* each has rows of B, and the same columns of A: its results are summed */
} eg_split;

EG_API const char *eg_backend_name(eg_backend backend);          /* "cpu"; "unknown" for other values */
EG_API const char *eg_dtype_name(eg_dtype dtype);                /* "f32"; "unknown" for other values */
EG_API size_t eg_dtype_size(eg_dtype dtype);                     /* bytes an element; 0 for other values */
EG_API const char *eg_activation_name(eg_activation activation); /* "gelu"; NULL past the last one */
EG_API int eg_activation_from_y(eg_activation activation);       /* 1 if act' is a function of Y, else 0 */

/* How a context chooses among the kernels that can make a call. */
typedef enum eg_tuning {
    EG_TUNING_ESTIMATED = 0, /* those of the least estimated time: the same at every run, at no cost */
    EG_TUNING_MEASURED = 1   /* CUDA: those that took the least time when the context first made such a call;
                                other backends: as EG_TUNING_ESTIMATED */
} eg_tuning;

/* ---- Contexts ----------------------------------------------------------------------------------- */

typedef struct eg_context eg_context; /* a device, its stream or queue, its caches */

/* Host allocator: `alloc` returns memory aligned to 64 bytes, or NULL. Both NULL: the C library's. */
typedef struct eg_allocator {
    void *(*alloc)(size_t bytes, void *user);
    void (*free)(void *memory, void *user);
    void *user;
} eg_allocator;

/* A pool of threads that the caller brings. eg_parallel_for calls task(arg, index) for the indices from 0 to
 * tasks - 1, and returns when every call that it made has returned. It may make them in any order, at once or
 * one after the other, on any threads, the calling one too; each index at most once. Those it leaves out cost
 * time only: tasks take over one another's work, and none waits for another. A task does not return early
 * by exceptions or longjmp, and has no error.
 * It is called by the thread that made the call to the library, never by a task; some times a call. If that
 * thread belongs to the thread pool itself, the pool has to bear a loop inside one of its tasks. While it
 * waits, the calling thread must not take up other work that uses the same context. */
typedef void (*eg_task)(void *arg, int index);
typedef void (*eg_parallel_for)(void *user, int tasks, eg_task task, void *arg);

typedef struct eg_open_info {
    size_t size;
    eg_backend backend;
    int device;             /* CUDA, WebGPU: ordinal of the device, from 0; not read with a native_device */
    int threads;            /* CPU: threads a call may use, to 4096; where the system makes fewer, the call
                               goes on with those. 0: the first number of the environment variable
                               OMP_NUM_THREADS; without one, as many as the affinity mask of this thread and
                               the limit of its control groups (cpu.max, rounded up) have cores.
                               Results are the same bits for every value. */
    const char *kernel;     /* NULL: the best for each step. Else only kernel rows of this name are used,
                               and a step that has no such row is EG_ERR_UNSUPPORTED: for tests and
                               benchmarks. A name that no row of the backend has is EG_ERR_ARGUMENT.
                               Read during eg_open only. */
    eg_allocator allocator; /* for the context and everything it owns on the host */
    /* These stay the caller's, and have to outlive the context. */
    void *native_device; /* CUDA: CUcontext or NULL for the primary one; WebGPU: WGPUDevice or NULL */
    void *native_queue;  /* CUDA: CUstream or NULL for the default stream; WebGPU: WGPUQueue or NULL */
    /* CPU: threads of the caller's, in place of the context's own; NULL: own. `threads` is then the most
     * tasks at once. `parallel_user` is passed to it; it has to outlive the context. */
    eg_parallel_for parallel_for;
    void *parallel_user;
    /* EG_TUNING_MEASURED: the first call of a kind (the same sizes, types, strides, alignments and options)
     * tries some tens of candidates and waits for the device, unless the stream is being captured. Trials
     * write to memory of their own, of at most three times L2 beside the size of the outputs, and give it
     * back. Estimates choose where there is not so much memory, for calls over processes or in chunks, and
     * with a `kernel`. Every workspace has room for any candidate. Another run may take other kernels, whose
     * sums differ in their last bits. Where this is 0, EPIGRAD_TUNING set to "measured" does the same.
     * docs/howto/tune.md */
    eg_tuning tuning;
} eg_open_info;

/* Opens a device. `info` may be NULL: the CPU with its defaults. On success *context is to be closed with
 * eg_close; on failure it is NULL. EG_ERR_UNAVAILABLE: the build lacks the backend, or the machine its
 * driver or device.
 * The environment variable EPIGRAD_CPU_ISA (portable, neon, avx2, avx512, avx512_bf16, amx) caps the CPU's
 * instruction set; docs/reference/environment.md lists all variables. */
EG_API eg_status eg_open(const eg_open_info *info, eg_context **context);

/* Waits for what is enqueued, then frees the context. NULL is allowed. Packed operands and memory made
 * from the context must be freed before. */
EG_API void eg_close(eg_context *context);

/* Waits until everything enqueued on the context has finished; reports a failure on the device. */
EG_API eg_status eg_sync(eg_context *context);

/* Device memory, so that one program runs on any backend. On the CPU and CUDA *memory is an address
 * (host, CUdeviceptr), on WebGPU a WGPUBuffer; it is what eg_matrix.data takes. `bytes` may be 0.
 * Memory is aligned to at least 64 bytes and not initialised. It is freed by the context that it is from,
 * when no enqueued call uses it any more; NULL is allowed. Upload and download copy `bytes` bytes at `offset`
 * (bytes) after the calls made before, and have finished with the host buffer when they return. */
EG_API eg_status eg_alloc(eg_context *context, size_t bytes, void **memory);
EG_API void eg_free(eg_context *context, void *memory);
EG_API eg_status eg_upload(eg_context *context, void *memory, size_t offset, const void *host, size_t bytes);
EG_API eg_status eg_download(eg_context *context, void *host, const void *memory, size_t offset,
                             size_t bytes);

/* ---- The layer and its operands ----------------------------------------------------------------- */

/* What is computed, shared by forward and backward:
 *     pre = A·B + bias     A [batch, M, K]   B [batch, K, N]   bias [N]   pre, Y [batch, M, N]   Y = act(pre)
 * With a scale, every product of the layer is multiplied by it before anything is added: scale·A·B + bias,
 * and in the backward pass d_a and d_b, but not grad_pre and d_bias. Where M or N is 0 there is nothing to
 * compute, and sums are written as 0. Where K is 0, Y = act(bias). */
typedef struct eg_layer {
    size_t size;
    int64_t m, k, n;
    int64_t batch;  /* 0 means 1, a plain layer; a batch of none is m = 0 */
    eg_dtype dtype; /* of every operand that does not say otherwise */
    eg_activation activation;
    eg_math math;
    eg_nonfinite nonfinite;
    double scale; /* of the products: attention's 1/√d, for one. 0 means 1. Finite, and a normal number of the
                     type that is computed in, f32 or f64, to which it is rounded */
    int64_t outer_batch; /* 0 means 1. Else the batch has two levels, such as sequences and the heads of each:
                            outer_batch x batch items. Item (o, i) of an operand begins o outer strides
                            (args.outer) and i batch strides after the first. */
    int64_t groups;      /* 0: a plain layer. Else so many groups of rows, each with its B: eg_offsets */
} eg_layer;

/* A matrix in device memory, or absent (data == NULL). It ends at most 2^62 bytes from `data`. */
typedef struct eg_matrix {
    void *data;           /* host address | CUdeviceptr, aligned to the element | WGPUBuffer */
    size_t offset;        /* bytes from `data` to the first element, a multiple of the element's size */
    int64_t ld;           /* elements from one row (column-major: column) to the next; 0: dense */
    int64_t batch_stride; /* elements from one matrix of the batch to the next, 0 or more. 0: the same matrix
                             for the whole batch: an input is broadcast, d_a and d_b are summed over it */
    eg_layout layout;
    eg_dtype dtype; /* EG_DTYPE_DEFAULT: the layer's. d_b and d_b_up may be EG_F32 for f16 or bf16 layers */
} eg_matrix;

/* A dense vector of N (bias, d_bias) or K (the d_bias of the layer below) elements, or absent. */
typedef struct eg_vector {
    void *data;     /* as in eg_matrix */
    size_t offset;  /* bytes, a multiple of the element's size */
    eg_dtype dtype; /* EG_DTYPE_DEFAULT: the layer's. A bias's gradient may be EG_F32 for f16 or bf16 */
} eg_vector;

/* Dense operands in one expression: at offset 0, of the layer's type, one for the whole batch; NULL: absent.
 * What is different is then set in the fields. A PyTorch weight [N, K] is a column-major B. The const ones
 * are for inputs, which are never written. */
EG_CONSTRUCTOR eg_matrix eg_row_major(void *data) {
    const eg_matrix matrix = {data, 0, 0, 0, EG_ROW_MAJOR, EG_DTYPE_DEFAULT};
    return matrix;
}
EG_CONSTRUCTOR eg_matrix eg_col_major(void *data) {
    const eg_matrix matrix = {data, 0, 0, 0, EG_COL_MAJOR, EG_DTYPE_DEFAULT};
    return matrix;
}
EG_CONSTRUCTOR eg_vector eg_elements(void *data) {
    const eg_vector vector = {data, 0, EG_DTYPE_DEFAULT};
    return vector;
}
EG_CONSTRUCTOR eg_matrix eg_const_row_major(const void *data) {
    return eg_row_major((void *)(uintptr_t)data);
}
EG_CONSTRUCTOR eg_matrix eg_const_col_major(const void *data) {
    return eg_col_major((void *)(uintptr_t)data);
}
EG_CONSTRUCTOR eg_vector eg_const_elements(const void *data) { return eg_elements((void *)(uintptr_t)data); }

/* A grouped layer, such as a mixture of experts: the rows of A are sorted by group, and each group of rows
 * has a B and a bias of its own. M and layer.groups are at most 2^31 - 1.
 *
 * An operand that has M rows is one matrix [M, ...] of all groups: row i of group g is its row
 * (g > 0 ? offsets[g - 1] : 0) + i. Its batch_stride means nothing, but has to be 0 or more. Of the others
 * (B, d_b, bias, d_bias and their like) each group has a matrix or vector: batch_stride is from one group's
 * matrix to the next (0: one B for all groups; not for d_b), and vectors are dense, [groups, N] or
 * [groups, K].
 *
 * `offsets` holds the end of each group, counted in rows of A: the ends do not decrease, and the last is at
 * most M. Groups without rows cost nothing; their d_b and d_bias are 0, or stay as they were where they are
 * added to. Rows behind the last end belong to no group: they are neither read nor written. The plan of a
 * call is made once for all offsets; its workspace has room for any.
 *
 * A wrong end is EG_ERR_ARGUMENT, on the CPU before anything is written. On CUDA offsets are in device
 * memory, as all operands are, and the kernels read them, so that a call waits for nothing and may be
 * captured; the next eg_sync, eg_upload or eg_download waits, and reports a wrong end. Until then results are
 * not defined, but nothing outside of them is written. Not on WebGPU; not with layer.batch, outer_batch,
 * workspace_limit, data_parallel or tensor_parallel. */
typedef struct eg_offsets {
    void *data;    /* int32 [groups], as in eg_matrix; where layer.groups is given, and only there */
    size_t offset; /* bytes, a multiple of 4 */
} eg_offsets;

/* A plain layer, of f32; the other fields are their defaults. */
EG_CONSTRUCTOR eg_layer eg_layer_of(int64_t m, int64_t k, int64_t n, eg_activation activation) {
    eg_layer layer;
    memset(&layer, 0, sizeof layer);
    layer.size = sizeof layer;
    layer.m = m;
    layer.k = k;
    layer.n = n;
    layer.activation = activation;
    return layer;
}

/* Scratch memory for one call: at least eg_*_workspace bytes, aligned to 64, apart from every operand. The
 * next call may use the same. data == NULL: the context uses its own, which grows to the largest call seen
 * and is freed by eg_close. A graph that captured a call goes on using that call's workspace: bring one for
 * it. */
typedef struct eg_workspace {
    void *data;    /* as in eg_matrix */
    size_t offset; /* bytes, a multiple of 64 */
    size_t bytes;  /* from there on */
} eg_workspace;

typedef struct eg_packed eg_packed; /* B laid out for the device once, reused over calls */

typedef struct eg_comm eg_comm; /* the processes, and what carries numbers between them: comm.h */

/* Tensor parallel: each process has a part of B, and between layers each has M / ranks rows of the
 * activations. The layer is that of the process's own product: m are all rows, a multiple of the ranks; k and
 * n are those of its part of B. Operands of the divided side have the M / ranks rows of this process; all
 * others are as ever:
 *
 *     EG_SPLIT_COLUMNS   a; backward also d_a and its residual
 *     EG_SPLIT_ROWS      y, pre and residual; backward grad, pre, y and grad_pre
 *
 * EG_SPLIT_COLUMNS: forward gathers the rows of a; backward sums d_a over the processes. No chain.
 *
 * EG_SPLIT_ROWS: forward sums A·B over the processes; the bias is added once. Backward gathers grad_pre, in
 * the layer's dtype; d_bias is the sum over all processes. bias and d_bias are the same on all. Not for gated
 * units, and with EG_SOURCE_RECOMPUTE for EG_ACT_NONE only.
 *
 * Rows are exchanged in groups, under the products of other groups, where that is estimated to gain time on
 * every rank. Every rank makes the same calls in the same order, with the same m, and the same k
 * (EG_SPLIT_COLUMNS) or n (EG_SPLIT_ROWS). The same ranks get the same bits in every run. Not with batch,
 * outer_batch, groups, workspace_limit or data_parallel, nor on WebGPU. Failures are as with data_parallel.
 */
typedef struct eg_tensor_parallel {
    const eg_comm *comm; /* NULL: one process. Has to outlive the call. */
    eg_split split;
    eg_dtype sums; /* as in eg_data_parallel */
    /* EG_SPLIT_COLUMNS, optional: a of all ranks, [M, K], dense and row-major. Forward writes it; a backward
     * call that is given it gathers nothing, and its a is absent. */
    eg_matrix gathered;
} eg_tensor_parallel;

/* Outer strides: elements from an outer item of an operand to the next; read where layer.outer_batch is more
 * than 1. 0: the same for all outer items. An input may be broadcast at either level. A d_a or d_b is summed
 * over all items, where both of its strides are 0, or over none, where neither is. */
typedef struct eg_forward_outer {
    int64_t a, b, residual, y, pre, b_up, pre_up;
} eg_forward_outer;
/* The same of a backward call. */
typedef struct eg_backward_outer {
    int64_t a, b, grad, pre, y, d_a, d_b, grad_pre, chain_saved;
    int64_t b_up, pre_up, grad_up, d_b_up, grad_pre_up, chain_up_saved, chain_up_d_up, chain_up_y, residual;
} eg_backward_outer;

typedef struct eg_forward_args {
    size_t size;
    eg_matrix a;               /* [M, K] */
    eg_matrix b;               /* [K, N]; may be absent where packed_b is given */
    eg_vector bias;            /* [N], optional */
    eg_matrix residual;        /* [M, N], optional, EG_ACT_NONE only: Y = A·B + bias + residual.
                                  May be the same memory as y, element for element. */
    eg_matrix y;               /* [M, N], written */
    eg_matrix pre;             /* [M, N], optional: written with A·B + bias for a later backward call */
    const eg_packed *packed_b; /* optional: eg_pack_b of b */
    eg_workspace workspace;
    size_t workspace_limit; /* bytes; 0: none. See eg_backward_args */
    /* A gated unit (SwiGLU and its family), where any of these is given:
     *     Y = act(A·B + bias) ⊙ (A·B_up + bias_up)
     * b and bias are then those of the gate, whose activation is the layer's; residual is absent. The weights
     * may lie in one matrix, stacked or interleaved: b and b_up are two views of it. */
    eg_matrix b_up;    /* [K, N]; may be absent where packed_b_up is given */
    eg_vector bias_up; /* [N], optional */
    eg_matrix pre_up;  /* [M, N], optional: A·B_up + bias_up; where pre is given, and only there */
    const eg_packed *packed_b_up; /* optional: eg_pack_b of b_up */
    eg_tensor_parallel tensor_parallel;
    eg_forward_outer outer;
    eg_offsets offsets; /* with layer.groups */
} eg_forward_args;

/* Y = act(A·B + bias); the other fields are their defaults. */
EG_CONSTRUCTOR eg_forward_args eg_forward_of(eg_matrix a, eg_matrix b, eg_vector bias, eg_matrix y) {
    eg_forward_args args;
    memset(&args, 0, sizeof args);
    args.size = sizeof args;
    args.a = a;
    args.b = b;
    args.bias = bias;
    args.y = y;
    return args;
}

/* Folds the act' of the layer below into d_a, so that a stack of layers needs no pass of its own for it:
 *     d_a = (grad_pre · Bᵀ) ⊙ act'(below)        d_bias_below[k] = Σ over batch and M of that
 * d_a is then the grad_pre of the layer below, whose own backward call uses EG_ACT_NONE. */
typedef struct eg_chain {
    eg_matrix saved;          /* [M, K]: pre of the layer below, or its y (which is this layer's a). Not
                                 where d_a is summed over the batch. Absent: no chaining. */
    eg_source source;         /* what `saved` is: EG_SOURCE_PRE or EG_SOURCE_Y */
    eg_activation activation; /* of the layer below */
    eg_vector d_bias;         /* [K], optional: the bias gradient of the layer below */
} eg_chain;

/* The same where the layer below is a gated unit: `chain` is then its gate, with EG_SOURCE_PRE, and this is
 * the other half. With d_y = grad_pre · Bᵀ, and pre and pre_up of the unit below:
 *     d_a  = d_y ⊙ pre_up ⊙ act'(pre)     chain.d_bias sums it over batch and M
 *     d_up = d_y ⊙ act(pre)               chain_up.d_bias sums it
 * The unit's own backward call takes d_a as grad and d_up as grad_up, with EG_ACT_NONE. */
typedef struct eg_chain_up {
    eg_matrix saved; /* [M, K]: pre_up of the unit below. Absent: the layer below is not gated */
    eg_matrix d_up;  /* [M, K], written */
    eg_matrix y;     /* [M, K], optional: act(pre) ⊙ pre_up is written again, so that it need not be kept */
    eg_vector d_bias; /* [K], optional: the gradient of the unit's bias_up */
} eg_chain_up;

typedef enum eg_reduction { EG_REDUCTION_SUM = 0, EG_REDUCTION_MEAN = 1 } eg_reduction;

/* What a rank gets of d_b, d_bias and chain.d_bias. */
typedef enum eg_sharding {
    EG_SHARDING_NONE = 0, /* every rank gets all */
    EG_SHARDING_LINES = 1 /* each gets its lines, ceil(lines / ranks) of them; the last ones may have fewer,
                             or none. Lines of d_b are its rows (column-major: its columns), those of a vector
                             its elements. The operand then begins with this rank's first line. */
} eg_sharding;

/* Data parallel: each process has its own rows (M) of a batch, and d_b, d_bias and chain.d_bias are summed
 * over the processes. With `accumulate` that sum is added to what the operand holds. Every rank makes the
 * call, even with M = 0. The reduction begins as soon as d_b is there and goes on while d_a is computed, where
 * that is estimated to gain time. The same ranks get the same bits in every run. A call that fails may have
 * had a part in other ranks' results: the communicator is of no more use then, and the call's memory has to
 * stay until the process ends. Not for gated units or a chain to them, with workspace_limit, nor on
 * WebGPU. */
typedef struct eg_data_parallel {
    const eg_comm *comm; /* NULL: one process. Has to outlive the call. */
    eg_reduction reduction;
    eg_sharding sharding;
    eg_dtype sums; /* the type that is sent and added up. EG_DTYPE_DEFAULT: f32 (f64 for f64); f16 or bf16,
                      the layer's, sends half as much and rounds at every addition */
} eg_data_parallel;

/* Sums that a backward call adds to what they hold: bits of accumulate_into. Those of absent ones are not
 * read. */
typedef enum eg_into {
    EG_INTO_D_A = 1, /* not with a chain: what d_a holds is then its residual, or has had act' */
    EG_INTO_D_B = 2,
    EG_INTO_D_BIAS = 4,
    EG_INTO_CHAIN_D_BIAS = 8,
    EG_INTO_D_B_UP = 16,
    EG_INTO_D_BIAS_UP = 32,
    EG_INTO_CHAIN_UP_D_BIAS = 64
} eg_into;

/* With grad = dLoss/dY:
 *     grad_pre = grad ⊙ act'(pre)                        [batch, M, N]
 *     d_a      = grad_pre · Bᵀ (+ residual)              [batch, M, K], or [M, K] summed over the batch
 *     d_b      = Aᵀ · grad_pre                           [batch, K, N], or [K, N] summed over the batch
 *     d_bias   = Σ over batch and M of grad_pre          [N]
 * Outputs that are absent are not computed. Inputs that the wanted outputs do not need may be absent. */
typedef struct eg_backward_args {
    size_t size;
    eg_matrix a;        /* [M, K]: for d_b, and for recompute */
    eg_matrix b;        /* [K, N]: for d_a, and for recompute; may be absent where packed_b is given */
    eg_vector bias;     /* [N], optional: for recompute */
    eg_matrix grad;     /* [M, N] */
    eg_source source;   /* where act' comes from; with EG_SOURCE_RECOMPUTE, pre and y have to be absent */
    eg_matrix pre;      /* [M, N], with EG_SOURCE_PRE */
    eg_matrix y;        /* [M, N], with EG_SOURCE_Y */
    eg_matrix d_a;      /* [M, K] */
    eg_matrix d_b;      /* [K, N] */
    eg_vector d_bias;   /* [N] */
    eg_matrix grad_pre; /* [M, N]. May be the same memory as grad, element for element. */
    int accumulate;     /* 1: all of eg_into but d_a are added to what they hold */
    eg_chain chain;
    const eg_packed *packed_b; /* optional: eg_pack_b of b */
    eg_workspace workspace;
    /* Low-memory mode, bytes; 0: no limit. A call that would need more workspace goes over its rows (and
     * its batch) in chunks, as few as fit, so that the workspace stays within the limit for any M. What is
     * summed over chunks is kept in f32, and rounded once: a d_b in f16 or bf16 takes 4KN bytes of the limit,
     * or 2KN where d_b's own memory keeps the other half of the sums; one in f32 takes none. On WebGPU
     * partial sums are in a buffer of the context, which the limit does not count. Chunks do not depend on
     * the number of threads. If such a call fails on its way, its outputs are undefined whatever the status,
     * d_b as a whole too where it is accumulated. docs/howto/low-memory.md tells more. */
    size_t workspace_limit;
    eg_data_parallel data_parallel;
    /* A gated unit, where any of these is given but chain_up, which is of the layer below:
     *     d_gate = grad ⊙ pre_up ⊙ act'(pre)                d_up   = grad ⊙ act(pre)
     *     d_a    = d_gate · Bᵀ + d_up · B_upᵀ
     *     d_b    = Aᵀ · d_gate                              d_b_up = Aᵀ · d_up
     * grad_pre and d_bias are of d_gate. Sources are EG_SOURCE_RECOMPUTE, and EG_SOURCE_PRE with pre and
     * pre_up. With grad_up, what is element by element has been done: grad is d_gate, grad_up is d_up, and
     * the activation is EG_ACT_NONE. */
    eg_matrix b_up;        /* [K, N]: for d_a, and for recompute; may be absent where packed_b_up is given */
    eg_vector bias_up;     /* [N], optional: for recompute */
    eg_matrix pre_up;      /* [M, N], with EG_SOURCE_PRE */
    eg_matrix grad_up;     /* [M, N], optional: as a chain made it */
    eg_matrix d_b_up;      /* [K, N] */
    eg_vector d_bias_up;   /* [N] */
    eg_matrix grad_pre_up; /* [M, N]: d_up */
    const eg_packed *packed_b_up; /* optional: eg_pack_b of b_up */
    eg_chain_up chain_up;
    /* [M, K], optional: a gradient that is added to d_a, such as that of the other branch where A feeds two;
     * before what a chain makes of the sum. Where d_a is wanted, and not added to. One for the whole batch
     * where d_a is summed over it. May be the same memory as d_a, element for element. */
    eg_matrix residual;
    uint64_t accumulate_into; /* eg_into bits: what is added to what it holds, beside `accumulate` */
    eg_tensor_parallel tensor_parallel;
    eg_backward_outer outer;
    eg_offsets offsets; /* with layer.groups */
} eg_backward_args;

/* The inputs of a call that recomputes; outputs, another source and the rest are set in the fields. */
EG_CONSTRUCTOR eg_backward_args eg_backward_of(eg_matrix a, eg_matrix b, eg_vector bias, eg_matrix grad) {
    eg_backward_args args;
    memset(&args, 0, sizeof args);
    args.size = sizeof args;
    args.a = a;
    args.b = b;
    args.bias = bias;
    args.grad = grad;
    return args;
}

/* ---- The operation ------------------------------------------------------------------------------ */

/* Outputs must not overlap inputs or each other, but for three pairs that may be the same memory, element for
 * element: y and residual, grad_pre and grad, d_a and residual. Elements count, not the gaps between them:
 * operands may interleave in one buffer in any way, such as the windows of [T, 3, heads, d]. Whether they
 * overlap is decided exactly. Only where that would take too long the call is refused with "may overlap": two
 * operands with thousands of rows and of items, all apart, by four strides in no proportion to each other.
 *
 * Each element is rounded to its storage type once, at the end. The same call on the same device gives the
 * same bits. */
EG_API eg_status eg_forward(eg_context *context, const eg_layer *layer, const eg_forward_args *args);
EG_API eg_status eg_backward(eg_context *context, const eg_layer *layer, const eg_backward_args *args);

/* The workspace that the call would need, in bytes. No memory is read through the operands: any `data` that
 * is not NULL marks one as present. */
EG_API eg_status eg_forward_workspace(eg_context *context, const eg_layer *layer, const eg_forward_args *args,
                                      size_t *bytes);
EG_API eg_status eg_backward_workspace(eg_context *context, const eg_layer *layer,
                                       const eg_backward_args *args, size_t *bytes);

/* Writes the plan of the call as text for people, one step a line (kernel, tile) and the workspace,
 * NUL-terminated and cut to `capacity` bytes, at least 1. As above, no memory is read. */
EG_API eg_status eg_forward_plan(eg_context *context, const eg_layer *layer, const eg_forward_args *args,
                                 char *text, size_t capacity);
EG_API eg_status eg_backward_plan(eg_context *context, const eg_layer *layer, const eg_backward_args *args,
                                  char *text, size_t capacity);

/* Packs B for the context's device, for forward and backward calls of layers that agree with `layer` in
 * k, n, batch or groups (where b has a batch stride), dtype and math; m is free. The pack is a copy: later
 * changes to b do not reach it. eg_packed_update fills it anew, as after an optimiser's step, from a b of the
 * same sizes, in any layout.
 *
 * A call may give b beside its pack. It is not read, but with more than one item its batch stride must be 0
 * if that of the packed b was, and only then. A pack has one level. For a call with two it is made from one b
 * for all items, or by a layer without outer_batch whose batch is all outer_batch x batch items, one after
 * the other.
 *
 * Several calls may read a pack. It belongs to its context, and is freed when no enqueued call uses it any
 * more; NULL is allowed. */
EG_API eg_status eg_pack_b(eg_context *context, const eg_layer *layer, const eg_matrix *b,
                           eg_packed **packed);
EG_API eg_status eg_packed_update(eg_context *context, eg_packed *packed, const eg_matrix *b);
EG_API void eg_packed_free(eg_context *context, eg_packed *packed);

/* ---- Looking at the library --------------------------------------------------------------------- */

/* What the context runs on. Strings are owned by the context. */
typedef struct eg_device_info {
    size_t size;
    eg_backend backend;
    const char *name;     /* the device, e.g. "AMD EPYC, family 25, model 17" */
    const char *features; /* instruction sets or device capabilities in use, separated by spaces */
    int threads;          /* CPU threads a call may use; 0 elsewhere */
} eg_device_info;

/* `info->size` is set by the caller. Here and below, what a newer struct has beyond the library's own is left
 * as it is. */
EG_API eg_status eg_get_device_info(eg_context *context, eg_device_info *info);

/* Strings are the library's, and stay. */
typedef struct eg_kernel_info {
    size_t size;
    const char *name;  /* as in plans and in the source: `git grep` finds it */
    eg_dtype compute;  /* the type it computes in */
    int usable;        /* 1 if this context's device has what it requires */
    const char *needs; /* the capability it requires */
    const char *tile;  /* "8x48": rows x columns of the result that it makes at once */
} eg_kernel_info;

/* Row `index` of the backend's kernel table, best first, from 0; EG_ERR_ARGUMENT past the last row.
 * `info->size` is set by the caller. */
EG_API eg_status eg_get_kernel_info(eg_context *context, int index, eg_kernel_info *info);

/* Measures the arithmetic peak in GFLOP/s for layers of `dtype`: independent multiply-adds in registers, as
 * the kernel has them that would be used, for some tens of milliseconds; on the CPU by the context's threads,
 * at most one a core. It waits for them. EG_ERR_UNSUPPORTED where no kernel of the backend computes in that
 * type. */
EG_API eg_status eg_measure_peak(eg_context *context, eg_dtype dtype, double *gflops);

/* Converts `count` elements of type `from` at `src` to type `to` at `dst`, rounding to nearest even. Both are
 * host memory, aligned to their elements. The buffers must not overlap, nor be the same: EG_ERR_ARGUMENT
 * then, and nothing is written. */
EG_API eg_status eg_convert(void *dst, eg_dtype to, const void *src, eg_dtype from, size_t count);

#ifdef __cplusplus
}
#endif

#endif /* EPIGRAD_EPIGRAD_H */
