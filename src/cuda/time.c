/* SPDX-License-Identifier: Apache-2.0 */
/* How long calls take on the device, in a graph of several: there a kernel is set up while the one before it
 * drains, as in a network. */
#include "core/error.h"
#include "device.h"

typedef struct recording {
    CUgraphExec graph;
    CUevent begin, end;
    int calls, replays; /* of the graph, each time: 0 until that is known */
} recording;

bool eg_cuda_may_time(const eg_cuda_device *device) {
    CUstreamCaptureStatus capturing = CU_STREAM_CAPTURE_STATUS_NONE;
    return device->driver->cuStreamIsCapturing(device->stream, &capturing) == CUDA_SUCCESS &&
           capturing == CU_STREAM_CAPTURE_STATUS_NONE;
}

static eg_status make_recording(eg_cuda_device *device, const eg_program *program, const eg_call *calls,
                                int count, recording *to) {
    const eg_cuda_driver *driver = device->driver;
    CUstream stream; /* the caller's may be the default one, which cannot be captured */
    *to = (recording){.calls = count};
    EG_TRY(eg_cuda_check(device, driver->cuEventCreate(&to->begin, CU_EVENT_DEFAULT), "cuEventCreate"));
    EG_TRY(eg_cuda_check(device, driver->cuEventCreate(&to->end, CU_EVENT_DEFAULT), "cuEventCreate"));
    EG_TRY(eg_cuda_check(device, driver->cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING), "cuStreamCreate"));
    to->graph = eg_cuda_capture(device, program, calls, count, stream);
    driver->cuStreamDestroy(stream);
    return EG_OK;
}

void eg_cuda_forget_recording(const eg_context *context, eg_cuda_device *device, void *made) {
    recording *x = made;
    if (x == NULL) return;
    if (x->graph != NULL) device->driver->cuGraphExecDestroy(x->graph);
    if (x->begin != NULL) device->driver->cuEventDestroy(x->begin);
    if (x->end != NULL) device->driver->cuEventDestroy(x->end);
    eg_host_free(context, x);
}

eg_status eg_cuda_record(const eg_context *context, eg_cuda_device *device, const eg_program *program,
                         const eg_call *calls, int count, void **made) {
    *made = NULL;
    if (!eg_cuda_library_takes(device, program, &calls[0])) return EG_OK;
    recording *x = eg_host_alloc(context, sizeof *x);
    if (x == NULL) return eg_fail(EG_ERR_OUT_OF_MEMORY, "no memory for a recording of %zu bytes", sizeof *x);
    const eg_status status = make_recording(device, program, calls, count, x);
    if (status == EG_OK && x->graph != NULL) {
        *made = x;
    } else {
        eg_cuda_forget_recording(context, device, x);
    }
    return status;
}

static eg_status replay(eg_cuda_device *device, const recording *x, int replays, double *microseconds) {
    const eg_cuda_driver *driver = device->driver;
    float ms = 0;
    EG_TRY(eg_cuda_check(device, driver->cuEventRecord(x->begin, device->stream), "cuEventRecord"));
    for (int i = 0; i < replays; i++)
        EG_TRY(eg_cuda_check(device, driver->cuGraphLaunch(x->graph, device->stream), "cuGraphLaunch"));
    EG_TRY(eg_cuda_check(device, driver->cuEventRecord(x->end, device->stream), "cuEventRecord"));
    EG_TRY(eg_cuda_check(device, driver->cuEventSynchronize(x->end), "cuEventSynchronize"));
    EG_TRY(eg_cuda_check(device, driver->cuEventElapsedTime(&ms, x->begin, x->end), "cuEventElapsedTime"));
    *microseconds = (double)ms * 1e3 / replays / x->calls;
    return EG_OK;
}

/* For a fifth of a millisecond, beside which the launch of a graph takes little. The first one warms up. */
eg_status eg_cuda_replay_recording(eg_cuda_device *device, void *made, double *microseconds) {
    enum { MOST = 16 };
    const double enough = 200;
    recording *x = made;
    if (x->replays == 0) {
        EG_TRY(replay(device, x, 1, microseconds));
        if (*microseconds * x->calls < enough) EG_TRY(replay(device, x, 1, microseconds));
        const double replays = enough / (*microseconds * x->calls) + 1;
        x->replays = replays < MOST ? (int)replays : MOST;
    }
    return replay(device, x, x->replays, microseconds);
}
