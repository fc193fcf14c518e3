/* What a backend is: what it can do (eg_caps, from which plans are made) and how it does it. */
#ifndef EG_BACKEND_H
#define EG_BACKEND_H

#include "plan.h"

/* The capabilities of an open device: all a plan may depend on. */
struct eg_caps {
    eg_backend backend;
    bool packs;               /* operands are packed before they are multiplied */
    bool rounds_grad_pre;     /* products read a grad_pre of 16 bits; else one of f32 */
    eg_addressing addressing; /* of eg_matrix.data */
    uint32_t features;        /* bits of the backend's own meaning */
    int threads;              /* CPU */
    const char *only_kernel;  /* NULL, or the one kernel row that may be used */
    const void *detail;       /* the backend's own capabilities, if it needs more */
};

typedef struct eg_backend_ops {
    /* Opens the device and fills context->caps, ->name, ->features and ->device. */
    eg_status (*open)(eg_context *context, const eg_open_info *info);
    void (*close)(eg_context *context);
    eg_status (*sync)(eg_context *context);
    eg_status (*alloc)(eg_context *context, size_t bytes, void **memory);
    void (*free)(eg_context *context, void *memory);
    eg_status (*upload)(eg_context *context, void *memory, size_t offset, const void *host, size_t bytes);
    eg_status (*download)(eg_context *context, void *host, const void *memory, size_t offset, size_t bytes);
    /* Pure: chooses a kernel for each step of the plan and lays out the workspace. */
    eg_status (*select)(const eg_caps *caps, eg_plan *plan);
    eg_status (*launch)(eg_context *context, const eg_plan *plan, void *workspace, size_t offset);
    /* Fills packed->data, which is made where it is NULL. */
    eg_status (*pack)(eg_context *context, const eg_problem *problem, eg_packed *packed);
    /* Pure: the bytes of packed->data. NULL: products read B as it is, and nothing is gained by a pack. */
    eg_status (*pack_bytes)(const eg_caps *caps, const eg_problem *problem, size_t *bytes);
    eg_status (*kernel_info)(const eg_caps *caps, int index, eg_kernel_info *info);
    eg_status (*measure_peak)(eg_context *context, eg_dtype dtype, double *gflops);
} eg_backend_ops;

typedef struct eg_slabs_seen eg_slabs_seen; /* slabs_seen.c */

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
    eg_slabs_seen *slabs_seen;
};

/* B in the layouts that the products read it in. */
struct eg_packed {
    const eg_context *context;
    eg_layer layer;
    bool batched;
    void *data;                                /* device memory */
    eg_region forward;                         /* for A·B */
    eg_region transposed;                      /* for grad_pre·Bᵀ */
    eg_region forward_cells, transposed_cells; /* CPU: the same for matrix units, if calls may use one */
    bool outside_cells;                        /* CPU: B has numbers that they cannot take */
};

/* NULL where the build lacks the backend. */
const eg_backend_ops *eg_cpu_ops(void);
const eg_backend_ops *eg_cuda_ops(void);
const eg_backend_ops *eg_webgpu_ops(void);

const eg_backend_ops *eg_backend_find(eg_backend backend);

void *eg_host_alloc(const eg_context *context, size_t bytes);
void eg_host_free(const eg_context *context, void *memory);
char *eg_host_text(const eg_context *context, const char *text);

#endif
