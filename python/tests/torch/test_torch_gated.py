# SPDX-License-Identifier: Apache-2.0
"""Gated units in epigrad.torch beside torch's own operators, on the CPU."""
import pytest
import torch
from torch.nn import functional as F

import epigrad.torch
from compiled import check_compiled

ACT = {"none": lambda v: v, "relu": F.relu, "gelu": lambda v: F.gelu(v, approximate="tanh"), "silu": F.silu,
       "sigmoid": torch.sigmoid}


def tensors(dtype=torch.float64, lead=(4, 6), k=7, n=5, grad=True):
    """x, w, w_up, bias, bias_up."""
    generator = torch.Generator().manual_seed(3)
    make = lambda *shape: torch.randn(*shape, generator=generator, dtype=torch.float64).to(dtype).requires_grad_(grad)
    return make(*lead, k), make(n, k), make(n, k), make(n), make(n)


def theirs(x, w, w_up, bias=None, bias_up=None, activation="silu"):
    return ACT[activation](F.linear(x, w, bias)) * F.linear(x, w_up, bias_up)


def gradients(y, *of):
    return torch.autograd.grad(y, of, torch.ones_like(y) * torch.arange(y.shape[-1], dtype=y.dtype))


@pytest.mark.parametrize("save", ["auto", "recompute"])
@pytest.mark.parametrize("name", ACT)
def test_values(name, save):
    for biases in ((3, 4), (3,), (4,), ()):
        inputs = [t if i < 3 or i in biases else None for i, t in enumerate(tensors())]
        of = [t for t in inputs if t is not None]
        y, expected = epigrad.torch.gated_linear(*inputs, name, save=save), theirs(*inputs, name)
        torch.testing.assert_close(y, expected, rtol=1e-12, atol=1e-12)
        for got, wanted in zip(gradients(y, *of), gradients(expected, *of)):
            torch.testing.assert_close(got, wanted, rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("dtype, tolerance", [(torch.float32, 1e-5), (torch.float16, 1e-2), (torch.bfloat16, 6e-2)])
def test_types(dtype, tolerance):
    inputs = tensors(dtype)
    wide = [t.detach().double().requires_grad_() for t in inputs]
    y, expected = epigrad.torch.gated_linear(*inputs), theirs(*wide)
    for got, wanted in zip((y, *gradients(y, *inputs)), (expected, *gradients(expected, *wide))):
        assert got.dtype == dtype
        assert (got.double() - wanted).norm() <= tolerance * wanted.norm()


@pytest.mark.parametrize("save", ["auto", "recompute"])
@pytest.mark.parametrize("name", [name for name in ACT if name != "relu"])
def test_gradcheck(name, save):
    assert torch.autograd.gradcheck(lambda *t: epigrad.torch.gated_linear(*t, name, save=save), tensors(lead=(3,)))
    operator = lambda x, w, w_up, bias, bias_up: torch.ops.epigrad.gated_linear(
        x, w, bias, w_up, bias_up, name, save == "auto", "default")[0]
    assert torch.autograd.gradcheck(operator, tensors(lead=(3,)))


@pytest.mark.parametrize("save", [True, False])
def test_opcheck(save):
    for biases in (True, False):
        x, w, w_up, bias, bias_up = tensors(torch.float32)
        bias, bias_up = (bias, bias_up) if biases else (None, None)
        torch.library.opcheck(torch.ops.epigrad.gated_linear.default,
                              (x, w, bias, w_up, bias_up, "silu", save, "default"))
    x, w, w_up, bias, bias_up = tensors(torch.float32, grad=False)
    y, *saved = torch.ops.epigrad.gated_linear(x, w, bias, w_up, bias_up, "silu", True, "default")
    for need in ([True] * 5, [False, True, False, True, False], [True, False, False, False, True]):
        args = torch.randn_like(y), x, w, bias, w_up, bias_up, *(saved if save else (None, None))
        torch.library.opcheck(torch.ops.epigrad.gated_linear_backward.default, (*args, "silu", need, "default"))


def test_views_of_one_weight():
    both = torch.randn(10, 7, dtype=torch.float64, requires_grad=True)
    x = tensors(grad=False)[0]
    for gate, up in ((slice(0, 5), slice(5, 10)), (slice(0, 10, 2), slice(1, 10, 2))):
        y, expected = epigrad.torch.gated_linear(x, both[gate], both[up]), theirs(x, both[gate], both[up])
        torch.testing.assert_close(y, expected)
        torch.testing.assert_close(gradients(y, both), gradients(expected, both))


def test_weights_of_a_batch_and_transposes():
    x, w = torch.randn(4, 6, 7).double(), torch.randn(2, 4, 7, 5).double()
    of = [x.requires_grad_(), w.requires_grad_()]
    y = epigrad.torch.gated_linear(x, w[0].mT, w[1].mT)
    expected = F.silu(x @ w[0]) * (x @ w[1])
    torch.testing.assert_close(y, expected)
    torch.testing.assert_close(gradients(y, *of), gradients(expected, *of))


def test_strides():
    """What is no layout of the library is copied: of inputs, every second column, and an expanded grad."""
    x, w, w_up, bias, bias_up = tensors()
    odd = torch.randn(5, 14, dtype=torch.float64)[:, ::2].requires_grad_()
    y, expected = epigrad.torch.gated_linear(x, w, odd, bias, bias_up), theirs(x, w, odd, bias, bias_up)
    torch.testing.assert_close(y, expected)
    of_sum = lambda value: torch.autograd.grad(value.sum(), (x, w, odd))
    torch.testing.assert_close(of_sum(y), of_sum(expected))


@pytest.mark.parametrize("wanted", range(1, 32))
def test_some_gradients(wanted):
    inputs = [t.detach().requires_grad_(bool(wanted >> i & 1)) for i, t in enumerate(tensors())]
    of = [t for t in inputs if t.requires_grad]
    torch.testing.assert_close(gradients(epigrad.torch.gated_linear(*inputs), *of), gradients(theirs(*inputs), *of))


def test_saved_memory():
    inputs = tensors()
    known = {t.data_ptr() for t in inputs}
    for save, extra in (("recompute", 0), ("auto", 2 * 4 * 6 * 5)):
        held = []
        with torch.autograd.graph.saved_tensors_hooks(lambda t: held.append(t) or t, lambda t: t):
            epigrad.torch.gated_linear(*inputs, save=save)
        assert sum(t.numel() for t in held if t.data_ptr() not in known) == extra


@pytest.mark.parametrize("m, k", [(0, 7), (4, 0)])
def test_empty(m, k):
    inputs = tensors(lead=(m,), k=k)[:3]
    y = epigrad.torch.gated_linear(*inputs)
    assert y.shape == (m, 5) and not y.any()
    for got, like in zip(gradients(y, *inputs), inputs):
        assert got.shape == like.shape and not got.any()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_autocast(dtype):
    inputs = tensors(torch.float32)
    with torch.autocast("cpu", dtype):
        y, expected = epigrad.torch.gated_linear(*inputs), theirs(*inputs)
    assert y.dtype == expected.dtype == dtype
    torch.testing.assert_close(y, expected, rtol=3e-2, atol=3e-2)  # torch rounds both factors
    assert all(got.dtype == torch.float32 for got in gradients(y, *inputs))


@pytest.mark.parametrize("in_dims", [(0, None, None, None, None), (1, None, None, None, None), (0, 0, 0, 0, 0),
                                     (None, 0, None, None, 0), (None, None, 0, 0, None)])
def test_vmap(in_dims):
    inputs = [t if dim is None or i == 0 else torch.stack([t, 2 * t, -t])
              for i, (t, dim) in enumerate(zip(tensors(lead=(3, 3), grad=False), in_dims))]
    mine = torch.func.vmap(epigrad.torch.gated_linear, in_dims=in_dims)
    torch.testing.assert_close(mine(*inputs), torch.func.vmap(theirs, in_dims=in_dims)(*inputs))


@pytest.mark.parametrize("dims", [(0, 0, 0, 0, 0, 0, 0, 0), (0, 0, None, None, None, None, 0, 0),
                                  (0, None, None, None, 0, None, 0, 0)])
def test_vmap_of_the_backward_pass(dims):
    x, w, w_up, bias, bias_up = tensors(lead=(3, 3), grad=False)
    grad, pre, pre_up = torch.randn(3, 3, 3, 5, dtype=torch.float64)
    args = grad, x if dims[1] == 0 else x[0], w, bias, w_up, bias_up, pre, pre_up
    args = [torch.stack([t, 2 * t, -t]) if dim == 0 and 2 <= i <= 5 else t
            for i, (t, dim) in enumerate(zip(args, dims))]
    backward = lambda *t: torch.ops.epigrad.gated_linear_backward(*t, "silu", [True] * 5, "default")
    each = [backward(*(t if dim is None else t[i] for t, dim in zip(args, dims))) for i in range(3)]
    torch.testing.assert_close(torch.func.vmap(backward, in_dims=dims)(*args),
                               tuple(torch.stack(parts) for parts in zip(*each)))


def test_refused():
    x, w, w_up, bias, _ = tensors(grad=False)
    for match, args, named in [(r"^activation is 'swish'", (x, w, w_up), {"activation": "swish"}),
                               (r"^save is 'pre'", (x, w, w_up), {"save": "pre"}),
                               (r"^w_up.shape is \(4, 7\); expected \(5, 7\)", (x, w, w_up[:4]), {}),
                               (r"^bias_up.shape is \(4,\)", (x, w, w_up, bias, bias[:4]), {})]:
        with pytest.raises(epigrad.ArgumentError, match=match):
            epigrad.torch.gated_linear(*args, **named)
    with pytest.raises(TypeError, match="^w_up has elements of f32; expected f64"):
        epigrad.torch.gated_linear(x, w, w_up.float())


# ---- The module ------------------------------------------------------------------------------------

class LlamaMLP(torch.nn.Module):
    """The block as transformers has it."""

    def __init__(self, features, hidden, bias=False):
        super().__init__()
        self.gate_proj = torch.nn.Linear(features, hidden, bias=bias)
        self.up_proj = torch.nn.Linear(features, hidden, bias=bias)
        self.down_proj = torch.nn.Linear(hidden, features, bias=bias)
        self.act_fn = torch.nn.SiLU()

    def forward(self, x):
        return self.down_proj(self.act_fn(self.gate_proj(x)) * self.up_proj(x))


@pytest.mark.parametrize("bias", [True, False])
def test_module(bias):
    torch.manual_seed(0)
    block = LlamaMLP(7, 16, bias)
    torch.manual_seed(0)
    mine = epigrad.torch.GatedMLP(7, 16, bias=bias)
    assert list(mine.state_dict()) == list(block.state_dict())
    for a, b in zip(mine.parameters(), block.parameters()):
        assert torch.equal(a, b)  # the same initialisation
    x = torch.randn(5, 7)
    torch.testing.assert_close(mine(x), block(x))
    mine(x).square().sum().backward()
    block(x).square().sum().backward()
    for a, b in zip(mine.parameters(), block.parameters()):
        torch.testing.assert_close(a.grad, b.grad)
    assert "activation=silu" in repr(mine)


@pytest.mark.parametrize("dynamic", [False, True])
def test_compile(dynamic):
    torch.manual_seed(0)
    check_compiled(epigrad.torch.GatedMLP(7, 16), 7, dynamic)


@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpoint(reentrant):
    mine, x = epigrad.torch.GatedMLP(7, 16).double(), torch.randn(5, 7, dtype=torch.float64, requires_grad=True)
    mine(x).square().sum().backward()
    expected = [p.grad.clone() for p in mine.parameters()]
    mine.zero_grad()
    torch.utils.checkpoint.checkpoint(mine, x, use_reentrant=reentrant).square().sum().backward()
    for p, wanted in zip(mine.parameters(), expected):
        assert torch.equal(p.grad, wanted)


def test_who_listens_sees_an_operator():
    from torch.fx.experimental.proxy_tensor import make_fx
    traced = make_fx(lambda *t: epigrad.torch.gated_linear(*t))(*tensors(grad=False))
    assert "epigrad.gated_linear.default" in {str(node.target) for node in traced.graph.nodes}
    seen = []

    class Mode(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            seen.append(str(function))
            return function(*args, **(kwargs or {}))

    y = epigrad.torch.gated_linear(*tensors())  # without
    with Mode():
        y.sum().backward()
        epigrad.torch.gated_linear(*tensors())
    assert "epigrad.gated_linear_backward.default" in seen and "epigrad.gated_linear.default" in seen
