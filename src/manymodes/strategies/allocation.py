"""Which modes a task moves, and how far each is trusted with an input: what MOTA allocates."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import adaptive_avg_pool2d

from manymodes.task import Data, Stream, Task
from manymodes.train import over

SHRINKAGE = 0.1  # of the covariance towards a sphere
LARGEST = 8  # images are averaged to at most 8 x 8 places before they are looked at


class Seen(NamedTuple):
    """A task as its inputs looked: who learnt it, its labels, mean sketches (L, d), shares (L,)."""

    movers: tuple[int, ...]
    labels: tuple[int, ...]
    means: Tensor
    shares: Tensor


class Allocation:
    """The modes that each task moved, and what its inputs looked like.

    w_i(x) = sum of p(task | x) over the tasks that mode i learnt (shared where several modes learnt one);
    p(task | x) by Bayes' rule from p(x | task) = sum over its labels of share * N(sketch(x); mean,
    covariance)^sharpness, with one covariance (within labels) for all tasks. Only labels that are valid
    outputs count. A sketch is a projection of the (standardised) input to a few random directions: `size`
    of them, drawn anew from a fixed seed and never stored. No input is kept.

    Args:
        modes: N.
        size: The length of a sketch.
        sharpness: How surely tasks are told apart: the power to which densities are taken.
    """

    def __init__(self, modes: int, size: int, sharpness: float, seen: Sequence[Seen] = ()) -> None:
        self.modes, self.size, self.sharpness, self.seen = modes, size, sharpness, tuple(seen)
        self.count = 0  # of the inputs that the covariance is of
        self.centre: Tensor | None = None  # of the first task's inputs
        self.scale: Tensor | None = None
        self.covariance: Tensor | None = None  # of sketches around their label's mean (d, d)

    def after(self, task: Task, movers: Sequence[int], device: torch.device) -> Allocation:
        """The same once the movers have learnt the task."""
        flat_SF = over(task.train, lambda batch: flattened(batch.inputs), device)
        labels, label_S, count_L = task.train.targets.to(device).unique(
            return_inverse=True, return_counts=True
        )
        found = self._with(self.seen)
        if found.centre is None:
            found.centre, found.scale = flat_SF.mean(dim=0), flat_SF.std(dim=0, correction=0) + 1e-3
        sketch_SD = found.sketch(flat_SF)
        means_LD = sketch_SD.new_zeros(len(labels), sketch_SD.shape[1]).index_add_(0, label_S, sketch_SD)
        means_LD /= count_L[:, None]
        away_SD = (sketch_SD - means_LD[label_S]).double()
        covariance, new = (away_SD.T @ away_SD / len(away_SD)).float(), len(away_SD)
        if found.covariance is not None:
            covariance = torch.lerp(found.covariance, covariance, new / (found.count + new))
        found.covariance, found.count = covariance, found.count + new
        shares = (count_L / count_L.sum()).to(means_LD)
        found.seen = (*self.seen, Seen(tuple(movers), tuple(labels.tolist()), means_LD, shares))
        return found

    def _with(self, seen: Sequence[Seen]) -> Allocation:
        found = Allocation(self.modes, self.size, self.sharpness, seen)
        found.centre, found.scale, found.covariance, found.count = (
            self.centre, self.scale, self.covariance, self.count,
        )  # fmt: skip
        return found

    def weigh(self, data: Data, classes: Iterable[int], device: torch.device) -> Tensor | None:
        """log w_i(x) of all samples, (N, S); None where all modes count alike."""
        look = self.look(classes)
        if look is None:
            return None
        if look.tasks == 1:  # whatever the inputs are
            return look.share_NT.expand(-1, len(data))
        return over(data, lambda batch: look(flattened(batch.inputs)).T, device).T

    def sketch(self, flat_SF: Tensor) -> Tensor:
        """(S, d) of flattened inputs (S, F)."""
        assert self.centre is not None
        assert self.scale is not None
        return ((flat_SF - self.centre) / self.scale) @ directions(flat_SF.shape[1], self.size).to(flat_SF)

    def look(self, classes: Iterable[int]) -> Look | None:
        """What gives the weights where these outputs are valid; None where all modes count alike."""
        valid = set(classes)
        found = [task for task in self.seen if valid & set(task.labels)]
        return Look(self, found, valid) if found else None

    def storage(self) -> int:
        """Numbers kept."""
        if self.centre is None:
            return 0
        return numbers(sum(len(task.labels) for task in self.seen), self.centre.numel(), self.size)

    def state_dict(self) -> dict[str, Any]:
        """Everything."""
        seen = [[list(task.movers), list(task.labels), task.means, task.shares] for task in self.seen]
        kept = {"centre": self.centre, "scale": self.scale, "covariance": self.covariance}
        return {"seen": seen, "count": self.count} | kept

    def restored(self, state: dict[str, Any], device: torch.device) -> Allocation:
        """What `state_dict` was taken from."""
        found = self._with([
            Seen(tuple(movers), tuple(labels), means.to(device), shares.to(device))
            for movers, labels, means, shares in state["seen"]
        ])  # fmt: skip
        found.count = state["count"]
        kept = (state[name] for name in ("centre", "scale", "covariance"))
        found.centre, found.scale, found.covariance = (None if t is None else t.to(device) for t in kept)
        return found


class Look(nn.Module):
    """log w_i(x) (N, S) of flattened inputs (S, F) that are from one of some tasks.

    With one covariance the square of the sketch itself is the same for all tasks and falls out, so that
    the log density of each (task, label) is a linear function of the sketch.
    """

    share_NT: Tensor

    def __init__(self, allocation: Allocation, seen: Sequence[Seen], valid: set[int]) -> None:
        super().__init__()
        assert allocation.centre is not None
        assert allocation.scale is not None
        assert allocation.covariance is not None
        centre, scale, self.tasks = allocation.centre, allocation.scale, len(seen)
        projection = directions(len(centre), allocation.size).to(centre) / scale[:, None]
        self.register_buffer("projection", projection)
        self.register_buffer("offset", centre @ projection)
        chosen = [torch.tensor([label in valid for label in task.labels]) for task in seen]
        means_KD = torch.cat(
            [task.means[rows.to(centre.device)] for task, rows in zip(seen, chosen, strict=True)]
        )
        shares = [task.shares[rows.to(centre.device)] for task, rows in zip(seen, chosen, strict=True)]
        slopes_KD = (
            allocation.sharpness * torch.linalg.solve(shrunk(allocation.covariance), means_KD.double().T).T
        )
        offsets_K = torch.cat([(s / s.sum()).log() for s in shares]) - ((slopes_KD * means_KD).sum(dim=1) / 2)
        self.register_buffer("slopes", slopes_KD.to(centre))
        self.register_buffer("offsets", offsets_K.to(centre))
        self.sizes = [len(s) for s in shares]
        share_NT = torch.full((allocation.modes, len(seen)), -math.inf)
        for number, task in enumerate(seen):
            share_NT[list(task.movers), number] = -math.log(len(task.movers))
        self.register_buffer("share_NT", share_NT.to(centre))

    def forward(self, flat_SF: Tensor) -> Tensor:
        """log sum over tasks of p(task | x) / (number of its movers), where the mode is one of them."""
        sketch_SD = flat_SF @ self.get_buffer("projection") - self.get_buffer("offset")
        logs_SK = sketch_SD @ self.get_buffer("slopes").T + self.get_buffer("offsets")
        log_p_TS = torch.stack([part.logsumexp(dim=1) for part in logs_SK.split(self.sizes, dim=1)])
        log_p_TS = torch.log_softmax(log_p_TS, dim=0)
        return torch.logsumexp(self.share_NT[:, :, None] + log_p_TS[None], dim=1)


def shrunk(covariance: Tensor) -> Tensor:
    """Towards a sphere, in double precision: regular whatever was seen."""
    exact = covariance.double()
    sphere = exact.diagonal().mean().clamp_min(1e-6) * torch.eye(len(exact)).to(exact)
    return (1 - SHRINKAGE) * exact + SHRINKAGE * sphere


def expected(stream: Stream, features: int, size: int) -> int:
    """How many numbers will be kept at the end of a stream, every task having all of its labels."""
    return numbers(sum(len(task.classes) for task in stream), features, size)


def numbers(labels: int, features: int, size: int) -> int:
    """How many numbers are kept of so many labels (counted in each task) of inputs (S, features).

    A symmetric matrix counts half.

    >>> numbers(labels=5 * 20, features=2048, size=128)
    25253
    """
    size = min(size, features)
    return 1 + 2 * features + labels * (1 + size) + size * (size + 1) // 2


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
