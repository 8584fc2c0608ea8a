"""Which outputs are valid: restricting logits to them, renumbering targets, going back to full width."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from operator import index

import torch
from torch import Tensor
from torch.nn.functional import log_softmax

from manymodes.errors import require
from manymodes.flat import FlatModel
from manymodes.task import Data
from manymodes.train import over

Forward = Callable[[Tensor], Tensor]


class Valid:
    """The valid outputs of a task: `classes` out of `num_outputs`.

    >>> valid = Valid((2, 3), num_outputs=5)
    >>> valid.logits(torch.arange(5.0)[None]).tolist(), valid.targets(torch.tensor([3])).tolist()
    ([[2.0, 3.0]], [1])
    >>> valid.widen(torch.tensor([[0.5, 0.5]])).tolist()
    [[0.0, 0.0, 0.5, 0.5, 0.0]]
    """

    def __init__(self, classes: Iterable[int], num_outputs: int, device: torch.device | None = None) -> None:
        ordered = sorted(set(_numbers(classes)))
        require(
            bool(ordered) and ordered[0] >= 0 and ordered[-1] < num_outputs,
            f"classes must be outputs of the model, 0 to {num_outputs - 1}, not {classes!r}",
        )
        self.classes, self.num_outputs = tuple(ordered), num_outputs
        self.columns = torch.tensor(ordered, device=device)
        self._lookup = torch.full((num_outputs,), -1, device=device)
        self._lookup[self.columns] = torch.arange(len(ordered), device=device)
        first = ordered[0]
        # Neighbouring outputs (the usual case) are a view, everything else a gather.
        self._view = slice(first, ordered[-1] + 1) if ordered[-1] - first == len(ordered) - 1 else None
        self._all = len(ordered) == num_outputs

    def __len__(self) -> int:
        return len(self.classes)

    def logits(self, logits_SC: Tensor) -> Tensor:
        """The valid columns."""
        if self._all:
            return logits_SC
        return logits_SC[:, self.columns] if self._view is None else logits_SC[:, self._view]

    def targets(self, targets: Tensor) -> Tensor:
        """Targets renumbered to positions among the valid outputs."""
        if self._all:
            return targets
        return targets - self._view.start if self._view is not None else self._lookup[targets]

    def widen(self, probabilities_SK: Tensor) -> Tensor:
        """Probabilities at full width, zero on the outputs that are not valid."""
        if self._all:
            return probabilities_SK
        full = probabilities_SK.new_zeros(len(probabilities_SK), self.num_outputs)
        full[:, self.columns] = probabilities_SK
        return full


def _numbers(classes: Iterable[int]) -> list[int]:
    """Whole numbers of any kind as ints; anything else becomes a number that no output has."""
    try:
        return [index(c) for c in classes]
    except TypeError:
        return [-1]


def grown(groups: Sequence[Sequence[int]]) -> list[tuple[int, ...]]:
    """For each task's valid outputs, the largest set among all tasks that contains them.

    In class-IL the valid outputs grow: earlier samples compete with the new classes too.

    >>> grown([(0, 1), (2, 3)]), grown([(0, 1), (0, 1, 2)])
    ([(0, 1), (2, 3)], [(0, 1, 2), (0, 1, 2)])
    """
    largest = [max((other for other in groups if set(own) <= set(other)), key=len) for own in groups]
    return [tuple(sorted(group)) for group in largest]


def allowed_outputs(groups: Sequence[Sequence[int]], num_outputs: int) -> Tensor:
    """Which outputs a sample of each task is scored on, (T, C) of booleans.

    >>> allowed_outputs([(0, 1), (2,)], 3).tolist()
    [[True, True, False], [False, False, True]]
    """
    allowed = torch.zeros(len(groups), num_outputs, dtype=torch.bool)
    for row, classes in enumerate(grown(groups)):
        allowed[row, list(classes)] = True
    return allowed


@torch.no_grad()
def log_probabilities(model: FlatModel, data: Data, valid: Valid, forward: Forward) -> Tensor:
    """(S, K) log-probabilities of the bound vector in eval mode, samples in order, without augmentation."""
    if len(data) == 0:
        return torch.zeros(0, len(valid), device=model.device)
    with model.evaluating():
        return over(data, lambda b: log_softmax(valid.logits(forward(b.inputs)), dim=1), model.device)


def of_targets(log_probs_SK: Tensor, targets: Tensor) -> Tensor:
    """The entry of each row at its target, (S,)."""
    return log_probs_SK.gather(1, targets[:, None]).squeeze(1)
