"""The loss around the final weights, in the plane of the path that led there (the paper's Figure 3).

For each mode, PCA of its recorded path (the vectors before task 1 and after each task, as differences to
the last one) gives two directions; the loss of every task is evaluated on a grid theta* + a delta + b eta.
What is done is kept in RUN/landscape and never done again; an interrupted evaluation goes on at the row
where it stopped.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, fields
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from manymodes import files
from manymodes.config import PARTS, Config, build_learner, build_stream
from manymodes.environment import pinned
from manymodes.errors import UserError, require, unknown
from manymodes.feeding import on_device
from manymodes.outputs import Valid
from manymodes.plane import axes, plane
from manymodes.runfiles import RunFiles
from manymodes.strategies.base import Strategy
from manymodes.train import in_order, seed_of
from manymodes.trajectory import count_modes, load_mode, recorded

SMALL = 300_000  # networks up to this many parameters are faster on one thread
SAVE_EVERY = 3.0  # seconds of work that an interruption loses at most
BATCHNORMS = ("keep", "reestimate")
OURS = ("huggingface:", "hf:", "timm:", "torchvision:")  # names with a colon that are no import paths


@dataclass(frozen=True)
class Settings:
    """How a landscape is evaluated.

    `batchnorm`: "keep" evaluates every point with the running statistics of the final mode; "reestimate"
    normalises with the statistics of the evaluated samples themselves, which shows what the weights could do
    with fitting statistics. `trusted` lets a run name code outside of this package.
    """

    points: int = 25
    samples: int = 500
    batchnorm: str = "keep"
    radius: float = 0.2
    draws: int = 8
    trusted: bool = False

    def __post_init__(self) -> None:
        require(self.points >= 3, f"points must be a whole number from 3, not {self.points}")
        require(self.samples >= 1, f"samples must be a whole number from 1, not {self.samples}")
        require(self.radius > 0, f"radius must be a number above 0, not {self.radius}")
        require(self.draws >= 1, f"draws must be a whole number from 1, not {self.draws}")
        if self.batchnorm not in BATCHNORMS:
            raise unknown("batchnorm", self.batchnorm, BATCHNORMS)

    def as_dict(self) -> dict[str, Any]:
        """What the numbers depend on."""
        return {name: value for name, value in asdict(self).items() if name != "trusted"}


class Evaluator:
    """Losses of one run's network at any vector: every task's samples go through it together."""

    def __init__(self, run: Path, settings: Settings) -> None:
        self.settings = settings
        config = _config(run, settings.trusted)
        stream = build_stream(config)
        self.learner: Strategy = build_learner(config, stream)
        self.tasks: list[tuple[Tensor, Tensor, Valid]] = []
        tests = [(task.test, task.classes) for task in stream]
        for data, classes in tests:
            assert data is not None
            # Class-IL: in the end every output is valid.
            valid = self.learner.valid_for(data, tests[-1][1] if stream.scenario == "class" else classes)
            chosen = torch.arange(len(data))
            if len(data) > settings.samples:
                generator = torch.Generator().manual_seed(seed_of("samples", config.seed))
                chosen = torch.randperm(len(data), generator=generator)[: settings.samples].sort().values
            batches = list(on_device(data.batches(chosen.split(512)), self.learner.model.device))
            inputs = torch.cat([batch.inputs for batch in batches])
            self.tasks.append((inputs, valid.targets(torch.cat([b.targets for b in batches])), valid))

    @torch.no_grad()
    def losses(self, theta: Tensor, buffers: Tensor) -> list[float]:
        """NLL of every task at a vector; in "reestimate", BatchNorm uses the samples' own statistics."""
        model, fresh = self.learner.model, self.settings.batchnorm == "reestimate"
        with model.bound(theta.contiguous(), buffers.clone()), model.evaluating():
            if fresh:
                for module in model.module.modules():
                    module.training = isinstance(module, nn.modules.batchnorm._BatchNorm)
            groups = (
                [[number] for number in range(len(self.tasks))] if fresh else [list(range(len(self.tasks)))]
            )
            found: list[float] = []
            for group in groups:
                inputs = torch.cat([self.tasks[number][0] for number in group])
                size = len(inputs) if fresh else 512
                logits = torch.cat([self.learner.forward(inputs[i]) for i in in_order(len(inputs), size)])
                found += self._split(logits, group)
        return found

    def _split(self, logits_SC: Tensor, group: Sequence[int]) -> list[float]:
        found, start = [], 0
        for number in group:
            inputs, targets, valid = self.tasks[number]
            part = logits_SC[start : start + len(inputs)]
            found.append(float(cross_entropy(valid.logits(part), targets)))
            start += len(inputs)
        return found

    def sharpness(self, theta: Tensor, buffers: Tensor) -> list[float]:
        """Mean increase of every task's loss under a random step of `radius` times each layer's norm.

        1/K sum_k L(theta* + radius |theta_l| u_l / |u_l|) - L(theta*): relative steps, so that the number
        does not depend on how a network scales its layers. Biases and BatchNorm parameters stay.
        """
        start = torch.tensor(self.losses(theta, buffers))
        total = torch.zeros_like(start)
        for draw in range(self.settings.draws):
            generator = torch.Generator().manual_seed(seed_of("sharpness", draw))
            moved = theta.clone()
            for layer in self.learner.model.layers():
                step = torch.randn(layer.stop - layer.start, generator=generator).to(theta)
                moved[layer] += self.settings.radius * theta[layer].norm() * step / step.norm()
            total += torch.tensor(self.losses(moved, buffers)) - start
        return [float(x) for x in total / self.settings.draws]


