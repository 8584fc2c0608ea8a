"""The exact diagonal Fisher: the mean over samples of the squared gradient of one sample's log-likelihood.

Never the square of a batch's mean gradient, which depends on the batch size; always in eval mode.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor, nn

from manymodes import distributed
from manymodes.errors import require, unknown
from manymodes.fisher_likelihood import KINDS, Likelihood
from manymodes.fisher_samples import untouched
from manymodes.fisher_squares import SquareSums
from manymodes.flat import FlatModel
from manymodes.room import with_room
from manymodes.task import Data, TensorData


def diagonal(
    flat: FlatModel,
    inputs: Tensor,
    targets: Tensor | None = None,
    kind: str = "empirical",
    *,
    classes: Sequence[int] | None = None,
    rest: Tensor | None = None,
    modes: int = 1,
    samples: int | None = None,
    generator: torch.Generator | None = None,
    batch_size: int | None = None,
) -> Tensor:
    """The diagonal Fisher (P,) of samples in memory: F_d = mean over s of (d log p(y_s | x_s) / d theta_d)^2.

    Two equally likely outputs: every gradient is plus or minus x / 2.

    >>> flat = FlatModel(torch.nn.Linear(1, 2))
    >>> flat.theta.data.zero_()
    tensor([0., 0., 0., 0.])
    >>> diagonal(flat, torch.tensor([[1.0], [3.0]]), torch.tensor([0, 1])).tolist()
    [1.25, 1.25, 0.25, 0.25]

    Args:
        flat: the model; nothing about it changes.
        inputs: what the module takes, (S, ...).
        targets: output indices (S,); only the "empirical" kind needs them.
        kind: whose label y_s is: "empirical" the true one, "sampled" one drawn from the predictive
            distribution, "exact" the expectation over the predictive distribution.
        classes: the outputs the distribution is over (all of them by default).
        rest: (S, outputs), the sum of the other modes' probabilities: the likelihood is then the joint one,
            (p + rest) / modes, of which this mode's gradient is a share p / (p + rest).
        modes: how many modes the joint distribution has, this one included.
        samples: use this many samples only, drawn at random.
        generator: what the draws come from; a fixed seed without it.
        batch_size: samples at a time (None: by the kind of network); the result does not depend on it.
    """
    if targets is None:
        require(
            kind != "empirical", "kind='empirical' needs targets; without labels use 'sampled' or 'exact'"
        )
        targets = torch.zeros(len(inputs), dtype=torch.long)
    return diagonal_over(
        flat,
        TensorData(inputs, targets),
        kind,
        classes=classes,
        rest=rest,
        modes=modes,
        samples=samples,
        generator=generator,
        batch_size=batch_size,
    )


def diagonal_over(
    flat: FlatModel,
    data: Data,
    kind: str = "empirical",
    *,
    classes: Sequence[int] | None = None,
    rest: Tensor | None = None,
    modes: int = 1,
    samples: int | None = None,
    generator: torch.Generator | None = None,
    batch_size: int | None = None,
) -> Tensor:
    """As `diagonal`, over Data, a batch in memory at a time; `rest` is indexed by the samples' numbers.

    Data that augments is read plainly.
    """
    if kind not in KINDS:
        raise unknown("kind of Fisher", kind, KINDS)
    require(len(data) > 0, "the Fisher of no samples is not defined: the data is empty")
    batch_size = _batch_size(flat.module) if batch_size is None else batch_size
    require(batch_size >= 1, f"batch_size={batch_size}: give 1 or more")
    require(samples is None or samples >= 1, f"samples={samples}: give 1 or more, or None for all")
    require(
        rest is None or len(rest) == len(data),
        f"rest has {0 if rest is None else len(rest)} rows for {len(data)} samples: give one per sample",
    )
    order, draws = _draw(len(data), samples, generator)
    likelihood = Likelihood(kind, classes, rest, modes, draws)
    with untouched(flat):
        own = distributed.part(order)  # several processes share the work

        def summed(size: int) -> Tensor:
            sums = SquareSums(flat)
            for batch in data.batches(own.split(size)):
                sums.add(batch.inputs.to(flat.device), partial(likelihood.cotangents, batch))
            return sums.result()

        sums = with_room(summed, batch_size)
        fisher = distributed.sum_(sums).div_(distributed.total(len(own), flat.device))
    require(
        bool(fisher.isfinite().all()),
        "the Fisher is not finite: a gradient overflowed or is nan though the outputs are finite "
        "(half precision? a square root at 0?)",
    )
    return fisher


def _batch_size(module: nn.Module) -> int:
    """Dense layers alone are quickest in large batches; elsewhere what lies between layers has to fit."""
    layers = [layer for layer in module.modules() if layer._parameters]
    return 512 if all(isinstance(layer, nn.Linear | nn.BatchNorm1d) for layer in layers) else 128


def _draw(count: int, samples: int | None, generator: torch.Generator | None) -> tuple[Tensor, Tensor]:
    """Which samples, in order, and one uniform number for each: the same whatever the batch size."""
    generator = torch.Generator().manual_seed(0) if generator is None else generator
    order = torch.arange(count)
    if samples is not None and samples < count:
        drawn = torch.randperm(count, generator=generator, device=generator.device)
        order = drawn[:samples].sort().values.cpu()
    return order, torch.rand(count, generator=generator, device=generator.device).cpu()
