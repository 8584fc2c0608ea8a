"""Teachers: earlier vectors whose outputs a learner should keep (distance in function space)."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.nn.functional import log_softmax

from manymodes.flat import FlatModel
from manymodes.looking import looking, sample_count
from manymodes.modes import Modes
from manymodes.task import Batch, Data
from manymodes.train import over


class Teacher:
    """The softened distributions of frozen modes on old outputs, always in eval mode and on the same inputs.

    With several rows the teacher is their average distribution. Where inputs are not augmented its outputs
    are computed once; otherwise on each batch as the student sees it.
    """

    def __init__(
        self,
        model: FlatModel,
        forward: Callable[[Tensor], Tensor],
        frozen: Modes,
        groups: Sequence[Tensor],
        temperature: float,
        data: Data,
    ) -> None:
        self.model, self.forward, self.frozen = model, forward, frozen
        self.groups, self.temperature = groups, temperature
        self.table: list[Tensor] | None = None
        if groups and not data.augments:
            self.table = list(self._looked_up(data).split([len(group) for group in groups], dim=1))

    def _looked_up(self, data: Data) -> Tensor:
        """All groups side by side, of all samples."""
        per_mode, device = [], self.model.device
        for theta, buffers in zip(self.frozen.theta, self.frozen.buffers, strict=True):
            with self.model.bound(theta, buffers), looking(self.model):
                compute = lambda batch: torch.cat(self._soft(batch.inputs), dim=1)  # noqa: E731
                per_mode.append(over(data, compute, device, sample_count(self.model)))
        return _average(per_mode)

    def __call__(self, batch: Batch) -> list[Tensor]:
        """One (S, |group|) tensor of log-probabilities per group."""
        if self.table is None:
            return self.on_inputs(batch.inputs)
        where = batch.index.to(self.model.device)
        return [group.index_select(0, where) for group in self.table]

    @torch.no_grad()
    def on_inputs(self, inputs: Tensor) -> list[Tensor]:
        """The same, computed. Call it before the student's forward: it borrows the module."""
        per_mode = []
        for theta, buffers in zip(self.frozen.theta, self.frozen.buffers, strict=True):
            with self.model.bound(theta, buffers), self.model.evaluating():
                per_mode.append(self._soft(inputs))
        return [_average(rows) for rows in zip(*per_mode, strict=True)]

    def _soft(self, inputs: Tensor) -> list[Tensor]:
        """The bound mode's softened log-probabilities of every group."""
        logits = self.forward(inputs)
        return [log_softmax(logits[:, g] / self.temperature, dim=1) for g in self.groups]


def _average(log_probs: Sequence[Tensor]) -> Tensor:
    """Of the modes' distributions, in log space."""
    return torch.logsumexp(torch.stack(list(log_probs)), dim=0) - math.log(len(log_probs))
