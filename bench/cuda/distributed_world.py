# SPDX-License-Identifier: Apache-2.0
"""The processes of distributed.py, one a GPU, as one of them sees them: NCCL's communicators, and epigrad's."""

import ctypes as c
import datetime
import json

import torch
import torch.distributed as dist

import epigrad_c as eg

NCCL_TYPES = {torch.bfloat16: 9, torch.float32: 7}
DTYPES = {torch.bfloat16: eg.BF16, torch.float32: eg.F32}
PLAIN_ORDER, OVERLAPPED, UNDEFINED = 1, 2, -2 ** 31


def say(**what):
    print(json.dumps(what), flush=True)


class UniqueId(c.Structure):
    _fields_ = [("bytes", c.c_char * 128)]


class Config(c.Structure):
    """ncclConfig_t of 2.17, which later ones read."""
    _fields_ = [("size", c.c_size_t), ("magic", c.c_uint), ("version", c.c_uint), ("blocking", c.c_int),
                ("cga", c.c_int), ("least_ctas", c.c_int), ("most_ctas", c.c_int), ("network", c.c_char_p)]


class Nccl:
    """Communicators of NCCL, and collectives by them in the current stream."""

    def __init__(self, world, most_ctas=None):
        self.lib, self.comm = c.CDLL("libnccl.so.2"), c.c_void_p()  # the one that PyTorch has loaded
        unique = UniqueId()
        if world.rank == 0:
            self.check(self.lib.ncclGetUniqueId(c.byref(unique)))
        text = world.gather(bytes(unique).hex() if world.rank == 0 else "")[0]
        unique = UniqueId.from_buffer_copy(bytes.fromhex(text))
        if most_ctas is None:
            self.check(self.lib.ncclCommInitRank(c.byref(self.comm), world.ranks, unique, world.rank))
        else:
            config = Config(c.sizeof(Config), 0xcafebeef, 21700, 1, UNDEFINED, UNDEFINED, most_ctas, None)
            self.check(self.lib.ncclCommInitRankConfig(c.byref(self.comm), world.ranks, unique, world.rank,
                                                       c.byref(config)))

    def check(self, result):
        if result != 0:
            raise RuntimeError(f"NCCL: {result}")

    def all_reduce(self, x):
        self.check(self.lib.ncclAllReduce(*self.buffer(x), self.buffer(x)[0], c.c_size_t(x.numel()),
                                          NCCL_TYPES[x.dtype], 0, self.comm, self.stream()))

    def reduce_scatter(self, x, to):
        self.check(self.lib.ncclReduceScatter(*self.buffer(x), *self.buffer(to), c.c_size_t(to.numel()),
                                              NCCL_TYPES[x.dtype], 0, self.comm, self.stream()))

    def all_gather(self, x, to):
        self.check(self.lib.ncclAllGather(*self.buffer(x), *self.buffer(to), c.c_size_t(x.numel()),
                                          NCCL_TYPES[x.dtype], self.comm, self.stream()))

    @staticmethod
    def buffer(x):
        return (c.c_void_p(x.data_ptr()),)

    @staticmethod
    def stream():
        return c.c_void_p(torch.cuda.current_stream().cuda_stream)


class World:
    """This rank among all of them, with what the parts share."""

    def __init__(self, library, rank, ranks, port):
        self.path, self.rank, self.ranks, self.keys = library, rank, ranks, 0
        torch.cuda.set_device(rank)
        torch.set_default_device(f"cuda:{rank}")
        torch.set_grad_enabled(False)
        torch.backends.cuda.matmul.allow_tf32 = False
        self.store = dist.TCPStore("127.0.0.1", port, ranks, rank == 0, timeout=datetime.timedelta(seconds=30))
        dist.init_process_group("nccl", store=dist.PrefixStore("group", self.store), rank=rank, world_size=ranks)
        self.stream = torch.cuda.Stream()
        torch.cuda.set_stream(self.stream)
        self.nccl, self.tiny = Nccl(self), torch.zeros(8)
        dist.all_reduce(self.tiny)
        self.nccl.all_reduce(self.tiny)
        torch.cuda.synchronize()
        self.library = self.open()

    def open(self):
        return eg.Library(self.path, self.stream.cuda_stream, device=self.rank)

    def gather(self, value):
        """What each rank says."""
        self.keys += 1
        self.store.set(f"{self.keys}/{self.rank}", json.dumps(value))
        return [json.loads(self.store.get(f"{self.keys}/{r}")) for r in range(self.ranks)]

    def leave(self):
        """The rank that has the store is the last one to leave."""
        self.store.set(f"left/{self.rank}", "")
        for rank in range(self.ranks if self.rank == 0 else 0):
            self.store.get(f"left/{rank}")

    def comm(self, nccl=None, **fields):
        """An eg_comm; it stays until the process ends."""
        made = eg.Comm()
        self.library.check(self.library.lib.eg_comm_nccl((nccl or self.nccl).comm, c.byref(made)))
        for name, value in fields.items():
            setattr(made, name, value)
        return made

    def row(self, **row):
        if self.rank == 0:
            say(**row)


# ---- Right? ------------------------------------------------------------------------------------------
