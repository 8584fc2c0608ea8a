"""Held-out accuracy on a person's own labelled samples, each judged over the outputs it competes with."""

from __future__ import annotations

import torch

from manymodes.errors import UserError
from manymodes.outputs import grown as largest_sets
from manymodes.reading import Samples
from manymodes.strategies.base import Strategy
from manymodes.using import as_input, names_of, outputs_of


class HeldOut:
    """Labelled samples of what was learnt, each judged over the outputs it competes with."""

    def __init__(self, learner: Strategy, samples: Samples) -> None:
        self.samples = samples
        self.targets = torch.tensor(outputs_of(learner, samples.labels or [], str(samples.where)))

    def accuracy(self, learner: Strategy, batch: int = 512) -> float:
        """The share of samples that the learner gets right."""
        right = 0
        for start in range(0, len(self.targets), batch):
            targets = self.targets[start : start + batch]
            data = as_input(learner, self.samples.read(start, start + batch))
            for valid in {self._valid(learner, int(t)) for t in targets.unique()}:
                rows = torch.tensor([self._valid(learner, int(t)) == valid for t in targets])
                guess = learner.predict(data, classes=valid).argmax(dim=1).cpu()
                right += int((guess == targets)[rows].sum())
        return right / len(self.targets)

    def _valid(self, learner: Strategy, target: int) -> tuple[int, ...]:
        """Task-IL: the outputs of the task that taught this one. Otherwise all that are learnt by now."""
        heads = largest_sets(learner.heads) if learner.heads else []
        if learner.about.get("scenario") != "task":
            heads = [tuple(sorted({c for head in learner.heads for c in head}))] if heads else []
        found = next((head for head in heads if target in head), None)
        if found is None:
            raise UserError(
                f"{self.samples.where} has class {names_of(learner)[target]!r}, which this learner has not "
                "learnt: give data of earlier tasks only"
            )
        return found
