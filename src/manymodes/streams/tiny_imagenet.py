"""Split-Tiny-ImageNet: the paper's task-IL, 10 tasks x 20 classes; 200 classes of 64x64 images."""

from __future__ import annotations

import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from manymodes.errors import UserError, require, unknown
from manymodes.streams.domains import official_splits
from manymodes.streams.fetch import Remote, fetch_file
from manymodes.streams.images import Normalise, UnreadableImage, decode_all, select_from
from manymodes.streams.places import Arrays, cached_arrays, data_root, find, not_found
from manymodes.streams.split import Pool, arriving, class_order, make_tasks, stratified, tasks_by_class
from manymodes.task import Stream

ARCHIVE = "tiny-imagenet-200.zip"
URL = f"http://cs231n.stanford.edu/{ARCHIVE}"
MD5 = "90528d7ca1a48142e341f4ef8d21d0de"
INSIDE = "tiny-imagenet-200"
LAYOUTS = {"directory": ("wnids.txt", "train", "val/val_annotations.txt"), "archive": (ARCHIVE,)}
FOLDERS = (INSIDE, "tiny-imagenet", "tiny_imagenet", f"tiny-imagenet/{INSIDE}")
WANTED = f"{ARCHIVE}, or its unpacked directory {INSIDE}/"
SPLITS = {"paper": "70/10/20 of all labelled images", "official": "90/10 of train; official val as test"}


def split_tiny_imagenet(
    scenario: str = "task",
    *,
    tasks: int | None = None,
    seed: int = 0,
    head: str = "multi",
    limit: int | None = None,
    unseen: int = 0,
    label_noise: float = 0.0,
    split: str = "paper",
    normalise: str = "imagenet",
    augment: bool = False,
    data_dir: str | Path | None = None,
    download: bool = False,
) -> Stream:
    """Tiny-ImageNet in tasks: the official zip (read as it is) or its unpacked directory.

    110,000 images have labels: 500 of each class for training and 50 for validation; the official test
    images have none and are not used.

    Args:
        scenario: "task" or "class".
        tasks: number of tasks; 10 unless given.
        seed: fixes the order of the classes and the split.
        head: "multi" (an output per class) or "shared" (the tasks share outputs; scenario "task" only).
        limit: at most this many training images per task, the same number of each class.
        unseen: so many classes never arrive, and it is measured how well a learner tells their test images
            from those of its own classes (AUROC; not for scenario "instance").
        label_noise: share of training and validation images with a wrong label, another of the same task.
        split: "paper" pools all labelled images and splits 70/10/20; "official" tests on the official
            validation images and cuts the training images 90/10 into train and val.
        normalise: "imagenet", "half", "cifar100" or "none".
        augment: random crops and mirroring of training batches.
        data_dir: where the files lie; the directory itself or its parent.
        download: fetch the official zip (248 MB) if nothing is there.

    """
    if scenario not in ("task", "class"):
        raise unknown("scenario of split-tiny-imagenet", scenario, ("task", "class"))
    if split not in SPLITS:
        raise unknown("split", split, SPLITS)
    Normalise(normalise)
    root = data_root(data_dir)
    if download:
        fetch(root)
    tiny = read_tiny(root)
    labels = torch.from_numpy(tiny.labels)
    order = arriving(class_order(len(tiny.names), seed), unseen, scenario)
    tasks = min(10, len(order)) if tasks is None else tasks
    task_of = tasks_by_class(labels, order, tasks)

    pool = Pool(
        name="split-tiny-imagenet",
        labels=labels,
        class_names=tiny.names,
        splits=stratified(labels, seed) if split == "paper" else official_splits(tiny.official, labels, seed),
        select=select_from(tiny.images, normalise=normalise, augment=augment),
        input_shape=tuple(tiny.images.shape[1:]),
        info={
            "source": f"Tiny-ImageNet-200 (Stanford CS231N), {tiny.source}",
            "licence": "research data without a formal licence (ImageNet's terms)",
            "split": SPLITS[split],
            "class_order": [tiny.names[label] for label in order],
            "normalise": normalise,
            "augment": augment,
        },
    )
    names = [f"task {task + 1}" for task in range(tasks)]
    return make_tasks(pool, task_of, names, scenario=scenario, head=head, limit=limit, seed=seed,
                      unseen=unseen, label_noise=label_noise)  # fmt: skip


