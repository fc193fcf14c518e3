/* SPDX-License-Identifier: Apache-2.0 */
/* Calls made before. A call becomes a CUDA graph the second time it is made, and from then on is one launch:
 * two microseconds of the host's time, where its kernels would cost two to six each.
 *
 * A call is known by its program and all of its addresses, so a graph is never wrong, only not found. A call
 * with new addresses is launched by a graph that its program has for such calls, which is given the
 * addresses; or kernel by kernel, where the program has not been met before. What is kept is bounded. An old
 * graph gives way to a new one only when it has rested for long, so that a loop over more calls than there is
 * room for keeps those that it has. */
#include <stdlib.h>
#include <string.h>

#include "core/error.h"
#include "device.h"

/* The driver keeps some 0.2 MB of device memory for a graph. */
enum { RECORDS = 128, PROBES = 8, SEEN = 1024, RESTED = 4 * SEEN, PATTERNS = 32 };

/* All that decides what is launched, as words: the program's serial, then the addresses that it uses. */
enum { SERIAL, WORKSPACE, PACK, PACK_UP, PACK_ITEM, OPERANDS, WORDS = OPERANDS + EG_NAMES };

typedef struct record_key {
    uint64_t words[WORDS];
} record_key;

typedef struct record {
    uint64_t hash;     /* 0: free */
    uint64_t used;     /* the number of the call that used it last */
    CUgraphExec graph; /* NULL: this call cannot be recorded */
    record_key key;
} record;

/* Of a program, for calls with any addresses. */
typedef struct pattern {
    uint64_t serial;     /* the program's; 0: free */
    uint64_t used;       /* as in record */
    eg_cuda_nodes nodes; /* no graph: the program has been met once */
    bool ours;           /* every node is a kernel of ours */
    bool failed;         /* it has no graph that can be changed */
} pattern;

struct eg_cuda_graphs {
    CUstream stream; /* to capture on: the caller's may be the default one, which cannot be */
    uint64_t calls;
    uint64_t seen[SEEN]; /* hashes of calls made once */
    record records[RECORDS];
    pattern patterns[PATTERNS]; /* a program's place is by its serial */
};

/* ---- Opening ---------------------------------------------------------------------------------------- */

/* EPIGRAD_CUDA_GRAPHS: "off" for every call kernel by kernel. */
static bool wanted(const eg_cuda_device *device) {
    const char *setting = getenv("EPIGRAD_CUDA_GRAPHS");
    return !device->checked && (setting == NULL || strcmp(setting, "off") != 0);
}

eg_status eg_cuda_graphs_open(const eg_context *context, eg_cuda_device *device) {
    if (!wanted(device)) return EG_OK;
    device->graphs = eg_host_alloc(context, sizeof *device->graphs);
    if (device->graphs == NULL)
        return eg_fail(EG_ERR_OUT_OF_MEMORY, "no memory for %zu bytes of recorded calls",
                       sizeof *device->graphs);
    memset(device->graphs, 0, sizeof *device->graphs);
    return eg_cuda_check(device,
                         device->driver->cuStreamCreate(&device->graphs->stream, CU_STREAM_NON_BLOCKING),
                         "cuStreamCreate");
}

static void forget(const eg_cuda_device *device, pattern *x) {
    if (x->nodes.made != NULL) device->driver->cuGraphExecDestroy(x->nodes.made);
    if (x->nodes.graph != NULL) device->driver->cuGraphDestroy(x->nodes.graph);
    *x = (pattern){.serial = 0};
}

void eg_cuda_graphs_close(const eg_context *context, eg_cuda_device *device) {
    eg_cuda_graphs *graphs = device->graphs;
    if (graphs == NULL) return;
    for (int i = 0; i < RECORDS; i++) {
        if (graphs->records[i].graph != NULL) device->driver->cuGraphExecDestroy(graphs->records[i].graph);
    }
    for (int i = 0; i < PATTERNS; i++) forget(device, &graphs->patterns[i]);
    if (graphs->stream != NULL) device->driver->cuStreamDestroy(graphs->stream);
    eg_host_free(context, graphs);
}

/* ---- Finding a call ----------------------------------------------------------------------------------- */

static uint64_t at(const eg_address *x) { return (uint64_t)(uintptr_t)x->data + x->offset; }

