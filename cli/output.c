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
#include "safetensors.h"

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

int output_check(const char *path) {
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
    if (stat(bare, &status) == 0) return check_existing(bare, &status);
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
    const int file = mkstemp(temporary);
    if (file < 0) return cannot_write(path);
    int code = finish_file(safetensors_write(file, path, tensors, count), file, path);
    if (code == CLI_OK && rename(temporary, path) != 0) code = cannot_write(path);
    if (code != CLI_OK) unlink(temporary);
    return code;
}

static int output_folder(const char *path, char *temporary, const tensor *const *tensors, int count) {
    if (mkdtemp(temporary) == NULL) return cannot_write(path);
    int code = write_npys(temporary, tensors, count);
    if (code == CLI_OK) code = folder_replace(temporary, path);
    if (code != CLI_OK) folder_remove(temporary);
    return code;
}

/* Through a link, the file or folder that it leads to is replaced, and not the link. */
int output_write(const char *path, const tensor *const *tensors, int count) {
    char target[PATH_MAX], temporary[PATH_MAX + 8], parent[PATH_MAX];
    CLI_TRY(parent_of(path, parent)); /* so path fits */
    if (realpath(path, target) == NULL) copy_path(target, path);
    strip_slashes(target);
    CLI_TRY(parent_of(target, parent));
    snprintf(temporary, sizeof temporary, "%s.XXXXXX", target);
    CLI_TRY(names_a_file(path) ? output_file(target, temporary, tensors, count)
                               : output_folder(target, temporary, tensors, count));
    sync_folder(parent);
    return CLI_OK;
}
