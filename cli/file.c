/* SPDX-License-Identifier: Apache-2.0 */
#include "file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "failure.h"

/* A path that leads nowhere, or that the caller may not follow, is bad input; all else is the system's. */
static bool is_fault_of_path(int why) {
    static const int known[] = {ENOENT,       ENOTDIR, EACCES, EPERM,  ELOOP,
                                ENAMETOOLONG, EISDIR,  ENXIO,  ENODEV, EINVAL};
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++) {
        if (why == known[i]) return true;
    }
    return false;
}

int file_cannot_open(const char *path) {
    const int why = errno;
    return cli_fail(is_fault_of_path(why) ? CLI_BAD_INPUT : CLI_FAILED, "cannot open %s: %s", path,
                    strerror(why));
}

/* O_NONBLOCK: opening a pipe must not wait for a writer. It changes nothing for a regular file. */
int file_open(int at, const char *name, const char *path, int *file, uint64_t *bytes) {
    *file = openat(at, name, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (*file < 0) return file_cannot_open(path);
    struct stat status;
    if (fstat(*file, &status) != 0 || !S_ISREG(status.st_mode)) {
        close(*file);
        *file = -1;
        return cli_fail(CLI_BAD_INPUT, "%s is not a regular file", path);
    }
    *bytes = (uint64_t)status.st_size;
    return CLI_OK;
}

int file_read(int file, const char *path, void *data, size_t bytes, uint64_t offset) {
    char *to = data;
    while (bytes > 0) {
        const ssize_t got = pread(file, to, bytes, (off_t)offset);
        if (got < 0 && errno == EINTR) continue;
        if (got < 0) return cli_fail(CLI_FAILED, "cannot read %s: %s", path, strerror(errno));
        if (got == 0) return cli_fail(CLI_BAD_INPUT, "%s ended while it was read", path);
        to += got;
        offset += (uint64_t)got;
        bytes -= (size_t)got;
    }
    return CLI_OK;
}

int file_write(int file, const char *path, const void *data, size_t bytes) {
    const char *from = data;
    while (bytes > 0) {
        const ssize_t put = write(file, from, bytes);
        if (put < 0 && errno == EINTR) continue;
        if (put < 0) return cli_fail(CLI_FAILED, "cannot write %s: %s", path, strerror(errno));
        from += put;
        bytes -= (size_t)put;
    }
    return CLI_OK;
}
