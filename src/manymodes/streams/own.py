"""What all data of a person's own have in common: labels of any name, tasks, a scenario to infer."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from manymodes.errors import UserError, require, unknown
from manymodes.streams.split import Pool, Splits, make_tasks, stratified
from manymodes.task import SCENARIOS, Data, Stream

PARTS = {"train": 0, "training": 0, "val": 1, "valid": 1, "validation": 1, "dev": 1, "test": 2, "testing": 2}


class Choices(NamedTuple):
    """What a person chose about the stream, whatever her data is."""

    scenario: str | None
    head: str
    seed: int
    limit: int | None
    val: float
    test: float


def own_stream(
    name: str,
    labels: Sequence[str],
    tasks: Sequence[str],
    parts: Sequence[int] | None,
    select: Callable[[Tensor, Tensor, bool], Data],
    choices: Choices,
    *,
    input_shape: tuple[int, ...],
    task_order: Sequence[str],
    info: dict[str, Any],
) -> Stream:
    """A stream of samples that have a label, a task and perhaps a part (0 train, 1 val, 2 test) by name.

    Without parts, every class of every task is cut at random into train, val and test; with parts but
    none called val, the share `val` of the training samples is held out for it.
    """
    require(len(labels) > 0, f"{name!r} has no sample")
    class_names = natural(set(labels))
    require(len(class_names) > 1, f"{name!r} has one class only, {class_names[0]!r}: nothing to tell apart")
    label_S = _numbers(labels, class_names)
    task_S = _numbers(tasks, task_order)
    pool = Pool(
        name=name,
        labels=label_S,
        class_names=tuple(class_names),
        splits=_splits(parts, task_S * len(class_names) + label_S, choices),
        select=select,
        input_shape=input_shape,
        info=info,
    )
    classes_of_task = [
        set(label_S.numpy()[task_S.numpy() == task].tolist()) for task in range(len(task_order))
    ]
    return make_tasks(
        pool,
        task_S,
        task_order,
        scenario=_scenario(choices.scenario, classes_of_task, class_names, task_order),
        head=choices.head,
        limit=choices.limit,
        seed=choices.seed,
    )


def natural(names: set[str] | Sequence[str]) -> list[str]:
    """Names sorted as people do.

    >>> natural(["task10", "task2", "-1", "a"])
    ['-1', 'a', 'task2', 'task10']

    """

    def key(name: str) -> list[tuple[int, float, str]]:
        pieces = re.findall(r"\d+|\D+", name)
        if re.fullmatch(r"-?\d+(\.\d+)?", name):
            return [(0, float(name), "")]
        return [
            (1, float(p), "") if p.isdecimal() and len(p) < 300 else (2, 0.0, p.casefold()) for p in pieces
        ]

    return sorted(names, key=lambda name: (key(name), name))


def first_seen(names: Sequence[str]) -> list[str]:
    """The different names in the order in which they appear."""
    return list(dict.fromkeys(names))


def part_number(name: str, where: str) -> int:
    """0, 1 or 2 for a part called train, val or test."""
    found = PARTS.get(name.strip().lower())
    if found is None:
        raise unknown(f"split in {where}", name, ("train", "val", "test"))
    return found


def _numbers(names: Sequence[str], order: Sequence[str]) -> Tensor:
    number = {name: i for i, name in enumerate(order)}
    return torch.tensor([number[name] for name in names], dtype=torch.long)


def _splits(parts: Sequence[int] | None, groups: Tensor, choices: Choices) -> Splits:
    """The parts given, or cut so that every group (a task's class) has its share in each."""
    seed, val, test = choices.seed, choices.val, choices.test
    for option, share in (("val", val), ("test", test)):
        require(0 <= share < 1, f"{option}={share!r}: give the share of samples to hold out, from 0 up to 1")
    require(val + test < 1, f"val={val!r} and test={test!r} leave nothing to train on")
    if parts is None:
        return stratified(groups, seed, (1 - val - test, val, test))
    part_S = np.asarray(parts)
    require(bool((part_S == 0).any()), "no sample is called 'train': the split needs some")
    splits = Splits(*(torch.from_numpy(np.flatnonzero(part_S == part)) for part in range(3)))
    if len(splits.val):
        return splits
    cut = stratified(groups[splits.train], seed, (1 - val, val, 0.0))
    return splits._replace(train=splits.train[cut.train], val=splits.train[cut.val])


def _scenario(
    asked: str | None, classes_of_task: list[set[int]], class_names: list[str], task_names: Sequence[str]
) -> str:
    """As asked; else the same classes everywhere: "instance", none twice: "task", growing: "class"."""
    everything = set(range(len(class_names)))
    if asked is None:
        if all(classes == everything for classes in classes_of_task):
            return "instance"
        return "task" if sum(map(len, classes_of_task)) == len(everything) else "class"
    if asked not in SCENARIOS:
        raise unknown("scenario", asked, SCENARIOS)
    if asked == "instance":
        for name, classes in zip(task_names, classes_of_task, strict=True):
            if missing := sorted(everything - classes):
                more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
                raise UserError(
                    f"task {name!r} has no sample of class {class_names[missing[0]]!r}{more}: "
                    "scenario='instance' means the same classes in every task; add it or use scenario='class'"
                )
    return asked
