/* SPDX-License-Identifier: Apache-2.0 */
/* A communicator of NCCL over the processes of MPI, each with a device of its own. */
#ifndef DIGITS_NCCL_H
#define DIGITS_NCCL_H

#include <epigrad/mpi.h>

/* Before CUDA is used: this process sees one device alone, by its rank on its machine. */
void nccl_take_device(MPI_Comm mpi);

/* After the device was opened. NULL, or why there is none. */
const char *nccl_open(MPI_Comm mpi, eg_comm *comm);

#endif
