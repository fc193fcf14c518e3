/* SPDX-License-Identifier: Apache-2.0 */
#include "cuda/gated.h"
#include "cuda/pair.h"
#include "fake_driver.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cuda.h>

#define EXPORT __attribute__((visibility("default")))

EXPORT fake_cuda eg_fake_cuda;

/* A node is known by its number in its graph, from 1. */
enum { FAKE_NODES = 64 };
typedef struct fake_graph {
    float ms;     /* what its launches take */
    bool changed; /* since it was launched */
    int nodes;
    char node[FAKE_NODES][64]; /* what each launches */
} fake_graph;

static CUstream captured;         /* the stream that a graph is made of; NULL: none */
static fake_graph captured_graph; /* of it */
static float now_ms;              /* of the device's clock */

typedef struct fake_event {
    float ms;
} fake_event;
static int thing; /* handles point to it: contexts, modules, graphs */

static int setting(const char *name, int otherwise) {
    const char *value = getenv(name);
    return value != NULL ? atoi(value) : otherwise;
}

EXPORT void fake_launch(const char *name) {
    if (eg_fake_cuda.launches < FAKE_LAUNCHES) {
        char *launch = eg_fake_cuda.launch[eg_fake_cuda.launches];
        snprintf(launch, sizeof eg_fake_cuda.launch[0], "%s", name);
    }
    eg_fake_cuda.launches++;
    const bool library = strncmp(name, "cublaslt", 8) == 0;
    const bool quick = strcmp(name, eg_fake_cuda.quick) == 0 &&
                       (!library || eg_fake_cuda.library_algorithm == eg_fake_cuda.quick_algorithm);
    const float ms = quick ? 0.25F : 1;
    *(captured != NULL ? &captured_graph.ms : &now_ms) += ms;
    if (captured == NULL || captured_graph.nodes >= FAKE_NODES) return;
    char *node = captured_graph.node[captured_graph.nodes++];
    snprintf(node, sizeof captured_graph.node[0], "%s", name);
}

/* ---- The device --------------------------------------------------------------------------------- */

EXPORT CUresult cuInit(unsigned flags) {
    (void)flags;
    return (CUresult)setting("FAKE_CUDA_INIT", CUDA_SUCCESS);
}

EXPORT CUresult cuGetErrorName(CUresult error, const char **text) {
    *text = error == CUDA_ERROR_ILLEGAL_ADDRESS ? "CUDA_ERROR_ILLEGAL_ADDRESS" : "CUDA_ERROR_OTHER";
    return CUDA_SUCCESS;
}

EXPORT CUresult cuGetErrorString(CUresult error, const char **text) {
    *text = error == CUDA_ERROR_NO_DEVICE ? "no CUDA-capable device is detected" : "some error";
    return CUDA_SUCCESS;
}

