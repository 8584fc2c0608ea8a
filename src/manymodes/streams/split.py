"""Splits of one pool of samples into train, val and test, and into tasks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from manymodes.errors import require, unknown
from manymodes.task import SCENARIOS, Data, Stream, Task

Rows = NDArray[np.int64]
HEADS = ("multi", "shared")
PAPER_FRACTIONS = (0.7, 0.1, 0.2)
_ORDER, _SPLIT, _LIMIT, _NOISE = range(4)  # separate random streams: asking for fewer samples moves no split


class Splits(NamedTuple):
    """Sample numbers of the three parts; no number is in two of them."""

    train: Tensor
    val: Tensor
    test: Tensor


@dataclass(frozen=True)
class Pool:
    """Samples with class labels (S,), their splits, and how to get some of them as Data.

    `select(index, targets, training)` returns the samples `index` with these targets; it augments only
    training samples, and only if the stream was asked to.
    """

    name: str
    labels: Tensor
    class_names: tuple[str, ...]
    splits: Splits
    select: Callable[[Tensor, Tensor, bool], Data]
    input_shape: tuple[int, ...]
    info: dict[str, Any] = field(default_factory=dict)


def class_order(num_classes: int, seed: int) -> list[int]:
    """The classes in the order in which they arrive.

    >>> sorted(class_order(5, seed=0)) == list(range(5)) and class_order(5, 0) == class_order(5, 0)
    True
    """
    return [int(c) for c in np.random.default_rng([_ORDER, seed]).permutation(num_classes)]


def stratified(labels: Tensor, seed: int, fractions: tuple[float, float, float] = PAPER_FRACTIONS) -> Splits:
    """Every class cut into train, val and test in the same proportions, at random but fixed by `seed`.

    >>> [len(part) for part in stratified(torch.arange(2).repeat(50), seed=0)]
    [70, 10, 20]
    """
    generator = np.random.default_rng([_SPLIT, seed])
    parts: tuple[list[Rows], ...] = ([], [], [])
    for rows in _rows_of_class(labels):
        shuffled = generator.permutation(rows)
        val, test = (round(fraction * len(rows)) for fraction in fractions[1:])
        cuts = np.split(shuffled, [len(rows) - val - test, len(rows) - test])
        for part, cut in zip(parts, cuts, strict=True):
            part.append(cut)
    return Splits(*(_sorted(part) for part in parts))


def _rows_of_class(labels: Tensor) -> list[Rows]:
    """The sample numbers of each class (in numpy: torch's parallel nonzero crawls on a busy machine)."""
    labels_S = labels.numpy()
    rows = np.argsort(labels_S, kind="stable")
    return np.split(rows, np.flatnonzero(np.diff(labels_S[rows])) + 1)


def _sorted(parts: list[Rows]) -> Tensor:
    return torch.from_numpy(np.sort(np.concatenate(parts)))


def balanced(index: Tensor, labels: Tensor, limit: int, seed: int) -> Tensor:
    """At most `limit` of the samples `index`, as even over the classes as they allow.

    >>> balanced(torch.arange(10), torch.tensor([0] * 8 + [1] * 2), 4, seed=0)[2:].tolist()
    [8, 9]
    """
    if len(index) <= limit:
        return index
    shuffled = np.random.default_rng([_LIMIT, seed]).permutation(index.numpy())
    rank_S = np.empty(len(shuffled), dtype=np.int64)
    for rows in _rows_of_class(labels[torch.from_numpy(shuffled)]):
        rank_S[rows] = np.arange(len(rows))
    first = np.argsort(rank_S, kind="stable")[:limit]  # everybody's first sample, then everybody's second
    return torch.from_numpy(np.sort(shuffled[first]))


def arriving(order: list[int], unseen: int, scenario: str) -> list[int]:
    """The classes that arrive: all but the last `unseen`, whose test samples nobody should be sure of.

    >>> arriving([2, 0, 3, 1], unseen=1, scenario="task")
    [2, 0, 3]
    """
    most = len(order) - 2 if scenario != "instance" else 0
    require(
        isinstance(unseen, int) and 0 <= unseen <= most,
        f"unseen={unseen!r}: of {len(order)} classes 0 to {most} can be kept out"
        if most
        else f"unseen={unseen!r}: with scenario='instance' every class is in every task; give 0",
    )
    return order[: len(order) - unseen]


def tasks_by_class(labels: Tensor, order: Sequence[int], tasks: int) -> Tensor:
    """The task of every sample (S,) when the classes arrive in `order`, cut into `tasks` groups.

    Samples of other classes are in no task (-1).

    >>> tasks_by_class(torch.tensor([0, 1, 2, 3]), order=[2, 0, 1, 3], tasks=2).tolist()
    [0, 1, 0, 1]
    """
    require(
        isinstance(tasks, int) and 1 <= tasks <= len(order),
        f"tasks={tasks!r}: {len(order)} classes make 1 to {len(order)} tasks",
    )
    task_of_class = torch.full((1 + max(int(labels.max()), *order),), -1)
    for task, group in enumerate(np.array_split(np.asarray(order), tasks)):
        task_of_class[torch.from_numpy(group)] = task
    return task_of_class[labels]


def make_tasks(
    pool: Pool,
    task_of: Tensor,
    task_names: Sequence[str],
    *,
    scenario: str,
    head: str = "multi",
    limit: int | None = None,
    seed: int = 0,
    unseen: int = 0,
    label_noise: float = 0.0,
) -> Stream:
    """The stream whose task t holds the samples with task_of == t.

    Valid outputs: "task" the task's own classes, "class" those seen so far, "instance" all. With
    head="shared" a task's labels are renumbered from 0 and every task uses the same few outputs. If
    `unseen`, samples in no task are of classes that never arrive. `label_noise` is the share of training and
    validation samples whose label is another class of their task.
    """
    _check_names(scenario, head)
    task_of_S = task_of.numpy()
    rows_of_task = [_rows_of_task(pool.splits, task_of_S == task) for task in range(len(task_names))]
    labels_of_task = [np.unique(pool.labels[rows.train].numpy()).tolist() for rows in rows_of_task]
    _check_sizes(labels_of_task, task_names, scenario, limit)
    widest = max(len(labels) for labels in labels_of_task)
    seen: set[int] = set()
    taught = replace(pool, labels=_mislabelled(pool.labels, rows_of_task, label_noise, seed))
    builders, samples = [], {}
    for task, (name, rows, labels) in enumerate(zip(task_names, rows_of_task, labels_of_task, strict=True)):
        seen |= set(labels)
        valid = {"task": labels, "class": sorted(seen), "instance": range(len(pool.class_names))}[scenario]
        _check_held_out(pool, rows, name, set(valid))
        output_of = torch.arange(len(pool.class_names))
        if head == "shared":
            valid = range(len(labels))
            output_of[torch.tensor(labels)] = torch.arange(len(labels))
        if limit is not None:
            rows = rows._replace(train=balanced(rows.train, pool.labels, limit, seed + task))
        samples[name] = {part: len(getattr(rows, part)) for part in rows._fields}
        builders.append(partial(_build, taught, name, rows, tuple(valid), output_of))
    shared_names = tuple(f"class {position + 1} of the task" for position in range(widest))
    named = {
        name: [pool.class_names[label] for label in labels]
        for name, labels in zip(task_names, labels_of_task, strict=True)
    }
    return Stream(
        name=pool.name,
        scenario=scenario,
        num_outputs=widest if head == "shared" else len(pool.class_names),
        input_shape=pool.input_shape,
        builders=tuple(builders),
        class_names=shared_names if head == "shared" else pool.class_names,
        info={**pool.info, "seed": seed, "head": head, "limit": limit, "tasks": named, "samples": samples},
        unseen=partial(_unseen, pool, task_of_S < 0) if unseen else None,
    )


def _check_names(scenario: str, head: str) -> None:
    if scenario not in SCENARIOS:
        raise unknown("scenario", scenario, SCENARIOS)
    if head not in HEADS:
        raise unknown("head", head, HEADS)
    require(
        head == "multi" or scenario == "task",
        f"head='shared' renumbers the labels of each task, which scenario={scenario!r} cannot undo; "
        "use scenario='task' or head='multi'",
    )


def _rows_of_task(splits: Splits, in_task_S: NDArray[np.bool_]) -> Splits:
    train, val, test = (part.numpy() for part in splits)
    return Splits(*(torch.from_numpy(part[in_task_S[part]]) for part in (train, val, test)))


def _check_held_out(pool: Pool, rows: Splits, name: str, valid: set[int]) -> None:
    """A class that is evaluated where no output stands for it is a mistake in the data."""
    for kind, part in zip(("val", "test"), rows[1:], strict=True):
        untrained = sorted(set(pool.labels[part].tolist()) - valid)
        require(
            not untrained,
            f"the {kind} part of task {name!r} has classes that were never trained: "
            + ", ".join(repr(pool.class_names[label]) for label in untrained[:5]),
        )


def _check_sizes(
    labels_of_task: list[list[int]], task_names: Sequence[str], scenario: str, limit: int | None
) -> None:
    for name, labels in zip(task_names, labels_of_task, strict=True):
        require(len(labels) > 0, f"task {name!r} has no training sample")
        require(
            scenario != "task" or len(labels) > 1,
            f"task {name!r} has one class only: with scenario='task' there is nothing to tell apart; "
            "use fewer tasks, or scenario='class'",
        )
        require(
            limit is None or limit >= len(labels),
            f"limit={limit}: task {name!r} has {len(labels)} classes, so give it at least as many samples",
        )


def _mislabelled(labels: Tensor, rows_of_task: list[Splits], share: float, seed: int) -> Tensor:
    """What the learner is told: of each task's samples, `share` have another of its classes. Tests stay."""
    require(
        isinstance(share, int | float) and 0 <= share <= 1,
        f"label_noise={share!r}: give the share of wrong labels, from 0 to 1",
    )
    told = labels.clone()
    for task, rows in enumerate(rows_of_task if share else []):
        draw = np.random.default_rng([_NOISE, seed, task])
        own = torch.cat([rows.train, rows.val]).numpy()
        classes, position = np.unique(labels[own].numpy(), return_inverse=True)
        wrong = draw.permutation(len(own))[: round(share * len(own)) if len(classes) > 1 else 0]
        step = draw.integers(1, max(2, len(classes)), len(wrong))
        told[own[wrong]] = torch.from_numpy(classes[(position[wrong] + step) % len(classes)])
    return told


def _unseen(pool: Pool, in_no_task_S: NDArray[np.bool_]) -> Data:
    rows = pool.splits.test.numpy()
    index = torch.from_numpy(rows[in_no_task_S[rows]])
    return pool.select(index, torch.zeros(len(index), dtype=torch.long), False)


def _build(pool: Pool, name: str, rows: Splits, classes: tuple[int, ...], output_of: Tensor) -> Task:
    def data(part: Tensor, training: bool = False) -> Data:
        return pool.select(part, output_of[pool.labels[part]], training)

    return Task(
        name=name,
        train=data(rows.train, training=True),
        val=data(rows.val) if len(rows.val) else None,
        test=data(rows.test) if len(rows.test) else None,
        classes=classes,
    )