static record_key key_of(const eg_program *program, const eg_call *call) {
    const uint64_t names = ((const eg_cuda_program *)program->detail)->names;
    record_key key;
    key.words[SERIAL] = program->serial;
    key.words[WORKSPACE] = at(&call->workspace);
    key.words[PACK] = call->packed_b != NULL ? (uint64_t)(uintptr_t)call->packed_b->data : 0;
    key.words[PACK_UP] = call->packed_b_up != NULL ? (uint64_t)(uintptr_t)call->packed_b_up->data : 0;
    key.words[PACK_ITEM] = (uint64_t)call->pack_item;
    for (int i = 0; i < EG_NAMES; i++)
        key.words[OPERANDS + i] = (names >> i & 1U) != 0 ? at(&call->operand[i]) : 0;
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

static record *find(eg_cuda_graphs *graphs, const record_key *key, uint64_t hash) {
    for (uint64_t i = 0; i < PROBES; i++) {
        record *entry = &graphs->records[(hash / 2 + i) % RECORDS];
        if (entry->hash == hash && memcmp(entry->key.words, key->words, sizeof key->words) == 0) return entry;
    }
    return NULL;
}

/* A free place for the call, or that of one which has rested; NULL where there is none. */
static record *make_room(eg_cuda_device *device, uint64_t hash) {
    eg_cuda_graphs *graphs = device->graphs;
    record *oldest = NULL;
    for (uint64_t i = 0; i < PROBES; i++) {
        record *entry = &graphs->records[(hash / 2 + i) % RECORDS];
        if (entry->hash == 0) return entry;
        if (oldest == NULL || entry->used < oldest->used) oldest = entry;
    }
    if (graphs->calls - oldest->used < RESTED) return NULL;
    if (oldest->graph != NULL) device->driver->cuGraphExecDestroy(oldest->graph);
    *oldest = (record){.hash = 0};
    return oldest;
}

/* ---- Recording and replaying -------------------------------------------------------------------------- */

/* NULL where something cannot be captured. */
static CUgraph capture(eg_cuda_device *device, const eg_program *program, const eg_call *calls, int count,
                       CUstream stream, eg_cuda_nodes *nodes) {
    const eg_cuda_driver *driver = device->driver;
    CUgraph graph = NULL;
    eg_status status = EG_OK;
    if (driver->cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_RELAXED) != CUDA_SUCCESS) return NULL;
    for (int i = 0; i < count && status == EG_OK; i++)
        status = eg_cuda_enqueue(device, program, &calls[i], stream, nodes);
    const CUresult result = driver->cuStreamEndCapture(stream, &graph);
    if (status == EG_OK && result == CUDA_SUCCESS) return graph;
    if (graph != NULL) driver->cuGraphDestroy(graph);
    return NULL;
}

static CUgraphExec instantiate(const eg_cuda_device *device, CUgraph graph) {
    CUgraphExec made = NULL;
    if (graph != NULL && device->driver->cuGraphInstantiate(&made, graph, 0) == CUDA_SUCCESS) return made;
    return NULL;
}

CUgraphExec eg_cuda_capture(eg_cuda_device *device, const eg_program *program, const eg_call *calls,
                            int count, CUstream stream) {
    CUgraph graph = capture(device, program, calls, count, stream, NULL);
    CUgraphExec made = instantiate(device, graph);
    if (graph != NULL) device->driver->cuGraphDestroy(graph);
    return made;
}

static record *make_record(eg_cuda_device *device, const eg_program *program, const eg_call *call,
                           const record_key *key, uint64_t hash) {
    uint64_t *seen = &device->graphs->seen[hash / 2 % SEEN];
    const bool again = *seen == hash;
    *seen = hash;
    record *entry = again ? make_room(device, hash) : NULL;
    if (entry == NULL) return NULL;
    entry->hash = hash;
    entry->key = *key;
    entry->graph = eg_cuda_capture(device, program, call, 1, device->graphs->stream);
    return entry;
}

/* ---- The same with other addresses --------------------------------------------------------------------- */

