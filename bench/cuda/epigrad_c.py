# SPDX-License-Identifier: Apache-2.0
"""epigrad's C interface through ctypes: what the benchmarks call."""

import ctypes as c
import re

F32, F64, F16, BF16 = 1, 2, 3, 4
CPU, CUDA = 0, 1
RECOMPUTE, PRE, Y = 0, 1, 2
ESTIMATED, MEASURED = 0, 1
COL_MAJOR = 1
ACTIVATIONS = ["none", "relu", "gelu", "silu", "sigmoid", "tanh", "gelu_erf", "quick_gelu", "relu2",
               "softplus", "hardswish", "mish"]


class Allocator(c.Structure):
    _fields_ = [("alloc", c.c_void_p), ("free", c.c_void_p), ("user", c.c_void_p)]


class OpenInfo(c.Structure):
    _fields_ = [("size", c.c_size_t), ("backend", c.c_int), ("device", c.c_int), ("threads", c.c_int),
                ("kernel", c.c_char_p), ("allocator", Allocator), ("native_device", c.c_void_p),
                ("native_queue", c.c_void_p), ("parallel_for", c.c_void_p), ("parallel_user", c.c_void_p),
                ("tuning", c.c_int)]


class Layer(c.Structure):
    _fields_ = [("size", c.c_size_t), ("m", c.c_int64), ("k", c.c_int64), ("n", c.c_int64),
                ("batch", c.c_int64), ("dtype", c.c_int), ("activation", c.c_int), ("math", c.c_int),
                ("nonfinite", c.c_int), ("scale", c.c_double), ("outer_batch", c.c_int64), ("groups", c.c_int64)]


class Matrix(c.Structure):
    _fields_ = [("data", c.c_void_p), ("offset", c.c_size_t), ("ld", c.c_int64), ("batch_stride", c.c_int64),
                ("layout", c.c_int), ("dtype", c.c_int)]


class Vector(c.Structure):
    _fields_ = [("data", c.c_void_p), ("offset", c.c_size_t), ("dtype", c.c_int)]


class Workspace(c.Structure):
    _fields_ = [("data", c.c_void_p), ("offset", c.c_size_t), ("bytes", c.c_size_t)]


class Chain(c.Structure):
    _fields_ = [("saved", Matrix), ("source", c.c_int), ("activation", c.c_int), ("d_bias", Vector)]


class DataParallel(c.Structure):
    _fields_ = [("comm", c.c_void_p), ("reduction", c.c_int), ("sharding", c.c_int), ("sums", c.c_int)]


class ChainUp(c.Structure):
    _fields_ = [("saved", Matrix), ("d_up", Matrix), ("y", Matrix), ("d_bias", Vector)]


class TensorParallel(c.Structure):
    _fields_ = [("comm", c.c_void_p), ("split", c.c_int), ("sums", c.c_int), ("gathered", Matrix)]


class CommCost(c.Structure):
    _fields_ = [("latency", c.c_double), ("rate", c.c_double)]


class Comm(c.Structure):
    _fields_ = [("size", c.c_size_t), ("rank", c.c_int), ("ranks", c.c_int), ("user", c.c_void_p),
                ("all_reduce", c.c_void_p), ("reduce_scatter", c.c_void_p), ("all_gather", c.c_void_p),
                ("progress", c.c_void_p), ("failure", c.c_void_p), ("abort", c.c_void_p), ("timeout", c.c_double),
                ("now", CommCost), ("begun", CommCost), ("busy", c.c_double), ("order", c.c_int)]


class Offsets(c.Structure):
    _fields_ = [("data", c.c_void_p), ("offset", c.c_size_t)]


class BackwardArgs(c.Structure):
    _fields_ = [("size", c.c_size_t), ("a", Matrix), ("b", Matrix), ("bias", Vector), ("grad", Matrix),
                ("source", c.c_int), ("pre", Matrix), ("y", Matrix), ("d_a", Matrix), ("d_b", Matrix),
                ("d_bias", Vector), ("grad_pre", Matrix), ("accumulate", c.c_int), ("chain", Chain),
                ("packed_b", c.c_void_p), ("workspace", Workspace), ("workspace_limit", c.c_size_t),
                ("data_parallel", DataParallel), ("b_up", Matrix), ("bias_up", Vector), ("pre_up", Matrix),
                ("grad_up", Matrix), ("d_b_up", Matrix), ("d_bias_up", Vector), ("grad_pre_up", Matrix),
                ("packed_b_up", c.c_void_p), ("chain_up", ChainUp), ("residual", Matrix),
                ("accumulate_into", c.c_uint64), ("tensor_parallel", TensorParallel), ("outer", c.c_int64 * 18),
                ("offsets", Offsets)]


