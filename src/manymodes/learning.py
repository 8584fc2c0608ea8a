"""The next task for a finished learner, from a person's own data; refused if too much is forgotten."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from manymodes import versions
from manymodes.errors import UserError, require
from manymodes.growth import grow
from manymodes.heldout import HeldOut
from manymodes.reading import Samples, readable, samples_of
from manymodes.strategies.base import Event, Strategy
from manymodes.streams.image_sets import ImageOptions, image_set
from manymodes.streams.own import natural
from manymodes.streams.split import stratified
from manymodes.task import Data, Task, TensorData
from manymodes.using import names_of, open_learner, outputs_of, preparation_for

KEEP_DATA = ("multitask",)  # what needs the data of all earlier tasks, which a file does not hold


class Refused(UserError):
    """The learner forgot more than was allowed; the old version is still in use."""

    code = 3


@dataclass(frozen=True)
class Learnt:
    """What became of learning: the version's file, and held-out accuracy before and after (or None)."""

    version: Path
    tasks: int
    classes: list[str]
    new_classes: list[str]
    before: float | None
    after: float | None


def learn_next(
    run: str | Path,
    data: str | Path,
    *,
    name: str | None = None,
    val: float = 0.1,
    held_out: str | Path | None = None,
    max_forgetting: float | None = None,
    skip_unreadable: bool = False,
    on_event: Callable[[Event], None] | None = None,
    **options: Any,
) -> Learnt:
    """Teach the learner of a run one more task, as a version of its own beside the old one.

    Args:
        run: The run directory, or the learner's file.
        data: A folder with a directory per class (or a CSV manifest path,label), an npz file with x and y,
            or a CSV file of numbers with a column `label`. New labels get new outputs.
        name: The task's name; the data's unless given.
        val: Share of each class held out from training, for strategies that choose by it.
        held_out: Labelled data of earlier tasks, in the same layouts: what must not be forgotten.
        max_forgetting: Refuse if the accuracy on `held_out` falls by more than this (0.02: two points).
        skip_unreadable: Leave out images that cannot be read instead of stopping.
        on_event: Told of each pass of a mode.
        **options: Settings of the learner to change, such as epochs, lr, device.
    """
    require(0 <= val < 1, f"--val {val}: give the share to hold out, from 0 up to 1")
    if max_forgetting is not None:
        require(0 <= max_forgetting <= 1, f"--max-forgetting {max_forgetting}: give a share from 0 to 1")
        require(held_out is not None, "--max-forgetting needs --held-out: labelled data of earlier tasks")
    learner, path = open_learner(run, **options)
    with versions.changing(path):
        _check(learner, path)
        preparation = preparation_for(learner, path)
        samples = samples_of(data, preparation, labelled=True)
        old = None if held_out is None else samples_of(held_out, preparation, labelled=True)
        samples = readable(samples)[0] if skip_unreadable else samples
        guard = None if old is None else HeldOut(learner, old)
        before = None if guard is None else guard.accuracy(learner)
        tasks, labels = learner.tasks_learnt, samples.labels or []
        new = [label for label in natural(set(labels)) if label not in names_of(learner)]
        learner = with_classes(learner, new)
        learner.learn(_task(learner, samples, name or Path(data).stem, val), on_event=on_event)
        after = None if guard is None else guard.accuracy(learner)
        if max_forgetting is not None and before is not None and after is not None:
            _judge(before, after, max_forgetting, tasks)
        _note(learner, samples, name or Path(data).stem)
        versions.keep(path, tasks)
        version = versions.put(learner, path)
    return Learnt(version, learner.tasks_learnt, natural(set(labels)), new, before, after)


def with_classes(learner: Strategy, new: Sequence[str]) -> Strategy:
    """The learner with an output for each of these new names."""
    if not new:
        return learner
    names = names_of(learner)
    larger = grow(learner, len(names) + len(new))
    larger.about = learner.about | {"class_names": [*names, *new]}
    return larger


def _check(learner: Strategy, path: Path) -> None:
    from manymodes.strategies.registry import name_of

    kind = name_of(type(learner))
    require(
        kind not in KEEP_DATA,
        f"{path}: {kind} needs the data of all earlier tasks, which the file does not hold; add the new data "
        "to its stream and run it again",
    )
    require(learner.epochs_done is None, f"{path} was saved in the middle of a task: finish the run first")
    require(
        learner.about.get("head", "multi") != "shared",
        f"{path}: its tasks share outputs (head='shared'), so names of classes mean nothing to it",
    )


def _task(learner: Strategy, samples: Samples, name: str, val: float) -> Task:
    targets = torch.tensor(outputs_of(learner, samples.labels or [], "the data"))
    train, held, _ = stratified(targets, learner.seed, (1 - val, val, 0.0))
    select = _selector(samples)
    present = set(targets.tolist())
    learnt = {c for head in learner.heads for c in head}
    everything = set(range(len(names_of(learner))))
    scenario = str(learner.about.get("scenario", "task"))
    valid = {"task": present, "class": learnt | present, "instance": everything}.get(scenario, present)
    require(
        scenario != "task" or len(present) > 1,
        f"{samples.where} has one class only: a learner of task-IL tells the classes of a task apart",
    )
    val_part = select(held, targets[held]) if len(held) else None
    return Task(name, select(train, targets[train]), val_part, None, tuple(sorted(valid)))


def _selector(samples: Samples) -> Callable[[torch.Tensor, torch.Tensor], Data]:
    """Images are held as uint8 while they fit in memory, else read by workers."""
    preparation = samples.preparation
    if samples.paths is None:
        raw = samples.read()
        return lambda rows, targets: TensorData(raw[rows], targets, transform=preparation)
    channels, height, width = preparation.shape
    size = height if height == width else None
    images = image_set(samples.paths, ImageOptions(size, channels, "none"))
    require(
        images.input_shape == preparation.shape,
        f"{samples.where}: images have the shape {images.input_shape}, this learner's {preparation.shape}",
    )

    def select(rows: torch.Tensor, targets: torch.Tensor) -> Data:
        data = images.select(rows, targets, False)
        data.transform = preparation  # type: ignore[attr-defined]  # both kinds of data have one
        return data

    return select


def _judge(before: float, after: float, allowed: float, tasks: int) -> None:
    if before - after > allowed:
        raise Refused(
            f"refused: held-out accuracy would fall from {before:.3f} to {after:.3f}, by "
            f"{before - after:.3f}, more than {allowed:g}; the version after task {tasks} stays in use"
        )


def _note(learner: Strategy, samples: Samples, name: str) -> None:
    """Write down what was learnt, in the learner's own file."""
    entry = {
        "name": name, "source": str(samples.where), "samples": len(samples),
        "when": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }  # fmt: skip
    learner.about = learner.about | {"learnt": [*learner.about.get("learnt", []), entry]}
