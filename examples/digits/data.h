/* SPDX-License-Identifier: Apache-2.0 */
/* The handwritten digits: on the host as read from the file, on the device as the network wants them. */
#ifndef DIGITS_DATA_H
#define DIGITS_DATA_H

#include <epigrad/epigrad.h>

enum { SIDE = 8, PIXELS = SIDE * SIDE, CLASSES = 10 };

typedef struct digits {
    int count;
    float (*pixel)[PIXELS]; /* 0 (paper) .. 1 (ink), row by row */
    unsigned char *label;   /* 0 .. 9 */
} digits;

/* Reads a gzipped text file: 64 pixels 0..16 and the label a line. Leaves the program if it is not that. */
digits digits_load(const char *path);
void digits_free(digits *d);

/* Some of the digits, in some order, on the device. */
typedef struct image_set {
    eg_context *context;
    eg_dtype dtype;
    int count;
    void *pixels;         /* device: [count, PIXELS] of dtype */
    unsigned char *label; /* host */
} image_set;

image_set image_set_new(eg_context *context, eg_dtype dtype, int count);
void image_set_fill(image_set *set, const digits *d, const int *order); /* count digits, in this order */
void image_set_free(image_set *set);

/* The images from row `first` on, as an operand. */
eg_matrix image_set_from(const image_set *set, int first);

#endif
