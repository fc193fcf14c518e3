# SPDX-License-Identifier: Apache-2.0
"""Grouped layers for the benchmarks of the CPU and CUDA: operands, epigrad's calls, PyTorch's, and what is right."""

import random

import torch
import torch.nn.functional as F

import epigrad_c as eg
from operators import DTYPES, relative_error


def rows_of_groups(groups, mean, routing, seed):
    """The sizes of the groups; they add up to groups * mean."""
    total = groups * mean
    if routing == "even":
        return [mean] * groups
    shares = [1 / (i + 1) for i in range(groups)]
    rows = [int(total * share / sum(shares)) for share in shares]
    rows[0] += total - sum(rows)
    random.Random(seed).shuffle(rows)
    return rows


class Operands:
    def __init__(self, shape, rows, dtype):
        groups, _, k, n = shape
        m = sum(rows)

        def draw(*size, scale=1):
            return torch.empty(*size, dtype=dtype).uniform_(-scale, scale)

        self.x, self.grad = draw(m, k), draw(m, n)
        self.w = draw(groups, n, k, scale=3 * k ** -0.5)
        self.y, self.pre, self.g = (torch.empty(m, n, dtype=dtype) for _ in range(3))
        self.d_x, self.d_w = torch.empty_like(self.x), torch.empty_like(self.w)
        self.ends = torch.tensor(rows, dtype=torch.int32).cumsum(0, dtype=torch.int32)


class Epigrad:
    """Grouped, or with the first weight for all rows."""

    def __init__(self, library, sets, dtype, grouped):
        s, self.library = sets[0], library
        groups, n, k = s.w.shape
        self.layer = eg.Layer(size=eg.c.sizeof(eg.Layer), m=len(s.x), k=k, n=n, dtype=DTYPES[dtype][1],
                              activation=eg.ACTIVATIONS.index("gelu"), groups=groups if grouped else 0)
        self.forward = [self.forward_call(s, grouped) for s in sets]
        self.backward = [self.backward_call(s, grouped) for s in sets]
        size, most = eg.c.c_size_t(), 0
        for call in (self.forward[0], self.backward[0]):
            library.check(library.call("_workspace", self.layer, call, eg.c.byref(size)))
            most = max(most, size.value)
        self.scratch = torch.empty(most + 256, dtype=torch.uint8)
        for call in self.forward + self.backward:
            call.workspace = eg.Workspace(data=(self.scratch.data_ptr() + 255) // 256 * 256, bytes=most)

    @staticmethod
    def weight(w, grouped):
        return eg.matrix(w.mT if grouped else w[0].mT)

    def forward_call(self, s, grouped):
        call = eg.ForwardArgs(size=eg.c.sizeof(eg.ForwardArgs), a=eg.matrix(s.x), b=self.weight(s.w, grouped),
                              y=eg.matrix(s.y), pre=eg.matrix(s.pre))
        call.offsets.data = s.ends.data_ptr() if grouped else None
        return call

    def backward_call(self, s, grouped):
        call = eg.BackwardArgs(size=eg.c.sizeof(eg.BackwardArgs), a=eg.matrix(s.x), b=self.weight(s.w, grouped),
                               grad=eg.matrix(s.grad), source=eg.PRE, pre=eg.matrix(s.pre), d_a=eg.matrix(s.d_x),
                               d_b=self.weight(s.d_w, grouped))
        call.offsets.data = s.ends.data_ptr() if grouped else None
        return call

    def run(self, way, i):
        self.library.check(self.library.call("", self.layer, getattr(self, way)[i]))

    def steps(self):
        return [step for way in ("forward", "backward") for step in
                self.library.steps(self.layer, getattr(self, way)[0])]


def peers_of(rows):
    """(forward, backward) of each peer, by products over rows and over the depth."""
    def grouped(left, right, out, s):
        return F.grouped_mm(left, right, offs=s.ends)  # in memory of its own

    def grouped_depth(left, right, out, s):
        return F.grouped_mm(left.mT, right, offs=s.ends)

    parts = [slice(sum(rows[:i]), sum(rows[:i + 1])) for i in range(len(rows))]

    def by_rows(left, right, out, s):
        for group, part in enumerate(parts):
            if rows[group] > 0:
                torch.mm(left[part], right[group], out=out[part])
        return out

    def by_depth(left, right, out, s):
        for group, part in enumerate(parts):
            torch.mm(left[part].mT, right[part], out=out[group])
        return out

    def calls(product, depth_product):
        def forward(s):
            pre = product(s.x, s.w.mT, s.pre, s)
            torch.ops.aten.gelu.out(pre, approximate="tanh", out=s.y)

        def backward(s):
            torch.ops.aten.gelu_backward.grad_input(s.grad, s.pre, approximate="tanh", grad_input=s.g)
            product(s.g, s.w, s.d_x, s)
            depth_product(s.g, s.x, s.d_w, s)
        return forward, backward

    return {"grouped_mm": calls(grouped, grouped_depth), "loop": calls(by_rows, by_depth)}


def errors_of(ours, s, rows):
    """Of y, pre, d_x and d_w, group by group in f64: the largest."""
    for result in (s.y, s.pre, s.d_x, s.d_w):
        result.fill_(float("nan"))
    ours.run("forward", 0)
    ours.run("backward", 0)
    if s.x.is_cuda:
        torch.cuda.synchronize()
    worst, begin = [0.0] * 4, 0
    for group, count in enumerate(rows):
        part = slice(begin, begin + count)
        begin += count
        x, w, grad = s.x[part].double(), s.w[group].double(), s.grad[part].double()
        pre = x @ w.mT
        g = torch.ops.aten.gelu_backward(grad, pre, approximate="tanh").to(s.x.dtype).double()
        want = [F.gelu(pre, approximate="tanh"), pre, g @ w, g.mT @ x]
        for i, (got, expected) in enumerate(zip((s.y[part], s.pre[part], s.d_x[part], s.d_w[group]), want)):
            if count > 0:
                error = relative_error(got, expected)
                worst[i] = max(worst[i], error) if error == error else float("nan")
            elif i == 3 and got.abs().max().item() != 0:
                worst[3] = float("nan")
    return worst
