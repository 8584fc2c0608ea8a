"""Sizes of layers: checked, scaled by a width, and the widest network that fits a capacity."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn

from manymodes.errors import UserError, require

GRID = 10_000  # widths tried are multiples of 1 / GRID, finer than one channel of any layer here
WIDEST = 64


def positive(what: str, value: int) -> int:
    """The value, if it is a whole number of at least 1."""
    whole = isinstance(value, int) and not isinstance(value, bool)
    require(whole and value >= 1, f"{what} must be a whole number of at least 1, not {value!r}")
    return value


def scaled(channels: int, width: float) -> int:
    """So many channels at that width: rounded, never 0, never fewer at a larger width.

    >>> scaled(64, 1.0), scaled(64, 0.7), scaled(64, 0.001)
    (64, 45, 1)
    """
    number = isinstance(width, int | float) and not isinstance(width, bool)
    require(number and 0 < width <= WIDEST, f"width must be above 0 and at most {WIDEST}, not {width!r}")
    return max(1, round(channels * width))


def count_parameters(module: nn.Module) -> int:
    """The number of trainable parameters; tied ones count once.

    >>> count_parameters(nn.Linear(3, 2))
    8
    """
    return sum(p.numel() for p in module.parameters() if p.requires_grad)


def fit_width(make: Callable[[float], nn.Module], budget: int) -> float:
    """The largest width at which make(width) has at most `budget` trainable parameters.

    Bisection over multiples of 1 / 10,000; networks are made without memory where they allow it.

    >>> from manymodes.models import mlp
    >>> width = fit_width(lambda width: mlp(64, outputs=10, width=width), budget=8_805)
    >>> width, count_parameters(mlp(64, outputs=10, width=width))
    (0.6349, 8767)
    """
    fits, too_wide = 0, GRID
    while _size(make, too_wide) <= budget:
        require(
            too_wide < WIDEST * GRID,
            f"the network fits {budget:,} parameters at width {WIDEST} too: does its function use width?",
        )
        fits, too_wide = too_wide, 2 * too_wide
    while too_wide - fits > 1:
        middle = (fits + too_wide) // 2
        if _size(make, middle) <= budget:
            fits = middle
        else:
            too_wide = middle
    if fits == 0:
        raise UserError(
            f"no width fits {budget:,} parameters: the narrowest network has {_size(make, 1):,}; "
            "use fewer modes or a smaller model"
        )
    return fits / GRID


def _size(make: Callable[[float], nn.Module], steps: int) -> int:
    width = steps / GRID
    try:
        with torch.device("meta"):
            return count_parameters(make(width))
    except Exception:  # it reads or loads values while it is made: make it for real
        with torch.random.fork_rng(devices=range(torch.cuda.device_count())):
            return count_parameters(make(width))
