/* SPDX-License-Identifier: Apache-2.0 */
#include "curve.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

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
