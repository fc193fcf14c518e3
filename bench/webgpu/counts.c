/* SPDX-License-Identifier: Apache-2.0 */
/* What the estimate counts for each time of a recording, for tools/calibrate_webgpu.py:
 *
 *     webgpu_counts RECORDING
 *
 * "operation", and then a line each: the row, its microseconds, those of the fastest row; dispatches,
 * products, and of a product its workgroups and the terms of each; and what passes between the products are
 * estimated to take beside. */
#include <stdlib.h>

#include "core/sizes.h"
#include "recording.h"

static void print(const recorded_file *x, int number, double best) {
    static eg_program program;
    const eg_webgpu_kernel *row = eg_webgpu_kernel_row(number);
    int64_t dispatches = 0;
    int products = 0;
    double beside = 0;
    if (!recorded_compile(x, row->name, &program)) return;
    for (int i = 0; i < program.steps; i++) {
        const eg_step *step = &program.step[i];
        const eg_webgpu_pass *pass = eg_webgpu_detail(step);
        dispatches += step->launches;
        if (pass->kernel->shape == EG_SHAPE_PRODUCT) {
            products++;
        } else {
            beside += eg_webgpu_estimate(&x->device, pass, 0);
        }
    }
    const eg_webgpu_pass *pass = recorded_product(&program);
    const double groups = (double)pass->items * pass->splits * (double)eg_ceil_div(pass->rows, row->rows) *
                          (double)eg_ceil_div(pass->cols, row->cols);
    printf("%s %.6g %.6g %lld %d %.0f %lld %.6g\n", row->name, x->time[number], best, (long long)dispatches,
           products, groups, (long long)(pass->splits > 1 ? pass->chunk : pass->depth), beside);
}

int main(int argc, char **argv) {
    static recorded_file x;
    if (argc != 2 || !recorded_open(&x, argv[1])) {
        fprintf(stderr, "usage: webgpu_counts RECORDING\n");
        return 2;
    }
    for (int i = 0; i < EG_WEBGPU_ROWS; i++) printf("# %s %.6g\n", eg_webgpu_kernel_row(i)->name, x.first[i]);
    while (recorded_next(&x)) {
        double best = 0;
        for (int i = 0; i < EG_WEBGPU_ROWS; i++)
            if (x.time[i] > 0 && (best == 0 || x.time[i] < best)) best = x.time[i];
        printf("operation\n");
        for (int i = 0; i < EG_WEBGPU_ROWS; i++)
            if (x.time[i] > 0) print(&x, i, best);
    }
    return EXIT_SUCCESS;
}
