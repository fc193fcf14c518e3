# SPDX-License-Identifier: Apache-2.0
"""epigrad.torch.linear past the dispatcher: what it computes, and the calls that it leaves to others."""
import os
import resource
import subprocess
import sys

import pytest
import torch
from torch.autograd import forward_ad
from torch.nn import functional as F

import epigrad
import epigrad.torch
from epigrad import _library
from epigrad.torch import _ops

pytestmark = pytest.mark.skipif(_ops.direct is None, reason="this version of torch takes no object of a tensor in C")


def tensors(lead=(4,), k=7, n=5, grad=False, dtype=torch.float64):
    generator = torch.Generator().manual_seed(5)
    make = lambda *shape: torch.randn(*shape, generator=generator, dtype=dtype).requires_grad_(grad)
    return make(*lead, k), make(n, k), make(n)


def imaginary(*shape):
    """A negated view: what its memory holds has the other sign."""
    real = torch.randn(*shape, dtype=torch.float64)
    view = torch.complex(real, -real).conj().imag
    assert view.is_neg() and torch.equal(view, real)
    return view


def test_it_is_the_way_of_a_plain_call(monkeypatch):
    x, w, bias = tensors(grad=True)
    monkeypatch.setattr(_ops, "call", None)  # the way in Python, which would fail
    y = epigrad.torch.linear(x, torch.nn.Parameter(w), bias, "gelu")
    assert type(y.grad_fn).__name__ == "InCBackward"
    y.sum().backward()
    with torch.no_grad():
        assert epigrad.torch.linear(x, w).grad_fn is None


@pytest.mark.parametrize("save", ["auto", "recompute"])
@pytest.mark.parametrize("name", epigrad.activations)
@pytest.mark.parametrize("bias", [True, False])
def test_as_the_way_in_python(name, save, bias):
    """The same bits, with grad and without."""
    x, w, b = tensors((3, 4), grad=True)
    args = (x, w, b if bias else None, name)
    of = [tensor for tensor in args[:3] if tensor is not None]
    results = []
    for direct in (True, False):
        y = (_library.torch_linear(*args, save, "default") if direct else
             _ops.Direct.apply(*args, save == "auto" and name not in epigrad.torch._FROM_Y, "default"))
        with torch.no_grad():
            again = epigrad.torch.linear(*args, save=save)
        results.append((y, again, *torch.autograd.grad(y, of, torch.ones_like(y))))
    for got, wanted in zip(*results):
        assert torch.equal(got, wanted)


def test_what_it_leaves_to_others():
    x, w, bias = tensors()
    direct = lambda *args: _library.torch_linear(*args, "auto", "default")
    assert direct(x, w, bias, "gelu") is not None
    assert direct(torch.Tensor._make_subclass(type("Mine", (torch.Tensor,), {}), x), w, bias, "gelu") is None
    for wrong in [(x, w, bias, "nothing"), (x, w, bias, None), (x, w[:, 1:], bias, "gelu"), (x, w, w, "gelu"),
                  (x, w.float(), bias, "gelu"), (x, w, 3, "gelu"), (x.to("meta"), w, bias, "gelu"),
                  (x.to_sparse(), w, bias, "gelu"), (x.int(), w, bias, "gelu")]:
        assert direct(*wrong) is None
    assert _library.torch_linear(x, w, bias, "gelu", "somewhere", "default") is None
    assert _library.torch_linear(x, w, bias, "gelu", "auto", "inexact") is None
    with torch.autocast("cpu", torch.bfloat16):
        assert direct(x.float(), w.float(), None, "gelu") is None
    with torch.profiler.profile(), torch.no_grad():
        assert direct(x, w, bias, "gelu") is None
    w.main_grad = torch.zeros_like(w)
    assert direct(x, w.requires_grad_(), bias, "gelu") is None


def test_the_profiler_sees_operators():
    x, w, bias = tensors(grad=True)
    with torch.profiler.profile() as profile:
        epigrad.torch.linear(x, w, bias, "gelu").sum().backward()
    assert {"epigrad::linear", "epigrad::linear_backward"} <= {event.key for event in profile.key_averages()}


@pytest.mark.parametrize("grad", [False, True])
def test_tangents_are_not_lost(grad):
    """Forward-mode differentiation is not there, and says so."""
    x, w, bias = tensors(grad=grad)
    for layer in (lambda x: epigrad.torch.linear(x, w, bias, "gelu"),
                  lambda x: epigrad.torch.gated_linear(x, w, w)):
        with forward_ad.dual_level(), pytest.raises(NotImplementedError, match="forward"):
            layer(forward_ad.make_dual(x.detach(), torch.ones_like(x)))
        with pytest.raises((NotImplementedError, RuntimeError), match="forward|jvp"):
            torch.func.jvp(layer, (x.detach(),), (torch.ones_like(x),))
        with forward_ad.dual_level():
            layer(x)  # none has any
        with torch.inference_mode():
            assert layer(x).is_inference()


@pytest.mark.parametrize("which", [0, 1, 2])
def test_negated_views(which):
    """One column, one row: strides as of a layout of the library."""
    args = [imaginary(4, 1), torch.randn(1, 1, dtype=torch.float64), torch.randn(1, dtype=torch.float64)]
    args[which] = imaginary(*args[which].shape)
    torch.testing.assert_close(epigrad.torch.linear(*args), F.linear(*args))
    grad = imaginary(4, 1)
    args[0] = args[0].clone().requires_grad_()
    for got, wanted in zip(torch.autograd.grad(epigrad.torch.linear(*args), args[0], grad),
                           torch.autograd.grad(F.linear(*args), args[0], grad)):
        torch.testing.assert_close(got, wanted)
    args[0] = imaginary(4, 1) if which == 0 else args[0].detach()
    names = "x", "w", "bias"
    with pytest.raises(epigrad.ArgumentError, match=f"^{names[which]} is a negated view; expected what"):
        epigrad.linear(*args)


