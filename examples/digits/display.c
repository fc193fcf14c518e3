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

/* ---- The loss curve ----------------------------------------------------------------------------- */

enum { CURVE_ROWS = 10, CURVE_COLUMNS = 64 };

/* The mean loss of each column's share of the steps, as a logarithm; returns how many columns there are. */
static int curve_columns(const double *loss, int steps, double *column) {
    int columns = steps < CURVE_COLUMNS ? steps : CURVE_COLUMNS;
    for (int c = 0; c < columns; c++) {
        int begin = (int)((long)steps * c / columns), end = (int)((long)steps * (c + 1) / columns);
        double sum = 0;
        for (int s = begin; s < end; s++) sum += loss[s];
        column[c] = log10(fmax(sum / (end - begin), 1e-9));
    }
    return columns;
}

/* The picture's rows between an axis of the loss and an axis of the steps. */
static void draw_axes(char picture[CURVE_ROWS][CURVE_COLUMNS + 1], double low, double high, int columns,
                      int steps) {
    printf("\n     loss\n");
    for (int r = 0; r < CURVE_ROWS; r++) {
        picture[r][columns] = '\0';
        if (r % 3 == 0)
            printf("%9.4f |%s\n", pow(10, high - (high - low) * r / (CURVE_ROWS - 1)), picture[r]);
        else
            printf("%9s |%s\n", "", picture[r]);
    }
    printf("%9s +", "");
    for (int c = 0; c < columns; c++) putchar('-');
    printf(" %d steps\n", steps);
}

/* Each character holds two levels, so the picture is twice as fine as its rows. */
void draw_loss(const double *loss, int steps) {
    double column[CURVE_COLUMNS], low = INFINITY, high = -INFINITY;
    char picture[CURVE_ROWS][CURVE_COLUMNS + 1];
    int columns = curve_columns(loss, steps, column);
    for (int c = 0; c < columns; c++) {
        low = fmin(low, column[c]);
        high = fmax(high, column[c]);
    }
    if (!isfinite(low) || !isfinite(high)) return; /* the accuracy below says what there is to say */
    memset(picture, ' ', sizeof picture);
    for (int c = 0; c < columns; c++) {
        double height = high > low ? (column[c] - low) / (high - low) : 0;
        int level = (int)lround(height * (2 * CURVE_ROWS - 1));
        picture[CURVE_ROWS - 1 - level / 2][c] = level % 2 ? '\'' : '.';
    }
    draw_axes(picture, low, high, columns, steps);
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
