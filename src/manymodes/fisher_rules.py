"""Squared per-sample gradients of one layer, from its input and the gradient at its output.

A rule holds sums over samples; per-sample gradients exist a small block at a time, or not at all.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from manymodes.products import product

BLOCK = 1 << 20  # numbers in a block of per-sample gradients: 4 MB stay in a processor's cache
SQUARE_COST = 6  # to write, square and add a number takes the time of about six multiply-adds


def add_squares(out_KOI: Tensor, a_SLKI: Tensor, g_SLKO: Tensor) -> None:
    """Add to `out` the sum over samples s of (sum over positions l of g[s,l,k,o] a[s,l,k,i])^2.

    With few positions the square is expanded, sum over (l, m) of (g_l g_m)^T (a_l a_m): one product over
    all samples. With many, per-sample gradients are made a block at a time, squared and summed.
    """
    L, K, inner, outer = *a_SLKI.shape[1:], g_SLKO.shape[3]
    if inner == outer == 1:
        out_KOI.add_((a_SLKI * g_SLKO).sum(1).square_().sum(0)[..., None])
    elif L * (L + 1) // 2 <= L + SQUARE_COST:
        for shift in range(L):  # pairs (l, l + shift); two different positions make two pairs
            g = g_SLKO[:, shift:] * g_SLKO[:, : L - shift]
            a = a_SLKI[:, shift:] * a_SLKI[:, : L - shift]
            g_KOT = g.permute(2, 3, 0, 1).reshape(K, outer, -1)
            a_KTI = a.permute(2, 0, 1, 3).reshape(K, -1, inner)
            if K == 1:
                out_KOI[0].add_(product(g_KOT[0], a_KTI[0].t()), alpha=2 if shift else 1)
            else:
                out_KOI.baddbmm_(g_KOT, a_KTI, alpha=2 if shift else 1)
    else:
        size = max(1, BLOCK // (K * outer * inner))
        for a, g in zip(a_SLKI.split(size), g_SLKO.split(size), strict=True):
            g_BOL = g.permute(0, 2, 3, 1).reshape(-1, outer, L)
            a_BLI = a.permute(0, 2, 1, 3).reshape(-1, L, inner)
            grads = torch.bmm(g_BOL, a_BLI).view(-1, K, outer, inner)
            out_KOI.add_(grads.square_().sum(0))


class Rule:
    """The running sums of one layer's own parameters; `names` says which of weight and bias."""

    def __init__(self, layer: nn.Module, names: set[str], dtype: torch.dtype) -> None:
        self.layer: Any = layer
        self.names, self.dtype = names, dtype
        self.sums = {name: self.zeros(name) for name in names}

    def zeros(self, name: str) -> Tensor:
        """An empty sum, laid out as `add` likes it."""
        return torch.zeros_like(getattr(self.layer, name), dtype=self.dtype, requires_grad=False)

    def fits(self, x: Tensor, shape: torch.Size, samples: int) -> bool:
        """Whether the rule understands this input and output shape.

        A batch may be folded with other axes (frames, windows): then it is a multiple of the samples.
        """
        return x.dim() >= 2 and x.shape[0] == shape[0] and x.shape[0] % samples == 0

    def add(self, x: Tensor, g: Tensor, samples: int) -> None:
        """Add a batch: the layer's input and the gradient at its output."""
        raise NotImplementedError

    def result(self, name: str) -> Tensor:
        """The sum in the order of the parameter."""
        return self.sums[name]

    def add_bias(self, g_SLO: Tensor) -> None:
        """The gradient of a bias is the sum over positions."""
        if "bias" in self.names:
            self.sums["bias"].add_(g_SLO.sum(1).square_().sum(0).view_as(self.sums["bias"]))


class LinearRule(Rule):
    """Linear at every position between the sample axis and the last."""

    def add(self, x: Tensor, g: Tensor, samples: int) -> None:
        """See Rule."""
        x_SLI = x.to(self.dtype).reshape(samples, -1, x.shape[-1])
        g_SLO = g.to(self.dtype).reshape(samples, -1, g.shape[-1])
        self.add_bias(g_SLO)
        if "weight" in self.names:
            add_squares(self.sums["weight"][None], x_SLI[:, :, None], g_SLO[:, :, None])


class NormRule(Rule):
    """y = w * xhat + b, where xhat is the layer without weight and bias."""

    def fits(self, x: Tensor, shape: torch.Size, samples: int) -> bool:
        """See Rule; statistics of the batch would mix the samples."""
        batched = isinstance(self.layer, nn.modules.batchnorm._BatchNorm)
        return super().fits(x, shape, samples) and not (batched and self.layer.running_mean is None)

    def add(self, x: Tensor, g: Tensor, samples: int) -> None:
        """See Rule."""
        layer, g = self.layer, g.to(self.dtype)
        xhat = NORMALISE[type(layer).forward](layer, x).to(self.dtype)
        if not hasattr(layer, "normalized_shape"):
            xhat, g = xhat.movedim(1, -1), g.movedim(1, -1)
        width = self.sums[next(iter(self.names))].numel()
        g_SLC = g.reshape(samples, -1, width)
        self.add_bias(g_SLC)
        if "weight" in self.names:
            products = (xhat.reshape(samples, -1, width) * g_SLC).sum(1)
            self.sums["weight"].add_(products.square_().sum(0).view_as(self.sums["weight"]))


class EmbeddingRule(Rule):
    """Rows of a table; a row's gradient is the sum over the sample's positions that look it up."""

    def fits(self, x: Tensor, shape: torch.Size, samples: int) -> bool:
        """See Rule; one index per sample is a vector."""
        frequent = self.layer.scale_grad_by_freq
        return x.dim() >= 1 and shape[0] == x.shape[0] and x.shape[0] % samples == 0 and not frequent

    def add(self, x: Tensor, g: Tensor, samples: int) -> None:
        """See Rule."""
        rows = len(self.layer.weight)
        sample = torch.arange(samples, device=x.device).repeat_interleave(x.numel() // samples)
        keys, g_TD = sample * rows + x.reshape(-1), g.to(self.dtype).reshape(-1, g.shape[-1])
        if self.layer.padding_idx is not None:
            real = x.reshape(-1) != self.layer.padding_idx
            keys, g_TD = keys[real], g_TD[real]
        found, where = keys.unique(return_inverse=True)
        grads = g_TD.new_zeros(len(found), g_TD.shape[1]).index_add_(0, where, g_TD)
        self.sums["weight"].index_add_(0, found % rows, grads.square_())


Normalise = Callable[[Any, Tensor], Tensor]
NORMALISE: dict[Callable[..., Tensor], Normalise] = {
    nn.BatchNorm2d.forward: lambda m, x: functional.batch_norm(x, m.running_mean, m.running_var, eps=m.eps),
    nn.LayerNorm.forward: lambda m, x: functional.layer_norm(x, m.normalized_shape, eps=m.eps),
    nn.RMSNorm.forward: lambda m, x: functional.rms_norm(x, m.normalized_shape, eps=m.eps),
    nn.GroupNorm.forward: lambda m, x: functional.group_norm(x, m.num_groups, eps=m.eps),
    nn.InstanceNorm2d.forward: lambda m, x: functional.instance_norm(
        x, m.running_mean, m.running_var, use_input_stats=m.running_mean is None, eps=m.eps
    ),
}
