"""Which modes a task moves, and how far each is trusted with an input: what MOTA allocates."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import adaptive_avg_pool2d

from manymodes.task import Data, Task
from manymodes.train import over

SHRINKAGE = 0.1  # of a covariance towards a sphere
LARGEST = 8  # images are averaged to at most 8 x 8 places before they are looked at


class Seen(NamedTuple):
    """A task as its inputs looked: a Gaussian over sketches (S, d); who learnt it, for which outputs."""

    movers: tuple[int, ...]
    classes: tuple[int, ...]
    mean: Tensor
    precision: Tensor
    log_det: Tensor


class Allocation:
    """The modes that each task moved, and a Gaussian of each task's inputs.

    w_i(x) = sum of p(task | x) over the tasks that mode i learnt (shared where several modes learnt one),
    p(task | x) proportional to N(sketch(x); mean, covariance)^sharpness, among the tasks that have
    one of the valid outputs. A sketch is a projection of the (standardised) input to a few random
    directions: `size` of them, drawn anew from a fixed seed and never stored. No label and no input is kept.

    Args:
        modes: N.
        size: The length of a sketch.
        sharpness: How sharply tasks are told apart: the power to which densities are taken.
    """

    def __init__(self, modes: int, size: int, sharpness: float, seen: Sequence[Seen] = ()) -> None:
        self.modes, self.size, self.sharpness, self.seen = modes, size, sharpness, tuple(seen)
        self.centre: Tensor | None = None  # of the first task's inputs
        self.scale: Tensor | None = None

    def after(self, task: Task, movers: Sequence[int], device: torch.device) -> Allocation:
        """The same once the movers have learnt the task."""
        flat_SF = over(task.train, lambda batch: flattened(batch.inputs), device)
        centre, scale = self.centre, self.scale
        if centre is None or scale is None:
            centre, scale = flat_SF.mean(dim=0), flat_SF.std(dim=0, correction=0) + 1e-3
        found = self._with(self.seen, centre, scale)
        sketch_SD = found.sketch(flat_SF)
        mean = sketch_SD.mean(dim=0)
        covariance = (sketch_SD - mean).T.double() @ (sketch_SD - mean).double() / len(sketch_SD)
        sphere = covariance.diagonal().mean().clamp_min(1e-6) * torch.eye(len(mean)).to(covariance)
        covariance = (1 - SHRINKAGE) * covariance + SHRINKAGE * sphere
        precision, log_det = torch.linalg.inv(covariance).float(), torch.logdet(covariance).float()
        new = Seen(tuple(movers), task.classes, mean, precision, log_det)
        return self._with((*self.seen, new), centre, scale)

    def _with(self, seen: Sequence[Seen], centre: Tensor | None, scale: Tensor | None) -> Allocation:
        found = Allocation(self.modes, self.size, self.sharpness, seen)
        found.centre, found.scale = centre, scale
        return found

    def weigh(self, data: Data, classes: Iterable[int], device: torch.device) -> Tensor | None:
        """log w_i(x) of all samples, (N, S); None where all modes count alike."""
        look = self.look(classes)
        if look is None:
            return None
        if len(look.means) == 1:  # whatever the inputs are
            return look.share_NT.expand(-1, len(data))
        return over(data, lambda batch: look(flattened(batch.inputs)).T, device).T

    def sketch(self, flat_SF: Tensor) -> Tensor:
        """(S, d) of flattened inputs (S, F)."""
        assert self.centre is not None
        assert self.scale is not None
        return ((flat_SF - self.centre) / self.scale) @ directions(flat_SF.shape[1], self.size).to(flat_SF)

    def candidates(self, classes: Iterable[int]) -> list[Seen]:
        """The tasks that can be meant where these outputs are valid: those that have one of them."""
        valid = set(classes)
        shared = [len(valid & set(task.classes)) for task in self.seen]
        return [task for task, count in zip(self.seen, shared, strict=True) if count > 0]

    def look(self, classes: Iterable[int]) -> Look | None:
        """What gives the weights where these outputs are valid; None where all modes count alike."""
        tasks = self.candidates(classes)
        return Look(self, tasks) if tasks else None

    def storage(self) -> int:
        """Numbers kept."""
        return 0 if self.centre is None else numbers(len(self.seen), self.centre.numel(), self.size)

    def state_dict(self) -> dict[str, Any]:
        """Everything."""
        seen = [[list(t.movers), list(t.classes), t.mean, t.precision, t.log_det] for t in self.seen]
        return {"seen": seen, "centre": self.centre, "scale": self.scale}

    def restored(self, state: dict[str, Any], device: torch.device) -> Allocation:
        """What `state_dict` was taken from."""
        seen = [
            Seen(tuple(m), tuple(c), *(tensor.to(device) for tensor in gaussian))
            for m, c, *gaussian in state["seen"]
        ]
        centre, scale = state["centre"], state["scale"]
        if centre is None or scale is None:
            return self._with(seen, None, None)
        return self._with(seen, centre.to(device), scale.to(device))


class Look(nn.Module):
    """log w_i(x) (N, S) of flattened inputs (S, F) that are from one of some tasks."""

    means: Tensor
    precisions: Tensor
    share_NT: Tensor

    def __init__(self, allocation: Allocation, tasks: Sequence[Seen]) -> None:
        super().__init__()
        assert allocation.centre is not None
        assert allocation.scale is not None
        centre, scale, sharpness = allocation.centre, allocation.scale, allocation.sharpness
        projection = directions(len(centre), allocation.size).to(centre) / scale[:, None]
        self.register_buffer("projection", projection)
        self.register_buffer("offset", centre @ projection)
        self.register_buffer("means", torch.stack([task.mean for task in tasks]))
        self.register_buffer("precisions", sharpness * torch.stack([task.precision for task in tasks]))
        self.register_buffer("log_dets", sharpness * torch.stack([task.log_det for task in tasks]))
        share_NT = torch.full((allocation.modes, len(tasks)), -math.inf)
        for number, task in enumerate(tasks):
            share_NT[list(task.movers), number] = -math.log(len(task.movers))
        self.register_buffer("share_NT", share_NT.to(centre))

    def forward(self, flat_SF: Tensor) -> Tensor:
        """log sum over tasks of p(task | x) / (number of its movers), where the mode is one of them."""
        sketch_SD = flat_SF @ self.get_buffer("projection") - self.get_buffer("offset")
        away_TSD = sketch_SD[None] - self.means[:, None]
        squares_TS = ((away_TSD @ self.precisions) * away_TSD).sum(dim=2)
        log_p_TS = torch.log_softmax(-(squares_TS + self.get_buffer("log_dets")[:, None]) / 2, dim=0)
        return torch.logsumexp(self.share_NT[:, :, None] + log_p_TS[None], dim=1)


def numbers(tasks: int, features: int, size: int) -> int:
    """How many numbers are kept for so many tasks of inputs (S, features); a symmetric matrix counts half.

    >>> numbers(tasks=5, features=2048, size=128)
    46021
    """
    size = min(size, features)
    return 2 * features + tasks * (1 + size + size * (size + 1) // 2)


def flattened(inputs: Tensor) -> Tensor:
    """Inputs as rows (S, F) of numbers; images at a few places only."""
    inputs = inputs.float()
    if inputs.dim() == 4 and max(inputs.shape[2:]) > LARGEST:
        inputs = adaptive_avg_pool2d(inputs, LARGEST)
    return inputs.flatten(1)


def directions(inputs: int, size: int) -> Tensor:
    """Random orthonormal directions (F, d), the same for the same sizes.

    >>> found = directions(5, 3)
    >>> torch.allclose(found.T @ found, torch.eye(3), atol=1e-6)
    True
    """
    drawn = torch.randn(inputs, min(inputs, size), generator=torch.Generator().manual_seed(0))
    found: Tensor = torch.linalg.qr(drawn)[0]
    return found
