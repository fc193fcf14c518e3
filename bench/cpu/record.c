/* SPDX-License-Identifier: Apache-2.0 */
/* Records how long every usable kernel row takes, by every way that it has, for the operations of a seeded
 * list of layers, on one thread:
 *
 *     cpu_record OUT [LAYERS [SEED [SECONDS]]]
 *
 * The rows of all instruction sets are timed together, so one recording on the best processor serves every
 * level. Rows and ways take turns, and the median of the turns counts. A call finds its operands where those
 * of a training step would be, beyond the caches: calls go round copies of them. Time is the thread's own
 * processor time: others may be at work on the machine. A line is written as soon as it is measured:
 * recording.h. */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "core/backend.h"
#include "recording.h"

/* ---- Layers ------------------------------------------------------------------------------------- */

/* K and N of GPT-2, Llama, BERT, ViT, recommenders, small control networks, and odd ones. */
static const int widths[][2] = {
    {768, 3072},  {3072, 768},  {768, 2304},  {768, 768},  {768, 50257}, {256, 1024}, {1024, 256},
    {1280, 5120}, {4096, 4096}, {2048, 5632}, {896, 4864}, {4096, 1024}, {384, 1536}, {192, 768},
    {320, 1280},  {1024, 4096}, {1024, 1024}, {512, 512},  {256, 128},   {128, 256},  {128, 128},
    {784, 512},   {512, 10},    {64, 64},     {30, 50},    {17, 64},     {64, 6},     {256, 1},
    {13, 512},    {1000, 10},   {513, 1025},  {100, 100},  {479, 1024},  {1000, 300}, {48, 96},
    {96, 24},     {200, 80},    {65, 33},     {128, 64},   {64, 256},    {33, 4095},  {4095, 33},
    {257, 129},   {10, 1000},   {1152, 4304}, {312, 1200}, {1023, 1023}, {4, 64},     {512, 1}};
static const int heights[] = {1,   2,   4,   8,   12,  16,  24,  32,   48,   64,   100,
                              128, 160, 197, 256, 384, 512, 777, 1024, 1500, 2048, 4096};

static uint64_t state;
static int below(int count) { /* xorshift64* */
    state ^= state >> 12, state ^= state << 25, state ^= state >> 27;
    return (int)((state * 0x2545f4914f6cdd1dULL >> 33) % (uint64_t)count);
}
#define PICK(array) (array)[below((int)(sizeof(array) / sizeof *(array)))]

static recorded_operation draw(void) {
    static const eg_dtype dtypes[] = {EG_F32, EG_F32, EG_F32, EG_F32, EG_BF16, EG_BF16, EG_F16, EG_F64};
    static const eg_activation activations[] = {EG_ACT_GELU, EG_ACT_GELU, EG_ACT_RELU, EG_ACT_SILU};
    const double most = 5e8; /* multiply-adds */
    for (;;) {
        const int *width = PICK(widths);
        const recorded_operation x = {.dtype = PICK(dtypes),
                                      .m = PICK(heights),
                                      .k = width[0],
                                      .n = width[1],
                                      .nk = below(2) == 1,
                                      .activation = PICK(activations)};
        if ((double)x.m * (double)x.k * (double)x.n * (x.dtype == EG_F64 ? 2 : 1) <= most) return x;
    }
}

/* ---- Memory ------------------------------------------------------------------------------------- */

enum { MOST_COPIES = 16 };
static char *places[RECORDED_PLACES], *workspace;
static const size_t place_bytes = (size_t)340 << 20, workspace_bytes = (size_t)2 << 30,
                    rotated_bytes = (size_t)96 << 20;

static void *reserve(size_t bytes) {
    void *memory = NULL;
    if (posix_memalign(&memory, 4096, bytes) != 0) exit(1);
    return memory;
}

/* A copy of the operands, and what they take. */
typedef struct copy {
    eg_dtype dtype;
    int number;
    size_t bytes;
} copy;

static void *place(void *user, int index, int64_t elements) {
    copy *of = user;
    const size_t line = 64, bytes = ((size_t)elements * eg_dtype_size(of->dtype) + line - 1) / line * line;
    if (bytes > place_bytes) exit(1);
    of->bytes += bytes;
    return places[index] + (size_t)of->number * bytes;
}

static int copies_of(size_t bytes) {
    const size_t count = rotated_bytes / bytes;
    return count < 1 ? 1 : count > MOST_COPIES ? MOST_COPIES : (int)count;
}

