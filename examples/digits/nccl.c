/* SPDX-License-Identifier: Apache-2.0 */
#include "nccl.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Of nccl.h, so that the example builds without it. */
typedef struct unique_id {
    char internal[128];
} unique_id;

void nccl_take_device(MPI_Comm mpi) {
    MPI_Comm machine;
    int rank = 0;
    char number[16];
    MPI_Comm_split_type(mpi, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &machine);
    MPI_Comm_rank(machine, &rank);
    MPI_Comm_free(&machine);
    snprintf(number, sizeof number, "%d", rank);
    setenv("CUDA_VISIBLE_DEVICES", number, 0);
}

const char *nccl_open(MPI_Comm mpi, eg_comm *comm) {
    int (*get_id)(unique_id *) = NULL;
    int (*init)(struct ncclComm **, int, unique_id, int) = NULL;
    struct ncclComm *nccl = NULL;
    unique_id id = {{0}};
    int rank = 0, ranks = 0;
    void *library = dlopen("libnccl.so.2", RTLD_NOW), *address;
    if (library == NULL) return dlerror();
    address = dlsym(library, "ncclGetUniqueId");
    memcpy(&get_id, &address, sizeof address);
    address = dlsym(library, "ncclCommInitRank");
    memcpy(&init, &address, sizeof address);
    if (get_id == NULL || init == NULL) return "libnccl.so.2 has no ncclCommInitRank";
    MPI_Comm_rank(mpi, &rank);
    MPI_Comm_size(mpi, &ranks);
    if (rank == 0 && get_id(&id) != 0) return "ncclGetUniqueId failed";
    MPI_Bcast(&id, sizeof id, MPI_BYTE, 0, mpi);
    if (init(&nccl, ranks, id, rank) != 0) return "ncclCommInitRank failed";
    return eg_comm_nccl(nccl, comm) == EG_OK ? NULL : eg_last_error();
}
