"""Data that is read when needed: any map-style Dataset of (input, target), decoded by worker processes."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from manymodes.errors import UserError, require
from manymodes.streams.batching import Plan, keep_freed_memory, shared_memory, stacked
from manymodes.streams.targets import gather_targets, split_pair
from manymodes.streams.workers import work_ahead
from manymodes.task import Batch

_PROBES = 4


class MappedData:
    """A map-style Dataset as Data: batches in the order asked for, whatever the number of workers.

    At most `workers * prefetch` batches are held besides the one in use, so memory does not grow with the
    data. A Dataset that answers differently each time (random crops, say) is recognised: it draws from
    a seed of the generator given, or always the same one where there is none.

    Args:
        dataset: anything with `len` and `[i] -> (input, target)`.
        transform: raw batch to network input, as in TensorData; runs in the calling process.
        augment: raw batch and generator to raw batch, training only.
        targets: the targets (S,), if they are known or to be replaced; else gathered once.
        workers: processes that read ahead; 0 reads in the calling process.
        prefetch: batches each worker reads ahead.
        varies: whether the dataset itself draws at random; found out by a few probes unless given.

    >>> data = MappedData([(np.zeros(3), 1), (np.ones(3), 0)])
    >>> next(data.batches([torch.tensor([1, 0])])).targets.tolist()
    [0, 1]

    """

    def __init__(
        self,
        dataset: Any,
        transform: Callable[[Tensor], Tensor] | None = None,
        augment: Callable[[Tensor, torch.Generator], Tensor] | None = None,
        *,
        targets: Tensor | None = None,
        workers: int = 0,
        prefetch: int = 2,
        varies: bool | None = None,
    ) -> None:
        require(
            isinstance(workers, int) and workers >= 0,
            f"workers={workers!r}: give 0 or a number of processes",
        )
        require(
            hasattr(dataset, "__getitem__") and hasattr(dataset, "__len__"),
            f"{type(dataset).__name__} cannot be read by number: give a map-style Dataset (len and [i])",
        )
        self.dataset, self.transform, self.augment = dataset, transform, augment
        self.workers, self.prefetch = workers, max(1, prefetch)
        self.targets = (gather_targets(dataset) if targets is None else targets).long()
        require(
            len(self.targets) == len(dataset),
            f"{len(dataset)} samples but {len(self.targets)} targets: give one target per sample",
        )
        self.varies = _answers_differ(dataset) if varies is None else varies
        self.augments = augment is not None or self.varies

    def __len__(self) -> int:
        return len(self.targets)

    def batches(self, order: Sequence[Tensor], generator: torch.Generator | None = None) -> Iterator[Batch]:
        """Read (ahead, with workers), augment (only with a generator), transform."""
        base = 0
        if self.varies and generator is not None:
            base = int(torch.randint(2**31, (1,), generator=generator, device=generator.device))
        indices = [torch.as_tensor(index) for index in order]
        ahead = max(1, self.workers * self.prefetch)
        jobs = [_Job(base + at, index.tolist(), at % ahead) for at, index in enumerate(indices)]
        reader = _Reader(self.dataset, jobs, ahead if self.workers else 0)
        keep_freed_memory()
        read = work_ahead(reader, jobs, workers=self.workers, prefetch=self.prefetch)
        for index, job, answer in zip(indices, jobs, read, strict=True):
            inputs = reader.batch(job, answer)
            if self.augment is not None and generator is not None:
                inputs = self.augment(inputs, generator)
            if self.transform is not None:
                inputs = self.transform(inputs)
            yield Batch(index, reader.kept(inputs), self.targets[index.to(self.targets.device)])


class _Job(NamedTuple):
    """One batch to read: the seed for what is random in the dataset, the sample numbers, the place for it."""

    seed: int
    numbers: list[int]
    place: int


class _Reader:
    """Reads whole batches, in a worker or at home.

    Workers write them where the calling process sees them, at as many places as there are batches under way:
    a place is used again once the batch that lay there has been taken.
    """

    def __init__(self, dataset: Any, jobs: list[_Job], places: int) -> None:
        self.dataset, self.memory = dataset, None
        if places and jobs:
            with _seeded(jobs[0].seed):
                plan = Plan.of(self._input(jobs[0].numbers[0]))
            self.memory = shared_memory(places, plan.size(max(len(job.numbers) for job in jobs)))

    def __call__(self, job: _Job) -> Tensor | Plan:
        """Read one batch: the inputs (S, ...), or how they lie at its place."""
        memory = None if self.memory is None else self.memory[job.place]
        with _seeded(job.seed):
            return stacked(map(self._input, job.numbers), job.numbers, memory)

    def batch(self, job: _Job, answer: Tensor | Plan) -> Tensor:
        """The inputs (S, ...) that were answered; what lies at a place will be overwritten."""
        if isinstance(answer, Tensor):
            return answer
        assert self.memory is not None
        return answer.batch(len(job.numbers), self.memory[job.place])

    def kept(self, inputs: Tensor) -> Tensor:
        """The same, to stay."""
        passing = self.memory is not None and _same_memory(inputs, self.memory)
        return inputs.clone() if passing else inputs

    def _input(self, number: int) -> Tensor:
        return _input(split_pair(self.dataset[number], number)[0], number)


def _same_memory(one: Tensor, other: Tensor) -> bool:
    return one.untyped_storage().data_ptr() == other.untyped_storage().data_ptr()


def _input(value: Any, index: int) -> Tensor:
    if not isinstance(value, Tensor):
        require(
            not hasattr(value, "getbands"),
            f"sample {index} is a Pillow image: give the dataset a transform that makes a tensor of it",
        )
        try:
            value = torch.as_tensor(np.asarray(value))
        except (TypeError, ValueError):
            raise UserError(f"the input of sample {index} is no tensor: {type(value).__name__}") from None
    tensor: Tensor = value
    return tensor.float() if tensor.dtype == torch.float64 else tensor


@contextmanager
def _seeded(seed: int) -> Iterator[None]:
    """The global generators seeded for one batch and put back: who reads it, and when, does not matter."""
    states = random.getstate(), np.random.get_state(), torch.get_rng_state()
    random.seed(seed)
    np.random.seed(seed % 2**32)
    torch.default_generator.manual_seed(seed)
    try:
        yield
    finally:
        random.setstate(states[0])
        np.random.set_state(states[1])
        torch.set_rng_state(states[2])


def _answers_differ(dataset: Any) -> bool:
    """Whether the dataset answers a few probes differently under different seeds."""
    for i in range(0, len(dataset), max(1, len(dataset) // _PROBES)):
        answers = []
        for seed in range(_PROBES):
            with _seeded(seed):
                answers.append(_input(split_pair(dataset[i], i)[0], i))
        if any(a.shape != answers[0].shape or not torch.equal(a, answers[0]) for a in answers):
            return True
    return False