/* Numbers in (-1, 1), the same in every place. */
static void fill(eg_dtype dtype, int64_t elements) {
    for (int64_t j = 0; j < elements; j++) {
        const float x = (float)below(2001) * 1e-3F - 1;
        uint32_t bits;
        memcpy(&bits, &x, sizeof bits);
        void *at = places[0] + (size_t)j * eg_dtype_size(dtype);
        if (dtype == EG_F64) *(double *)at = x;
        if (dtype == EG_F32) *(float *)at = x;
        if (dtype == EG_BF16) *(uint16_t *)at = (uint16_t)(bits >> 16);
        /* f16: a sign, an exponent from 2^-8 on, and some bits */
        if (dtype == EG_F16) *(uint16_t *)at = (uint16_t)(0x1c00 + below(0x1c00) + (below(2) << 15));
    }
    for (int i = 1; i < RECORDED_PLACES; i++)
        memcpy(places[i], places[0], (size_t)elements * eg_dtype_size(dtype));
}

/* ---- Candidates --------------------------------------------------------------------------------- */

enum { TURNS = 7, MOST_CANDIDATES = 96 };
static const char *const ways[] = {"pp", "pi", "pf", "ip", "ii", "if", "fp", "ff", "ps", "is", "sf", "oo"};
enum { WAYS = sizeof ways / sizeof *ways };

typedef struct candidate {
    eg_context *context;
    eg_math math;
    int row, way;
    int64_t runs; /* a turn */
    int turns;
    double time[TURNS];
} candidate;

static eg_context *contexts[RECORDED_ROWS][WAYS];
static eg_cpu_calibration calibrations[WAYS];
static int rows;

