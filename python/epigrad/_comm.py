# SPDX-License-Identifier: Apache-2.0
"""Communicators: the processes over which gradients are summed, or a layer is divided."""
import ctypes
import os

from . import _library
from ._library import ArgumentError, DeviceError, UnavailableError


class Comm:
    """The processes of a data-parallel `epigrad.linear_backward`, or of a layer that is divided over them (split=).
    `Comm.mpi` and `Comm.nccl` make one.

    Attributes:
        rank: of this process.
        ranks: how many processes there are.

    Every process makes the same calls with it, in the same order. If one disagrees, fails or does not come, the call is
    a DeviceError on all others. Call `close()` after all calls with it, or leave a ``with`` block.
    """

    def __init__(self, memory, free):
        self._memory, self._free = memory, free
        # eg_comm begins with its size, the rank and the ranks.
        self.rank, self.ranks = (ctypes.c_int * 2).from_buffer(memory, ctypes.sizeof(ctypes.c_size_t))

    @classmethod
    def mpi(cls, comm=None):
        """For arrays on the CPU: the processes of a communicator of mpi4py, or without one all processes of mpirun.
        Initialises MPI if that has not been done. Loads libepigrad_mpi, or what EPIGRAD_MPI_LIBRARY names. All
        processes call it together.

        Raises UnavailableError where the library is not found, DeviceError where MPI fails."""
        version = ".".join(_library.version.split(".")[:2])
        try:
            library = ctypes.CDLL(os.environ.get("EPIGRAD_MPI_LIBRARY") or f"libepigrad_mpi.so.{version}",
                                  mode=ctypes.RTLD_GLOBAL)
        except OSError as why:
            raise UnavailableError(f"libepigrad_mpi could not be loaded: {why}") from None
        memory = ctypes.create_string_buffer(_library.comm_size())
        if comm is None:
            status = library.eg_comm_mpi_world(memory)
        else:
            from mpi4py import MPI  # pylint: disable=import-outside-toplevel
            status = library.eg_comm_mpi_at(ctypes.c_void_p(MPI._addressof(comm)), memory)
        if status != 0:
            raise DeviceError("MPI could not make a communicator")
        return cls(memory, lambda: library.eg_comm_mpi_free(memory))

    @classmethod
    def nccl(cls, comm):
        """For arrays on CUDA: the processes of an ``ncclComm_t``, given by its address, or of a ProcessGroupNCCL of
        PyTorch that has ``_comm_ptr``. It stays its owner's, who keeps it alive."""
        address = comm if isinstance(comm, int) else getattr(comm, "_comm_ptr", lambda: 0)()
        if not address:
            raise ArgumentError(f"comm is {comm!r}; expected the address of an ncclComm_t, or a ProcessGroupNCCL")
        memory = ctypes.create_string_buffer(_library.comm_size())
        _library.comm_nccl(address, ctypes.addressof(memory))
        return cls(memory, lambda: _library.comm_nccl_free(ctypes.addressof(memory)))

    @property
    def address(self):
        """Of the eg_comm, while it is open."""
        if self._free is None:
            raise ArgumentError("comm is closed; expected an open one")
        return ctypes.addressof(self._memory)

    def close(self):
        """Frees it, together with all other processes."""
        free, self._free = self._free, None
        if free is not None:
            free()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()


def check_comm(comm):
    """None is allowed: one process."""
    if comm is not None and not isinstance(comm, Comm):
        raise TypeError(f"comm is {type(comm)}; expected an epigrad.Comm, as Comm.mpi or Comm.nccl makes it")
