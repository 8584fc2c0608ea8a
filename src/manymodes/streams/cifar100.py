"""Split-CIFAR-100: the paper's task-IL (10 tasks x 10 classes) and instance-IL (5 x 20 coarse classes)."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from manymodes.errors import UserError, require, unknown
from manymodes.streams.cifar_files import ARCHIVE, MD5, URL, Cifar, read_cifar
from manymodes.streams.domains import official_splits
from manymodes.streams.fetch import Remote, fetch_file
from manymodes.streams.images import Normalise, select_from
from manymodes.streams.places import data_root
from manymodes.streams.split import (
    Pool,
    Splits,
    arriving,
    class_order,
    make_tasks,
    stratified,
    tasks_by_class,
)
from manymodes.task import SCENARIOS, Stream

SPLITS = {"paper": "70/10/20 of all images", "official": "90/10 of official train; official test"}
Rows = NDArray[np.int64]


class Arranged(NamedTuple):
    """Labels and tasks of the chosen images; the classes' names, and the order in which they arrive."""

    labels: Tensor
    names: tuple[str, ...]
    task_of: Tensor
    tasks: int
    order: list[str]


def split_cifar100(
    scenario: str = "task",
    *,
    tasks: int | None = None,
    seed: int = 0,
    head: str = "multi",
    limit: int | None = None,
    unseen: int = 0,
    label_noise: float = 0.0,
    classes: int | str | Sequence[int | str] | None = None,
    split: str = "paper",
    normalise: str = "cifar100",
    augment: bool = False,
    data_dir: str | Path | None = None,
    download: bool = False,
) -> Stream:
    """CIFAR-100 in tasks: the official archive or the Hugging Face parquet files, 60,000 images 32x32.

    "task" and "class": the fine classes in an order fixed by `seed`, 10 tasks of 10. "instance": all 20
    coarse classes in every one of 5 tasks, each task showing another fine class of every coarse class.
    The set itself holds some exact duplicates (14 within its training part, 10 across train and test).

    Args:
        scenario: "task", "class" or "instance".
        tasks: number of tasks; 10, or 5 for "instance", unless given.
        seed: fixes the order of the classes and the split.
        head: "multi" (an output per class) or "shared" (the tasks share outputs; scenario "task" only).
        limit: at most this many training images per task, the same number of each class.
        unseen: so many classes never arrive, and it is measured how well a learner tells their test images
            from those of its own classes (AUROC; not for scenario "instance").
        label_noise: share of training and validation images with a wrong label, another of the same task.
        classes: only these fine classes: a range of numbers as "50-99", the first n, or a list of names
            or numbers. So a network can be pretrained on "0-49" and tried on "50-99".
        split: "paper" pools all images and splits 70/10/20; "official" keeps the official test images
            and cuts the official training images 90/10 into train and val.
        normalise: "cifar100", "imagenet", "half" or "none".
        augment: random crops and mirroring of training batches.
        data_dir: where the files lie; the directory itself or its parent.
        download: fetch the official archive (169 MB) if nothing is there.

    """
    if scenario not in SCENARIOS:
        raise unknown("scenario", scenario, SCENARIOS)
    if split not in SPLITS:
        raise unknown("split", split, SPLITS)
    Normalise(normalise)
    root = data_root(data_dir)
    if download:
        fetch(root)
    cifar = read_cifar(root)
    chosen = _chosen(classes, cifar.fine_names)
    rows = np.isin(cifar.fine, chosen).nonzero()[0]
    fine_S = torch.from_numpy(cifar.fine[rows])
    order = arriving(class_order(len(chosen), seed), unseen, scenario)
    if scenario == "instance":
        arranged = _by_coarse(cifar, chosen, rows, tasks, seed)
    else:
        arranged = _by_fine(cifar, chosen, rows, tasks, order)
    pool = Pool(
        name="split-cifar100",
        labels=arranged.labels,
        class_names=arranged.names,
        splits=_splits(split, rows, fine_S, cifar.train_count, seed),
        select=select_from(cifar.images, normalise=normalise, augment=augment, rows=rows),
        input_shape=(3, 32, 32),
        info={
            "source": f"CIFAR-100 (Krizhevsky 2009), {cifar.source}",
            "licence": "research data without a formal licence",
            "split": SPLITS[split],
            "class_order": arranged.order,
            "fine_classes_of_tasks": [
                [cifar.fine_names[c] for c in np.unique(fine_S.numpy()[arranged.task_of.numpy() == task])]
                for task in range(arranged.tasks)
            ],
            "normalise": normalise,
            "augment": augment,
        },
    )
    names = [f"task {task + 1}" for task in range(arranged.tasks)]
    return make_tasks(pool, arranged.task_of, names, scenario=scenario, head=head, limit=limit, seed=seed,
                      unseen=unseen, label_noise=label_noise)  # fmt: skip


