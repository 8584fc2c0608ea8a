"""The layer rule of convolutions: a convolution is a sum of linear layers, one per kernel position."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from math import prod
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from manymodes.fisher_rules import BLOCK, Rule, add_squares

NARROW = 16  # below this many input channels one wide product beats one product per kernel position


class ConvRule(Rule):
    """Conv1d, 2d and 3d with any stride, padding, padding mode, dilation and groups."""

    def zeros(self, name: str) -> Tensor:
        """The weight's sum is (groups, outputs, kernel positions, inputs), stored as the products come."""
        if name == "bias":
            return super().zeros(name)
        layer, (outputs, inner) = self.layer, self.layer.weight.shape[:2]
        outer, taps = outputs // layer.groups, prod(layer.kernel_size)
        self.wide = inner < NARROW and (inner, outer) != (1, 1)
        zeros: Tensor = layer.weight.new_zeros(layer.groups * outer * taps * inner, dtype=self.dtype)
        if self.wide:
            return zeros.view(layer.groups, outer, taps, inner)
        return zeros.view(taps, layer.groups, outer, inner).permute(1, 2, 0, 3)

    def fits(self, x: Tensor, shape: torch.Size, samples: int) -> bool:
        """See Rule; an input without a batch axis is not for us."""
        return super().fits(x, shape, samples) and x.dim() == len(self.layer.kernel_size) + 2

    def result(self, name: str) -> Tensor:
        """Back to (outputs, inputs, kernel positions)."""
        sums = self.sums[name]
        return sums if name == "bias" else sums.flatten(0, 1).transpose(1, 2)

    def add(self, x: Tensor, g: Tensor, samples: int) -> None:
        """See Rule; channels go last."""
        x, g = x.to(self.dtype), g.to(self.dtype).movedim(1, -1).contiguous()
        self.add_bias(g.view(samples, -1, g.shape[-1]))
        if "weight" not in self.names:
            return
        pads = _pads(self.layer)
        if self.layer.padding_mode != "zeros":
            x, pads = functional.pad(x, pads, mode=self.layer.padding_mode), [0] * len(pads)
        x = x.movedim(1, -1).contiguous()
        if self.wide:
            self._add_wide(functional.pad(x, [0, 0, *pads]), g, samples)
            return
        for tap, x_tap, g_tap in self._taps(x, g, pads[-2::-2]):
            a_SLKI, g_SLKO = (
                t.reshape(samples, -1, self.layer.groups, t.shape[-1] // self.layer.groups)
                for t in (x_tap, g_tap)
            )
            add_squares(self.sums["weight"][:, :, tap], a_SLKI, g_SLKO)

    def _taps(self, x: Tensor, g: Tensor, left: list[int]) -> Iterator[tuple[int, Tensor, Tensor]]:
        """Per kernel position: the inputs it meets, padding left out, and the outputs they reach.

        The first spatial axis is cut last: there a cut is a view.
        """
        first, *others = (range(k) for k in self.layer.kernel_size)
        for number, tap in enumerate(product(*others)):
            cuts = [self._cut(axis, k, x, g, left) for axis, k in enumerate(tap, start=1)]
            x_cut = x[(slice(None), slice(None), *(c[0] for c in cuts))].contiguous()
            g_cut = g[(slice(None), slice(None), *(c[1] for c in cuts))].contiguous()
            for k in first:
                x_rows, g_rows = self._cut(0, k, x, g, left)
                if g_cut[:, g_rows].numel():
                    yield k * prod(map(len, others)) + number, x_cut[:, x_rows], g_cut[:, g_rows]

    def _cut(self, axis: int, k: int, x: Tensor, g: Tensor, left: list[int]) -> tuple[slice, slice]:
        """Along one axis: which inputs kernel position k meets, and at which outputs."""
        step, start = self.layer.stride[axis], k * self.layer.dilation[axis] - left[axis]
        low = max(0, -(start // step))
        high = max(low, min(g.shape[axis + 1], (x.shape[axis + 1] - 1 - start) // step + 1))
        return slice(start + low * step, start + high * step, step), slice(low, high)

    def _add_wide(self, x: Tensor, g: Tensor, samples: int) -> None:
        """All kernel positions at once: the windows of a padded input as one wide matrix."""
        layer, steps = self.layer, x.stride()
        size = *g.shape[:-1], *layer.kernel_size, x.shape[-1]
        strides = [step * n for step, n in zip(steps[1:-1], layer.stride, strict=True)]
        dilations = [step * n for step, n in zip(steps[1:-1], layer.dilation, strict=True)]
        windows = x.as_strided(size, (steps[0], *strides, *dilations, 1))
        sums = self.sums["weight"]
        K, outer, taps, inner = sums.shape
        g_SLKO = g.view(samples, -1, K, outer)
        fold = len(x) // samples
        some = max(1, (BLOCK * 4) // (g_SLKO.shape[1] * K * taps * inner))
        for part, g_part in zip(windows.split(some * fold), g_SLKO.split(some), strict=True):
            a_SLTKI = part.reshape(len(g_part), -1, taps, K, inner)
            add_squares(sums.view(K, outer, -1), a_SLTKI.transpose(2, 3).flatten(3), g_part)


def _pads(layer: Any) -> list[int]:
    """Padding as functional.pad wants it: left and right, the last axis first."""
    if layer.padding == "valid":
        return [0] * (2 * len(layer.kernel_size))
    if layer.padding == "same":
        total = [d * (k - 1) for d, k in zip(layer.dilation, layer.kernel_size, strict=True)]
        return [n for t in reversed(total) for n in (t // 2, t - t // 2)]
    return [n for p in reversed(layer.padding) for n in (p, p)]