def _config(run: Path, trusted: bool) -> Config:
    """The run's configuration; code that it names runs only if that is wanted."""
    saved = RunFiles(run).config()
    for part in PARTS:
        name = str(saved[part].get("name"))
        own = ":" in name and not name.startswith(OURS)
        require(
            trusted or not own, f"{run} imports {part} {name!r}: if that is yours, say so with --trust true"
        )
    known = {field.name for field in fields(Config)}
    return Config(**{key: value for key, value in saved.items() if key in known})


def landscape(
    run: Path, settings: Settings | None = None, on_row: Callable[[int, int], None] = lambda done, total: None
) -> list[Path]:
    """Evaluate every mode of a run, or go on with it; returns the files.

    `on_row(done, total)` counts rows of grids.
    """
    settings = settings or Settings()
    saved = recorded(run)
    if len(saved) < 2:
        raise UserError(
            f"{run} has no recorded trajectory: run it again, into another folder, with "
            "--record_trajectory true"
        )
    modes = count_modes(saved[-1])
    total = modes * settings.points
    written, evaluator = [], None
    for mode in range(modes):
        vectors = [load_mode(path, mode) for path in saved]
        path, buffers = torch.stack([theta for theta, _ in vectors]), vectors[-1][1]
        key = _key(settings, path, buffers)
        place = run / "landscape" / f"mode-{mode}.json"
        state = _begun(place, key)
        if state is None or len(state["loss"]) < settings.points:
            evaluator = evaluator or Evaluator(run, settings)
            state = state or _begin(evaluator, mode, path, buffers, key)
            files.write_json(place, state)
            before = mode * settings.points
            with pinned(1 if path.shape[1] <= SMALL else torch.get_num_threads(), False):
                _finish(evaluator, state, path, buffers, place, partial(_count, on_row, before, total))
        on_row((mode + 1) * settings.points, total)
        written.append(place)
    return written


def _count(on_row: Callable[[int, int], None], before: int, total: int, row: int) -> None:
    on_row(before + row, total)


def _begin(evaluator: Evaluator, mode: int, path: Tensor, buffers: Tensor, key: str) -> dict[str, Any]:
    found = plane(path)
    x, y = axes(found.path, evaluator.settings.points)
    return {
        "key": key,
        "mode": mode,
        "settings": evaluator.settings.as_dict(),
        "x": x,
        "y": y,
        "path": found.path.tolist(),
        "explained": found.explained,
        "final": evaluator.losses(path[-1], buffers),
        "sharpness": evaluator.sharpness(path[-1], buffers),
        "loss": [],  # rows along y, each with a list of the tasks' losses for every x
    }


def _finish(
    evaluator: Evaluator,
    state: dict[str, Any],
    path: Tensor,
    buffers: Tensor,
    place: Path,
    on_row: Callable[[int], None],
) -> None:
    found, written = plane(path), time.monotonic()
    for row in range(len(state["loss"]), len(state["y"])):
        b = state["y"][row]
        points = [path[-1] + a * found.directions[0] + b * found.directions[1] for a in state["x"]]
        state["loss"].append([[_short(v) for v in evaluator.losses(p, buffers)] for p in points])
        if row + 1 == len(state["y"]) or time.monotonic() - written > SAVE_EVERY:
            files.write_json(place, state)
            written = time.monotonic()
        on_row(row + 1)


def _begun(place: Path, key: str) -> dict[str, Any] | None:
    """What an earlier call left, if it was about the same thing."""
    if not place.exists():
        return None
    try:
        state = files.read_json(place)
    except UserError:
        return None  # damaged: begin anew
    return state if isinstance(state, dict) and state.get("key") == key else None


def _key(settings: Settings, path: Tensor, buffers: Tensor) -> str:
    digest = hashlib.sha256(json.dumps(settings.as_dict(), sort_keys=True).encode())
    for tensor in (path, buffers):
        digest.update(tensor.contiguous().numpy().tobytes())
    return digest.hexdigest()[:32]


def _short(value: float) -> float:
    # A point far out may have an infinite loss; JSON has no infinity, and a colour scale no use for it.
    return float(f"{min(value, 1e6):.4g}") if value == value else 1e6
