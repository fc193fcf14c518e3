/* SPDX-License-Identifier: Apache-2.0 */
#include "processes.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "failure.h"

/* NULL, and a line that says so, where there is none. */
static void *find(void *library, const char *name) {
    void *address = dlsym(library, name);
    if (address == NULL) cli_fail(CLI_UNAVAILABLE, "--mpi: the library has no %s", name);
    return address;
}

int processes_open(processes *p) {
    eg_status (*open)(eg_comm * comm) = NULL;
    void (*free_comm)(eg_comm * comm) = NULL;
    const char *named = getenv("EPIGRAD_MPI_LIBRARY");
    *p = (processes){.library = dlopen(named != NULL ? named : "libepigrad_mpi.so." EPIGRAD_SOVERSION,
                                       RTLD_NOW | RTLD_GLOBAL)};
    if (p->library == NULL) return cli_fail(CLI_UNAVAILABLE, "--mpi: %s", dlerror());
    void *address = find(p->library, "eg_comm_mpi_world");
    memcpy(&open, &address, sizeof open);
    if (open == NULL) return CLI_UNAVAILABLE;
    address = find(p->library, "eg_comm_mpi_free");
    memcpy(&free_comm, &address, sizeof free_comm);
    if (free_comm == NULL) return CLI_UNAVAILABLE;
    if (open(&p->comm) != EG_OK) return cli_fail(CLI_FAILED, "--mpi: the processes could not be joined");
    p->free = free_comm;
    return CLI_OK;
}

/* The library stays: what it started may not be unloaded. */
void processes_close(processes *p) {
    if (p->free != NULL) p->free(&p->comm);
    *p = (processes){.free = NULL};
}

int processes_path(const processes *p, const char *what, const char *path, char **own) {
    char rank[16];
    size_t marks = 0;
    snprintf(rank, sizeof rank, "%d", p->comm.rank);
    for (const char *at = path; (at = strstr(at, "%r")) != NULL; at += 2) marks++;
    if (marks == 0)
        return cli_fail(CLI_BAD_INPUT, "%s is %s with --mpi; expected %%r in it, for the rank of the process",
                        what, path);
    char *to = *own = malloc(strlen(path) + marks * strlen(rank) + 1);
    if (to == NULL) return cli_out_of_memory();
    for (const char *at = path; *at != '\0';) {
        const char *mark = strstr(at, "%r");
        const size_t plain = mark != NULL ? (size_t)(mark - at) : strlen(at);
        memcpy(to, at, plain);
        to += plain, at += plain;
        if (mark == NULL) break;
        to = stpcpy(to, rank), at += 2;
    }
    *to = '\0';
    return CLI_OK;
}
