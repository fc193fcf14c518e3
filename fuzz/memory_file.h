/* SPDX-License-Identifier: Apache-2.0 */
/* The fuzzed bytes as a file, for readers that take one. */
#ifndef FUZZ_MEMORY_FILE_H
#define FUZZ_MEMORY_FILE_H

#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

/* One file in memory, made once and overwritten for each input. */
static int memory_file(const uint8_t *data, size_t bytes) {
    static int file = -1;
    if (file < 0) file = memfd_create("fuzz", MFD_CLOEXEC);
    if (file < 0 || ftruncate(file, 0) != 0 || pwrite(file, data, bytes, 0) != (ssize_t)bytes) abort();
    return file;
}

#endif
