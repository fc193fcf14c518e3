/* Calls seen before. A call is recorded as a CUDA graph the second time it is made, and from then on is one
 * launch: a microsecond of the host's time, where its kernels would cost two to six each.
 *
 * A call is known by its whole problem, operands and their addresses included, so a graph is never wrong,
 * only not found: a call with new addresses goes kernel by kernel. (Padding of the key may differ too; that
 * costs a recording and nothing else.) What is kept is bounded. An old recording gives way to a new one only
 * when it has rested for long, so that a loop over more calls than there is room for keeps those that it has.
 */
#include <stdlib.h>
#include <string.h>

#include "../error.h"
#include "device.h"

/* The driver keeps some 0.2 MB of device memory for a graph. */
enum { RECORDS = 128, PROBES = 8, SEEN = 1024, RESTED = 4 * SEEN };

/* All that decides what is launched, as words: the problem, the workspace, and what a pack holds (its handle
 * may come again). */
enum { PROBLEM = sizeof(eg_problem) / sizeof(uint64_t), WORDS = PROBLEM + 3 };
_Static_assert(sizeof(eg_problem) % sizeof(uint64_t) == 0, "whole words");

typedef struct record_key {
    uint64_t words[WORDS];
} record_key;

typedef struct record {
    uint64_t hash;     /* 0: free */
    uint64_t used;     /* the number of the call that used it last */
    CUgraphExec graph; /* NULL: this call cannot be recorded */
    record_key key;
} record;

struct eg_cuda_records {
    CUstream stream; /* to capture on: the caller's may be the default one, which cannot be */
    uint64_t calls;
    uint64_t seen[SEEN]; /* hashes of calls made once */
    record slots[RECORDS];
};

/* ---- Opening ---------------------------------------------------------------------------------------- */

/* EPIGRAD_CUDA_GRAPHS: "off" for every call kernel by kernel. */
static bool wanted(const eg_cuda_device *device) {
    const char *setting = getenv("EPIGRAD_CUDA_GRAPHS");
    return !device->checked && (setting == NULL || strcmp(setting, "off") != 0);
}

eg_status eg_cuda_records_open(const eg_context *context, eg_cuda_device *device) {
    if (!wanted(device)) return EG_OK;
    device->records = eg_host_alloc(context, sizeof *device->records);
    if (device->records == NULL)
        return eg_fail(EG_ERR_OUT_OF_MEMORY, "no memory for %zu bytes of recorded calls",
                       sizeof *device->records);
    memset(device->records, 0, sizeof *device->records);
    return eg_cuda_check(device,
                         device->driver->cuStreamCreate(&device->records->stream, CU_STREAM_NON_BLOCKING),
                         "cuStreamCreate");
}

void eg_cuda_records_close(const eg_context *context, eg_cuda_device *device) {
    eg_cuda_records *records = device->records;
    if (records == NULL) return;
    for (int i = 0; i < RECORDS; i++) {
        if (records->slots[i].graph != NULL) device->driver->cuGraphExecDestroy(records->slots[i].graph);
    }
    if (records->stream != NULL) device->driver->cuStreamDestroy(records->stream);
    eg_host_free(context, records);
}

/* ---- Finding a call ----------------------------------------------------------------------------------- */

static record_key key_of(const eg_plan *plan, uint64_t workspace) {
    const eg_packed *packed = plan->problem.packed_b;
    eg_problem problem = plan->problem;
    record_key key = {.words = {[PROBLEM] = workspace}};
    problem.packed_b = NULL;
    memcpy(key.words, &problem, sizeof problem);
    if (packed == NULL) return key;
    key.words[PROBLEM + 1] = (uint64_t)(uintptr_t)packed->data;
    key.words[PROBLEM + 2] = packed->transposed.offset << 1 | packed->batched;
    return key;
}

