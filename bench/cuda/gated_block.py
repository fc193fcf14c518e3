# SPDX-License-Identifier: Apache-2.0
"""A training step of a gated block (SwiGLU) D -> 2 H -> D, by PyTorch's operators and by epigrad's C interface."""

import torch
import torch.nn.functional as F

import epigrad_c as eg
from calls import Calls, layer_of
from operators import DTYPES, relative_error

RESULTS = ["out", "d_x", "d_gate_w", "d_gate_b", "d_up_w", "d_up_b", "d_down_w", "d_down_b"]


class Operands:
    def __init__(self, m, d, h, dtype):
        def draw(*shape, scale=1):
            return torch.empty(*shape, dtype=dtype).uniform_(-scale, scale)

        self.x, self.grad = draw(m, d), draw(m, d)
        self.gate_w, self.up_w = (draw(h, d, scale=3 * d ** -0.5) for _ in range(2))
        self.gate_b, self.up_b, self.down_b = draw(h), draw(h), draw(d)
        self.down_w = draw(d, h, scale=3 * h ** -0.5)
        self.gate, self.up, self.y, self.g_gate, self.g_up = (torch.empty(m, h, dtype=dtype) for _ in range(5))
        for name, like in (("out", "grad"), ("d_x", "x"), ("d_gate_w", "gate_w"), ("d_gate_b", "gate_b"),
                           ("d_up_w", "up_w"), ("d_up_b", "up_b"), ("d_down_w", "down_w"), ("d_down_b", "down_b")):
            setattr(self, name, torch.empty_like(getattr(self, like)))

    def inputs(self):
        return self.x, self.gate_w, self.gate_b, self.up_w, self.up_b, self.down_w, self.down_b, self.grad


def torch_step(x, gate_w, gate_b, up_w, up_b, down_w, down_b, grad):
    """What autograd runs, without its graph; in the order of RESULTS."""
    gate, up = F.linear(x, gate_w, gate_b), F.linear(x, up_w, up_b)
    activated = F.silu(gate)
    y = activated * up
    out = F.linear(y, down_w, down_b)
    g = grad @ down_w
    g_up, g_gate = g * activated, torch.ops.aten.silu_backward(g * up, gate)
    d_x = torch.addmm(g_gate @ gate_w, g_up, up_w)
    return (out, d_x, g_gate.mT @ x, g_gate.sum(0), g_up.mT @ x, g_up.sum(0), grad.mT @ y, grad.sum(0))


class Epigrad(Calls):
    def __init__(self, library, shape, dtype, sets):
        m, d, h = shape
        layers = [layer_of(m, k, n, DTYPES[dtype][1], activation) for k, n, activation in (
            (d, h, "silu"), (h, d, "none"), (h, d, "none"), (d, h, "none"))]
        super().__init__(library, layers, [self.step(s) for s in sets])

    @staticmethod
    def step(s):
        """The four calls. A weight [N, K] is the transpose of b."""
        def forward(a, w, bias, y):
            return eg.ForwardArgs(size=eg.c.sizeof(eg.ForwardArgs), a=eg.matrix(a), b=eg.matrix(w.mT), y=eg.matrix(y),
                                  bias=eg.vector(bias))

        def backward(a, w, grad, d_a, d_w):
            return eg.BackwardArgs(size=eg.c.sizeof(eg.BackwardArgs), a=eg.matrix(a), b=eg.matrix(w.mT),
                                   grad=eg.matrix(grad), d_a=eg.matrix(d_a), d_b=eg.matrix(d_w.mT))

        unit, down = forward(s.x, s.gate_w, s.gate_b, s.y), forward(s.y, s.down_w, s.down_b, s.out)
        unit.pre, unit.b_up, unit.bias_up = eg.matrix(s.gate), eg.matrix(s.up_w.mT), eg.vector(s.up_b)
        unit.pre_up = eg.matrix(s.up)
        upper = backward(s.y, s.down_w, s.grad, s.g_gate, s.d_down_w)
        upper.d_bias = eg.vector(s.d_down_b)
        upper.chain = eg.Chain(saved=eg.matrix(s.gate), source=eg.PRE, activation=eg.ACTIVATIONS.index("silu"),
                               d_bias=eg.vector(s.d_gate_b))
        upper.chain_up = eg.ChainUp(saved=eg.matrix(s.up), d_up=eg.matrix(s.g_up), d_bias=eg.vector(s.d_up_b))
        lower = backward(s.x, s.gate_w, s.g_gate, s.d_x, s.d_gate_w)
        lower.b_up, lower.grad_up = eg.matrix(s.up_w.mT), eg.matrix(s.g_up)
        lower.d_b_up = eg.matrix(s.d_up_w.mT)
        return [unit, down, upper, lower]


def errors_of(run, s, want):
    """Of each of RESULTS; run() has written them when it returns, or in the order of the CUDA stream."""
    for name in RESULTS:
        getattr(s, name).fill_(float("nan"))
    run()
    return [relative_error(getattr(s, name), expected) for name, expected in zip(RESULTS, want)]
