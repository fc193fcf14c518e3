/* SPDX-License-Identifier: Apache-2.0 */
/* Files, with failures named. */
#ifndef CLI_FILE_H
#define CLI_FILE_H

#include <stddef.h>
#include <stdint.h>

/* The failure of an open() or stat() of `path`, from errno: bad input only where the path is at fault. */
int file_cannot_open(const char *path);

/* Opens `name`, within the folder `at` (or AT_FDCWD), for reading; it must be a regular file. Messages call
 * it `path`. */
int file_open(int at, const char *name, const char *path, int *file, uint64_t *bytes);

/* Reads or writes all `bytes`. */
int file_read(int file, const char *path, void *data, size_t bytes, uint64_t offset);
int file_write(int file, const char *path, const void *data, size_t bytes);

#endif