static double seconds(clockid_t clock) {
    struct timespec now;
    clock_gettime(clock, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

static void open_contexts(FILE *out) {
    fprintf(out, "# rows:");
    for (; eg_cpu_kernel_row(rows) != NULL; rows++) {
        const char *name = eg_cpu_kernel_row(rows)->name;
        fprintf(out, " %s", name);
        for (int way = 0; way < WAYS; way++) {
            const eg_open_info info = {.size = sizeof info, .threads = 1, .kernel = name};
            if (eg_open(&info, &contexts[rows][way]) != EG_OK) exit(1);
            eg_caps *caps = &contexts[rows][way]->caps;
            calibrations[way] = recorded_calibration(eg_cpu_calibration_of(caps), ways[way]);
            caps->detail = &calibrations[way];
        }
    }
    fprintf(out, "\n");
}

static void run(const candidate *x, recorded_call *call) {
    call->layer.math = x->math;
    const eg_status status = call->backward ? eg_backward(x->context, &call->layer, &call->backward_args)
                                            : eg_forward(x->context, &call->layer, &call->forward_args);
    if (status != EG_OK) fprintf(stderr, "%s\n", eg_last_error());
    if (status != EG_OK) exit(1);
}

/* Multiply-adds that a row may take: about a hundredth of a second, so that slow rows do not take most of a
 * recording. */
static double most_work(const eg_cpu_kernel *row) {
    if (row->needs == 0) return 3e7;
    return row->needs == EG_CPU_AVX2 ? 3e8 : 1e10;
}

static int find_candidates(const recorded_operation *x, recorded_call *call, candidate *all) {
    const double work =
        (double)x->m * (double)x->k * (double)x->n * (strcmp(x->name, "backward") == 0 ? 2 : 1);
    int count = 0;
    for (int row = 0; row < rows; row++) {
        const eg_cpu_kernel *kernel = eg_cpu_kernel_row(row);
        if (work > most_work(kernel)) continue;
        for (int way = 0; way < WAYS; way++) {
            static eg_program program;
            eg_problem problem;
            char got[3];
            const eg_caps *caps = &contexts[row][way]->caps;
            const bool is_fast = (kernel->maths & EG_CPU_MATH(EG_MATH_DEFAULT)) == 0;
            call->layer.math = is_fast ? EG_MATH_FAST : EG_MATH_DEFAULT;
            if (!recorded_problem(call, &problem) || eg_program_make(caps, &problem, &program) != EG_OK)
                break;
            recorded_way(&program, got);
            const bool is_map = got[0] == '\0' && way == 0;
            if (!is_map && strcmp(got, ways[way]) != 0) continue;
            all[count++] = (candidate){contexts[row][way], call->layer.math, row, way, 1, 0, {0}};
        }
    }
    return count;
}

static int by_time(const void *a, const void *b) {
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void measure(candidate *all, int count, recorded_call *calls, int copies) {
    const double a_turn = 150e-6, long_call = 8e-3;
    int next = 0;
    for (int i = 0; i < count; i++) {
        run(&all[i], &calls[next++ % copies]);
        const double begin = seconds(CLOCK_THREAD_CPUTIME_ID);
        run(&all[i], &calls[next++ % copies]);
        const double once = seconds(CLOCK_THREAD_CPUTIME_ID) - begin;
        all[i].runs = once < a_turn ? (int64_t)(a_turn / once) + 1 : 1;
    }
    for (int turn = 0; turn < TURNS; turn++) {
        for (int i = 0; i < count; i++) {
            candidate *x = &all[(i + 5 * turn) % count];
            if (turn >= 3 && x->time[0] > long_call) continue;
            const double begin = seconds(CLOCK_THREAD_CPUTIME_ID);
            for (int64_t j = 0; j < x->runs; j++) run(x, &calls[next++ % copies]);
            x->time[x->turns++] = (seconds(CLOCK_THREAD_CPUTIME_ID) - begin) / (double)x->runs;
            if (x->turns == TURNS) qsort(x->time, TURNS, sizeof *x->time, by_time);
        }
    }
}

static void record(recorded_operation *x, FILE *out) {
    static recorded_call calls[MOST_COPIES];
    candidate all[MOST_CANDIDATES];
    copy first = {.dtype = x->dtype};
    recorded_call_of(x, place, &first, &calls[0]);
    const int copies = copies_of(first.bytes);
    for (int i = 0; i < copies; i++) {
        recorded_call_of(x, place, &(copy){.dtype = x->dtype, .number = i}, &calls[i]);
        calls[i].forward_args.workspace = calls[i].backward_args.workspace =
            (eg_workspace){workspace, 0, workspace_bytes};
    }
    const int count = find_candidates(x, &calls[0], all);
    if (count == 0) return;
    measure(all, count, calls, copies);
    fprintf(out, "%s %lldx%lldx%lld %s %s %s", eg_dtype_name(x->dtype), (long long)x->m, (long long)x->k,
            (long long)x->n, x->nk ? "nk" : "kn", eg_activation_name(x->activation), x->name);
    for (int i = 0; i < count; i++) {
        qsort(all[i].time, (size_t)all[i].turns, sizeof *all[i].time, by_time);
        fprintf(out, " %d%s:%.4g", all[i].row, ways[all[i].way], 1e6 * all[i].time[all[i].turns / 2]);
    }
    fprintf(out, "\n");
    fflush(out);
}

int main(int argc, char **argv) {
    if (argc < 2) return fprintf(stderr, "usage: cpu_record OUT [LAYERS [SEED [SECONDS]]]\n"), 2;
    const int layers = argc > 2 ? atoi(argv[2]) : 250, seed = argc > 3 ? atoi(argv[3]) : 1;
    const double most = argc > 4 ? atof(argv[4]) : 480, begin = seconds(CLOCK_MONOTONIC);
    FILE *out = fopen(argv[1], "w");
    if (out == NULL) return perror(argv[1]), 1;
    char date[16];
    const time_t now = time(NULL);
    strftime(date, sizeof date, "%Y-%m-%d", gmtime(&now));
    for (int i = 0; i < RECORDED_PLACES; i++) places[i] = reserve(place_bytes);
    workspace = reserve(workspace_bytes);
    state = 0x9e3779b97f4a7c15ULL * (uint64_t)(seed + 1);
    eg_context *cpu;
    eg_device_info info = {.size = sizeof info};
    if (eg_open(NULL, &cpu) != EG_OK || eg_get_device_info(cpu, &info) != EG_OK) return 1;
    fprintf(out,
            "# %s, %s, one thread, %s, seed %d, " RECORDED_BY_ROWS ", " RECORDED_BY_DOTS
            ": microseconds by row and way\n",
            info.name, info.features, date, seed);
    open_contexts(out);
    int done = 0;
    for (; done < layers && seconds(CLOCK_MONOTONIC) - begin < most; done++) {
        recorded_operation x = draw();
        const uint64_t was = state;
        const int64_t widest = x.k > x.n ? x.k : x.n,
                      largest = x.m * widest > x.k * x.n ? x.m * widest : x.k * x.n;
        fill(x.dtype, largest * copies_of((size_t)largest * eg_dtype_size(x.dtype)));
        state = was;
        for (int i = 0; recorded_operations[i] != NULL; i++) {
            snprintf(x.name, sizeof x.name, "%s", recorded_operations[i]);
            record(&x, out);
        }
    }
    fprintf(stderr, "%d layers in %.0f s\n", done, seconds(CLOCK_MONOTONIC) - begin);
    fclose(out);
    return 0;
}
