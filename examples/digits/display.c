/* SPDX-License-Identifier: Apache-2.0 */
#define _POSIX_C_SOURCE 200809L /* isatty */
#include "display.h"

#include <math.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* ---- Progress ----------------------------------------------------------------------------------- */

progress progress_begin(const char *title, int epochs) {
    return (progress){.title = title, .epochs = epochs, .on_terminal = isatty(STDOUT_FILENO)};
}

void progress_update(const progress *bar, int epoch, double loss) {
    enum { WIDTH = 30 };
    if (bar->on_terminal) {
        char cells[WIDTH + 1] = {0};
        int filled = WIDTH * epoch / bar->epochs;
        memset(cells, '#', (size_t)filled);
        memset(cells + filled, '.', (size_t)(WIDTH - filled));
        printf("\r%s  [%s] epoch %d of %d, loss %.4f ", bar->title, cells, epoch, bar->epochs, loss);
        fflush(stdout);
    } else if (epoch % 10 == 0 || epoch == 1 || epoch == bar->epochs) {
        printf("%s  epoch %d of %d, loss %.4f\n", bar->title, epoch, bar->epochs, loss);
    }
}

void progress_end(const progress *bar) {
    if (bar->on_terminal) putchar('\n');
}

/* ---- Digits ------------------------------------------------------------------------------------- */

/* One row of pixels, two characters each: characters are twice as tall as wide. */
static void draw_row(const float *pixel) {
    static const char ink[] = " .:-=+*#%@";
    for (int x = 0; x < SIDE; x++) {
        char shade = ink[(int)lroundf(pixel[x] * (float)(sizeof ink - 2))];
        putchar(shade);
        putchar(shade);
    }
}

void draw_mistakes(const digits *d, const guess *wrong, int count) {
    enum { AT_MOST = 4 };
    if (count > AT_MOST) count = AT_MOST;
    for (int i = 0; i < count; i++) {
        const guess *g = &wrong[i];
        char title[32];
        snprintf(title, sizeof title, "%d, read as %d (%.0f%%)", d->label[g->index], g->said,
                 100 * g->probability);
        printf("  %-18s", title);
    }
    putchar('\n');
    for (int y = 0; y < SIDE; y++) {
        for (int i = 0; i < count; i++) {
            printf("  ");
            draw_row(d->pixel[wrong[i].index] + y * SIDE);
            printf("  "); /* 18 characters, like the titles */
        }
        putchar('\n');
    }
}