/* Never 0. */
static uint64_t hash_of(const record_key *key) {
    uint64_t hash = 0xcbf29ce484222325U;
    for (int i = 0; i < WORDS; i++) {
        hash = (hash ^ key->words[i]) * 0x9e3779b97f4a7c15U;
        hash ^= hash >> 32;
    }
    return hash | 1;
}

static record *find(eg_cuda_records *records, const record_key *key, uint64_t hash) {
    for (uint64_t i = 0; i < PROBES; i++) {
        record *slot = &records->slots[(hash / 2 + i) % RECORDS];
        if (slot->hash == hash && memcmp(slot->key.words, key->words, sizeof key->words) == 0) return slot;
    }
    return NULL;
}

/* A free place for the call, or that of one which has rested; NULL where there is none. */
static record *make_room(eg_cuda_device *device, uint64_t hash) {
    eg_cuda_records *records = device->records;
    record *oldest = NULL;
    for (uint64_t i = 0; i < PROBES; i++) {
        record *slot = &records->slots[(hash / 2 + i) % RECORDS];
        if (slot->hash == 0) return slot;
        if (oldest == NULL || slot->used < oldest->used) oldest = slot;
    }
    if (records->calls - oldest->used < RESTED) return NULL;
    if (oldest->graph != NULL) device->driver->cuGraphExecDestroy(oldest->graph);
    *oldest = (record){.hash = 0};
    return oldest;
}

/* ---- Recording and replaying -------------------------------------------------------------------------- */

/* NULL where something of the call cannot be captured: it then goes kernel by kernel. */
static CUgraphExec capture(eg_cuda_device *device, const eg_plan *plan, uint64_t workspace) {
    const eg_cuda_driver *driver = device->driver;
    CUstream stream = device->records->stream;
    CUgraph graph = NULL;
    CUgraphExec made = NULL;
    if (driver->cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_RELAXED) != CUDA_SUCCESS) return NULL;
    const eg_status status = eg_cuda_enqueue(device, plan, workspace, stream);
    const CUresult result = driver->cuStreamEndCapture(stream, &graph);
    if (status != EG_OK || result != CUDA_SUCCESS || driver->cuGraphInstantiate(&made, graph, 0) != 0)
        made = NULL;
    if (graph != NULL) driver->cuGraphDestroy(graph);
    return made;
}

static record *record_call(eg_cuda_device *device, const eg_plan *plan, const record_key *key,
                           uint64_t hash) {
    uint64_t *seen = &device->records->seen[hash / 2 % SEEN];
    const bool again = *seen == hash;
    *seen = hash;
    record *slot = again ? make_room(device, hash) : NULL;
    if (slot == NULL) return NULL;
    slot->hash = hash;
    slot->key = *key;
    slot->graph = capture(device, plan, key->words[PROBLEM]);
    return slot;
}

/* A stream that is being captured gets the kernels themselves: the graph is then the caller's. */
static bool may_replay(const eg_cuda_device *device) {
    CUstreamCaptureStatus capturing = CU_STREAM_CAPTURE_STATUS_NONE;
    return device->records != NULL &&
           device->driver->cuStreamIsCapturing(device->stream, &capturing) == CUDA_SUCCESS &&
           capturing == CU_STREAM_CAPTURE_STATUS_NONE;
}

eg_status eg_cuda_replay(eg_cuda_device *device, const eg_plan *plan, uint64_t workspace, bool *done) {
    *done = false;
    if (!may_replay(device)) return EG_OK;
    const record_key key = key_of(plan, workspace);
    const uint64_t hash = hash_of(&key);
    record *slot = find(device->records, &key, hash);
    if (slot == NULL) slot = record_call(device, plan, &key, hash);
    device->records->calls++;
    if (slot == NULL || slot->graph == NULL) return EG_OK;
    slot->used = device->records->calls;
    *done = true;
    eg_cuda_name_kernels(device, plan);
    return eg_cuda_check(device, device->driver->cuGraphLaunch(slot->graph, device->stream), "cuGraphLaunch");
}
