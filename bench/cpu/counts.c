/* SPDX-License-Identifier: Apache-2.0 */
/* What the estimate counts for each recorded time, for tools/calibrate.py:
 *
 *     cpu_counts RECORDING
 *
 * A line each: the row, the microseconds of the recording, and the counts in the order of EG_CPU_COST_TABLE,
 * which is the first line; an empty line after each operation. A count is the estimate where one of it costs
 * a microsecond and all else nothing. What depends on caches is counted for the processor of the recording's
 * first line. */
#include <stdio.h>
#include <string.h>

#include "core/backend.h"
#include "recording.h"

static void *nowhere(void *user, int place, int64_t elements) {
    (void)user, (void)elements;
    return (void *)((uintptr_t)(place + 1) << 40);
}

/* Prints nothing of a time that is outdated. */
static void print_counts(const char *first_line, const eg_cpu_kernel *row, const char way[3], double time,
                         const recorded_operation *x) {
    static eg_program program;
    static eg_cpu_calibration unit;
    recorded_call call;
    eg_problem problem;
    recorded_call_of(x, nowhere, NULL, &call);
    if ((row->maths & EG_CPU_MATH(EG_MATH_DEFAULT)) == 0) call.layer.math = EG_MATH_FAST;
    unit = recorded_calibration(eg_cpu_calibration_by_name(first_line), way);
    eg_caps caps = {.features = UINT32_MAX, .threads = 1, .only_kernel = row->name, .detail = &unit};
    for (int cost = 0; cost < EG_CPU_COSTS; cost++) {
        double count = 0;
        memset(unit.costs, 0, sizeof unit.costs);
        unit.costs[0].row = row->name;
        unit.costs[0].of[cost] = 1000;
        if (!recorded_problem(&call, &problem) || eg_program_make(&caps, &problem, &program) != EG_OK) return;
        if (recorded_is_outdated(first_line, &program, row, way)) return;
        if (cost == 0) printf("%s %.6g", row->name, time);
        for (int i = 0; i < program.steps; i++) count += program.step[i].microseconds;
        printf(" %.9g", count);
    }
    printf("\n");
}

int main(int argc, char **argv) {
    static char line[RECORDED_LINE], names[RECORDED_LINE], device[RECORDED_LINE];
    const char *row_name[RECORDED_ROWS] = {NULL};
    FILE *file = argc == 2 ? fopen(argv[1], "r") : NULL;
    if (file == NULL) return fprintf(stderr, "usage: cpu_counts RECORDING\n"), 2;
#define NAME(NAME, name) " " #name
    printf("#%s\n", "" EG_CPU_COST_TABLE(NAME));
    while (fgets(line, sizeof line, file) != NULL) {
        recorded_operation x;
        const char *times;
        if (device[0] == '\0') memcpy(device, line, sizeof device);
        if (strncmp(line, "# rows:", 7) == 0) recorded_rows(memcpy(names, line, sizeof names), row_name);
        if (!recorded_parse(line, &x, &times)) continue;
        int row;
        char way[3];
        double time;
        while (recorded_next(&times, &row, way, &time)) {
            const eg_cpu_kernel *kernel = NULL;
            for (int i = 0; (kernel = eg_cpu_kernel_row(i)) != NULL; i++) {
                if (strcmp(kernel->name, row_name[row]) == 0) break;
            }
            if (kernel == NULL) continue;
            print_counts(device, kernel, way, time, &x);
        }
        printf("\n");
    }
    fclose(file);
    return 0;
}
