/* SPDX-License-Identifier: Apache-2.0 */
/* The nodes of a program's graph, all of them kernels: which they are, and what they launch. A node costs the
 * host a microsecond to change, and a launch of the graph two, where a kernel launched by itself costs three.
 */
#include "core/error.h"
#include "device.h"

bool eg_cuda_has_nodes(const eg_program *program) {
    for (int i = 0; i < program->steps; i++) {
        const eg_cuda_kernel *row = eg_cuda_detail(&program->step[i])->kernel;
        if (program->step[i].kind == EG_COLLECTIVE || row == NULL || row->family == EG_CUDA_LIBRARY)
            return false;
    }
    return program->steps > 0;
}

eg_status eg_cuda_note_node(eg_cuda_device *device, eg_cuda_nodes *nodes, CUstream stream) {
    CUstreamCaptureStatus status;
    cuuint64_t id;
    CUgraph graph;
    const CUgraphNode *last = NULL; /* what the stream's next node would depend on: this one alone */
    const CUgraphEdgeData *edges;
    size_t count = 0;
    EG_TRY(eg_cuda_check(
        device, device->driver->cuStreamGetCaptureInfo(stream, &status, &id, &graph, &last, &edges, &count),
        "cuStreamGetCaptureInfo"));
    if (nodes->count < EG_CUDA_MOST_NODES && count == 1) nodes->node[nodes->count] = last[0];
    nodes->count++;
    return EG_OK;
}

/* NULL, which the driver refuses, where the program launches more than was captured. */
static CUgraphNode next_of(eg_cuda_nodes *nodes) {
    const int next = nodes->next++;
    return next < nodes->count ? nodes->node[next] : NULL;
}

eg_status eg_cuda_change_kernel(eg_cuda_device *device, eg_cuda_nodes *nodes, const CUlaunchConfig *config,
                                CUfunction function, void **parameters) {
    const CUDA_KERNEL_NODE_PARAMS node = {.func = function,
                                          .gridDimX = config->gridDimX,
                                          .gridDimY = config->gridDimY,
                                          .gridDimZ = config->gridDimZ,
                                          .blockDimX = config->blockDimX,
                                          .blockDimY = config->blockDimY,
                                          .blockDimZ = config->blockDimZ,
                                          .sharedMemBytes = config->sharedMemBytes,
                                          .kernelParams = parameters};
    return eg_cuda_check(device,
                         device->driver->cuGraphExecKernelNodeSetParams(nodes->made, next_of(nodes), &node),
                         "cuGraphExecKernelNodeSetParams");
}
