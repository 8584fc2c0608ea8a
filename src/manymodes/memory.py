"""What a rehearsing strategy keeps of earlier tasks: a uniform sample of every class, small and exact."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from manymodes.errors import UserError, require
from manymodes.task import Data, TensorData
from manymodes.train import in_order

Transform = Callable[[Tensor], Tensor]


class Memory:
    """At most `budget` samples of each class, at any time a uniform draw from all that were offered.

    Every sample ever offered draws one random key; of each class the `budget` smallest keys are kept. So
    the quotas are exact (min(budget, samples seen) of every class), no counter is needed, and what is
    kept depends on the keys alone. Samples whose raw data is uint8 are kept raw, and prepared when
    replayed; all others are kept as the network sees them.

    >>> memory = Memory(budget=2)
    >>> labels = torch.tensor([0, 0, 0, 1])
    >>> memory.add(TensorData(torch.rand(4, 3), labels), 0, torch.Generator().manual_seed(0))
    >>> memory.targets.tolist()
    [0, 0, 1]
    """

    def __init__(self, budget: int) -> None:
        self.budget = budget
        self.inputs = torch.zeros(0)
        self.targets = torch.zeros(0, dtype=torch.long)
        self.owners = torch.zeros(0, dtype=torch.long)  # the task that each sample is from
        self.keys = torch.zeros(0, dtype=torch.float64)
        # Of raw samples: how they become network input, and what that makes of the first one. A transform
        # is code and is not saved; the witness recognises it in the data of the tasks that come.
        self._transform: Transform = _identity
        self._witness: Tensor | None = None

    def __len__(self) -> int:
        return len(self.targets)

    @property
    def raw(self) -> bool:
        """Whether the samples are kept as uint8."""
        return self.inputs.dtype == torch.uint8

    def add(self, data: Data, owner: int, generator: torch.Generator) -> None:
        """Offer the samples of a task. The tensors kept so far are replaced, never changed."""
        keys = torch.rand(len(data), dtype=torch.float64, generator=generator)
        all_keys = torch.cat([self.keys, keys])
        all_targets = torch.cat([self.targets, data.targets.cpu()])
        kept = smallest_keys(all_keys, all_targets, self.budget)
        old, new = kept[kept < len(self)], kept[kept >= len(self)] - len(self)
        self.inputs = self._joined(old, data, new)
        owners = torch.full((len(data),), owner)
        self.keys, self.targets = all_keys[kept], all_targets[kept]
        self.owners = torch.cat([self.owners[old], owners[new]])

    def _joined(self, old: Tensor, data: Data, new: Tensor) -> Tensor:
        """The inputs that stay, then the new ones: raw if both can be, else both as the network sees them."""
        if len(new) == 0:
            return self.inputs[old]
        fresh, kept, transform = read(_unprocessed(data), new), self.inputs[old], _transform_of(data)
        if fresh.dtype == torch.uint8 and (len(self) == 0 or self._fits(transform)):
            self._transform = transform
            self._witness = transform((kept if len(kept) else fresh)[:1]).cpu()
        else:
            fresh = read(data, new)
            kept = self._transform(kept) if self.raw and len(kept) else kept
            self._witness = None
        require(
            len(kept) == 0 or kept.shape[1:] == fresh.shape[1:],
            f"the memory holds samples of shape {tuple(kept.shape[1:])}, this task's are "
            f"{tuple(fresh.shape[1:])}: bring all tasks to one shape",
        )
        return torch.cat([kept, fresh]) if len(kept) else fresh

    def as_data(self, present: Data) -> Data:
        """The memory as data, augmented as the present task's samples are."""
        if self._witness is None:
            return TensorData(self.inputs, self.targets)
        if self._fits(_transform_of(present)):
            self._transform = _transform_of(present)
            return TensorData(self.inputs, self.targets, self._transform, getattr(present, "augment", None))
        if self._fits(self._transform):
            return TensorData(self.inputs, self.targets, self._transform)
        raise UserError(
            "the memory of this loaded learner holds raw samples of an earlier task, whose transform is not "
            "this task's: call recall(tasks) with the earlier tasks first"
        )

    def recall(self, earlier: Data) -> None:
        """Recognise the transform of raw samples in an earlier task's data, after loading."""
        if self._fits(_transform_of(earlier)):
            self._transform = _transform_of(earlier)

    def _fits(self, transform: Transform) -> bool:
        """Whether this is what makes network input of the raw samples kept."""
        if self._witness is None:
            return False
        try:
            found = transform(self.inputs[:1]).cpu()
        except (RuntimeError, ValueError, TypeError):
            return False
        return found.dtype == self._witness.dtype and torch.equal(found, self._witness)

    @property
    def bytes(self) -> int:
        """What it takes."""
        tensors = (self.inputs, self.targets, self.owners, self.keys)
        return sum(t.numel() * t.element_size() for t in tensors)

    def state_dict(self) -> dict[str, Any]:
        """All but the transform, which is code."""
        return {
            "inputs": self.inputs, "targets": self.targets, "owners": self.owners, "keys": self.keys,
            "witness": self._witness,
        }  # fmt: skip

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take back what `state_dict` gave."""
        self.inputs, self.targets = state["inputs"], state["targets"]
        self.owners, self.keys = state["owners"], state["keys"]
        self._witness = state["witness"]


def smallest_keys(keys: Tensor, classes: Tensor, budget: int) -> Tensor:
    """Of each class, the positions of its `budget` smallest keys, in their order.

    >>> smallest_keys(torch.tensor([0.3, 0.1, 0.2, 0.9]), torch.tensor([0, 0, 0, 1]), 2).tolist()
    [1, 2, 3]
    """
    order = keys.argsort(stable=True)
    order = order[classes[order].argsort(stable=True)]  # by class, and by key within a class
    _, counts = classes.unique(return_counts=True)
    starts = counts.cumsum(0) - counts
    rank = torch.arange(len(order)) - torch.repeat_interleave(starts, counts)
    return order[rank < budget].sort().values


def replay_order(samples: int, batch: int, steps: int, generator: torch.Generator) -> list[Tensor]:
    """Index batches for `steps` steps: round after round through the memory, each in a new order."""
    batch = min(batch, samples)
    rounds = math.ceil(steps * batch / samples)
    order = torch.cat([torch.randperm(samples, generator=generator) for _ in range(rounds)])
    return list(order[: steps * batch].split(batch))


def read(data: Data, index: Tensor) -> Tensor:
    """The inputs of these samples, in this order, without augmentation."""
    batches = data.batches([index[rows] for rows in in_order(len(index))])
    return torch.cat([batch.inputs.cpu() for batch in batches])


def _transform_of(data: Data) -> Transform:
    return getattr(data, "transform", None) or _identity


def _identity(raw: Tensor) -> Tensor:
    return raw


def _unprocessed(data: Data) -> Data:
    """The same samples before transform and augmentation."""
    if getattr(data, "transform", None) is None:
        return data
    view = copy.copy(data)
    view.transform = view.augment = None  # type: ignore[attr-defined]
    return view
