/* SPDX-License-Identifier: Apache-2.0 */
#include "output.h"

#include <errno.h>
#include <fcntl.h>
#include <libgen.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "failure.h"
#include "file.h"
#include "folder.h"
#include "npy.h"
#include "operands.h"
#include "safetensors.h"
#include "temporary.h"

static int cannot_write(const char *path) {
    return cli_fail(CLI_FAILED, "cannot write %s: %s", path, strerror(errno));
}

static bool names_a_file(const char *path) {
    static const char suffix[] = ".safetensors";
    const size_t length = strlen(path), tail = sizeof suffix - 1;
    return length > tail && strcmp(path + length - tail, suffix) == 0;
}

/* ---- Checks ------------------------------------------------------------------------------------- */

/* Results for a name like out.npz would surprise as a folder. */
static int check_new_folder(const char *path) {
    const char *slash = strrchr(path, '/'), *base = slash != NULL ? slash + 1 : path;
    if (strchr(base, '.') == NULL) return CLI_OK;
    return cli_fail(CLI_BAD_INPUT, "OUT is %s; expected a name that ends in .safetensors, or a folder", path);
}

static int check_existing(const char *path, const struct stat *status) {
    const bool file = names_a_file(path);
    if (file && !S_ISREG(status->st_mode))
        return cli_fail(CLI_BAD_INPUT, "OUT is %s, which is not a regular file", path);
    if (file) return CLI_OK;
    if (S_ISDIR(status->st_mode)) return folder_check(path);
    return cli_fail(CLI_BAD_INPUT, "OUT is %s; expected a name that ends in .safetensors, or a folder", path);
}

/* ---- IN stays ----------------------------------------------------------------------------------- */

static bool is_same_file(const struct stat *x, const struct stat *y) {
    return x->st_dev == y->st_dev && x->st_ino == y->st_ino;
}

/* Is this file of the folder IN, one of its tensors, a file of the folder OUT too? */
static bool is_in_folder(const struct stat *in, const char *path) {
    struct stat out;
    char entry[PATH_MAX + 32];
    for (operand op = OP_A; op < OPERANDS; op++) {
        snprintf(entry, sizeof entry, "%s/%s.npy", path, cli_operand_name(op));
        if (stat(entry, &out) == 0 && is_same_file(in, &out)) return true;
    }
    return false;
}

static int check_linked_tensors(const char *path, const char *input) {
    struct stat in;
    char entry[PATH_MAX + 32];
    for (operand op = OP_A; op < OPERANDS; op++) {
        if (snprintf(entry, sizeof entry, "%s/%s.npy", input, cli_operand_name(op)) >= (int)sizeof entry)
            continue;
        if (stat(entry, &in) != 0 || !is_in_folder(&in, path)) continue;
        return cli_fail(CLI_BAD_INPUT, "OUT, the folder %s, holds the file that %s is too; it would be lost",
                        path, entry);
    }
    return CLI_OK;
}

/* Under whatever names: links of both kinds lead to one file. */
static int check_input_stays(const char *path, const struct stat *out, const char *input) {
    struct stat in;
    if (stat(input, &in) != 0) return CLI_OK; /* opening it will say what is wrong */
    if (is_same_file(&in, out)) {
        return cli_fail(CLI_BAD_INPUT, "OUT is %s, which is IN, %s; it would be lost", path, input);
    }
    return S_ISDIR(in.st_mode) && S_ISDIR(out->st_mode) ? check_linked_tensors(path, input) : CLI_OK;
}

/* ---- The place ---------------------------------------------------------------------------------- */

/* Callers have checked that paths fit, see parent_of. */
static void copy_path(char to[PATH_MAX], const char *from) { snprintf(to, PATH_MAX, "%s", from); }

/* The folder that `path` lies in. */
static int parent_of(const char *path, char parent[PATH_MAX]) {
    char copy[PATH_MAX];
    if (strlen(path) >= sizeof copy) {
        return cli_fail(CLI_BAD_INPUT, "OUT is a path of more than %d bytes", PATH_MAX - 1);
    }
    copy_path(copy, path);
    copy_path(parent, dirname(copy));
    return CLI_OK;
}

static void strip_slashes(char *path) {
    for (size_t end = strlen(path); end > 1 && path[end - 1] == '/'; end--) path[end - 1] = '\0';
}

