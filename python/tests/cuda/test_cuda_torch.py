# SPDX-License-Identifier: Apache-2.0
"""epigrad.torch on an NVIDIA device: values, streams, graphs, modules. By hand: no machine of the CI has one."""
import copy
import functools
import subprocess
import sys
import threading

import pytest

torch = pytest.importorskip("torch")
if not torch.cuda.is_available():
    pytest.skip("no CUDA device", allow_module_level=True)
F = torch.nn.functional

import epigrad  # noqa: E402
import epigrad.torch  # noqa: E402

ACT = {
    "none": lambda v: v, "relu": F.relu, "gelu": lambda v: F.gelu(v, approximate="tanh"), "silu": F.silu,
    "sigmoid": torch.sigmoid, "tanh": torch.tanh, "gelu_erf": F.gelu,
    "quick_gelu": lambda v: v * torch.sigmoid(1.702 * v),
    "relu2": lambda v: F.relu(v) ** 2, "softplus": F.softplus, "mish": F.mish,
    "hardswish": lambda v: v * F.relu6(v + 3) / 6,  # torch's own has a sixth in f32
}
# Of the results' largest element: rounding to storage, and sums of products in f32 or f64.
TOLERANCE = {torch.float64: 1e-12, torch.float32: 5e-6, torch.float16: 4e-3, torch.bfloat16: 3e-2}


def tensors(dtype, m, k, n):
    generator = torch.Generator("cuda").manual_seed(m + k + n)
    make = lambda *shape: torch.randn(*shape, generator=generator, device="cuda", dtype=torch.float64).to(dtype)
    return make(m, k), make(n, k) * k ** -0.5, make(n), make(m, n)


def same(mine, wanted, dtype, what=""):
    wanted = wanted.double()
    scale = wanted.abs().max().clamp(min=1e-30) if wanted.numel() else 1
    error = ((mine.double() - wanted).abs().max() / scale).item() if wanted.numel() else 0
    assert mine.shape == wanted.shape and error <= TOLERANCE[dtype], f"{what}: off by {error:.2e} of the largest"


def reference(name, x, w, bias, grad):
    """y, d_x, d_w, d_bias in double precision, of the rounded operands."""
    inputs = [t.detach().double().requires_grad_() for t in (x, w, bias)]
    y = ACT[name](F.linear(*inputs))
    return y.detach(), *torch.autograd.grad(y, inputs, grad.double())


def mine(name, x, w, bias, grad, save="auto"):
    inputs = [t.detach().requires_grad_() for t in (x, w, bias)]
    y = epigrad.torch.linear(*inputs, name, save=save)
    return y.detach(), *torch.autograd.grad(y, inputs, grad)


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("save", ["auto", "recompute"])
def test_values(dtype, save):
    for name in ACT:
        for m, k, n in [(1, 64, 96), (37, 65, 33), (256, 512, 384)]:
            operands = tensors(dtype, m, k, n)
            # its derivative jumps at -3 and 3, and a saved pre is rounded
            results = ("y", "d_x", "d_w", "d_bias")[:1 if name == "hardswish" else 4]
            for what, got, wanted in zip(results, mine(name, *operands, save), reference(name, *operands)):
                same(got, wanted, dtype, f"{name} {m}x{k}x{n} {what}")


def test_gradcheck_and_opcheck():
    x, w, bias = (t.requires_grad_() for t in tensors(torch.float64, 3, 7, 5)[:3])
    for name, save in [("gelu", "auto"), ("mish", "recompute"), ("tanh", "auto")]:
        assert torch.autograd.gradcheck(lambda *t: epigrad.torch.linear(*t, name, save=save), (x, w, bias))
        torch.library.opcheck(torch.ops.epigrad.linear.default, (x, w, bias, name, save == "auto", "default"))


# ---- Gated units -----------------------------------------------------------------------------------

def unit(dtype, m, k, n):
    """x, w, w_up, bias, bias_up, and a gradient of y."""
    x, w, bias, grad = tensors(dtype, m, k, n)
    _, w_up, bias_up, _ = tensors(dtype, m + 1, k, n)  # of another seed
    return (x, w, w_up, bias, bias_up), grad


def their_unit(name, x, w, w_up, bias=None, bias_up=None):
    return ACT[name](F.linear(x, w, bias)) * F.linear(x, w_up, bias_up)