EXPORT CUresult cuDeviceGetCount(int *count) {
    *count = 1;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuDeviceGet(CUdevice *device, int ordinal) {
    *device = ordinal;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuDeviceGetName(char *name, int length, CUdevice device) {
    snprintf(name, (size_t)length, "no device %d", device);
    return CUDA_SUCCESS;
}

EXPORT CUresult cuDeviceGetAttribute(int *value, CUdevice_attribute which, CUdevice device) {
    (void)device;
    switch (which) {
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR:
        *value = setting("FAKE_CUDA_MAJOR", 9);
        break;
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR:
        *value = 0;
        break;
    case CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE:
        *value = 1 << 20;
        break;
    case CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT:
        *value = 132;
        break;
    default:
        *value = setting("FAKE_CUDA_SHARED", 227 << 10);
    }
    return CUDA_SUCCESS;
}

EXPORT CUresult cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice device) {
    (void)device;
    *context = (CUcontext)&thing;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuDevicePrimaryCtxRelease(CUdevice device) {
    (void)device;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuCtxPushCurrent(CUcontext context) {
    return context != NULL ? CUDA_SUCCESS : CUDA_ERROR_INVALID_CONTEXT;
}

EXPORT CUresult cuCtxPopCurrent(CUcontext *context) {
    *context = (CUcontext)&thing;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuCtxGetDevice(CUdevice *device) {
    *device = 0;
    return CUDA_SUCCESS;
}

/* ---- Streams, events, memory -------------------------------------------------------------------- */

EXPORT CUresult cuStreamCreate(CUstream *stream, unsigned flags) {
    (void)flags;
    *stream = malloc(1);
    if (*stream == NULL) return CUDA_ERROR_OUT_OF_MEMORY;
    eg_fake_cuda.streams++;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuStreamDestroy(CUstream stream) {
    free(stream);
    eg_fake_cuda.streams--;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuStreamWaitEvent(CUstream stream, CUevent event, unsigned flags) {
    (void)stream, (void)event, (void)flags;
    if (eg_fake_cuda.waits++ == 0) {
        eg_fake_cuda.launches_before_wait = eg_fake_cuda.launches;
        eg_fake_cuda.launches_before_record = eg_fake_cuda.recorded;
    }
    return CUDA_SUCCESS;
}

EXPORT CUresult cuStreamQuery(CUstream stream) {
    (void)stream;
    return eg_fake_cuda.stream_hangs ? CUDA_ERROR_NOT_READY : CUDA_SUCCESS;
}

EXPORT CUresult cuStreamSynchronize(CUstream stream) {
    if (captured != NULL && stream == captured) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    eg_fake_cuda.synchronisations++;
    return (CUresult)eg_fake_cuda.sync_result;
}

EXPORT CUresult cuEventCreate(CUevent *event, unsigned flags) {
    (void)flags;
    fake_event *made = calloc(1, sizeof *made);
    *event = (CUevent)made;
    if (made == NULL) return CUDA_ERROR_OUT_OF_MEMORY;
    eg_fake_cuda.events++;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuEventDestroy(CUevent event) {
    free(event);
    eg_fake_cuda.events--;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuEventRecord(CUevent event, CUstream stream) {
    (void)stream;
    ((fake_event *)event)->ms = now_ms;
    eg_fake_cuda.recorded = eg_fake_cuda.launches;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuEventSynchronize(CUevent event) {
    (void)event;
    eg_fake_cuda.synchronisations++;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuEventElapsedTime(float *ms, CUevent begin, CUevent end) {
    *ms = ((fake_event *)end)->ms - ((fake_event *)begin)->ms;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuMemsetD32Async(CUdeviceptr to, unsigned value, size_t count, CUstream stream) {
    (void)to, (void)value, (void)count, (void)stream;
    fake_launch("cuMemsetD32Async");
    if (captured == NULL) eg_fake_cuda.clears++;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuMemAlloc(CUdeviceptr *address, size_t bytes) {
    if (eg_fake_cuda.memory_result != CUDA_SUCCESS) return (CUresult)eg_fake_cuda.memory_result;
    void *memory = aligned_alloc(256, (bytes + 255) / 256 * 256);
    *address = (CUdeviceptr)memory;
    eg_fake_cuda.allocations++;
    eg_fake_cuda.pieces += memory != NULL;
    return memory != NULL ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

EXPORT CUresult cuMemFree(CUdeviceptr address) {
    free((void *)address);
    eg_fake_cuda.pieces--;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuMemHostAlloc(void **memory, size_t bytes, unsigned flags) {
    (void)flags;
    *memory = calloc(1, bytes);
    eg_fake_cuda.word = *memory;
    eg_fake_cuda.pieces += *memory != NULL;
    return *memory != NULL ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

EXPORT CUresult cuMemHostGetDevicePointer(CUdeviceptr *address, void *memory, unsigned flags) {
    (void)flags;
    *address = (CUdeviceptr)memory;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuMemFreeHost(void *memory) {
    free(memory);
    eg_fake_cuda.pieces--;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuMemcpyDtoDAsync(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream) {
    (void)stream;
    if (eg_fake_cuda.copy_result != CUDA_SUCCESS) return (CUresult)eg_fake_cuda.copy_result;
    memcpy((void *)to, (const void *)from, bytes);
    return CUDA_SUCCESS;
}

EXPORT CUresult cuMemcpyHtoDAsync(CUdeviceptr to, const void *from, size_t bytes, CUstream stream) {
    (void)stream;
    memcpy((void *)to, from, bytes);
    return CUDA_SUCCESS;
}

EXPORT CUresult cuMemcpyDtoHAsync(void *to, CUdeviceptr from, size_t bytes, CUstream stream) {
    (void)stream;
    memcpy(to, (const void *)from, bytes);
    return CUDA_SUCCESS;
}

/* ---- Kernels: a function is its name ------------------------------------------------------------ */

EXPORT CUresult cuModuleLoadData(CUmodule *module, const void *image) {
    (void)image;
    if (eg_fake_cuda.module_result != CUDA_SUCCESS) return (CUresult)eg_fake_cuda.module_result;
    eg_fake_cuda.modules++;
    *module = (CUmodule)&thing;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuModuleUnload(CUmodule module) {
    (void)module;
    return CUDA_SUCCESS;
}

/* Names are kept for the life of the process. */
EXPORT CUresult cuModuleGetFunction(CUfunction *function, CUmodule module, const char *name) {
    static char *names[256];
    (void)module;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        if (names[i] == NULL) names[i] = strdup(name);
        *function = (CUfunction)names[i];
        if (names[i] != NULL && strcmp(names[i], name) == 0) return CUDA_SUCCESS;
    }
    return CUDA_ERROR_NOT_FOUND;
}

EXPORT CUresult cuFuncSetAttribute(CUfunction function, CUfunction_attribute which, int value) {
    (void)function, (void)which, (void)value;
    return CUDA_SUCCESS;
}

static void keep_parameter(const void *parameter, size_t bytes) {
    memcpy(eg_fake_cuda.parameter, parameter, bytes);
    for (size_t i = 0; i < bytes / sizeof *eg_fake_cuda.parameter; i++)
        eg_fake_cuda.watched_captured +=
            captured != NULL && eg_fake_cuda.parameter[i] == eg_fake_cuda.watched;
}

static void keep_parameters(const char *function, void **parameters) {
    static const struct {
        const char *name; /* how it begins */
        size_t bytes;
    } kept[] = {{"eg_gated_grad_", sizeof(eg_cuda_gated)},
                {"eg_hopper_bf16_gated_", sizeof(eg_cuda_hopper_pair)},
                {"eg_hopper_bf16_pingpong_", sizeof(eg_cuda_hopper)},
                {"eg_map_y_", sizeof(eg_cuda_gemm)},
                {"eg_act_grad_product_", sizeof(eg_cuda_act_grad)},
                {"eg_act_grad_bf16", sizeof(eg_cuda_act_grad)},
                {"eg_hopper_act_grad_", sizeof(eg_cuda_act_grad)}};
    for (size_t i = 0; i < sizeof kept / sizeof *kept; i++) {
        if (strncmp(function, kept[i].name, strlen(kept[i].name)) == 0)
            keep_parameter(parameters[0], kept[i].bytes);
    }
    snprintf(eg_fake_cuda.last_kernel, sizeof eg_fake_cuda.last_kernel, "%s", function);
}

EXPORT CUresult cuLaunchKernelEx(const CUlaunchConfig *config, CUfunction function, void **parameters,
                                 void **extra) {
    (void)extra;
    keep_parameters((const char *)function, parameters);
    eg_fake_cuda.last_blocks = config->gridDimX;
    eg_fake_cuda.last_cluster = 1;
    for (unsigned i = 0; i < config->numAttrs; i++) {
        if (config->attrs[i].id == CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION)
            eg_fake_cuda.last_cluster = config->attrs[i].value.clusterDim.x;
    }
    fake_launch((const char *)function + sizeof "eg_" - 1);
    if (captured == NULL) eg_fake_cuda.kernels++;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuTensorMapEncodeTiled(CUtensorMap *map, CUtensorMapDataType type, cuuint32_t rank,
                                       void *address, const cuuint64_t *extent, const cuuint64_t *strides,
                                       const cuuint32_t *box, const cuuint32_t *steps,
                                       CUtensorMapInterleave interleave, CUtensorMapSwizzle swizzle,
                                       CUtensorMapL2promotion promotion, CUtensorMapFloatOOBfill fill) {
    const uint64_t element = type == CU_TENSOR_MAP_DATA_TYPE_FLOAT64   ? 8
                             : type == CU_TENSOR_MAP_DATA_TYPE_FLOAT32 ? 4
                                                                       : 2;
    (void)rank, (void)steps, (void)interleave, (void)swizzle, (void)promotion, (void)fill;
    memset(map, 0, sizeof *map);
    if (extent[0] == 0) return CUDA_ERROR_INVALID_VALUE;
    if (eg_fake_cuda.maps < FAKE_MAPS)
        eg_fake_cuda.map[eg_fake_cuda.maps] = (fake_map){.address = (uint64_t)(uintptr_t)address,
                                                         .row_bytes = extent[0] * element,
                                                         .rows = (uint32_t)extent[1],
                                                         .box_rows = box[1],
                                                         .items = (uint32_t)extent[2],
                                                         .pitch = strides[0],
                                                         .item_pitch = strides[1]};
    eg_fake_cuda.maps++;
    return CUDA_SUCCESS;
}

/* ---- Graphs
 * ------------------------------------------------------------------------------------------------ */

static _Thread_local CUstreamCaptureMode capture_mode = CU_STREAM_CAPTURE_MODE_GLOBAL;

EXPORT CUresult cuThreadExchangeStreamCaptureMode(CUstreamCaptureMode *mode) {
    const CUstreamCaptureMode before = capture_mode;
    capture_mode = *mode;
    *mode = before;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuStreamIsCapturing(CUstream stream, CUstreamCaptureStatus *status) {
    const bool is =
        (captured != NULL && stream == captured) || (stream == NULL && eg_fake_cuda.caller_captures);
    *status = is ? CU_STREAM_CAPTURE_STATUS_ACTIVE : CU_STREAM_CAPTURE_STATUS_NONE;
    return CUDA_SUCCESS;
}

/* The default stream cannot be captured, nor can two streams at once. */
EXPORT CUresult cuStreamBeginCapture(CUstream stream, CUstreamCaptureMode mode) {
    (void)mode;
    if (stream == NULL || captured != NULL) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    captured = stream;
    captured_graph = (fake_graph){.ms = 0};
    return CUDA_SUCCESS;
}

EXPORT CUresult cuStreamEndCapture(CUstream stream, CUgraph *graph) {
    if (stream != captured) return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
    captured = NULL;
    fake_graph *made = calloc(1, sizeof *made);
    if (made == NULL) return CUDA_ERROR_OUT_OF_MEMORY;
    *made = captured_graph;
    *graph = (CUgraph)made;
    eg_fake_cuda.captures++;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuGraphInstantiate(CUgraphExec *made, CUgraph graph, unsigned long long flags) {
    (void)flags;
    eg_fake_cuda.recordings++;
    if (eg_fake_cuda.record_result != CUDA_SUCCESS) return (CUresult)eg_fake_cuda.record_result;
    fake_graph *copy = calloc(1, sizeof *copy);
    if (copy == NULL) return CUDA_ERROR_OUT_OF_MEMORY;
    *copy = *(fake_graph *)graph;
    *made = (CUgraphExec)copy;
    eg_fake_cuda.graphs++;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuGraphLaunch(CUgraphExec graph, CUstream stream) {
    fake_graph *launched = (fake_graph *)graph;
    (void)stream;
    now_ms += launched->ms;
    launched->changed ? eg_fake_cuda.changed++ : eg_fake_cuda.replays++;
    launched->changed = false;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuStreamGetCaptureInfo_v3(CUstream stream, CUstreamCaptureStatus *status, cuuint64_t *id,
                                          CUgraph *graph, const CUgraphNode **nodes,
                                          const CUgraphEdgeData **edges, size_t *count) {
    static CUgraphNode last;
    (void)stream, (void)id, (void)graph, (void)edges;
    *status = captured != NULL ? CU_STREAM_CAPTURE_STATUS_ACTIVE : CU_STREAM_CAPTURE_STATUS_NONE;
    last = (CUgraphNode)(uintptr_t)captured_graph.nodes;
    *nodes = &last;
    *count = 1;
    return CUDA_SUCCESS;
}

static bool change_node(CUgraphExec graph, CUgraphNode node, const char *launches) {
    fake_graph *changed = (fake_graph *)graph;
    const uintptr_t number = (uintptr_t)node;
    if (number < 1 || number > (uintptr_t)changed->nodes) return false;
    if (strcmp(changed->node[number - 1], launches) != 0) return false;
    changed->changed = true;
    fake_launch(launches);
    return true;
}

EXPORT CUresult cuGraphExecKernelNodeSetParams(CUgraphExec graph, CUgraphNode node,
                                               const CUDA_KERNEL_NODE_PARAMS *to) {
    if (eg_fake_cuda.change_result != CUDA_SUCCESS) return (CUresult)eg_fake_cuda.change_result;
    if (!change_node(graph, node, (const char *)to->func + sizeof "eg_" - 1)) return CUDA_ERROR_INVALID_VALUE;
    keep_parameters((const char *)to->func, to->kernelParams);
    eg_fake_cuda.kernels++;
    return CUDA_SUCCESS;
}

/* As the driver: whatever is launched, in the same order; parameters may be others. */
static bool same_nodes(const fake_graph *x, const fake_graph *y) {
    if (x->nodes != y->nodes) return false;
    for (int i = 0; i < x->nodes && i < FAKE_NODES; i++) {
        if (strcmp(x->node[i], y->node[i]) != 0) return false;
    }
    return true;
}

EXPORT CUresult cuGraphExecUpdate_v2(CUgraphExec graph, CUgraph to, CUgraphExecUpdateResultInfo *info) {
    fake_graph *changed = (fake_graph *)graph;
    (void)info;
    if (eg_fake_cuda.change_result != CUDA_SUCCESS) return (CUresult)eg_fake_cuda.change_result;
    if (!same_nodes(changed, (const fake_graph *)to)) return CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE;
    changed->changed = true;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuGraphExecDestroy(CUgraphExec graph) {
    free(graph);
    eg_fake_cuda.graphs--;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuGraphDestroy(CUgraph graph) {
    free(graph);
    eg_fake_cuda.captures--;
    return CUDA_SUCCESS;
}
