# SPDX-License-Identifier: Apache-2.0
"""Products by cublasLt through ctypes: the floor that the benchmarks compare with.

A product of row-major matrices (or transposes of them), or of as many as a first dimension says, is tuned once: the
first 16 algorithms that the library's heuristics offer, timed as graphs on the very operands."""

import ctypes as c

import torch

from graphs import Graph

CANDIDATES, FINAL, TUNE_MS = 16, 4, 0.5
SCRATCH = 64 << 20
EPILOGUES = {"bias": 4, "relu_bias": 6, "gelu_bias": 36, "gelu_aux_bias": 164, "dgelu_bgrad": 208}
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

    def layout(self, tensor):
        """Column-major: a row-major tensor is its own transpose."""
        rows, cols, ld, kind = tensor.shape[-1], tensor.shape[-2], tensor.stride(-2), TYPES[tensor.dtype][0]
        made = c.c_void_p()
        self.check(self.lib.cublasLtMatrixLayoutCreate(c.byref(made), kind, c.c_uint64(rows), c.c_uint64(cols),
                                                       c.c_int64(ld)))
        if tensor.dim() == 3:
            items, step = c.c_int32(tensor.shape[0]), c.c_int64(tensor.stride(0))
            self.check(self.lib.cublasLtMatrixLayoutSetAttribute(made, 5, c.byref(items), 4))
            self.check(self.lib.cublasLtMatrixLayoutSetAttribute(made, 6, c.byref(step), 8))
        return made


class Product:
    """out = left @ right, or added to out. An epilogue's `vector` is the bias, or what d_bias is written to, and `aux`
    is what pre is written to (gelu_aux_bias) or read from (dgelu_bgrad)."""

    def __init__(self, lt, left, right, out, accumulate=False, epilogue=None, vector=None, aux=None):
        self.lt = lt
        kind, compute = TYPES[left.dtype]
        scale = kind if kind in (0, 1) else 0
        self.scalars = ((c.c_double if scale == 1 else c.c_float) * 2)(1, accumulate)
        self.step = c.sizeof(self.scalars) // 2
        self.desc = c.c_void_p()
        lt.check(lt.lib.cublasLtMatmulDescCreate(c.byref(self.desc), compute, scale))
        left, right, out = upright(left, right, out)
        # outᵀ = rightᵀ · leftᵀ
        for name, tensor in ((3, right), (4, left)):
            self.set(name, c.c_int32(0 if tensor.stride(-1) == 1 else 1))
        if epilogue:
            self.set(7, c.c_uint32(EPILOGUES[epilogue]))
        self.layouts = [lt.layout(t if t.stride(-1) == 1 else t.mT) for t in (right, left, out)]
        self.point(vector, aux)
        self.choices = self.heuristics()
        if not self.choices:
            raise RuntimeError("cublasLt: no algorithm")
        self.best = self.choices[0]
        operands = left, right, out
        once = self.time(self.best, operands, vector, aux, 1)
        repeats = max(1, min(4, int(TUNE_MS / once)))
        ranked = sorted(self.choices, key=lambda choice: self.time(choice, operands, vector, aux, repeats))
        self.best = min(ranked[:FINAL], key=lambda choice: self.time(choice, operands, vector, aux, 4 * repeats))

    def set(self, name, value):
        self.lt.check(self.lt.lib.cublasLtMatmulDescSetAttribute(self.desc, name, c.byref(value), c.sizeof(value)))

    def point(self, vector, aux):
        if vector is not None:
            self.set(8, c.c_void_p(vector.data_ptr()))
        if aux is not None:
            self.set(11, c.c_void_p(aux.data_ptr()))
            self.set(12, c.c_int64(aux.stride(0)))

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

    def run(self, left, right, out, choice=None, vector=None, aux=None):
        choice = choice or self.best
        left, right, out = upright(left, right, out)
        self.point(vector, aux)
        x, y, z = self.layouts
        one = c.addressof(self.scalars)
        self.lt.check(self.lt.lib.cublasLtMatmul(
            self.lt.handle, self.desc, c.c_void_p(one), c.c_void_p(right.data_ptr()), x,
            c.c_void_p(left.data_ptr()), y, c.c_void_p(one + self.step), c.c_void_p(out.data_ptr()), z,
            c.c_void_p(out.data_ptr()), z, c.byref(choice, 0), c.c_void_p(self.lt.scratch.data_ptr()),
            c.c_size_t(SCRATCH), c.c_void_p(torch.cuda.current_stream().cuda_stream)))

    def time(self, choice, operands, vector, aux, repeats):
        """Of a graph: launched one by one, short products would show the host's time."""
        try:
            graph = Graph(lambda i: self.run(*operands, choice, vector, aux), repeats, 0)
        except RuntimeError:
            return float("inf")
        return min(graph.replay(1) for _ in range(3))


def upright(left, right, out):
    """The same product with a row-major result."""
    return (left, right, out) if out.stride(-1) == 1 else (right.mT, left.mT, out.mT)
