/* SPDX-License-Identifier: Apache-2.0 */
#include "folder.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "failure.h"
#include "file.h"
#include "operands.h"

static const char SUFFIX[] = ".npy";

static bool is_file_of(operand op, const char *name) {
    const char *of = cli_operand_name(op);
    return strncmp(name, of, strlen(of)) == 0 && strcmp(name + strlen(of), SUFFIX) == 0;
}

static bool is_result(const char *name) {
    for (operand op = OP_A; op < OPERANDS; op++) {
        if (operand_may_be_result(op) && is_file_of(op, name)) return true;
    }
    return strcmp(name, ".") == 0 || strcmp(name, "..") == 0;
}

int folder_check(const char *path) {
    const char *slash = strrchr(path, '/'), *base = slash != NULL ? slash + 1 : path;
    if (strcmp(base, ".") == 0 || strcmp(base, "..") == 0) {
        return cli_fail(CLI_BAD_INPUT, "OUT is %s; expected a folder by its name", path);
    }
    DIR *folder = opendir(path);
    if (folder == NULL) return file_cannot_open(path);
    int code = CLI_OK;
    for (const struct dirent *entry = readdir(folder); entry != NULL && code == CLI_OK;
         entry = readdir(folder)) {
        if (is_result(entry->d_name)) continue;
        code = cli_fail(CLI_BAD_INPUT,
                        "OUT, the folder %s, holds %s, which is no result of epigrad; it would be lost", path,
                        entry->d_name);
    }
    closedir(folder);
    return code;
}

/* By paths: a signal's handler may call nothing that makes text, and descriptors may have run out. */
static void remove_results(const char *folder) {
    char path[PATH_MAX + 32];
    for (operand op = OP_A; op < OPERANDS; op++) {
        const char *name = cli_operand_name(op);
        if (!operand_may_be_result(op) || strlen(folder) + 1 + strlen(name) + sizeof SUFFIX > sizeof path)
            continue;
        char *end = stpcpy(path, folder);
        *end++ = '/';
        stpcpy(stpcpy(end, name), SUFFIX);
        unlink(path);
    }
}

void folder_remove(const char *path) {
    remove_results(path);
    rmdir(path);
}

static int cannot_replace(const char *path) {
    return cli_fail(CLI_FAILED, "cannot write %s: %s", path, strerror(errno));
}

/* Where folders cannot be exchanged in one step: rename() replaces an empty folder, so the old results
 * are removed first. */
static int replace_in_two_steps(const char *made, const char *path) {
    remove_results(path);
    return rename(made, path) == 0 ? CLI_OK : cannot_replace(path);
}

int folder_replace(const char *made, const char *path) {
    if (rename(made, path) == 0) return CLI_OK; /* there was none, or an empty one */
    if (errno != ENOTEMPTY && errno != EEXIST) return cannot_replace(path);
    CLI_TRY(folder_check(path));
#ifdef RENAME_EXCHANGE
    if (renameat2(AT_FDCWD, made, AT_FDCWD, path, RENAME_EXCHANGE) == 0) {
        folder_remove(made); /* now the old one */
        return CLI_OK;
    }
    if (errno != EINVAL && errno != ENOSYS) return cannot_replace(path);
#endif
    return replace_in_two_steps(made, path);
}
