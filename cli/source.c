/* SPDX-License-Identifier: Apache-2.0 */
#include "source.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "failure.h"
#include "file.h"
#include "npy.h"

int source_open(const char *path, tensor_source *source) {
    *source = (tensor_source){.path = path, .file = -1};
    struct stat status;
    if (stat(path, &status) != 0) return file_cannot_open(path);
    source->is_folder = S_ISDIR(status.st_mode);
    if (source->is_folder) {
        source->file = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        return source->file >= 0 ? CLI_OK : file_cannot_open(path);
    }
    uint64_t bytes = 0;
    CLI_TRY(file_open(AT_FDCWD, path, path, &source->file, &bytes));
    return safetensors_open(source->file, path, bytes, &source->index);
}

void source_close(tensor_source *source) {
    if (source->file >= 0) close(source->file);
    safetensors_close(&source->index);
    source->file = -1;
}

static int load_from_index(const tensor_source *source, const char *name, bool with_data, tensor *t,
                           bool *found) {
    for (int i = 0; i < source->index.count; i++) {
        if (strcmp(source->index.tensors[i].name, name) != 0) continue;
        *found = true;
        *t = source->index.tensors[i];
        t->name = strdup(name);
        if (t->name == NULL) return cli_out_of_memory();
        if (t->dtype != EG_DTYPE_DEFAULT)
            return with_data ? tensor_read(t, source->file, source->path) : CLI_OK;
        return cli_fail(CLI_BAD_INPUT, "%s: %s has elements of type %s; expected F64, F32, F16 or BF16",
                        source->path, name, t->type);
    }
    return CLI_OK;
}

static int load_npy(int file, const char *path, uint64_t bytes, const char *name, bool with_data, tensor *t) {
    t->name = strdup(name);
    if (t->name == NULL) return cli_out_of_memory();
    CLI_TRY(npy_open(file, path, bytes, t));
    return with_data ? tensor_read(t, file, path) : CLI_OK;
}

static int load_from_folder(const tensor_source *source, const char *name, bool with_data, tensor *t,
                            bool *found) {
    char entry[64], path[512];
    snprintf(entry, sizeof entry, "%s.npy", name);
    snprintf(path, sizeof path, "%s/%s", source->path, entry); /* for messages only */
    struct stat status;
    if (fstatat(source->file, entry, &status, 0) != 0 && errno == ENOENT) return CLI_OK;
    *found = true;
    int file = -1;
    uint64_t bytes = 0;
    CLI_TRY(file_open(source->file, entry, path, &file, &bytes));
    const int code = load_npy(file, path, bytes, name, with_data, t);
    close(file);
    return code;
}

int source_load(const tensor_source *source, const char *name, bool with_data, tensor *t, bool *found) {
    *t = (tensor){0};
    *found = false;
    const int code = source->is_folder ? load_from_folder(source, name, with_data, t, found)
                                       : load_from_index(source, name, with_data, t, found);
    if (code != CLI_OK) tensor_free(t);
    return code;
}
