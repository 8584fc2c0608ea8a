"""Matrix products on a processor by the quicker of the two libraries that PyTorch comes with.

PyTorch takes the same one for `nn.Linear` whatever the processor; the other was measured to be twice as fast
on one with wide vectors. Small products are left alone, where calling costs more than computing. Results
differ by rounding.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import cache, partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional

WORTH = 2**22  # multiply-adds
PLAIN = ("cpu", torch.float32)


def product(x_SI: Tensor, weight_OI: Tensor, bias_O: Tensor | None = None) -> Tensor:
    """x @ weight^T + bias, without a gradient.

    >>> product(torch.ones(2, 3), torch.ones(1, 3), torch.ones(1)).tolist()
    [[4.0], [4.0]]
    """
    plain = {x_SI.dtype, weight_OI.dtype} == {torch.float32} and {x_SI.device.type} == {"cpu"}
    if not (plain and x_SI.numel() * len(weight_OI) >= WORTH and _there()):
        return functional.linear(x_SI, weight_OI, bias_O)
    return _by_onednn(x_SI, weight_OI, bias_O)


def _by_onednn(x_SI: Tensor, weight_OI: Tensor, bias_O: Tensor | None) -> Tensor:
    found: Tensor = torch.ops.mkldnn._linear_pointwise(x_SI, weight_OI, bias_O, "none", [], "")
    return found


@cache
def _there() -> bool:
    """Whether this PyTorch has the operator in this form: it is not part of what PyTorch promises to keep."""
    try:
        return bool(_by_onednn(torch.ones(1, 2), torch.ones(1, 2), None) == 2)
    except (AttributeError, RuntimeError, TypeError):
        return False


def dense_layers(module: nn.Module) -> list[nn.Linear]:
    """Plain linear layers on a processor; a subclass may compute something else."""
    linear = [m for m in module.modules() if isinstance(m, nn.Linear)]
    own = [m for m in linear if type(m).forward is nn.Linear.forward and "forward" not in vars(m)]
    return [m for m in own if (m.weight.device.type, m.weight.dtype) == PLAIN]


@contextmanager
def quick(layers: Iterable[nn.Linear], weights: bool = True) -> Iterator[None]:
    """Inside, these layers take the quicker product; without `weights` only inputs get a gradient."""
    # Past nn.Module's own bookkeeping of attributes, which a small step would feel.
    changed = [vars(layer) for layer in layers]
    for layer, attributes in zip(layers, changed, strict=True):
        attributes["forward"] = partial(_linear, layer, weights)
    try:
        yield
    finally:
        for attributes in changed:
            del attributes["forward"]  # the class's own is found again


def _linear(layer: nn.Linear, weights: bool, x: Tensor) -> Tensor:
    enough = x.dim() == 2 and x.numel() * layer.out_features >= WORTH
    if not enough or x.dtype != torch.float32 or torch.is_autocast_enabled("cpu"):
        return functional.linear(x, layer.weight, layer.bias)
    found: Tensor = _Linear.apply(x, layer.weight, layer.bias, weights)  # type: ignore[no-untyped-call]
    return found


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x_SI: Tensor, weight_OI: Tensor, bias_O: Tensor | None, weights: bool) -> Tensor:
        ctx.save_for_backward(x_SI, weight_OI)
        ctx.weights = weights
        return product(x_SI, weight_OI, bias_O)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, g_SO: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None, None]:
        x_SI, weight_OI = ctx.saved_tensors
        wanted = ctx.needs_input_grad
        return (
            product(g_SO, weight_OI.t()) if wanted[0] else None,
            product(g_SO.t(), x_SI.t()) if wanted[1] and ctx.weights else None,
            g_SO.sum(0) if wanted[2] and ctx.weights else None,
            None,
        )