def with_gradients(function, inputs, grad):
    inputs = [t.detach().requires_grad_() for t in inputs]
    y = function(*inputs)
    return y.detach(), *torch.autograd.grad(y, inputs, grad)


def gated_reference(name, inputs, grad):
    """y and the five gradients in double precision, of the rounded operands."""
    return with_gradients(lambda *t: their_unit(name, *t), [t.double() for t in inputs], grad.double())


GATED = "y", "d_x", "d_w", "d_w_up", "d_bias", "d_bias_up"


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("save", ["auto", "recompute"])
def test_gated_values(dtype, save):
    # A row, sizes that no vector divides, and those that kernels for both products take: the last row tile is not full.
    for name in ("silu", "gelu", "sigmoid", "none"):
        for m, k, n in [(1, 64, 96), (37, 65, 33), (300, 512, 384), (520, 256, 1024)]:
            inputs, grad = unit(dtype, m, k, n)
            gated = functools.partial(epigrad.torch.gated_linear, activation=name, save=save)
            results = with_gradients(gated, inputs, grad)
            for what, got, wanted in zip(GATED, results, gated_reference(name, inputs, grad)):
                same(got, wanted, dtype, f"{name} {m}x{k}x{n} {what}")


def test_gated_without_a_bias():
    for dtype in (torch.float32, torch.bfloat16):
        inputs, grad = unit(dtype, 130, 128, 256)
        results = with_gradients(epigrad.torch.gated_linear, inputs[:3], grad)
        for what, got, wanted in zip(GATED, results, gated_reference("silu", inputs[:3], grad)):
            same(got, wanted, dtype, what)


@pytest.mark.parametrize("gate, up", [(slice(0, 256), slice(256, None)), (slice(0, None, 2), slice(1, None, 2))])
def test_gated_views_of_one_weight(gate, up):
    """Both weights lie in one tensor, one below the other or row by row."""
    (x, w, w_up, _, _), grad = unit(torch.bfloat16, 200, 128, 256)
    both = torch.empty(512, 128, device="cuda", dtype=torch.bfloat16)
    both[gate], both[up] = w, w_up
    gated = lambda x, both: epigrad.torch.gated_linear(x, both[gate], both[up])
    y, d_x, d_both = with_gradients(gated, (x, both), grad)
    wanted = gated_reference("silu", (x, w, w_up), grad)
    for what, got, expected in zip(GATED, (y, d_x, d_both[gate], d_both[up]), wanted):
        same(got, expected, torch.bfloat16, what)


def test_gated_gradcheck_and_opcheck():
    (x, w, w_up, bias, bias_up), _ = unit(torch.float64, 3, 7, 5)
    inputs = [t.requires_grad_() for t in (x, w, w_up, bias, bias_up)]
    for name, save in [("silu", "auto"), ("gelu", "recompute")]:
        gated = functools.partial(epigrad.torch.gated_linear, activation=name, save=save)
        assert torch.autograd.gradcheck(gated, inputs)
        torch.library.opcheck(torch.ops.epigrad.gated_linear.default,
                              (x, w, bias, w_up, bias_up, name, save == "auto", "default"))


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("bias", [True, False])
def test_gated_module(dtype, bias):
    torch.manual_seed(0)
    block = epigrad.torch.GatedMLP(128, 320, bias=bias, device="cuda", dtype=dtype)
    names, parameters = zip(*block.named_parameters())
    x, _, _, grad = tensors(dtype, 260, 128, 128)

    def theirs(x, *values):
        of = dict(zip(names, values))
        y = their_unit("silu", x, of["gate_proj.weight"], of["up_proj.weight"], of.get("gate_proj.bias"),
                       of.get("up_proj.bias"))
        return F.linear(y, of["down_proj.weight"], of.get("down_proj.bias"))

    x.requires_grad_()
    y = block(x)
    results = y.detach(), *torch.autograd.grad(y, (x, *parameters), grad)
    wanted = with_gradients(theirs, [t.double() for t in (x, *parameters)], grad.double())
    for what, got, expected in zip(("y", "d_x", *names), results, wanted):
        same(got, expected, dtype, what)


