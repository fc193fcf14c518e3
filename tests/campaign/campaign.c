/* SPDX-License-Identifier: Apache-2.0 */
/* A campaign: calls of the C API drawn at random, over everything that the header offers at once, each beside
 * the oracle. A case is a function of the seed and its index, and of nothing else.
 *
 *     campaign [--backend cpu|cuda|webgpu] [--seed N|random] [--minutes X | --cases COUNT | --case I[-J]]
 *              [--threads A,B,C,D] [--kernel ROW] [--groups] [--measured] [--describe]
 *
 * runs cases for a minute, if nothing else is said, and prints for each failure what is wrong and the one
 * line that repeats it. --threads are the thread counts that cases draw from, --kernel keeps to one kernel
 * row, --groups to grouped layers; --measured has kernels chosen by trials, and then both calls of a case
 * made by one context, as another may take other kernels; --describe runs nothing, and counts what the cases
 * have, or says what the one case is. SIGINT and SIGTERM end it with the totals so far. EPIGRAD_CPU_ISA caps
 * the instruction set; EPIGRAD_TEST_SHORT leaves a tenth of the cases. Exits with 1 if a case failed, with 77
 * where the backend is not there. */
#if defined(__linux__)
#define _DEFAULT_SOURCE
#endif

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "describe.h"
#include "generate.h"
#include "open.h"
#include "short.h"

enum { BLOCK = 1000, MOST_FAILURES = 10, MOST_ROWS = 176, PATIENCE = 600 };

typedef struct options {
    eg_backend backend;
    uint64_t seed, first, last; /* cases [first, last] */
    double minutes;             /* 0: no limit */
    int threads[CAMPAIGN_THREADS];
    const char *kernel;
    bool describe, one, groups, measured; /* one: --case was given */
} options;

typedef struct totals {
    uint64_t passed, failed, unsupported, backward, chunks, in_result;
    double worst;
} totals;

/* ---- The line that repeats a case --------------------------------------------------------------- */

/* Made before a case runs: a crash has no time to. */
static char line[512];

static void make_line(const options *o, uint64_t first, uint64_t last) {
    const char *level = getenv("EPIGRAD_CPU_ISA");
    const bool capped = level != NULL && *level != '\0';
    char cases[64];
    snprintf(cases, sizeof cases, first == last ? "%llu" : "%llu-%llu", (unsigned long long)first,
             (unsigned long long)last);
    snprintf(line, sizeof line,
             "%s%s%scampaign --seed %llu --case %s --backend %s --threads %d,%d,%d,%d%s%s%s\n",
             capped ? "EPIGRAD_CPU_ISA=" : "", capped ? level : "", capped ? " " : "",
             (unsigned long long)o->seed, cases, eg_backend_name(o->backend), o->threads[0], o->threads[1],
             o->threads[2], o->threads[3], o->measured ? " --measured" : "",
             o->kernel != NULL ? " --kernel " : "", o->kernel != NULL ? o->kernel : "");
}

static void say(const char *text) {
    if (write(STDOUT_FILENO, text, strlen(text)) < 0) _exit(EXIT_FAILURE);
}

static void on_signal(int number) {
    say(number == SIGALRM ? "FAILED: no end in sight\n    " : "FAILED: crashed\n    ");
    say(line);
    signal(number, SIG_DFL);
    raise(number);
}

/* Who stops a long campaign still gets its totals; who asks twice is obeyed at once. */
static volatile sig_atomic_t stopped;

static void on_stop(int number) {
    stopped = 1;
    signal(number, SIG_DFL);
}

static void watch_signals(void) {
    static const int numbers[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT, SIGALRM};
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) signal(numbers[i], on_signal);
    signal(SIGINT, on_stop);
    signal(SIGTERM, on_stop);
}

/* ---- Contexts ----------------------------------------------------------------------------------- */

/* Opened when a case first wants one, and kept for the block of cases: that they carry nothing from one call
 * to the next is looked at, too. */
typedef struct contexts {
    const options *o;
    eg_context *of[CAMPAIGN_THREADS][MOST_ROWS + 1]; /* [0]: its own choice */
    char rows[MOST_ROWS][64];
    eg_dtype computes[MOST_ROWS];
    int row_count;
} contexts;

static eg_context *open_context(const options *o, int threads, const char *kernel) {
    return open_or_skip((eg_open_info){.backend = o->backend,
                                       .threads = threads,
                                       .kernel = kernel,
                                       .tuning = o->measured ? EG_TUNING_MEASURED : EG_TUNING_ESTIMATED});
}

