# SPDX-License-Identifier: Apache-2.0
"""Bare products by cublasLt through ctypes: the floor that the benchmarks compare with.

A product of row-major matrices (or transposes of them), or of as many as a first dimension says, is tuned once, over the first 16 algorithms that
the library's heuristics offer, timed on the very operands."""

import ctypes as c

import torch

CANDIDATES = 16
SCRATCH = 64 << 20
TYPES = {torch.float32: (0, 68), torch.float64: (1, 70), torch.float16: (2, 68), torch.bfloat16: (14, 68)}


class Found(c.Structure):
    _fields_ = [("algorithm", c.c_uint64 * 8), ("scratch", c.c_size_t), ("state", c.c_int),
                ("waves", c.c_float), ("reserved", c.c_int * 4)]


class CublasLt:
    def __init__(self):
        self.lib = c.CDLL("libcublasLt.so.13")
        self.handle = c.c_void_p()
        self.check(self.lib.cublasLtCreate(c.byref(self.handle)))
        self.scratch = torch.empty(SCRATCH, dtype=torch.uint8, device="cuda")

    @staticmethod
    def check(status):
        if status != 0:
            raise RuntimeError(f"cublasLt: status {status}")

    def layout(self, tensor, kind):
        """Column-major: a row-major tensor is its own transpose."""
        rows, cols, ld = tensor.shape[-1], tensor.shape[-2], tensor.stride(-2)
        made = c.c_void_p()
        self.check(self.lib.cublasLtMatrixLayoutCreate(c.byref(made), kind, c.c_uint64(rows), c.c_uint64(cols),
                                                       c.c_int64(ld)))
        if tensor.dim() == 3:
            items, step = c.c_int32(tensor.shape[0]), c.c_int64(tensor.stride(0))
            self.check(self.lib.cublasLtMatrixLayoutSetAttribute(made, 5, c.byref(items), 4))
            self.check(self.lib.cublasLtMatrixLayoutSetAttribute(made, 6, c.byref(step), 8))
        return made


class Product:
    """out = left @ right."""

    def __init__(self, lt, left, right, out):
        self.lt = lt
        kind, compute = TYPES[left.dtype]
        scale = kind if kind in (0, 1) else 0
        self.scalars = (c.c_double * 2)(1, 0) if scale == 1 else (c.c_float * 2)(1, 0)
        self.step = c.sizeof(self.scalars) // 2
        self.desc = c.c_void_p()
        lt.check(lt.lib.cublasLtMatmulDescCreate(c.byref(self.desc), compute, scale))
        # outᵀ = rightᵀ · leftᵀ
        for name, tensor in ((3, right), (4, left)):
            flip = c.c_int32(0 if tensor.stride(-1) == 1 else 1)
            lt.check(lt.lib.cublasLtMatmulDescSetAttribute(self.desc, name, c.byref(flip), 4))
        stored = [t if t.stride(-1) == 1 else t.mT for t in (right, left, out)]
        self.layouts = [lt.layout(t, kind) for t in stored]
        self.choices = self.heuristics()
        self.best = self.choices[0]
        ranked = sorted(self.choices, key=lambda choice: self.time(choice, left, right, out, 4))
        self.best = min(ranked[:4], key=lambda choice: self.time(choice, left, right, out, 20))

    def heuristics(self):
        lt, wish = self.lt, c.c_void_p()
        lt.check(lt.lib.cublasLtMatmulPreferenceCreate(c.byref(wish)))
        room = c.c_uint64(SCRATCH)
        lt.check(lt.lib.cublasLtMatmulPreferenceSetAttribute(wish, 1, c.byref(room), 8))
        found, count = (Found * CANDIDATES)(), c.c_int()
        x, y, z = self.layouts
        lt.check(lt.lib.cublasLtMatmulAlgoGetHeuristic(lt.handle, self.desc, x, y, z, z, wish, CANDIDATES, found,
                                                       c.byref(count)))
        return [found[i] for i in range(count.value) if found[i].state == 0]

    def run(self, left, right, out, choice=None):
        choice = choice or self.best
        x, y, z = self.layouts
        one = c.addressof(self.scalars)
        self.lt.check(self.lt.lib.cublasLtMatmul(
            self.lt.handle, self.desc, c.c_void_p(one), c.c_void_p(right.data_ptr()), x,
            c.c_void_p(left.data_ptr()), y, c.c_void_p(one + self.step), c.c_void_p(out.data_ptr()), z,
            c.c_void_p(out.data_ptr()), z, c.byref(choice, 0), c.c_void_p(self.lt.scratch.data_ptr()),
            c.c_size_t(SCRATCH), c.c_void_p(torch.cuda.current_stream().cuda_stream)))

    def time(self, choice, left, right, out, repeats):
        try:
            self.run(left, right, out, choice)
        except RuntimeError:
            return float("inf")
        times = []
        for _ in range(3):
            begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            begin.record()
            for _ in range(repeats):
                self.run(left, right, out, choice)
            end.record()
            end.synchronize()
            times.append(begin.elapsed_time(end))
        return min(times)