def test_what_a_hook_raises_comes_through():
    class Stop(Exception):
        pass

    def stop(_):
        raise Stop

    x, w, bias = tensors(grad=True)
    with pytest.raises(Stop), torch.autograd.graph.saved_tensors_hooks(stop, stop):
        epigrad.torch.linear(x, w, bias, "gelu")
    with torch.autograd.graph.saved_tensors_hooks(lambda tensor: tensor, stop):
        y = epigrad.torch.linear(x, w, bias, "gelu")
    with pytest.raises(Stop):
        y.sum().backward()


def test_a_saved_tensor_that_was_written():
    x, w, bias = tensors(grad=True)
    y = epigrad.torch.linear(x, w, bias, "gelu")
    with torch.no_grad():
        w.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


def test_twice():
    x, w, bias = tensors(grad=True)
    y = epigrad.torch.linear(x, w, bias, "gelu")
    first = torch.autograd.grad(y.sum(), (x, w, bias), retain_graph=True)
    for a, b in zip(first, torch.autograd.grad(y.sum(), (x, w, bias), retain_graph=True)):
        assert torch.equal(a, b)
    d_x, = torch.autograd.grad(y.sum(), x, create_graph=True)
    assert torch.equal(d_x, first[0])
    upstream = torch.ones_like(y, requires_grad=True)
    d_x, = torch.autograd.grad(y, x, upstream, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        d_x.sum().backward()


def test_nothing_is_kept():
    """A leak of one object a call would be seen among the tensors, or in the counts of those that are given."""
    x, w, bias = tensors(grad=True)
    calls = [lambda: epigrad.torch.linear(x, w, bias, "gelu").sum().backward(),
             lambda: epigrad.torch.linear(x.detach(), w.detach(), None, "relu"),
             lambda: _library.torch_linear(x, w[:, 1:], bias, "gelu", "auto", "default"),
             lambda: torch.ops.epigrad.call_linear(x.detach(), w.detach(), None, "gelu", True, "default")]
    for call in calls:
        call()
        counts = [sys.getrefcount(o) for o in (x, w, bias, None, "gelu", True, False)]
        for _ in range(1000):
            call()
        after = [sys.getrefcount(o) for o in (x, w, bias, None, "gelu", True, False)]
        assert all(abs(a - b) < 100 for a, b in zip(after, counts))


COMPILED = """
import sys, torch
import epigrad.torch
assert "torch._dynamo" not in sys.modules, "importing epigrad.torch loads the compiler"
from torch._inductor.utils import run_and_get_code
x, w, bias = torch.randn(3, 8), torch.randn(4, 8, requires_grad=True), torch.randn(4, requires_grad=True)
def layer(x, w, bias):
    return epigrad.torch.linear(x, w, bias, "gelu").sum()
y, codes = run_and_get_code(lambda: torch.autograd.grad(torch.compile(layer, fullgraph=True)(x, w, bias), (w, bias)))
for a, b in zip(y, torch.autograd.grad(layer(x, w, bias), (w, bias))):
    torch.testing.assert_close(a, b)
calls = "".join(codes)
assert ("call_linear(" in calls and "call_linear_backward(" in calls) == (sys.argv[1] == "True"), calls
"""


def test_compiled():
    """Graphs of inductor call the shim, where its registry is known; and importing the package loads no compiler."""
    version = tuple(int(part) for part in torch.__version__.split(".")[:2])
    subprocess.run([sys.executable, "-c", COMPILED, str(version >= (2, 15))], check=True,
                   env={**os.environ, "TORCHINDUCTOR_FORCE_DISABLE_CACHES": "1"})


def test_calls_of_graphs():
    """As the operators: wrong calls are refused by them, and strides of no layout are copied."""
    x, w, bias = tensors()
    for args in [(x, w, bias, "gelu", True, "default"), (x, w, None, "relu", False, "strict"),
                 (torch.randn(4, 14, dtype=torch.float64)[:, ::2], w, bias, "gelu", True, "default")]:
        y, pre = torch.ops.epigrad.call_linear(*args)
        expected = torch.ops.epigrad.linear(*args)
        assert torch.equal(y, expected[0]) and (torch.equal(pre, expected[1]) if args[4] else pre is None)
    grad = torch.randn(4, 5, dtype=torch.float64)
    for need in ([True, True, True], [False, True, False]):
        args = grad, x, w, bias, None, "gelu", "recompute", need, "default"
        for got, wanted, there in zip(torch.ops.epigrad.call_linear_backward(*args),
                                      torch.ops.epigrad.linear_backward(*args), need):
            assert torch.equal(got, wanted) if there else got is None
    for wrong in [(x, w, bias, "nothing", True, "default"), (x, w.float(), bias, "gelu", True, "default")]:
        with pytest.raises(RuntimeError, match="activation is 'nothing'|w has elements of f32; expected f64"):
            torch.ops.epigrad.call_linear(*wrong)


def huge_pages_on_request():
    try:
        with open("/sys/kernel/mm/transparent_hugepage/enabled", encoding="ascii") as file:
            return "[madvise]" in file.read()
    except OSError:
        return False


@pytest.mark.skipif(not huge_pages_on_request(), reason="the system gives no huge pages where a program asks")
def test_large_results_take_huge_pages():
    """32 MB in pages of 4 kB are 8192 faults."""
    x, w, faults = torch.zeros(2048, 1), torch.zeros(4096, 1), []
    with torch.no_grad():
        for _ in range(5):
            before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
            epigrad.torch.linear(x, w)
            faults.append(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
    assert min(faults) < 4096