def test_gated_capture():
    """Replayed with other numbers in the same memory."""
    inputs, grad = unit(torch.bfloat16, 512, 256, 512)
    static = [t.clone() for t in (*inputs, grad)]
    run = lambda *t: with_gradients(epigrad.torch.gated_linear, t[:5], t[5])
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=torch.cuda.Stream()):
        results = run(*static)
    others = [t + 0.25 for t in (*inputs, grad)]
    wanted = gated_reference("silu", others[:5], others[5])
    for what, got, expected in zip(GATED, replayed(graph, static, others, results), wanted):
        same(got, expected, torch.bfloat16, what)


# ---- Streams ---------------------------------------------------------------------------------------

def test_current_stream():
    """A call waits for what is before it on the current stream, and for nothing else."""
    x, w, bias, grad = tensors(torch.bfloat16, 512, 256, 320)
    wanted = epigrad.torch.linear(x, w, bias, "gelu")
    torch.cuda.synchronize()
    for stream in (torch.cuda.Stream(), torch.cuda.Stream(), torch.cuda.current_stream()):
        late = torch.zeros_like(x)
        with torch.cuda.stream(stream):
            epigrad.torch.linear(x, w, bias, "gelu")  # opening a context may wait
        torch.cuda.synchronize()
        with torch.cuda.stream(stream):
            torch.cuda._sleep(200_000_000)
            late.copy_(x)
            got = epigrad.torch.linear(late, w, bias, "gelu")
            plain = epigrad.linear(late, w, bias, activation="gelu")
            assert not stream.query()  # the call has returned before the work is done
        torch.cuda.synchronize()
        assert torch.equal(got, wanted) and torch.equal(plain, wanted)


def test_threads_with_streams():
    layers = [tensors(torch.bfloat16, 128 * (i + 1), 256, 192) for i in range(4)]
    wanted = [mine("silu", *operands) for operands in layers]
    failures = []

    def work(i):
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.default_stream())
        with torch.cuda.stream(stream):
            for _ in range(50):
                got = mine("silu", *layers[i])
            stream.synchronize()
        failures.extend(i for a, b in zip(got, wanted[i]) if not torch.equal(a, b))

    torch.cuda.synchronize()
    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


# ---- Graphs ----------------------------------------------------------------------------------------

def replayed(graph, static, inputs, results):
    for to, given in zip(static, inputs):
        to.copy_(given)
    for result in results:
        result.fill_(float("nan"))
    graph.replay()
    torch.cuda.synchronize()
    return [result.clone() for result in results]


def test_capture_on_a_fresh_stream():
    """No call was made on the stream before: its context is opened while it is captured."""
    shapes = [(64, 256, 128), (512, 1024, 2048), (4096, 256, 512)]  # growing, so that workspaces would move
    for dtype in (torch.bfloat16, torch.float32):
        graphs = []
        for shape in shapes:
            static = [t.clone() for t in tensors(dtype, *shape)]
            graph, stream = torch.cuda.CUDAGraph(), torch.cuda.Stream()
            with torch.cuda.graph(graph, stream=stream):
                results = mine("gelu", *static)
            graphs.append((shape, static, graph, stream, results))
        for shape, static, graph, stream, results in graphs:
            for _ in range(2):
                inputs = [t + 0.25 for t in tensors(dtype, *shape)]
                for got, wanted in zip(replayed(graph, static, inputs, results), reference("gelu", *inputs)):
                    same(got, wanted, dtype, f"{shape}")
                with torch.cuda.stream(stream):  # other work of the stream leaves the graph alone
                    mine("silu", *tensors(dtype, 2048, 512, 2048))
                torch.cuda.synchronize()


FIRST = """
import torch, epigrad.torch
x, w, b = (torch.randn(*s, device="cuda", dtype=torch.bfloat16) for s in ((64, 128), (96, 128), (96,)))
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    y = epigrad.torch.linear(x, w, b, "gelu")
graph.replay()
wanted = torch.nn.functional.gelu(torch.nn.functional.linear(x, w, b), approximate="tanh")
torch.testing.assert_close(y, wanted, rtol=2e-2, atol=2e-2)
print("same")
"""


def test_capture_as_the_first_call():
    done = subprocess.run([sys.executable, "-c", FIRST], capture_output=True, text=True, check=False)
    assert done.stdout.strip() == "same", done.stderr