def remotes() -> list[Remote]:
    """The official archive."""
    return [Remote(URL, ARCHIVE, checksum=f"md5:{MD5}")]


def fetch(root: Path) -> Path:
    """The official archive in `root`, downloaded unless it is there; it is read as it is."""
    return fetch_file(remotes()[0], root / "tiny-imagenet")


class Tiny(NamedTuple):
    """All labelled images (S, 3, 64, 64), their labels, and whether they are official validation images."""

    images: NDArray[np.uint8]
    labels: NDArray[np.int64]
    official: NDArray[np.bool_]
    names: tuple[str, ...]
    source: str


def read_tiny(root: Path) -> Tiny:
    """Tiny-ImageNet from what lies in `root`, decoded once and then memory-mapped from the cache."""
    found = find(root, LAYOUTS, FOLDERS)
    if found is None:
        raise not_found("split-tiny-imagenet", root, WANTED)
    layout, folder = found
    source = folder / (ARCHIVE if layout == "archive" else "wnids.txt")
    try:
        arrays = cached_arrays("tiny-imagenet", [source], lambda: _decode(layout, folder))
    except (
        OSError,
        KeyError,
        UnicodeDecodeError,
        zipfile.BadZipFile,
        UnreadableImage,
        RuntimeError,
    ) as error:
        raise UserError(
            f"{folder} is not the whole of Tiny-ImageNet: {type(error).__name__}: {error}"
        ) from None
    return Tiny(
        images=arrays["images"],
        labels=np.asarray(arrays["labels"]),
        official=np.asarray(arrays["official"]),
        names=tuple(str(name) for name in arrays["names"]),
        source=f"{layout} {source.parent.name}",
    )


def _decode(layout: str, folder: Path) -> Arrays:
    if layout == "directory":
        files = sorted(str(f.relative_to(folder).as_posix()) for f in folder.glob("train/*/images/*"))
        return _arrays(files, lambda name: (folder / name).read_bytes())
    with zipfile.ZipFile(folder / ARCHIVE) as archive:
        prefix = f"{INSIDE}/"
        files = sorted(
            name.removeprefix(prefix) for name in archive.namelist() if name.startswith(f"{prefix}train/")
        )
        return _arrays(files, lambda name: archive.read(prefix + name))


def _arrays(train_files: list[str], read: Callable[[str], bytes]) -> Arrays:
    """Images and labels by the lists in the set; `read` takes a path below its top directory."""
    wnids = sorted(read("wnids.txt").decode().split())
    number = {wnid: i for i, wnid in enumerate(wnids)}
    train = [f for f in train_files if f.endswith(".JPEG") and f.split("/")[1] in number]
    annotations = [line.split("\t")[:2] for line in read("val/val_annotations.txt").decode().splitlines()]
    val = sorted((f"val/images/{name}", wnid) for name, wnid in annotations)
    labels = [number[f.split("/")[1]] for f in train] + [number[wnid] for _, wnid in val]
    require(
        len(set(labels[: len(train)])) == len(wnids),
        f"only {len(set(labels[: len(train)]))} of {len(wnids)} classes have images",
    )
    return {
        "images": decode_all([read(f) for f in [*train, *(name for name, _ in val)]]).numpy(),
        "labels": np.array(labels, dtype=np.int64),
        "official": np.arange(len(labels)) >= len(train),
        "names": np.array(_class_names(wnids, read("words.txt").decode())),
    }


def _class_names(wnids: list[str], words: str) -> list[str]:
    """The first word for each class; the class's code too where two share a word."""
    word_of = {
        wnid: rest.split(",")[0] for wnid, _, rest in (line.partition("\t") for line in words.splitlines())
    }
    names = [word_of.get(wnid, wnid) for wnid in wnids]
    return [
        name if names.count(name) == 1 else f"{name} ({wnid})"
        for name, wnid in zip(names, wnids, strict=True)
    ]
