# SPDX-License-Identifier: Apache-2.0
"""Linear layers and the activations behind them, and gated blocks, found in a model and replaced."""
from __future__ import annotations

from typing import NamedTuple

import torch

from ._modules import GatedMLP, Linear

# Activations by class: modules of torch.nn, and of transformers by the name of the class.
_CLASSES = {
    "ReLU": "relu", "SiLU": "silu", "SiLUActivation": "silu", "Sigmoid": "sigmoid", "Tanh": "tanh",
    "Hardswish": "hardswish", "Mish": "mish", "MishActivation": "mish", "NewGELUActivation": "gelu",
    "FastGELUActivation": "gelu", "PytorchGELUTanh": "gelu", "GELUTanh": "gelu", "GELUActivation": "gelu_erf",
    "QuickGELUActivation": "quick_gelu", "ReLUSquaredActivation": "relu2",
}
# Blocks of transformers that call `linear` and then `activation` and use neither elsewhere.
_BLOCKS = {
    "GPT2MLP": ("c_fc", "act"), "BertIntermediate": ("dense", "intermediate_act_fn"),
    "ViTIntermediate": ("dense", "intermediate_act_fn"), "ViTMLP": ("fc1", "activation_fn"),
    "RobertaIntermediate": ("dense", "intermediate_act_fn"), "CLIPMLP": ("fc1", "activation_fn"),
}

# Blocks of transformers that are down_proj(act_fn(gate_proj(x)) * up_proj(x)), and nothing else.
_GATED_BLOCKS = {"LlamaMLP", "MistralMLP", "Qwen2MLP", "Qwen3MLP", "GemmaMLP", "Gemma2MLP", "Gemma3MLP"}


class Replaced(NamedTuple):
    """What `patch` replaced: the names of the two modules, and the activation that is now the layer's own."""
    layer: str
    activation_module: str
    activation: str

    def __str__(self):
        return f"{self.layer} + {self.activation_module}: {self.activation}"


class TransposedLinear(torch.nn.Module):
    """transformers' Conv1D, whose weight is (K, N), with an activation."""

    def __init__(self, layer, activation):
        super().__init__()
        self.nf, self.nx = layer.nf, layer.nx
        self.weight, self.bias = layer.weight, layer.bias
        self.activation = activation

    def forward(self, x):
        from . import linear
        return linear(x, self.weight.t(), self.bias, self.activation)


def _activation_of(module):
    """Its name; None if it is none that is known, or does more than compute."""
    if module is torch.nn.functional.relu or module is torch.relu:
        return "relu"
    if not isinstance(module, torch.nn.Module) or _has_hooks(module) or "forward" in vars(module):
        return None
    if type(module) is torch.nn.GELU:
        return {"none": "gelu_erf", "tanh": "gelu"}.get(module.approximate)
    if type(module) is torch.nn.Softplus:
        return "softplus" if module.beta == 1 else None
    return _CLASSES.get(type(module).__name__)


def _has_hooks(module):
    return bool(module._forward_hooks or module._forward_pre_hooks or module._backward_hooks
                or module._backward_pre_hooks)


def _layer_for(layer, activation):
    """The layer with the activation, on the same parameters; None for what is no plain linear layer."""
    if _has_hooks(layer) or "forward" in vars(layer):
        return None
    if type(layer) is torch.nn.Linear:
        made = Linear(1, 1, bias=False, activation=activation, device="meta")
        made.in_features, made.out_features = layer.in_features, layer.out_features
        made.weight, made.bias = layer.weight, layer.bias
    elif type(layer).__name__ == "Conv1D" and hasattr(layer, "nf") and hasattr(layer, "nx"):
        made = TransposedLinear(layer, activation)
    else:
        return None
    return made.train(layer.training)


def _gated_for(block):
    """The block as one that computes the gated unit in one call, with the same layers; None if it is no such block."""
    if type(block).__name__ not in _GATED_BLOCKS or _has_hooks(block) or "forward" in vars(block):
        return None
    layers = [getattr(block, name, None) for name in ("gate_proj", "up_proj", "down_proj")]
    activation = _activation_of(getattr(block, "act_fn", None))
    if activation is None or any(type(layer) is not torch.nn.Linear or _has_hooks(layer) for layer in layers):
        return None
    made = GatedMLP(1, 1, activation, device="meta")
    made.gate_proj, made.up_proj, made.down_proj = layers
    return made.train(block.training)


def _pairs(module):
    if type(module) is torch.nn.Sequential:
        names = list(module._modules)
        yield from zip(names, names[1:])
    elif type(module).__name__ in _BLOCKS:
        yield _BLOCKS[type(module).__name__]


def patch(model: torch.nn.Module) -> list[Replaced]:
    """Replaces pairs of a linear layer and an activation by one layer that computes both, in place.

    Found are neighbours in torch.nn.Sequential, and the feed-forward blocks of transformers' GPT-2, BERT, RoBERTa, ViT
    and CLIP; their activation becomes torch.nn.Identity. Gated blocks of Llama, Mistral, Qwen 2 and 3, and Gemma become
    a GatedMLP each. Parameters stay the same objects under the same names, so optimisers and state_dicts stay valid.
    Left alone are layers of subclasses (LoRA, quantised ones), modules with hooks, and the model itself.

    Returns:
        What was replaced, in the order of the model; print it.
    """
    done = []
    for prefix, module in list(model.named_modules()):
        gated = _gated_for(module) if prefix else None
        if gated is not None:
            parent, _, name = prefix.rpartition(".")
            setattr(model.get_submodule(parent), name, gated)
            done.append(Replaced(f"{prefix}.gate_proj", f"{prefix}.act_fn", gated.activation))
            continue
        for layer_name, activation_name in _pairs(module):
            layer, act = getattr(module, layer_name, None), getattr(module, activation_name, None)
            activation = _activation_of(act)
            made = _layer_for(layer, activation) if activation and isinstance(layer, torch.nn.Module) else None
            if made is None:
                continue
            setattr(module, layer_name, made)
            setattr(module, activation_name, torch.nn.Identity())
            dot = prefix + "." if prefix else ""
            done.append(Replaced(dot + layer_name, dot + activation_name, activation))
    return done
