/* SPDX-License-Identifier: Apache-2.0 */
/* Communicators over MPI: libepigrad_mpi, a library of its own, because MPI has no binary interface that all
 * implementations share. It is built where mpicc is, for that mpicc's MPI. These functions leave
 * eg_last_error as it is. */
#ifndef EPIGRAD_MPI_H
#define EPIGRAD_MPI_H

#include <mpi.h>

#include "comm.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Makes a communicator for CPU contexts of the processes of `mpi`: a collective call, after MPI_Init and
 * before MPI_Finalize. It works on a duplicate whose errors are returned, and measures latency and rate for
 * some milliseconds. Calls that use it are made by a thread that may call MPI: MPI_THREAD_FUNNELED is enough.
 * The numbers of elements that are sent may exceed 2^31, but for a shard. EG_ERR_ARGUMENT: `comm` is NULL, or
 * MPI is not initialised; EG_ERR_OUT_OF_MEMORY; EG_ERR_DEVICE: MPI failed. *comm is cleared then. */
EG_API eg_status eg_comm_mpi(MPI_Comm mpi, eg_comm *comm);

/* The same of all processes of mpirun, for a program that loads this library at run time and knows nothing of
 * MPI: MPI is initialised where it is not, and then finalized by eg_comm_mpi_free. Errors are those of
 * eg_comm_mpi; EG_ERR_DEVICE also where MPI cannot be initialised, and EG_ERR_ARGUMENT where it has been
 * finalized. */
EG_API eg_status eg_comm_mpi_world(eg_comm *comm);

/* Of the MPI_Comm at that address, for other languages: mpi4py's MPI._addressof(comm). It is read before the
 * call returns. Errors are those of eg_comm_mpi; EG_ERR_ARGUMENT also where `mpi` is NULL. */
EG_API eg_status eg_comm_mpi_at(const void *mpi, eg_comm *comm);

/* Frees it: a collective call too. A communicator that was given up after a failure stays MPI's; to free it
 * is no collective call. */
EG_API void eg_comm_mpi_free(eg_comm *comm);

#ifdef __cplusplus
}
#endif

#endif /* EPIGRAD_MPI_H */