static void list_rows(contexts *all) {
    eg_context *context = open_context(all->o, 1, NULL);
    eg_kernel_info row = {.size = sizeof row};
    for (int i = 0; eg_get_kernel_info(context, i, &row) == EG_OK && all->row_count < MOST_ROWS; i++) {
        if (!row.usable || strlen(row.name) >= sizeof all->rows[0]) continue;
        snprintf(all->rows[all->row_count], sizeof all->rows[0], "%s", row.name);
        all->computes[all->row_count++] = row.compute;
    }
    eg_close(context);
}

static void close_contexts(contexts *all) {
    for (int i = 0; i < CAMPAIGN_THREADS; i++) {
        for (int row = 0; row <= MOST_ROWS; row++) {
            eg_close(all->of[i][row]);
            all->of[i][row] = NULL;
        }
    }
}

/* Row `number`, wrapping around, of those that compute in the case's type: its place in `of`. */
static int row_for(const contexts *all, const campaign_case *c) {
    const eg_dtype compute = c->call.dtype == EG_F64 ? EG_F64 : EG_F32;
    int fitting[MOST_ROWS], count = 0;
    for (int i = 0; i < all->row_count; i++) {
        if (all->computes[i] == compute) fitting[count++] = i + 1;
    }
    return c->row == 0 || count == 0 || all->o->kernel != NULL ? 0 : fitting[c->row % count];
}

static eg_context *context_for(contexts *all, int threads, int row) {
    eg_context **context = &all->of[threads][row];
    const char *kernel = row > 0 ? all->rows[row - 1] : all->o->kernel;
    if (*context == NULL) *context = open_context(all->o, all->o->threads[threads], kernel);
    return *context;
}

/* ---- Cases -------------------------------------------------------------------------------------- */

static check_result run_case(contexts *all, const campaign_case *c, check_report *report) {
    const int row = row_for(all, c);
    eg_context *const two[2] = {context_for(all, c->threads[0], row),
                                context_for(all, c->threads[all->o->measured ? 0 : 1], row)};
    return check_run_on(two, &c->call, report);
}

static void report_failure(contexts *all, const campaign_case *c, uint64_t index,
                           const check_report *report) {
    const options *o = all->o;
    check_report again;
    const int row = row_for(all, c);
    char places[2048];
    campaign_describe_places(c, places, sizeof places);
    close_contexts(all);
    const bool alone = run_case(all, c, &again) == CHECK_FAILED;
    make_line(o, alone || o->one ? index : index - index % BLOCK, index);
    printf("FAILED: %s\n%s  threads %d, then %d%s%s%s\n    %s", report->message, places,
           o->threads[c->threads[0]], o->threads[c->threads[1]], row > 0 ? "; kernel " : "",
           row > 0 ? all->rows[row - 1] : "", alone ? "" : "\n  (not by itself: after what ran before it)",
           line);
    fflush(stdout);
}

static void one_case(contexts *all, uint64_t index, totals *sum) {
    campaign_case c;
    check_report report;
    campaign_make(all->o->seed, index, all->o->backend != EG_BACKEND_WEBGPU, &c);
    if (all->o->groups && c.call.groups == 0) return;
    make_line(all->o, index, index);
    alarm(PATIENCE);
    const check_result result = run_case(all, &c, &report);
    sum->backward += c.call.backward;
    sum->chunks += report.chunks;
    sum->in_result += report.in_result;
    if (report.worst > sum->worst) sum->worst = report.worst;
    if (result == CHECK_PASSED) {
        sum->passed++;
    } else if (result == CHECK_UNSUPPORTED) {
        sum->unsupported++;
    } else {
        sum->failed++;
        report_failure(all, &c, index, &report);
    }
}

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
}

