/* SPDX-License-Identifier: Apache-2.0 */
/* The constants of processors that were measured, and what follows from a context. A new processor's come
 * from tools/calibrate_cpu.py; the file to add them to is calibration.def. */
#include <ctype.h>
#include <string.h>

#include "estimate.h"

#define CALIBRATION(name, l2_bytes, fork_us, join_us, shared_ns, crowded_times, streams_bytes, cached_rows)  \
    {                                                                                                        \
        .device = (name), .l2 = (l2_bytes), .fork = (fork_us), .join = (join_us), .shared = (shared_ns),     \
        .crowded = (crowded_times), .streams = (streams_bytes), .cached = (cached_rows), .costs = {
#define COSTS(name, ...) {.row = #name, .of = {__VA_ARGS__}},
#define END_CALIBRATION                                                                                      \
    }                                                                                                        \
    }                                                                                                        \
    ,
static const eg_cpu_calibration calibrations[] = {
#include "calibration.def"
};

/* Whether it has the part, and not only the first digits of the part's last number. */
static bool has_part(const char *device, const char *part) {
    const char *at = strstr(device, part);
    return at != NULL && isdigit((unsigned char)at[strlen(part)]) == 0;
}

const eg_cpu_calibration *eg_cpu_calibration_by_name(const char *device) {
    for (size_t i = sizeof calibrations / sizeof *calibrations; i-- > 0;) {
        if (has_part(device, calibrations[i].device)) return &calibrations[i];
    }
    return &calibrations[0];
}

const eg_cpu_calibration *eg_cpu_calibration_of(const eg_caps *caps) {
    return caps->detail != NULL ? caps->detail : &calibrations[0];
}

static const eg_cpu_costs *find(const eg_cpu_calibration *calibration, const char *row) {
    for (int i = 0; i < EG_CPU_MOST_ROWS && calibration->costs[i].row != NULL; i++) {
        if (strcmp(calibration->costs[i].row, row) == 0) return &calibration->costs[i];
    }
    return NULL;
}

/* The first calibration has every row: tests/test_cpu_regret.c. */
const eg_cpu_costs *eg_cpu_costs_of(const eg_cpu_calibration *calibration, const eg_cpu_kernel *row) {
    const eg_cpu_costs *costs = find(calibration, row->name);
    if (costs == NULL) costs = find(&calibrations[0], row->name);
    return costs != NULL ? costs : &calibrations[0].costs[0];
}
