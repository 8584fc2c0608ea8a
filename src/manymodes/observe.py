"""What a run records of a learner for those who look later: drift by layer, cosine of modes, choices."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from manymodes.backtracking import Choice
from manymodes.checkpoints import Checkpoint
from manymodes.flat import FlatModel
from manymodes.modes import pairwise_cosine

SURFACE = 41  # checkpoints of a mode that a recorded surface shows at most


def layers_of(model: FlatModel) -> dict[str, list[slice]]:
    """The submodules that own parameters, each with its slices of the flat vector.

    >>> from torch import nn
    >>> layers_of(FlatModel(nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 1))))
    {'0': [slice(0, 6, None), slice(6, 9, None)], '2': [slice(9, 12, None), slice(12, 13, None)]}
    """
    found: dict[str, list[slice]] = {}
    for name, where, _ in model.segments:
        found.setdefault(name.rpartition(".")[0] or name, []).append(where)
    return found


def layer_drift(model: FlatModel, after_NP: Tensor, before_NP: Tensor) -> list[list[float]]:
    """Mean squared change per parameter of each layer and mode, (L, N)."""
    square = (after_NP - before_NP).square()
    rows = []
    for slices in layers_of(model).values():
        total = torch.stack([square[:, where].sum(dim=1) for where in slices]).sum(dim=0)
        rows.append((total / sum(where.stop - where.start for where in slices)).tolist())
    return rows


def cosines(model: FlatModel, theta_NP: Tensor) -> list[list[float]]:
    """The layer-wise mean cosine of every pair of modes, (N, N)."""
    values: list[list[float]] = pairwise_cosine(theta_NP, model.layers()).tolist()
    return values


class Curves:
    """For each mode, what checkpoints spread over the epochs would have cost, those that lost included.

    Only rows of probabilities, no weights: this is what the recorded surface is drawn from.
    """

    def __init__(self, modes: int, epochs: int) -> None:
        self.step = max(1, math.ceil(epochs / (SURFACE - 1)))
        self.seen: list[list[Checkpoint]] = [[] for _ in range(modes)]

    def add(self, mode: int, epoch: int, probabilities_S: Tensor, drift: float) -> None:
        """The mode at the end of an epoch."""
        if epoch % self.step == 0:
            self.seen[mode].append(Checkpoint(epoch, probabilities_S.cpu(), drift))

    def surface(self, kept: Sequence[Sequence[Checkpoint]], choice: Choice, weight: float) -> dict[str, Any]:
        """See `surface`; of these checkpoints and those that were kept to the end."""
        rows = []
        for seen, alive in zip(self.seen, kept, strict=True):
            by_epoch = {row.epoch: row for row in (*seen, *alive)}
            rows.append([by_epoch[epoch] for epoch in sorted(by_epoch)])
        return surface(rows, choice, weight)

    def state_dict(self) -> list[list[dict[str, Any]]]:
        """The rows, for a learner saved within a task."""
        return [
            [{"epoch": r.epoch, "probabilities": r.probabilities_S, "drift": r.drift} for r in rows]
            for rows in self.seen
        ]

    def load_state_dict(self, state: Sequence[Sequence[dict[str, Any]]]) -> None:
        """Take back what `state_dict` gave."""
        self.seen = [[Checkpoint(r["epoch"], r["probabilities"], r["drift"]) for r in rows] for rows in state]


def surface(rows: Sequence[Sequence[Checkpoint]], choice: Choice, weight: float) -> dict[str, Any]:
    """What backtracking chose from, thinned out where there are many checkpoints.

    `epochs[i]`, `drift[i]` and `nll[i]` are the checkpoints of mode i, their drift and own NLL; with two
    modes `joint[a][b]` is the NLL of the average of checkpoints a and b.
    """
    kept = [_thinned(list(row), chosen) for row, chosen in zip(rows, choice.epochs, strict=True)]
    found: dict[str, Any] = {
        "weight": weight,
        "chosen": list(choice.epochs),
        "value": _short(choice.value),
        "lower_bound": _short(choice.lower_bound),
        "epochs": [[c.epoch for c in row] for row in kept],
        "drift": [[_short(c.drift) for c in row] for row in kept],
        "nll": [[_short(_nll(c.probabilities_S)) for c in row] for row in kept],
    }
    if len(kept) == 2:
        pairs = [[(a.probabilities_S + b.probabilities_S) / 2 for b in kept[1]] for a in kept[0]]
        found["joint"] = [[_short(_nll(probabilities)) for probabilities in row] for row in pairs]
    return found


def _thinned(rows: list[Checkpoint], chosen: int) -> list[Checkpoint]:
    if len(rows) <= SURFACE:
        return rows
    step = (len(rows) - 1) / (SURFACE - 1)
    wanted = {round(step * k) for k in range(SURFACE)}
    return [row for number, row in enumerate(rows) if number in wanted or row.epoch == chosen]


def _nll(probabilities_S: Tensor) -> float:
    return float(-probabilities_S.double().clamp_min(1e-12).log().mean())


def _short(value: float) -> float:
    return float(f"{value:.5g}")