static int run_campaign(const options *o) {
    static contexts all;
    all.o = o;
    list_rows(&all);
    watch_signals();
    totals sum = {0};
    const double start = now();
    uint64_t index = o->first;
    for (; index <= o->last && sum.failed < MOST_FAILURES && !stopped; index++) {
        if (o->minutes > 0 && now() - start > 60 * o->minutes) break;
        if (index % BLOCK == 0) close_contexts(&all);
        one_case(&all, index, &sum);
    }
    close_contexts(&all);
    alarm(0);
    printf("campaign: %s, seed %llu, %llu cases in %.0f s: %llu passed (%llu backward, %llu in chunks, %llu "
           "with "
           "sums in d_b), %llu failed, %llu unsupported, worst error %.2f of its bound\n",
           eg_backend_name(o->backend), (unsigned long long)o->seed, (unsigned long long)(index - o->first),
           now() - start, (unsigned long long)sum.passed, (unsigned long long)sum.backward,
           (unsigned long long)sum.chunks, (unsigned long long)sum.in_result, (unsigned long long)sum.failed,
           (unsigned long long)sum.unsupported, sum.worst);
    return sum.failed > 0 || sum.passed + sum.unsupported == 0 ? EXIT_FAILURE : EXIT_SUCCESS;
}

/* ---- The command line --------------------------------------------------------------------------- */

static void stop(const char *what, const char *value) {
    printf("campaign: %s %s\n", what, value);
    exit(2);
}

static uint64_t number_of(const char *option, const char *text, char **end) {
    const uint64_t number = strtoull(text, end, 10);
    if (*end == text) stop(option, "expects a number");
    return number;
}

static uint64_t seed_of(const char *text) {
    if (strcmp(text, "random") == 0) return (uint64_t)(now() * 1e6) ^ (uint64_t)getpid() << 32;
    char *end = NULL;
    const uint64_t seed = number_of("--seed", text, &end);
    if (*end != '\0') stop("--seed expects a number or \"random\", not", text);
    return seed;
}

static void take_cases(const char *text, options *o) {
    char *end = NULL;
    o->first = o->last = number_of("--case", text, &end);
    if (*end == '-') o->last = number_of("--case", end + 1, &end);
    if (*end != '\0' || o->last < o->first) stop("--case expects I or I-J, not", text);
    o->one = true;
}

/* Up to four; fewer are repeated. */
static void take_threads(const char *text, options *o) {
    int last = 0;
    for (int i = 0; i < CAMPAIGN_THREADS; i++) {
        char *end = NULL;
        if (i == 0 || *text != '\0') {
            last = (int)number_of("--threads", text, &end);
            text = *end == ',' ? end + 1 : end;
        }
        o->threads[i] = last;
    }
    if (*text != '\0') stop("--threads expects up to four numbers; there is more:", text);
}

static eg_backend backend_of(const char *name) {
    for (int i = EG_BACKEND_CPU; i <= EG_BACKEND_WEBGPU; i++) {
        if (strcmp(name, eg_backend_name((eg_backend)i)) == 0) return (eg_backend)i;
    }
    stop("--backend expects cpu, cuda or webgpu, not", name);
    return EG_BACKEND_CPU;
}

static void take_option(const char *name, const char *value, options *o) {
    char *end = NULL;
    if (value == NULL) stop("unknown, or without a value:", name);
    if (strcmp(name, "--backend") == 0) {
        o->backend = backend_of(value);
    } else if (strcmp(name, "--seed") == 0) {
        o->seed = seed_of(value);
    } else if (strcmp(name, "--minutes") == 0) {
        o->minutes = strtod(value, &end);
        if (!(o->minutes > 0)) stop("--minutes expects a number above 0, not", value);
    } else if (strcmp(name, "--cases") == 0) {
        o->last = number_of(name, value, &end) - 1;
    } else if (strcmp(name, "--case") == 0) {
        take_cases(value, o);
    } else if (strcmp(name, "--threads") == 0) {
        take_threads(value, o);
    } else if (strcmp(name, "--kernel") == 0) {
        o->kernel = value;
    } else {
        stop("unknown option", name);
    }
}

int main(int argc, char **argv) {
    options o = {.seed = 1, .last = UINT64_MAX, .threads = {1, 2, 3, 4}};
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--describe") == 0) {
            o.describe = true;
        } else if (strcmp(argv[i], "--groups") == 0) {
            o.groups = true;
        } else if (strcmp(argv[i], "--measured") == 0) {
            o.measured = true;
        } else {
            take_option(argv[i], argv[i + 1], &o);
            i++;
        }
    }
    if (o.describe) {
        if (o.last == UINT64_MAX) o.last = 99999;
        describe_cases(o.seed, o.first, o.last, o.backend != EG_BACKEND_WEBGPU);
        return EXIT_SUCCESS;
    }
    if (o.last == UINT64_MAX && !(o.minutes > 0)) o.minutes = 1;
    if (short_run() && !o.one) o.last /= 10;
    return run_campaign(&o);
}
