"""Multi-task learning: train on all seen tasks at once (the upper bound; it keeps every task's data)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, ClassVar, Unpack

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from manymodes.errors import UserError
from manymodes.outputs import Valid, grown
from manymodes.strategies.base import Strategy, Training
from manymodes.task import Batch, Data, Task


class Multitask(Strategy):
    """At task t, train on tasks 1..t together, each sample restricted to its own task's valid outputs.

    Args:
        model: The network; it is copied.
        restart: Begin each task from the initial parameters instead of the last task's.
        **training: See Strategy.
    """

    rehearses: ClassVar[bool] = True

    def __init__(self, model: nn.Module, *, restart: bool = False, **training: Unpack[Training]) -> None:
        super().__init__(model, **training)
        self.restart = restart
        self.past: list[Task] = []
        self._initial = self.modes.theta.clone(), self.modes.buffers.clone()

    def begin(self, task: Task) -> None:
        """Optimisers for the union."""
        if self.restart:
            self.modes.theta.copy_(self._initial[0])
            self.modes.buffers.copy_(self._initial[1])
        super().begin(self._union(task))

    def epoch(self, task: Task) -> None:
        """One pass over everything seen so far."""
        union = self._union(task)
        assert isinstance(union.train, Union)
        seen = self.valid(union.classes)
        allowed = _allowed(union.train.parts_classes, seen)
        owners = union.train.owners
        self.pass_over(union, 0, lambda batch: self._loss(batch, seen, allowed[owners[batch.index]]))

    def end(self, task: Task) -> None:
        """Keep the task."""
        self.past.append(task)

    def _loss(self, batch: Batch, seen: Valid, allowed: Tensor) -> Tensor:
        logits = seen.logits(self.forward(batch.inputs))
        allowed = allowed.to(logits.device)
        return cross_entropy(logits.masked_fill(~allowed, -torch.inf), seen.targets(batch.targets))

    def _union(self, task: Task) -> Task:
        if len(self.past) != self.tasks_learnt:
            raise UserError(
                f"multitask needs the data of its {self.tasks_learnt} earlier tasks: call recall(tasks) first"
            )
        tasks = [*self.past, task]
        classes = tuple(sorted(set().union(*(t.classes for t in tasks))))
        train = Union([t.train for t in tasks], grown([t.classes for t in tasks]))
        return Task(task.name, train, None, None, classes)

    def recall(self, tasks: Sequence[Task]) -> None:
        """Take back the earlier tasks."""
        self.past = list(tasks)

    def state_dict(self) -> dict[str, Any]:
        """With the initial parameters."""
        return super().state_dict() | {"initial": list(self._initial)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """With the initial parameters."""
        super().load_state_dict(state)
        self._initial = state["initial"][0], state["initial"][1]

    def storage(self) -> dict[str, int]:
        """All the data it has seen."""
        return super().storage() | {"replay_samples": sum(len(task.train) for task in self.past)}


class Union:
    """Several data sets as one; `owners` says which one a sample is from."""

    def __init__(self, parts: Sequence[Data], parts_classes: Sequence[tuple[int, ...]]) -> None:
        self.parts, self.parts_classes = parts, parts_classes
        lengths = torch.tensor([len(part) for part in parts])
        self.starts = lengths.cumsum(0) - lengths
        self.owners = torch.repeat_interleave(torch.arange(len(parts)), lengths)
        self.targets = torch.cat([part.targets for part in parts])
        self.augments = any(part.augments for part in parts)

    def __len__(self) -> int:
        return len(self.targets)

    def batches(self, order: Sequence[Tensor], generator: torch.Generator | None = None) -> Iterator[Batch]:
        """Each batch is put together from the parts it touches."""
        for index in order:
            owners = self.owners[index]
            pieces = []
            for number in owners.unique().tolist():
                chosen = index[owners == number]
                local = chosen - self.starts[number]
                piece = next(iter(self.parts[number].batches([local], generator)))
                pieces.append(Batch(chosen, piece.inputs, piece.targets))
            yield Batch(*(torch.cat(column) for column in zip(*pieces, strict=True)))


def _allowed(groups: Sequence[tuple[int, ...]], seen: Valid) -> Tensor:
    allowed = torch.zeros(len(groups), len(seen), dtype=torch.bool)
    positions = {c: i for i, c in enumerate(seen.classes)}
    for row, group in enumerate(groups):
        allowed[row, [positions[c] for c in group]] = True
    return allowed