int output_check(const char *path, const char *input) {
    if (path[0] == '\0') return cli_fail(CLI_BAD_INPUT, "OUT is an empty name");
    char bare[PATH_MAX], parent[PATH_MAX];
    CLI_TRY(parent_of(path, parent));
    copy_path(bare, path);
    strip_slashes(bare);
    struct stat status;
    if (stat(parent, &status) != 0 || !S_ISDIR(status.st_mode)) {
        return cli_fail(CLI_BAD_INPUT, "OUT is %s, and there is no folder %s", path, parent);
    }
    if (access(parent, W_OK) != 0) return cannot_write(path);
    if (stat(bare, &status) == 0) {
        CLI_TRY(check_existing(bare, &status));
        return check_input_stays(bare, &status, input);
    }
    const int why = errno;
    if (lstat(bare, &status) == 0 && S_ISLNK(status.st_mode)) {
        return cli_fail(CLI_BAD_INPUT, "OUT is %s, a symbolic link that cannot be followed: %s", bare,
                        strerror(why));
    }
    if (why != ENOENT) return cli_fail(CLI_BAD_INPUT, "OUT is %s: %s", bare, strerror(why));
    return names_a_file(path) ? CLI_OK : check_new_folder(path);
}

/* ---- Writing ------------------------------------------------------------------------------------ */

/* mkstemp and mkdtemp make private files; a result has the permissions of any new file. */
static mode_t permissions(mode_t all) {
    const mode_t mask = umask(0);
    umask(mask);
    return all & ~mask;
}

/* Permissions, disk, close. */
static int finish_file(int code, int file, const char *path) {
    if (code == CLI_OK && fchmod(file, permissions(0666)) != 0) code = cannot_write(path);
    if (code == CLI_OK && fsync(file) != 0) code = cannot_write(path);
    if (close(file) != 0 && code == CLI_OK) code = cannot_write(path);
    return code;
}

/* A rename is lasting once the folder is. Not every file system can be asked, so this may fail. */
static void sync_folder(const char *path) {
    const int folder = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (folder < 0) return;
    fsync(folder);
    close(folder);
}

static int write_npys(const char *folder, const tensor *const *tensors, int count) {
    for (int i = 0; i < count; i++) {
        char path[PATH_MAX + 64];
        snprintf(path, sizeof path, "%s/%s.npy", folder, tensors[i]->name);
        const int file = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
        if (file < 0) return cannot_write(path);
        CLI_TRY(finish_file(npy_write(file, path, tensors[i]), file, path));
    }
    if (chmod(folder, permissions(0777)) != 0) return cannot_write(folder);
    sync_folder(folder);
    return CLI_OK;
}

static int output_file(const char *path, char *temporary, const tensor *const *tensors, int count) {
    const int file = temporary_make_file(temporary);
    if (file < 0) return cannot_write(path);
    int code = finish_file(safetensors_write(file, path, tensors, count), file, path);
    temporary_hold_signals();
    if (code == CLI_OK && rename(temporary, path) != 0) code = cannot_write(path);
    if (code != CLI_OK) unlink(temporary);
    temporary_end();
    return code;
}

static int output_folder(const char *path, char *temporary, const tensor *const *tensors, int count) {
    if (!temporary_make_folder(temporary)) return cannot_write(path);
    int code = write_npys(temporary, tensors, count);
    temporary_hold_signals();
    if (code == CLI_OK) code = folder_replace(temporary, path);
    if (code != CLI_OK) folder_remove(temporary);
    temporary_end();
    return code;
}

/* A name as long as the file system allows is cut, to leave room for what mkstemp appends. */
static void name_temporary(const char *target, char temporary[PATH_MAX + 8]) {
    static const char suffix[] = ".XXXXXX";
    const char *slash = strrchr(target, '/'), *base = slash != NULL ? slash + 1 : target;
    const size_t longest = NAME_MAX + 1 - sizeof suffix, length = strlen(base);
    const size_t kept = (size_t)(base - target) + (length < longest ? length : longest);
    snprintf(temporary, PATH_MAX + 8, "%.*s%s", (int)kept, target, suffix);
}

/* Through a link, the file or folder that it leads to is replaced, and not the link. */
int output_write(const char *path, const tensor *const *tensors, int count) {
    char target[PATH_MAX], temporary[PATH_MAX + 8], parent[PATH_MAX];
    CLI_TRY(parent_of(path, parent)); /* so path fits */
    if (realpath(path, target) == NULL) copy_path(target, path);
    strip_slashes(target);
    CLI_TRY(parent_of(target, parent));
    name_temporary(target, temporary);
    CLI_TRY(names_a_file(path) ? output_file(target, temporary, tensors, count)
                               : output_folder(target, temporary, tensors, count));
    sync_folder(parent);
    return CLI_OK;
}
