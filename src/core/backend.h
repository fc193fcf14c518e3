/* SPDX-License-Identifier: Apache-2.0 */
/* What a backend is: what it can do (eg_caps, for which programs are compiled) and how it does it. */
#ifndef EG_BACKEND_H
#define EG_BACKEND_H

#include "program.h"

typedef struct eg_compile_scratch eg_compile_scratch; /* compile_scratch.h */

/* The capabilities of an open device: all that a program may depend on beside its operations. */
struct eg_caps {
    eg_backend backend;
    bool one_level;           /* of a batch of two, outer items run one after the other, as chunks */
    bool reads_ends;          /* kernels read the ends of groups: a grouped call has one program */
    bool rounds_grad_pre;     /* products read a grad_pre of 16 bits; else one of f32 */
    eg_addressing addressing; /* of eg_matrix.data */
    uint32_t features;        /* bits of the backend's own meaning */
    int threads;              /* CPU */
    bool refused;             /* kernels that may refuse numbers or products are left out (eg_program) */
    const char *only_kernel;  /* NULL, or the one kernel row that may be used */
    const eg_choice *choice;  /* NULL: the estimates' own */
    size_t caches;            /* bytes that the caches hold; 0: not known */
    /* Of the context. NULL, as in tests: what compiling needs is on the stack. */
    eg_compile_scratch *scratch;
    const void *detail; /* the backend's own capabilities, if it needs more */
};

typedef struct eg_groups eg_groups; /* groups.h */

typedef struct eg_backend_ops {
    /* Opens the device and fills context->caps, ->name, ->features and ->device. */
    eg_status (*open)(eg_context *context, const eg_open_info *info);
    void (*close)(eg_context *context);
    eg_status (*sync)(eg_context *context);
    eg_status (*alloc)(eg_context *context, size_t bytes, void **memory);
    void (*free)(eg_context *context, void *memory);
    eg_status (*upload)(eg_context *context, void *memory, size_t offset, const void *host, size_t bytes);
    eg_status (*download)(eg_context *context, void *host, const void *memory, size_t offset, size_t bytes);
    /* Pure: steps, regions and details for program->list, which is there; program is else as eg_compile
     * leaves it. */
    eg_status (*compile)(const eg_caps *caps, eg_program *program);
    /* Enqueues a program's steps. *refused, false before, tells that its numbers or products were refused:
     * nothing that is accumulated to has been touched then. */
    eg_status (*run)(eg_context *context, const eg_program *program, const eg_call *call, bool *refused);
    /* Whether calls may be timed now: not while the caller captures the stream. NULL: what the backend
     * chooses is not measured. */
    bool (*may_time)(const eg_context *context);
    /* Copies bytes from memory to memory, after the calls made before. */
    eg_status (*copy)(eg_context *context, void *to, const void *from, size_t bytes);
    /* A program's calls one after the other, to be timed. *recording is NULL where its products are refused,
     * or where they cannot be recorded. */
    eg_status (*record)(eg_context *context, const eg_program *program, const eg_call *calls, int count,
                        void **recording);
    /* Microseconds of a call of a recording, which it runs several times, and waits for. */
    eg_status (*replay)(eg_context *context, void *recording, double *microseconds);
    void (*forget)(eg_context *context, void *recording); /* NULL is allowed */
    /* Grouped calls whose ends the host reads, NULL where it does not: says the workspace, and runs a call
     * whose offsets have passed. */
    eg_status (*plan_groups)(const eg_caps *caps, eg_groups *groups);
    eg_status (*run_groups)(eg_context *context, const eg_groups *groups, const eg_problem *problem,
                            eg_address workspace);
    /* Fills packed->data. Where it is NULL, decides what the pack holds and makes it. */
    eg_status (*pack)(eg_context *context, const eg_problem *problem, eg_packed *packed);
    /* Pure: decides what the pack holds, and says the bytes of packed->data. NULL: products read B as it is,
     * and nothing is gained by a pack. */
    eg_status (*plan_pack)(const eg_caps *caps, const eg_problem *problem, eg_packed *packed, size_t *bytes);
    /* False past the last row of the kernel table. */
    bool (*kernel_info)(const eg_caps *caps, int index, eg_kernel_info *info);
    eg_status (*measure_peak)(eg_context *context, eg_dtype dtype, double *gflops);
} eg_backend_ops;

typedef struct eg_cache eg_cache; /* cache.c: programs of calls seen before */

struct eg_context {
    const eg_backend_ops *ops;
    eg_caps caps;
    eg_allocator allocator;
    char *name;     /* of the device */
    char *features; /* in words */
    char *only_kernel;
    void *device; /* the backend's own state */
    void *workspace;
    size_t workspace_bytes;
    eg_cache *cache;
    bool tunes; /* EG_TUNING_MEASURED, on a backend that can */
};

enum { EG_PACKED_DETAIL = 128 };

/* B as a backend's products read it. */
struct eg_packed {
    const eg_context *context;
    eg_layer layer;
    bool batched;
    uint64_t holds; /* what is in it, in the backend's own way: all that a program may depend on */
    void *data;     /* device memory */
    _Alignas(8) unsigned char detail[EG_PACKED_DETAIL]; /* where in it: the backend's own */
};

/* A row a backend, in the order of their numbers: EG_BACKEND_NAME of the header, and eg_name_ops(), which is
 * NULL where the build lacks it. */
#define EG_BACKEND_TABLE(X)                                                                                  \
    X(CPU, cpu)                                                                                              \
    X(CUDA, cuda)                                                                                            \
    X(WEBGPU, webgpu)

#define EG_ROW(NAME, name) const eg_backend_ops *eg_##name##_ops(void);
EG_BACKEND_TABLE(EG_ROW)
#undef EG_ROW

/* NULL too for a number that is no backend's. */
const eg_backend_ops *eg_backend_find(eg_backend backend);

/* Host memory: of the context's allocator, which is ours where the caller has none. */
eg_allocator eg_host_allocator(void);
void *eg_host_alloc(const eg_context *context, size_t bytes);
void eg_host_free(const eg_context *context, void *memory);
char *eg_host_text(const eg_context *context, const char *text);

/* Fills context->name and ->features with copies. */
eg_status eg_describe(eg_context *context, const char *name, const char *features);

#endif
