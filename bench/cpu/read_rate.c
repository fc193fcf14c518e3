/* SPDX-License-Identifier: Apache-2.0 */
/* Few rows are memory's work: at what share of a plain read's rate is the weight read?
 *
 *     read_rate [THREADS [KxN [BYTES]]]
 *
 * y = gelu(a.b + bias) for 1 to 16 rows, in f32, f16 and bf16 and both layouts of b. Calls go round copies of
 * b, BYTES (96 MiB) of them, and so does a plain read: sums of vectors, four streams in each thread. One
 * takes its turn after the other; rates are medians, in GB/s. On one thread the thread's own processor time
 * counts. */
#define _GNU_SOURCE
#include <epigrad/epigrad.h>
#include <omp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { MOST_COPIES = 64, TURNS = 9, STREAMS = 4, MOST_ROWS = 16 };

static int threads = 1;
static int64_t k = 1024, n = 4096, bytes_all = 96LL << 20;

static double seconds(void) {
    struct timespec now;
    clock_gettime(threads == 1 ? CLOCK_THREAD_CPUTIME_ID : CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

static void *memory(size_t bytes) {
    void *p = aligned_alloc(4096, (bytes + 4095) / 4096 * 4096);
    if (p == NULL) exit(1);
    memset(p, 0, bytes);
    return p;
}

/* ---- A plain read ------------------------------------------------------------------------------------- */

typedef int64_t vector __attribute__((vector_size(32)));

static int64_t read_part(const vector *from, int64_t count) {
    const int64_t part = count / STREAMS;
    vector sum[STREAMS] = {{0}};
    for (int64_t i = 0; i + 1 < part; i += 2) {
        for (int s = 0; s < STREAMS; s++) sum[s] += from[s * part + i] ^ from[s * part + i + 1];
    }
    for (int s = 1; s < STREAMS; s++) sum[0] += sum[s];
    return sum[0][0] + sum[0][1] + sum[0][2] + sum[0][3];
}

static void read_all(const void *from, int64_t bytes) {
    const int64_t count = bytes / (int64_t)sizeof(vector);
    int64_t total = 0;
#pragma omp parallel for num_threads(threads) reduction(+ : total) if (threads > 1)
    for (int t = 0; t < threads; t++)
        total += read_part((const vector *)from + count / threads * t, count / threads);
    volatile int64_t keep = total;
    (void)keep;
}

/* ---- Both, in turn ------------------------------------------------------------------------------------ */

typedef struct weight {
    void *copy[MOST_COPIES];
    int copies;
    int64_t bytes;
} weight;

static int compare(const void *a, const void *b) {
    return (*(const double *)a > *(const double *)b) - (*(const double *)a < *(const double *)b);
}

static double median(double *times) {
    qsort(times, TURNS, sizeof *times, compare);
    return times[TURNS / 2];
}

static void measure(eg_context *context, const weight *w, eg_dtype dtype, eg_layout layout, int64_t rows) {
    const size_t size = eg_dtype_size(dtype);
    const eg_layer layer = {.size = sizeof layer,
                            .m = rows,
                            .k = k,
                            .n = n,
                            .batch = 1,
                            .dtype = dtype,
                            .activation = EG_ACT_GELU};
    eg_forward_args call = {.size = sizeof call, .b.layout = layout};
    call.a.data = memory((size_t)(rows * k) * size);
    call.bias.data = memory((size_t)n * size);
    call.y.data = memory((size_t)(rows * n) * size);
    double ours[TURNS], plain[TURNS];
    for (int turn = -1; turn < TURNS; turn++) { /* the first does not count */
        const double begin = seconds();
        for (int i = 0; i < w->copies; i++) {
            call.b.data = w->copy[i];
            if (eg_forward(context, &layer, &call) != EG_OK) {
                fprintf(stderr, "%s\n", eg_last_error());
                exit(1);
            }
        }
        const double between = seconds();
        for (int i = 0; i < w->copies; i++) read_all(w->copy[i], w->bytes);
        if (turn >= 0) ours[turn] = between - begin, plain[turn] = seconds() - between;
    }
    const double gigabytes = 1e-9 * (double)(w->bytes * w->copies), read = gigabytes / median(plain),
                 rate = gigabytes / median(ours);
    printf("%-4s [%s]  %2d rows  read %6.1f GB/s  epigrad %6.1f GB/s  %.2f\n", eg_dtype_name(dtype),
           layout == EG_COL_MAJOR ? "N, K" : "K, N", (int)rows, read, rate, rate / read);
    free(call.a.data);
    free(call.bias.data);
    free(call.y.data);
}

int main(int argc, char **argv) {
    if (argc > 1) threads = atoi(argv[1]);
    long long sizes[2] = {k, n};
    if (argc > 2 && sscanf(argv[2], "%lldx%lld", &sizes[0], &sizes[1]) == 2) k = sizes[0], n = sizes[1];
    if (argc > 3) bytes_all = atoll(argv[3]);
    eg_context *context;
    const eg_open_info info = {.size = sizeof info, .threads = threads};
    if (threads < 1 || k < 1 || n < 1 || eg_open(&info, &context) != EG_OK) {
        fprintf(stderr, "usage: read_rate [THREADS [KxN [BYTES]]]\n");
        return 2;
    }
    static const eg_dtype dtypes[] = {EG_F32, EG_F16, EG_BF16};
    for (size_t d = 0; d < sizeof dtypes / sizeof *dtypes; d++) {
        weight w = {.bytes = k * n * (int64_t)eg_dtype_size(dtypes[d])};
        w.copies = (int)(bytes_all / w.bytes);
        if (w.copies < 2) w.copies = 2;
        if (w.copies > MOST_COPIES) w.copies = MOST_COPIES;
        for (int i = 0; i < w.copies; i++) w.copy[i] = memory((size_t)w.bytes);
        for (int layout = 0; layout < 2; layout++) {
            for (int64_t rows = 1; rows <= MOST_ROWS; rows *= 2)
                measure(context, &w, dtypes[d], layout == 0 ? EG_ROW_MAJOR : EG_COL_MAJOR, rows);
        }
        for (int i = 0; i < w.copies; i++) free(w.copy[i]);
    }
    eg_close(context);
    return 0;
}
