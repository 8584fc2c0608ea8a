"""Training: seeds, batches, optimiser with schedule, the gradient. The only backward() of the package."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import torch
from torch import Tensor

from manymodes import distributed
from manymodes.feeding import on_device
from manymodes.flat import FlatModel
from manymodes.room import fitting, in_pieces
from manymodes.task import Batch, Data, TensorData

ON_DEVICE_BYTES = 2**31  # tensors up to this size are kept on the training device


def seed_of(*what: object) -> int:
    """A seed that is a function of its arguments alone, e.g. (seed, task, epoch, mode).

    Because every epoch draws from a generator seeded this way, nothing random has to be saved: a resumed
    epoch draws what the uninterrupted one drew.
    """
    digest = hashlib.sha256(repr(what).encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 1


@contextmanager
def randomness(*what: object) -> Iterator[torch.Generator]:
    """A generator for shuffles and draws; dropout's global generators are seeded too, and restored.

    Where several processes learn together, the generator draws the same in all, dropout in each its own.
    """
    seed = seed_of(*what)
    devices = range(torch.cuda.device_count()) if torch.cuda.is_available() else ()
    with torch.random.fork_rng(devices=devices):
        torch.manual_seed(seed + distributed.number())
        yield torch.Generator().manual_seed(seed)


def shuffled(count: int, batch_size: int, generator: torch.Generator) -> list[Tensor]:
    """A random order cut into batches; a lone last sample joins the batch before (BatchNorm needs two).

    >>> [len(batch) for batch in shuffled(7, 3, torch.Generator().manual_seed(0))]
    [3, 4]
    """
    order = torch.randperm(count, generator=generator)
    batches = list(order.split(batch_size))
    if _lone_last(count, batch_size):
        batches[-2:] = [order[-batch_size - 1 :]]
    return batches


def _lone_last(count: int, batch_size: int) -> bool:
    return count > batch_size > 1 and count % batch_size == 1


def in_order(count: int, batch_size: int = 512) -> list[Tensor]:
    """All samples in their order, cut into batches."""
    return list(torch.arange(count).split(batch_size))


def steps_per_epoch(count: int, batch_size: int) -> int:
    """How many batches `shuffled` makes."""
    return math.ceil(count / batch_size) - _lone_last(count, batch_size)


def to_device(data: Data, device: torch.device) -> Data:
    """Small tensors move to the device once; anything else is moved batch by batch."""
    if isinstance(data, TensorData) and data.inputs.device != device:
        size = data.inputs.numel() * data.inputs.element_size()
        return data.to(device) if size <= ON_DEVICE_BYTES else data
    return data


def training_batches(
    data: Data, order: list[Tensor], generator: torch.Generator, device: torch.device
) -> Iterator[Batch]:
    """The batches to train on, on the device: of each, this process's part.

    Augmented batches are made whole by every process, so that all draw the same, and then cut.
    """
    if distributed.count() == 1 or not data.augments:
        return on_device(data.batches([distributed.part(index) for index in order], generator), device)
    whole = on_device(data.batches(order, generator), device)
    return (_rows(batch, distributed.part(torch.arange(len(batch.index)))) for batch in whole)


def _rows(batch: Batch, rows: Tensor) -> Batch:
    where = slice(int(rows[0]), int(rows[-1]) + 1)
    return Batch(*(tensor[where] for tensor in batch))


def over(data: Data, compute: Callable[[Batch], Tensor], device: torch.device, size: int = 512) -> Tensor:
    """compute(batch) of all samples in their order, (S, ...); several processes share the work."""
    order = distributed.part(torch.arange(len(data))).split(size)
    rows = [in_pieces(compute, batch) for batch in on_device(data.batches(order), device)]
    return distributed.gather(torch.cat(rows), len(data))


def one_cycle(
    step: int, total: int, *, warm: float = 0.3, start: float = 25.0, end: float = 1e4
) -> tuple[float, float]:
    """The 1cycle policy at a step from 0 to total - 1: (factor of the learning rate, Adam's first beta).

    Cosine from lr / 25 up to lr and down to lr / 25e4, momentum 0.95 down to 0.85 and back, as
    torch.optim.lr_scheduler.OneCycleLR has it; a pure function, so there is no schedule state to save.
    A cycle of a single step is that step at the peak.

    >>> [round(one_cycle(step, 100)[0], 4) for step in (0, 29, 99)]
    [0.04, 1.0, 0.0]
    """
    peak, last = warm * total - 1, total - 1
    step = min(step, last)
    if step <= peak:
        down = (1 + math.cos(math.pi * step / peak)) / 2
        return 1 + (1 / start - 1) * down, 0.85 + 0.1 * down
    down = (1 + math.cos(math.pi * (step - peak) / (last - peak))) / 2 if total > 1 else 1.0
    lowest = 1 / (start * end)
    return lowest + (1 - lowest) * down, 0.95 - 0.1 * down


class Optimiser:
    """AdamW or SGD on one flat parameter, with its schedule over `total_steps`."""

    def __init__(
        self,
        parameter: Tensor,
        *,
        name: str,
        lr: float,
        weight_decay: float,
        schedule: str,
        total_steps: int,
    ) -> None:
        self.parameter = parameter
        self.lr, self.schedule, self.total_steps, self.steps = lr, schedule, total_steps, 0
        self.inner: torch.optim.Optimizer
        if name == "adamw":
            fused = parameter.device.type in ("cpu", "cuda")
            self.inner = torch.optim.AdamW([parameter], lr=lr, weight_decay=weight_decay, fused=fused)
        else:
            self.inner = torch.optim.SGD([parameter], lr=lr, weight_decay=weight_decay, momentum=0.9)

    def step(self) -> None:
        """One step at the schedule's present learning rate."""
        group = self.inner.param_groups[0]
        if self.schedule == "1cycle":
            factor, beta = one_cycle(self.steps, self.total_steps)
            group["lr"] = self.lr * factor
            if "betas" in group:
                group["betas"] = (beta, 0.999)
        self.inner.step()
        self.steps += 1

    def state_dict(self) -> dict[str, Any]:
        """Steps and the optimiser's tensors, nothing else: settings come from the configuration."""
        state = self.inner.state_dict()["state"].get(0, {})
        return {"steps": self.steps, "state": dict(state)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue where `state_dict` was taken, on tensors of its own."""
        self.steps = state["steps"]
        whole = self.inner.state_dict()
        own = {k: v.clone() if isinstance(v, Tensor) else v for k, v in state["state"].items()}
        whole["state"] = {0: own} if own else {}
        self.inner.load_state_dict(whole)


class Loss(Protocol):
    """A differentiable loss of one batch."""

    def __call__(self, batch: Batch) -> Tensor:
        """The mean loss over the batch."""
        ...


def gradient(model: FlatModel, loss: Callable[[Batch], Tensor], batch: Batch) -> Tensor:
    """Fill model.grad with the gradient of loss(batch) and return the loss, detached.

    When memory has no room for the batch, smaller pieces are tried and their gradients added, weighted by
    size. Where several processes have a part of the batch each, both are of the whole batch.
    """
    return fitting(model, batch, partial(_added_up, model, loss))


def _added_up(model: FlatModel, loss: Callable[[Batch], Tensor], pieces: list[Batch]) -> Tensor:
    model.grad.zero_()
    together, total = distributed.count() > 1, sum(len(piece.index) for piece in pieces)
    if len(pieces) == 1 and not together:  # nothing to weigh: no kernel more than a hand-written step has
        value = loss(pieces[0])
        value.backward()
        return value.detach()
    mean = model.grad.new_zeros(())
    for piece in pieces:
        value, share = loss(piece), len(piece.index) / total
        # Of several processes, the sum over the part: the mean is over everybody's.
        value.backward(torch.full_like(value, len(piece.index) if together else share))
        mean = mean + share * value.detach()
    return distributed.mean_(model.grad, mean, total) if together else mean


@dataclass
class Mean:
    """A mean kept on the device: no waiting for the GPU within an epoch."""

    total: Tensor | float = 0.0
    count: int = 0

    def add(self, value: Tensor | float) -> None:
        """One more value."""
        self.total = self.total + value
        self.count += 1

    def value(self) -> float:
        """The mean so far, NaN if there is none; of all processes, which ask for it together."""
        mean = float(self.total) / self.count if self.count else math.nan
        return distributed.mean_of(mean)
