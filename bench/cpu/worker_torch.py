# SPDX-License-Identifier: Apache-2.0
"""The backward pass by PyTorch on the CPU, as a worker of compare.py: the requests are those of worker.h.

    worker_torch.py THREADS [compile]

Eager: every operation writes where it is told, into memory of the worker's. With `compile`: the same five lines
through torch.compile, which fuses the element-wise ones and allocates its results itself."""

import mmap
import sys
import time

import torch

DTYPES = {"f32": torch.float32, "f64": torch.float64, "f16": torch.float16, "bf16": torch.bfloat16}
PAGE = 2 << 20
gelu_backward = torch.ops.aten.gelu_backward


class Operands:
    """One set, in a block of huge pages where there are any, laid out as worker.c does."""

    def __init__(self, m, k, n, dtype):
        shapes = ((m, k), (k, n), (n,), (m, n), (m, k), (k, n), (n,), (m, n))
        counts = [torch.Size(shape).numel() for shape in shapes]
        size, places, total = torch.empty(0, dtype=dtype).element_size(), [], 0
        for i, count in enumerate(counts):
            places.append(total + i * 5 * 64)
            total = -(-(places[-1] + count * size) // 4096) * 4096
        self.block = mmap.mmap(-1, total + PAGE)
        if hasattr(mmap, "MADV_HUGEPAGE"):
            self.block.madvise(mmap.MADV_HUGEPAGE)
        start = -torch.frombuffer(self.block, dtype=torch.uint8).data_ptr() % PAGE
        made = [torch.frombuffer(self.block, dtype=dtype, count=count, offset=start + place).view(shape)
                for count, place, shape in zip(counts, places, shapes)]
        self.inputs, self.results = made[:4], made[4:7]
        self.a, self.b, self.bias, self.grad, self.d_a, self.d_b, self.d_bias, self.pre = made


def backward(x):
    torch.addmm(x.bias, x.a, x.b, out=x.pre)
    g = gelu_backward.grad_input(x.grad, x.pre, approximate="tanh", grad_input=x.pre)
    torch.mm(g, x.b.t(), out=x.d_a)
    torch.mm(x.a.t(), g, out=x.d_b)
    torch.sum(g, 0, out=x.d_bias)


def functional(a, b, bias, grad):
    g = gelu_backward(grad, torch.addmm(bias, a, b), approximate="tanh")
    return g @ b.t(), a.t() @ g, g.sum(0)


class Worker:
    def __init__(self, threads, compiled):
        torch.set_num_threads(threads)
        torch.set_grad_enabled(False)
        self.compiled = torch.compile(functional, dynamic=False) if compiled else None
        self.sets, self.next = [], 0

    def about(self):
        found = torch.__config__.show().split("CPU capability usage: ")[1].split()[0]
        products = "MKL" if torch.backends.mkl.is_available() else "another BLAS"
        return f"PyTorch {torch.__version__}, {found}, {products}"

    def load(self, path, m, k, n, dtype, count):
        self.sets, self.next = [], 0
        self.sets = [Operands(int(m), int(k), int(n), DTYPES[dtype]) for _ in range(int(count))]
        with open(path, "rb") as file:
            data = bytearray(file.read())
        at = 0
        for tensor in self.sets[0].inputs:
            tensor.view(-1).copy_(torch.frombuffer(data, dtype=tensor.dtype, count=tensor.numel(), offset=at))
            at += tensor.numel() * tensor.element_size()
        for other in self.sets[1:]:
            for to, source in zip(other.inputs, self.sets[0].inputs):
                to.copy_(source)
        if self.compiled:
            self.one()
        return ""

    def one(self):
        x = self.sets[self.next]
        self.next = (self.next + 1) % len(self.sets)
        if self.compiled:
            return self.compiled(*x.inputs)
        backward(x)
        return x.results

    def check(self, path):
        for tensor in self.sets[self.next].results:
            tensor.fill_(float("nan"))
        begin = time.perf_counter()
        results = self.one()
        seconds = time.perf_counter() - begin
        with open(path, "wb") as file:
            for tensor in results:
                file.write(tensor.contiguous().view(torch.uint8).numpy().tobytes())
        return f"{seconds:.9g}"

    def run(self, warm, count):
        for _ in range(int(warm)):
            self.one()
        times = []
        for _ in range(int(count)):
            begin = time.perf_counter()
            self.one()
            times.append(time.perf_counter() - begin)
        return " ".join(f"{t:.9g}" for t in times)

    def peak(self):
        return "0"


def main():
    worker = Worker(int(sys.argv[1]), "compile" in sys.argv[2:])
    for line in sys.stdin:
        verb, *rest = line.split()
        try:
            print("ok", getattr(worker, verb)(*rest), flush=True)
        except Exception as error:  # whatever PyTorch has against it is the answer
            print("no", (str(error).splitlines() or [type(error).__name__])[0], flush=True)


if __name__ == "__main__":
    main()