def test_graphed_callables():
    torch.manual_seed(0)
    alone = epigrad.torch.MLP(64, 256, 32, device="cuda", dtype=torch.bfloat16)
    x = torch.randn(128, 64, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    graphed = torch.cuda.make_graphed_callables(copy.deepcopy(alone), (x,))
    for _ in range(3):
        x = torch.randn(128, 64, device="cuda", dtype=torch.bfloat16, requires_grad=True)
        for model in (alone, graphed):
            model.zero_grad()
            model(x).square().mean().backward()
        for p, q in zip(graphed.parameters(), alone.parameters()):
            assert torch.equal(p.grad, q.grad)


@pytest.mark.parametrize("mode", ["default", "reduce-overhead"])
def test_compile(mode):
    torch.manual_seed(0)
    alone = epigrad.torch.MLP(64, 256, 32, device="cuda", dtype=torch.bfloat16)
    compiled = torch.compile(copy.deepcopy(alone), fullgraph=True, mode=mode)
    for _ in range(4):  # recorded in the second, replayed from the third on
        x = torch.randn(128, 64, device="cuda", dtype=torch.bfloat16)
        for model in (alone, compiled):
            model.zero_grad()
            model(x).square().mean().backward()
        for p, q in zip(compiled.parameters(), alone.parameters()):
            torch.testing.assert_close(p.grad, q.grad, rtol=2e-2, atol=1e-4)


# ---- Training --------------------------------------------------------------------------------------

def test_autocast():
    layer = epigrad.torch.Linear(64, 32, activation="gelu_erf", device="cuda")
    x = torch.randn(16, 64, device="cuda")
    with torch.autocast("cuda", torch.bfloat16):
        y, expected = layer(x), F.gelu(F.linear(x, layer.weight, layer.bias))
    assert y.dtype == expected.dtype == torch.bfloat16
    torch.testing.assert_close(y, expected, rtol=2e-2, atol=2e-2)
    y.sum().backward()
    assert layer.weight.grad.dtype == torch.float32


def test_main_grad():
    layer = epigrad.torch.Linear(256, 128, activation="gelu", device="cuda", dtype=torch.bfloat16)
    for p in layer.parameters():
        p.main_grad = torch.zeros(p.shape, device="cuda")
    total = 0
    for i in range(3):
        x, _, _, grad = tensors(torch.bfloat16, 64 + i, 256, 128)
        layer(x).backward(grad)
        total = total + reference("gelu", x, layer.weight, layer.bias, grad)[2]
    same(layer.weight.main_grad, total, torch.bfloat16)
    assert layer.weight.grad is None


def test_checkpoint_and_vmap():
    model = epigrad.torch.MLP(64, 128, 32, device="cuda")
    x = torch.randn(16, 64, device="cuda", requires_grad=True)
    wanted = torch.autograd.grad(model(x).square().sum(), list(model.parameters()))
    got = torch.autograd.grad(torch.utils.checkpoint.checkpoint(model, x, use_reentrant=False).square().sum(),
                              list(model.parameters()))
    assert all(torch.equal(a, b) for a, b in zip(got, wanted))
    xs, ws = torch.randn(3, 8, 64, device="cuda"), torch.randn(3, 32, 64, device="cuda")
    for dims, w in [((0, None), ws[0]), ((0, 0), ws)]:
        torch.testing.assert_close(torch.func.vmap(lambda a, b: epigrad.torch.linear(a, b, None, "tanh"), dims)(xs, w),
                                   torch.func.vmap(lambda a, b: torch.tanh(F.linear(a, b)), dims)(xs, w))


def test_refused():
    x, w, bias, _ = tensors(torch.float32, 4, 8, 6)
    with pytest.raises(epigrad.ArgumentError, match="w is on the CPU; expected cuda:0"):
        epigrad.torch.linear(x, w.cpu(), bias)
    with pytest.raises(epigrad.ArgumentError, match="bias is on the CPU; expected cuda:0"):
        epigrad.linear(x, w, bias.cpu())
    with pytest.raises(epigrad.ArgumentError, match="out is on the CPU; expected cuda:0"):
        epigrad.linear(x, w, out=torch.empty(4, 6))
    with pytest.raises(TypeError, match="w has elements of f16; expected f32"):
        epigrad.torch.linear(x, w.half())
    w.untyped_storage().resize_(0)
    with pytest.raises(epigrad.ArgumentError, match="w has no memory"):
        epigrad.linear(x, w)