class ForwardArgs(c.Structure):
    _fields_ = [("size", c.c_size_t), ("a", Matrix), ("b", Matrix), ("bias", Vector), ("residual", Matrix),
                ("y", Matrix), ("pre", Matrix), ("packed_b", c.c_void_p), ("workspace", Workspace),
                ("workspace_limit", c.c_size_t), ("b_up", Matrix), ("bias_up", Vector), ("pre_up", Matrix),
                ("packed_b_up", c.c_void_p), ("tensor_parallel", TensorParallel), ("outer", c.c_int64 * 7),
                ("offsets", Offsets)]


class KernelInfo(c.Structure):
    _fields_ = [("size", c.c_size_t), ("name", c.c_char_p), ("compute", c.c_int), ("usable", c.c_int),
                ("needs", c.c_char_p), ("tile", c.c_char_p)]


class Library:
    """A context: on a CUDA stream, or on the CPU."""

    def __init__(self, path, stream=None, kernel=None, backend=CUDA, threads=0, device=0,
                 tuning=ESTIMATED):
        self.lib = c.CDLL(path)
        self.lib.eg_last_error.restype = c.c_char_p
        self.context = c.c_void_p()
        info = OpenInfo(size=c.sizeof(OpenInfo), backend=backend, device=device, threads=threads,
                        native_queue=stream, kernel=kernel.encode() if kernel else None, tuning=tuning)
        self.check(self.lib.eg_open(c.byref(info), c.byref(self.context)))

    def check(self, status):
        if status != 0:
            raise RuntimeError(f"epigrad: status {status}: {self.lib.eg_last_error().decode()}")

    def backward(self, layer, args):
        self.check(self.lib.eg_backward(self.context, c.byref(layer), c.byref(args)))

    def workspace(self, layer, args):
        size = c.c_size_t()
        self.check(self.lib.eg_backward_workspace(self.context, c.byref(layer), c.byref(args), c.byref(size)))
        return size.value

    def plan(self, layer, args):
        text = c.create_string_buffer(4096)
        self.check(self.lib.eg_backward_plan(self.context, c.byref(layer), c.byref(args), text, 4096))
        return text.value.decode()

    def steps(self, layer, args):
        """The plan's steps as "what: kernel", without those for where a number or a library refuses."""
        text, steps = c.create_string_buffer(8192), []
        self.check(self.call("_plan", layer, args, text, len(text)))
        for line in text.value.decode().partition("\nwhere ")[0].splitlines():
            found = re.match(r" *\d+ +\w+ +(.*?) {2,}(\S+)", line)
            if found:
                steps.append(": ".join(found.groups()))
        return steps

    def call(self, what, layer, args, *rest):
        """eg_forward or eg_backward, and what follows that in the name of a function; the status."""
        way = "eg_forward" if isinstance(args, ForwardArgs) else "eg_backward"
        return getattr(self.lib, way + what)(self.context, c.byref(layer), c.byref(args), *rest)

    def kernels(self):
        """The names of the rows that this device can use."""
        names, info = [], KernelInfo(size=c.sizeof(KernelInfo))
        while self.lib.eg_get_kernel_info(self.context, len(names), c.byref(info)) == 0:
            names.append(info.name.decode() if info.usable else None)
        return [name for name in names if name]

    def close(self):
        self.lib.eg_close(self.context)


def matrix(tensor):
    """A row-major tensor, or the transpose of one; of three dimensions, the batch first."""
    across = tensor.stride(-1) == 1
    return Matrix(data=tensor.data_ptr(), ld=tensor.stride(-2) if across else tensor.stride(-1),
                  batch_stride=tensor.stride(0) if tensor.dim() == 3 else 0, layout=0 if across else COL_MAJOR)


def vector(tensor):
    return Vector(data=tensor.data_ptr())
