# SPDX-License-Identifier: Apache-2.0
"""epigrad.torch beside torch's own operators, on the CPU."""
import copy
import os

import pytest
import torch
import torch.distributed.fsdp
from torch.nn import functional as F

import epigrad
import epigrad.torch
from compiled import check_compiled

ACT = {
    "none": lambda v: v, "relu": F.relu, "gelu": lambda v: F.gelu(v, approximate="tanh"), "silu": F.silu,
    "sigmoid": torch.sigmoid, "tanh": torch.tanh, "gelu_erf": F.gelu,
    "quick_gelu": lambda v: v * torch.sigmoid(1.702 * v),
    "relu2": lambda v: F.relu(v) ** 2, "softplus": F.softplus, "hardswish": F.hardswish, "mish": F.mish,
}


def tensors(dtype=torch.float64, lead=(4, 6), k=7, n=5, grad=True):
    generator = torch.Generator().manual_seed(3)
    make = lambda *shape: torch.randn(*shape, generator=generator, dtype=torch.float64).to(dtype).requires_grad_(grad)
    return make(*lead, k), make(n, k), make(n)


def gradients(y, *of):
    return torch.autograd.grad(y, of, torch.ones_like(y) * torch.arange(y.shape[-1], dtype=y.dtype))


def test_every_activation_is_compared():
    assert set(ACT) == set(epigrad.activations)