def remotes() -> list[Remote]:
    """The official archive."""
    return [Remote(URL, ARCHIVE, checksum=f"md5:{MD5[ARCHIVE]}")]


def fetch(root: Path) -> Path:
    """The official archive in `root`, downloaded unless it is there."""
    return fetch_file(remotes()[0], root / "cifar100")


def _splits(split: str, rows: Rows, fine_S: Tensor, train_count: int, seed: int) -> Splits:
    if split == "paper":
        return stratified(fine_S, seed)
    return official_splits(rows >= train_count, fine_S, seed)


def _chosen(classes: int | str | Sequence[int | str] | None, names: tuple[str, ...]) -> list[int]:
    """The numbers of the fine classes to use, sorted."""
    count = len(names)
    if classes is None:
        return list(range(count))
    if isinstance(classes, str) and (span := re.fullmatch(r"(\d+)\s*-\s*(\d+)", classes)):
        picked: list[int] = list(range(int(span[1]), int(span[2]) + 1))
    elif isinstance(classes, int):
        picked = list(range(classes))
    else:
        wanted = [classes] if isinstance(classes, str) else list(classes)
        for name in wanted:
            if isinstance(name, str) and name not in names:
                raise unknown("class of CIFAR-100", name, names)
        picked = sorted({names.index(name) if isinstance(name, str) else int(name) for name in wanted})
    require(
        len(picked) > 0 and picked[0] >= 0 and picked[-1] < count,
        f"classes={classes!r}: CIFAR-100's classes are numbered 0 to {count - 1}; give at least one of them",
    )
    return picked


def _by_fine(cifar: Cifar, chosen: list[int], rows: Rows, tasks: int | None, order: list[int]) -> Arranged:
    """The fine classes in their order, ten tasks of them."""
    labels = torch.from_numpy(np.searchsorted(chosen, cifar.fine[rows]))
    names = tuple(cifar.fine_names[c] for c in chosen)
    tasks = min(10, len(order)) if tasks is None else tasks
    return Arranged(labels, names, tasks_by_class(labels, order, tasks), tasks, [names[c] for c in order])


def _by_coarse(cifar: Cifar, chosen: list[int], rows: Rows, tasks: int | None, seed: int) -> Arranged:
    """Task t shows the t-th fine class, in an order fixed by the seed, of every coarse class.

    Fine classes beyond the last task are in no task (-1).
    """
    coarse_of = dict(zip(cifar.fine.tolist(), cifar.coarse.tolist(), strict=True))
    groups = [[f for f in chosen if coarse_of[f] == c] for c in range(len(cifar.coarse_names))]
    fewest = min(len(group) for group in groups)
    tasks = fewest if tasks is None else tasks
    if not isinstance(tasks, int) or not 1 <= tasks <= fewest:
        short = cifar.coarse_names[min(range(len(groups)), key=lambda c: len(groups[c]))]
        raise UserError(
            f"tasks={tasks!r}: with scenario='instance' every task has a new fine class of each coarse one, "
            f"and {short!r} has {fewest} of the chosen classes; so 1 to {fewest} tasks, or other classes"
        )
    task_of_class = torch.full((len(cifar.fine_names),), -1)
    for coarse, group in enumerate(groups):
        for task, position in enumerate(class_order(len(group), seed + coarse)[:tasks]):
            task_of_class[group[position]] = task
    task_of = task_of_class[torch.from_numpy(cifar.fine[rows])]
    coarse_S = torch.from_numpy(cifar.coarse[rows])
    return Arranged(coarse_S, cifar.coarse_names, task_of, tasks, list(cifar.coarse_names))
