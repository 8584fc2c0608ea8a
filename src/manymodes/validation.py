"""A stream that is judged on validation data: the test part is replaced before anybody can read it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from manymodes.errors import UserError, require
from manymodes.task import Batch, Data, Stream, Task


class Part:
    """Some samples of a data set, as Data.

    >>> from manymodes.task import TensorData
    >>> part = Part(TensorData(torch.arange(4.0), torch.tensor([0, 1, 0, 1])), torch.tensor([3, 1]))
    >>> [batch.inputs.tolist() for batch in part.batches([torch.tensor([1, 0])])]
    [[1.0, 3.0]]
    """

    def __init__(self, data: Data, rows: Tensor) -> None:
        self.data, self.rows = data, rows
        self.targets, self.augments = data.targets[rows.to(data.targets.device)], data.augments

    def __len__(self) -> int:
        return len(self.rows)

    def batches(self, order: Sequence[Tensor], generator: torch.Generator | None = None) -> Iterator[Batch]:
        """Batches numbered within the part."""
        found = self.data.batches([self.rows[index] for index in order], generator)
        return (batch._replace(index=index) for index, batch in zip(order, found, strict=True))


def validation_stream(stream: Stream, tasks: int = 0) -> Stream:
    """The (first) tasks with half of the validation part in place of the test part.

    The other half is the learner's held-out data (MOTA chooses checkpoints on it): a setting is never
    judged on samples that its learner has used. The test part is dropped as soon as a task is made.
    """
    require(0 <= tasks <= len(stream), f"first-tasks={tasks}: stream {stream.name!r} has {len(stream)} tasks")
    chosen = stream.builders[: tasks or None]
    return replace(stream, builders=tuple(partial(_held_out, build) for build in chosen))


def _held_out(build: Callable[[], Task]) -> Task:
    task = build()
    count = 0 if task.val is None else len(task.val)
    if task.val is None or count < 2:
        raise UserError(
            f"task {task.name!r} has {count} validation samples: a search needs at least 2 in every task, "
            "because it never looks at test data"
        )
    rows = torch.arange(count)
    return Task(task.name, task.train, Part(task.val, rows[::2]), Part(task.val, rows[1::2]), task.classes)