/* The program's place, if it has been met before and another's is not in use; NULL: kernel by kernel. */
static pattern *meet(eg_cuda_device *device, const eg_program *program) {
    eg_cuda_graphs *graphs = device->graphs;
    pattern *x = &graphs->patterns[program->serial % PATTERNS];
    if (x->serial == program->serial) return x;
    if (x->nodes.made != NULL && graphs->calls - x->used < RESTED) return NULL;
    forget(device, x);
    x->serial = program->serial;
    x->ours = eg_cuda_has_nodes(program);
    return NULL;
}

static bool make_pattern(eg_cuda_device *device, const eg_program *program, const eg_call *call, pattern *x) {
    eg_cuda_nodes *nodes = &x->nodes;
    *nodes = (eg_cuda_nodes){.graph = NULL};
    nodes->graph = capture(device, program, call, 1, device->graphs->stream, x->ours ? nodes : NULL);
    nodes->made = instantiate(device, nodes->graph);
    return nodes->made != NULL && nodes->count <= EG_CUDA_MOST_NODES;
}

static bool change_nodes(eg_cuda_device *device, const eg_program *program, const eg_call *call, pattern *x) {
    x->nodes.next = 0;
    const eg_status status = eg_cuda_enqueue(device, program, call, device->stream, &x->nodes);
    return status == EG_OK && x->nodes.next == x->nodes.count;
}

/* What launches a kernel of the library's is not ours to write: the call is captured as it would be the first
 * time, and the graph takes over what is different. */
static bool change_whole(eg_cuda_device *device, const eg_program *program, const eg_call *call, pattern *x) {
    CUgraphExecUpdateResultInfo info;
    CUgraph graph = capture(device, program, call, 1, device->graphs->stream, NULL);
    if (graph == NULL) return false;
    const CUresult result = device->driver->cuGraphExecUpdate(x->nodes.made, graph, &info);
    device->driver->cuGraphDestroy(graph);
    return result == CUDA_SUCCESS;
}

static bool change_pattern(eg_cuda_device *device, const eg_program *program, const eg_call *call,
                           pattern *x) {
    return x->ours ? change_nodes(device, program, call, x) : change_whole(device, program, call, x);
}

/* The graph of the program with the call's addresses; NULL where it has none. */
static CUgraphExec graph_for(eg_cuda_device *device, const eg_program *program, const eg_call *call) {
    pattern *x = meet(device, program);
    if (x == NULL || x->failed) return NULL;
    const bool good = x->nodes.made == NULL ? make_pattern(device, program, call, x)
                                            : change_pattern(device, program, call, x);
    if (!good) {
        forget(device, x);
        x->serial = program->serial, x->failed = true;
        return NULL;
    }
    x->used = device->graphs->calls;
    return x->nodes.made;
}

/* ---- A call ------------------------------------------------------------------------------------------- */

/* A stream that is being captured gets the kernels themselves: the graph is then the caller's. */
static bool may_replay(const eg_cuda_device *device) {
    CUstreamCaptureStatus capturing = CU_STREAM_CAPTURE_STATUS_NONE;
    return device->graphs != NULL &&
           device->driver->cuStreamIsCapturing(device->stream, &capturing) == CUDA_SUCCESS &&
           capturing == CU_STREAM_CAPTURE_STATUS_NONE;
}

eg_status eg_cuda_replay(eg_cuda_device *device, const eg_program *program, const eg_call *call, bool *done,
                         bool *refused) {
    *done = false;
    const bool may =
        call->collectives == NULL && may_replay(device); /* an engine may not be one to capture */
    record_key key;
    uint64_t hash = 0;
    record *found = NULL;
    if (may) {
        key = key_of(program, call);
        hash = hash_of(&key);
        found = find(device->graphs, &key, hash);
        device->graphs->calls++;
    }
    if (found == NULL) {
        *refused = !eg_cuda_library_takes(device, program, call);
        if (*refused || !may) return EG_OK;
        found = make_record(device, program, call, &key, hash);
    }
    if (found != NULL) found->used = device->graphs->calls;
    CUgraphExec graph = found != NULL ? found->graph : graph_for(device, program, call);
    if (graph == NULL) return EG_OK;
    *done = true;
    eg_cuda_name_kernels(device, program);
    return eg_cuda_check(device, device->driver->cuGraphLaunch(graph, device->stream), "cuGraphLaunch");
}