@pytest.mark.parametrize("save", ["auto", "recompute"])
@pytest.mark.parametrize("name", ACT)
def test_values(name, save):
    x, w, bias = tensors()
    y, expected = epigrad.torch.linear(x, w, bias, name, save=save), ACT[name](F.linear(x, w, bias))
    # torch's softplus is linear from 20 on, which these values do not reach
    torch.testing.assert_close(y, expected, rtol=1e-12, atol=1e-12)
    for got, wanted in zip(gradients(y, x, w, bias), gradients(expected, x, w, bias)):
        torch.testing.assert_close(got, wanted, rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("save", ["auto", "recompute"])
@pytest.mark.parametrize("name", [name for name in ACT if name not in ("relu", "hardswish")])
def test_gradcheck(name, save):
    assert torch.autograd.gradcheck(lambda *t: epigrad.torch.linear(*t, name, save=save), tensors(lead=(3,)))


@pytest.mark.parametrize("name, save", [("none", False), ("gelu", True), ("tanh", False)])
def test_opcheck(name, save):
    for bias in (True, False):
        x, w, b = tensors(torch.float32)
        torch.library.opcheck(torch.ops.epigrad.linear.default, (x, w, b if bias else None, name, save, "default"))
    x, w, b = tensors(torch.float32, grad=False)
    y, pre = torch.ops.epigrad.linear(x, w, b, name, True, "default")
    saved = {"gelu": ("pre", pre), "tanh": ("y", y), "none": ("recompute", None)}[name]
    for need in ([True, True, True], [False, True, False]):
        torch.library.opcheck(torch.ops.epigrad.linear_backward.default,
                              (torch.randn_like(y), x, w, b, saved[1], name, saved[0], need, "default"))


def weights():
    """What the fake kernel says of d_w's strides is what the kernels make."""
    make = lambda *shape: torch.randn(*shape, generator=torch.Generator().manual_seed(1))
    return {"plain": make(5, 7), "transposed": make(7, 5).t(), "padded": make(5, 9)[:, :7],
            "padded transpose": make(7, 9)[:, :5].t(), "every second": make(5, 14)[:, ::2], "one row": make(1, 7),
            "one column": make(7, 1), "expanded": make(1, 7).expand(5, 7), "batch": make(4, 5, 7),
            "batch of transposes": make(4, 7, 5).mT}


@pytest.mark.parametrize("name", weights())
def test_opcheck_of_weights(name):
    w = weights()[name]
    x, grad = torch.randn(4, 6, w.shape[-1]), torch.randn(4, 6, w.shape[-2])
    torch.library.opcheck(torch.ops.epigrad.linear.default, (x, w, None, "relu", True, "default"))
    args = grad, x, w, None, None, "none", "recompute", [True, True, True], "default"
    torch.library.opcheck(torch.ops.epigrad.linear_backward.default, args)
    d_w = torch.ops.epigrad.linear_backward(*args)[1]
    torch.testing.assert_close(d_w, (grad.mT @ x) if w.dim() == 3 else torch.einsum("abn,abk->nk", grad, x))


def test_saved_memory():
    """Nothing but x and w for what is computed again, y alone where it is enough."""
    x, w, bias = tensors()
    for name, save, extra in [("none", "auto", 0), ("gelu", "recompute", 0), ("gelu", "auto", 4 * 6 * 5)]:
        held = []
        with torch.autograd.graph.saved_tensors_hooks(lambda t: held.append(t) or t, lambda t: t):
            y = epigrad.torch.linear(x, w, bias, name, save=save)
        known = {t.data_ptr() for t in (x, w, bias, y)}
        assert sum(t.numel() for t in held if t.data_ptr() not in known) == extra


@pytest.mark.parametrize("wanted", [(True, False, False), (False, True, False), (False, False, True)])
def test_some_gradients(wanted):
    inputs = [t.detach().requires_grad_(need) for t, need in zip(tensors(), wanted)]
    y, expected = epigrad.torch.linear(*inputs, "gelu"), ACT["gelu"](F.linear(*inputs))
    of = [t for t in inputs if t.requires_grad]
    torch.testing.assert_close(gradients(y, *of), gradients(expected, *of))


def test_strides():
    """What is no layout of the library is copied, as torch's own operators do."""
    x, w, bias = tensors(grad=False)
    odd = torch.randn(4, 6, 14, dtype=torch.float64)[..., ::2]
    torch.testing.assert_close(epigrad.torch.linear(odd, w, bias, "relu"), F.relu(F.linear(odd, w, bias)))
    x.requires_grad_()
    epigrad.torch.linear(x, w, bias, "relu").sum().backward()  # an expanded grad, of stride 0
    mine, x.grad = x.grad, None
    F.relu(F.linear(x, w, bias)).sum().backward()
    torch.testing.assert_close(mine, x.grad)
    torch.testing.assert_close(epigrad.torch.linear(x.transpose(0, 1), w), F.linear(x.transpose(0, 1), w))


def test_no_rows():
    x, w, bias = torch.empty(0, 7, requires_grad=True), torch.randn(5, 7, requires_grad=True), torch.randn(5)
    epigrad.torch.linear(x, w, bias, "gelu").sum().backward()
    assert w.grad.shape == w.shape and not w.grad.any() and x.grad.shape == x.shape


def test_a_weight_used_twice():
    x, w, _ = tensors(k=5, n=5)
    twice = lambda act: act(act(x, w), w)
    torch.testing.assert_close(gradients(twice(lambda v, w: epigrad.torch.linear(v, w, None, "tanh")), x, w),
                               gradients(twice(lambda v, w: torch.tanh(F.linear(v, w))), x, w))


# ---- Modules ---------------------------------------------------------------------------------------

def reference_mlp():
    return torch.nn.Sequential(torch.nn.Linear(7, 16), torch.nn.GELU("tanh"), torch.nn.Linear(16, 3))


def test_modules_take_the_state_of_torch():
    torch.manual_seed(0)
    theirs = reference_mlp()
    torch.manual_seed(0)
    mine = epigrad.torch.MLP(7, 16, 3, activation="gelu")
    assert list(mine.state_dict()) == list(theirs.state_dict())
    for a, b in zip(mine.parameters(), theirs.parameters()):
        assert torch.equal(a, b)  # the same initialisation
    mine.load_state_dict(theirs.state_dict())
    x = torch.randn(5, 7)
    torch.testing.assert_close(mine(x), theirs(x))
    assert "activation=gelu" in repr(mine)


@pytest.mark.parametrize("dynamic", [False, True])
def test_compile(dynamic):
    torch.manual_seed(0)
    check_compiled(epigrad.torch.MLP(7, 16, 3), 7, dynamic)


@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpoint(reentrant):
    mine, x = epigrad.torch.MLP(7, 16, 3).double(), torch.randn(5, 7, dtype=torch.float64, requires_grad=True)
    parameters = list(mine.parameters())
    mine(x).square().sum().backward()
    expected = [p.grad.clone() for p in parameters]
    mine.zero_grad()
    torch.utils.checkpoint.checkpoint(mine, x, use_reentrant=reentrant).square().sum().backward()
    for p, wanted in zip(parameters, expected):
        assert torch.equal(p.grad, wanted)


def test_autocast():
    x, w, bias = tensors(torch.float32)
    with torch.autocast("cpu", torch.bfloat16):
        y, expected = epigrad.torch.linear(x, w, bias, "relu"), F.relu(F.linear(x, w, bias))
    assert y.dtype == expected.dtype == torch.bfloat16
    torch.testing.assert_close(y, expected)
    y.sum().backward()
    assert w.grad.dtype == torch.float32 and x.grad.dtype == torch.float32


@pytest.mark.parametrize("in_dims", [(0, None, None), (1, None, None), (0, 0, None), (None, 0, 0), (0, 0, 0)])
def test_vmap(in_dims):
    x, w, bias = tensors(lead=(3, 3), k=7, n=5, grad=False)
    w = torch.stack([w, 2 * w, -w]) if in_dims[1] is not None else w
    bias = torch.stack([bias, -bias, 3 * bias]) if in_dims[2] is not None else bias
    mine = torch.func.vmap(lambda *t: epigrad.torch.linear(*t, "tanh"), in_dims=in_dims)
    theirs = torch.func.vmap(lambda *t: torch.tanh(F.linear(*t)), in_dims=in_dims)
    torch.testing.assert_close(mine(x, w, bias), theirs(x, w, bias))


def test_main_grad():
    torch.manual_seed(0)
    layer = epigrad.torch.Linear(7, 5, activation="gelu", dtype=torch.bfloat16)
    for p in layer.parameters():
        p.main_grad = torch.ones(p.shape)
    xs = [torch.randn(6, 7, dtype=torch.bfloat16, requires_grad=True) for _ in range(3)]
    for x in xs:
        layer(x).sum().backward()
    assert layer.weight.grad is None and layer.bias.grad is None and layer.weight.grad_added_to_main_grad
    w, b = (p.detach().double().requires_grad_() for p in layer.parameters())
    for x in xs:
        y = ACT["gelu"](F.linear(x.double(), w, b))
        y.sum().backward()
    assert layer.weight.main_grad.dtype == torch.float32
    # grad_pre has 8 bits on its way to d_w; summed into bf16 from 1 on, less than 2^-7 would be lost each time
    torch.testing.assert_close(layer.weight.main_grad.double(), 1 + w.grad, rtol=0, atol=0.06)
    torch.testing.assert_close(layer.bias.main_grad.double(), 1 + b.grad, rtol=0, atol=0.06)
    assert xs[0].grad is not None


@pytest.mark.skipif(epigrad.torch._ops.COMPILES_WITHOUT_ATTRIBUTES, reason="torch.compile of 2.4 sees no main_grad")
def test_main_grad_compiled():
    layer = epigrad.torch.Linear(7, 5, activation="relu")
    layer.weight.main_grad = torch.zeros(5, 7)
    x = torch.rand(6, 7)
    torch.compile(layer)(x).sum().backward()
    assert layer.weight.grad is None and layer.weight.main_grad.any() and layer.bias.grad.any()
    torch._dynamo.reset()
    with pytest.raises(torch._dynamo.exc.Unsupported):
        torch.compile(layer, fullgraph=True)(x)


def test_who_listens_sees_an_operator():
    """The short way past the dispatcher is taken only where nobody would notice."""
    from torch.fx.experimental.proxy_tensor import make_fx
    x, w, bias = tensors(grad=False)
    names = lambda graph: {str(node.target) for node in graph.graph.nodes}
    traced = make_fx(lambda *t: epigrad.torch.linear(*t, "relu"))(x, w, bias)
    assert "epigrad.linear.default" in names(traced)
    from torch._subclasses.fake_tensor import FakeTensorMode
    with FakeTensorMode() as mode:
        y = epigrad.torch.linear(*(mode.from_tensor(t) for t in (x, w, bias)), "relu")
    assert y.shape == (4, 6, 5) and type(y) is not torch.Tensor

    seen = []

    class Mode(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            seen.append(str(function))
            return function(*args, **(kwargs or {}))

    x.requires_grad_()
    y = epigrad.torch.linear(x, w, bias, "relu")  # without
    assert not seen
    with Mode():
        y.sum().backward()
        epigrad.torch.linear(x, w, bias, "relu")
    assert "epigrad.linear_backward.default" in seen and "epigrad.linear.default" in seen


def run_ddp(rank, folder):
    torch.distributed.init_process_group("gloo", init_method=f"file://{folder}/rendezvous", rank=rank, world_size=2)
    torch.manual_seed(0)
    alone = epigrad.torch.MLP(7, 16, 3)
    shared = torch.nn.parallel.DistributedDataParallel(copy.deepcopy(alone))
    x = torch.randn(8, 7)
    shared(x[4 * rank:4 * rank + 4]).square().mean().backward()
    alone(x).square().mean().backward()
    for mine, wanted in zip(shared.parameters(), alone.parameters()):
        torch.testing.assert_close(mine.grad, wanted.grad)
    torch.distributed.barrier()  # torch's own threads may still be at work for the other
    torch.distributed.destroy_process_group()


def test_distributed_data_parallel(tmp_path):
    os.environ["OMP_NUM_THREADS"] = "1"
    torch.multiprocessing.spawn(run_ddp, (str(tmp_path),), nprocs=2)


def run_fsdp(rank, folder):
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
    torch.distributed.init_process_group("gloo", init_method=f"file://{folder}/rendezvous", rank=rank, world_size=2)
    mesh = torch.distributed.device_mesh.init_device_mesh("cpu", (2,))
    for policy, near in [(MixedPrecisionPolicy(), 1e-5),
                         (MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32), 3e-2)]:
        torch.manual_seed(0)
        theirs = reference_mlp()
        mine = epigrad.torch.MLP(7, 16, 3)
        mine.load_state_dict(theirs.state_dict())
        optimizers = []
        for model in (mine, theirs):
            for layer in (*model.children(), model):  # each layer's parameters are gathered for its own calls
                fully_shard(layer, mesh=mesh, mp_policy=policy)
            optimizers.append(torch.optim.SGD(model.parameters(), lr=0.1))
        for _ in range(3):
            x = torch.randn(4, 7)
            for model, optimizer in zip((mine, theirs), optimizers):
                optimizer.zero_grad()
                model(x).float().square().mean().backward()
                optimizer.step()
        for p, q in zip(mine.parameters(), theirs.parameters()):
            assert isinstance(p, torch.distributed.tensor.DTensor)
            torch.testing.assert_close(p.full_tensor(), q.full_tensor(), rtol=near, atol=near)
    torch.distributed.barrier()  # torch's own threads may still be at work for the other
    torch.distributed.destroy_process_group()


@pytest.mark.skipif(not hasattr(torch.distributed, "fsdp") or not hasattr(torch.distributed.fsdp, "fully_shard"),
                    reason="fully_shard is in torch.distributed.fsdp from 2.6 on")
def test_fully_sharded(tmp_path):
    os.environ["OMP_NUM_THREADS"] = "1"
    torch.multiprocessing.spawn(run_fsdp, (str(tmp_path),), nprocs=2)


# ---- Models that exist ------------------------------------------------------------------------------

def same_after_patch(model, expected, *args, **named):
    """Patched in place, a model gives the same outputs and gradients, by the same parameters."""
    names, ids = list(model.state_dict()), [id(p) for p in model.parameters()]
    original = copy.deepcopy(model)
    done = epigrad.torch.patch(model)
    assert [str(item) for item in done] == expected
    assert list(model.state_dict()) == names and [id(p) for p in model.parameters()] == ids
    results = [m(*args, **named) for m in (model, original)]
    results = [r if isinstance(r, torch.Tensor) else r[0] for r in results]
    torch.testing.assert_close(*results, rtol=1e-9, atol=1e-9)
    for result in results:
        result.square().sum().backward()
    for (name, p), q in zip(model.named_parameters(), original.parameters()):
        if q.grad is not None:
            torch.testing.assert_close(p.grad, q.grad, rtol=1e-8, atol=1e-8, msg=lambda text: f"{name}: {text}")
    return done


def test_patch_sequential():
    class Lora(torch.nn.Linear):
        pass

    hooked = torch.nn.Linear(6, 6)
    hooked.register_forward_hook(lambda *_: None)
    observed = torch.nn.ReLU()
    observed.register_full_backward_hook(lambda *_: None)
    nested = torch.nn.Sequential(torch.nn.Linear(6, 6), torch.nn.ReLU())
    model = torch.nn.Sequential(torch.nn.Linear(7, 6), torch.nn.GELU(), nested, Lora(6, 6), torch.nn.ReLU(), hooked,
                                torch.nn.ReLU(), torch.nn.Linear(6, 6), torch.nn.ELU(), torch.nn.Linear(6, 6),
                                torch.nn.Softplus(beta=2), torch.nn.Linear(6, 6), observed).double()
    same_after_patch(model, ["0 + 1: gelu_erf", "2.0 + 2.1: relu"], torch.randn(5, 7, dtype=torch.float64))
    assert not epigrad.torch.patch(model)  # twice is once


def test_patch_transformers():
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    ids = torch.arange(12).reshape(2, 6)
    small = {"num_hidden_layers": 2, "hidden_size": 16, "num_attention_heads": 2, "intermediate_size": 32}
    gpt2 = transformers.GPT2Model(transformers.GPT2Config(vocab_size=20, n_positions=8, n_embd=16, n_layer=2, n_head=2))
    same_after_patch(gpt2.double().eval(), [f"h.{i}.mlp.c_fc + h.{i}.mlp.act: gelu" for i in (0, 1)], ids)
    bert = transformers.BertModel(transformers.BertConfig(vocab_size=20, max_position_embeddings=8, **small))
    block = "encoder.layer.{0}.intermediate."
    names = [(block + "dense + " + block + "intermediate_act_fn: gelu_erf").format(i) for i in (0, 1)]
    same_after_patch(bert.double().eval(), names, ids)
    vit = transformers.ViTModel(transformers.ViTConfig(image_size=8, patch_size=4, **small))
    done = epigrad.torch.patch(copy.deepcopy(vit))
    assert len(done) == 2 and all(item.activation == "gelu_erf" for item in done)
    same_after_patch(vit.double().eval(), [str(item) for item in done], torch.randn(2, 3, 8, 8, dtype=torch.float64))


def test_patch_gated_blocks():
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    ids = torch.arange(12).reshape(2, 6)
    small = {"num_hidden_layers": 2, "hidden_size": 16, "num_attention_heads": 2, "intermediate_size": 32,
             "num_key_value_heads": 2, "head_dim": 8, "vocab_size": 20}
    for name in ("Llama", "Mistral", "Qwen2", "Qwen3", "Gemma", "Gemma2"):
        activation = "gelu" if name.startswith("Gemma") else "silu"
        config = getattr(transformers, name + "Config")(**small)
        model = getattr(transformers, name + "Model")(config).double().eval()
        names = [f"layers.{i}.mlp.gate_proj + layers.{i}.mlp.act_fn: {activation}" for i in (0, 1)]
        same_after_patch(model, names, ids)
        assert type(model.layers[0].mlp) is epigrad.torch.GatedMLP and not model.layers[0].mlp.training
        assert not epigrad.torch.patch(model)  # twice is once
    model = transformers.LlamaModel(transformers.LlamaConfig(**small)).double().eval()
    model.layers[0].mlp.up_proj.register_forward_hook(lambda *_: None)
    same_after_patch(model, ["layers.1.mlp.gate_proj + layers.1.mlp.act_fn: silu"], ids)
    assert not epigrad.torch.patch(copy.deepcopy(model.layers[0].mlp))  # it has no place in a model


# ---- What is refused ---------------------------------------------------------------------------------

def test_refused():
    x, w, bias = tensors(torch.float32)
    linear = epigrad.torch.linear
    for error, match, call in [
            (epigrad.ArgumentError, "activation is 'swish'", lambda: linear(x, w, bias, "swish")),
            (epigrad.ArgumentError, "save is 'pre'; expected one of 'auto'", lambda: linear(x, w, bias, save="pre")),
            (epigrad.ArgumentError, r"w.shape is \(5, 6\)", lambda: linear(x, w[:, :6])),
            (epigrad.ArgumentError, r"bias.shape is \(4,\)", lambda: linear(x, w, bias[:4])),
            (TypeError, "w has elements of f64; expected f32", lambda: linear(x, w.double())),
            (TypeError, "x has elements of int64", lambda: linear(torch.ones(2, 7, dtype=torch.int64), w.detach())),
            (epigrad.ArgumentError, "activation is 'x'", lambda: epigrad.torch.Linear(3, 4, activation="x")),
            (ValueError, "widths", lambda: epigrad.torch.MLP(3))]:
        with pytest.raises(error, match=match):
            call()


def test_arrays_of_the_plain_functions():
    """The functions of the package take tensors, of which none may expect a gradient."""
    x, w, bias = tensors(torch.bfloat16, grad=False)
    y, pre = epigrad.linear(x, w, bias, activation="gelu", save="pre")
    assert y.dtype == torch.bfloat16 and y.shape == (4, 6, 5)
    main = torch.zeros(5, 7)
    _, d_w, _ = epigrad.linear_backward(torch.ones_like(y), x, w, bias, activation="gelu", saved=pre,
                                        out=(None, main, torch.zeros(5)), accumulate=True)
    assert d_w is main and main.any()
    with pytest.raises(epigrad.ArgumentError, match="w requires grad"):
        epigrad.linear(x, w.requires_grad_(), bias)
    with pytest.raises(epigrad.ArgumentError, match="out requires grad"):
        epigrad.linear(x, w.detach(), bias, out=torch.empty(4, 6, 5, dtype=torch.bfloat16, requires_grad=True))
    held = torch.empty(4, 6, 5, dtype=torch.bfloat16, requires_grad=True)
    with pytest.raises(epigrad.ArgumentError, match="pre requires grad"):
        epigrad.linear(x, w.detach(), bias, save="pre", out=(y, held))
    with pytest.raises(epigrad.ArgumentError, match="w requires grad"):  # whatever x is
        epigrad.linear(x.float().numpy(), w.detach().float().requires_grad_())
    with torch.no_grad():
        epigrad.linear(x, w, bias)
        gone = w.detach().clone()
        gone.untyped_storage().resize_(0)
        with pytest.raises(epigrad.ArgumentError, match="w has no memory"):
            epigrad.linear(x, gone, bias)
    with pytest.raises(epigrad.ArgumentError, match="x has no memory"):
        epigrad.linear(x.to("meta"), w.detach())
