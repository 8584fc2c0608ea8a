"""Rehearsal: what the strategies share that keep a few samples of every class (ER, A-GEM)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from manymodes.errors import require
from manymodes.memory import Memory, replay_order
from manymodes.outputs import allowed_outputs
from manymodes.strategies.base import Strategy
from manymodes.task import Batch, Data, Task
from manymodes.train import steps_per_epoch, to_device, training_batches


class Rehearsal(Strategy):
    """Base of strategies that draw, for each step, a batch of the memory beside the task's batch.

    A sample of the memory is scored on the outputs that are valid for it: its own task's in task-IL, all
    that were seen in class-IL. A subclass uses `replayed` in its loss or step.
    """

    rehearses: ClassVar[bool] = True

    def __init__(self, model: nn.Module, *, budget: int = 100, **training: Any) -> None:
        super().__init__(model, **training)
        whole = isinstance(budget, int) and not isinstance(budget, bool)
        require(
            whole and budget >= 0,
            f"budget must be a whole number of samples per class from 0, not {budget!r}",
        )
        self.budget = budget
        self.memory = Memory(budget)
        self.replayed: Batch | None = None  # the memory's part of the present step
        self._replay: Data | None = None
        self._batches: Iterator[Batch] = iter(())
        self._allowed_SC = torch.zeros(0, 0)

    def prepare(self, task: Task) -> None:
        """The memory as data, and the outputs each of its samples may be scored on."""
        super().prepare(task)
        self._replay = self.replayed = None
        if len(self.memory) > 0:
            self._replay = to_device(self.memory.as_data(task.train), self.model.device)
            assert self._num_outputs is not None
            allowed_TC = allowed_outputs([*self.heads, task.classes], self._num_outputs)
            self._allowed_SC = allowed_TC[self.memory.owners].to(self.model.device)

    def pass_over(self, task: Task, mode: int, loss: Callable[[Batch], Tensor]) -> None:
        """With as many batches of the memory as there are steps."""
        if self._replay is None:
            super().pass_over(task, mode, loss)
            return
        with self.randomness("replay", mode) as generator:
            steps = steps_per_epoch(len(task.train), self.batch_size)
            order = replay_order(len(self.memory), self.batch_size, steps, generator)
            self._batches = training_batches(self._replay, order, generator, self.model.device)
            super().pass_over(task, mode, loss)

    def step(self, mode: int, batch: Batch, loss: Callable[[Batch], Tensor]) -> Tensor:
        """Draw the memory's batch, then step."""
        self.replayed = None if self._replay is None else next(self._batches)
        return super().step(mode, batch, loss)

    def memory_loss(self, logits: Tensor, replayed: Batch) -> Tensor:
        """The mean negative log-likelihood of memory samples, each over its own valid outputs."""
        allowed = self._allowed_SC[replayed.index.to(logits.device)]
        return cross_entropy(logits.masked_fill(~allowed, -torch.inf), replayed.targets)

    def end(self, task: Task) -> None:
        """Offer the task to the memory."""
        super().end(task)
        self._replay = self.replayed = None
        with self.randomness("memory") as generator:
            self.memory.add(task.train, self.tasks_learnt, generator)

    def recall(self, tasks: Sequence[Task]) -> None:
        """Recognise how raw samples are prepared; the samples themselves are in the state."""
        for task in tasks:
            self.memory.recall(task.train)

    def state_dict(self) -> dict[str, Any]:
        """With the memory."""
        return super().state_dict() | {"memory": self.memory.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """With the memory."""
        super().load_state_dict(state)
        self.memory.load_state_dict(state["memory"])

    def storage(self) -> dict[str, int]:
        """Parameters, and the samples with their bytes."""
        return super().storage() | {"replay_samples": len(self.memory), "replay_bytes": self.memory.bytes}
