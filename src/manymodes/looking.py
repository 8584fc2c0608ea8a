"""Passes that need no gradient: the same function of its inputs, computed with quicker products.

A convolution over an image hardly larger than its kernel multiplies mostly by the padding: written as one
matrix it does not. Results differ by rounding.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TypeGuard

import torch
from torch import Tensor, nn

from manymodes.flat import FlatModel
from manymodes.products import PLAIN, dense_layers, product, quick

FEW = 64  # samples for which no matrix is worth making
FIRST = 4  # channels: layers of so few want their weights channels-last, whatever the input


def sample_count(model: FlatModel) -> int:
    """How many samples are looked at together.

    The outputs of 64 images fit into memory that the process has; for larger ones it would ask the system
    each time, page by page, which was measured to take a quarter of the time.
    """
    images = any(isinstance(layer, nn.Conv1d | nn.Conv2d | nn.Conv3d) for layer in model.module.modules())
    return 64 if images and model.device.type == "cpu" else 512


@contextmanager
def looking(model: FlatModel) -> Iterator[None]:
    """Inside: eval mode, no gradients, and layers with a quicker way take it. The vector must not change."""
    convolutions = [layer for layer in model.module.modules() if _fits(layer)]
    with torch.no_grad(), model.evaluating(), quick(dense_layers(model.module)):
        for layer in convolutions:
            vars(layer)["forward"] = _Convolution(layer)
        try:
            yield
        finally:
            for layer in convolutions:
                del vars(layer)["forward"]  # the class's own is found again


def _fits(layer: nn.Module) -> TypeGuard[nn.Conv2d]:
    """A plain convolution on a processor; a subclass may compute something else."""
    if type(layer).forward is not nn.Conv2d.forward or "forward" in vars(layer):
        return False
    assert isinstance(layer, nn.Conv2d)
    plain = layer.groups == 1 and layer.dilation == (1, 1) and layer.padding_mode == "zeros"
    return (
        plain
        and not isinstance(layer.padding, str)
        and (layer.weight.device.type, layer.weight.dtype) == PLAIN
    )


def _plain(x: Tensor) -> bool:
    return x.dtype == torch.float32 and not torch.is_autocast_enabled("cpu")


class _Convolution:
    """A convolution as one matrix where the image has no more pixels than the kernel."""

    def __init__(self, layer: nn.Conv2d) -> None:
        self.layer = layer
        self.matrix: Tensor | None = None
        self.size: tuple[int, ...] = ()
        self.weight = layer.weight
        if layer.in_channels <= FIRST:
            self.weight = nn.Parameter(layer.weight.contiguous(memory_format=torch.channels_last))

    def __call__(self, x: Tensor) -> Tensor:
        layer, pixels = self.layer, x.shape[2:].numel()
        if not (_plain(x) and x.dim() == 4 and len(x) >= FEW and pixels <= self.weight[0, 0].numel()):
            image: Tensor = layer._conv_forward(x, self.weight, layer.bias)
            return image
        if self.matrix is None or self.size != tuple(x.shape[2:]):
            self.size = tuple(x.shape[2:])
            self.matrix, self.shape = as_matrix(layer, x.shape[2], x.shape[3])
        rows = x.permute(0, 2, 3, 1).reshape(len(x), -1)
        bias = None if layer.bias is None else layer.bias.repeat(self.shape[0] * self.shape[1])
        out = product(rows, self.matrix, bias)
        return out.view(len(x), *self.shape, layer.out_channels).permute(0, 3, 1, 2)


def as_matrix(layer: nn.Conv2d, height: int, width: int) -> tuple[Tensor, tuple[int, int]]:
    """(output pixels x channels, input pixels x channels), and the output's height and width.

    Pixels go before channels, as in an image that is channels-last.
    """
    assert not isinstance(layer.padding, str)
    (down, right), (top, left), kernel = layer.stride, layer.padding, layer.weight.shape[2:]
    shape = (height + 2 * top - kernel[0]) // down + 1, (width + 2 * left - kernel[1]) // right + 1
    matrix = layer.weight.new_zeros(*shape, layer.out_channels, height, width, layer.in_channels)
    taps = layer.weight.permute(2, 3, 0, 1)
    for i, j in torch.cartesian_prod(torch.arange(shape[0]), torch.arange(shape[1])).tolist():
        for y, x in torch.cartesian_prod(torch.arange(height), torch.arange(width)).tolist():
            row, column = y - i * down + top, x - j * right + left
            if 0 <= row < kernel[0] and 0 <= column < kernel[1]:
                matrix[i, j, :, y, x] = taps[row, column]
    return matrix.view(shape[0] * shape[1] * layer.out_channels, -1), shape
