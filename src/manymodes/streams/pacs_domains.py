"""PACS: photographs, art, cartoons and sketches of seven classes (Li et al. 2017)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from manymodes.errors import UserError, require
from manymodes.streams.domains import check_domains, domain_stream
from manymodes.streams.image_sets import ImageOptions, image_set
from manymodes.streams.images import Normalise, select_from
from manymodes.streams.own import natural
from manymodes.streams.own_folder import SUFFIXES
from manymodes.streams.places import data_root, find, not_found
from manymodes.task import Data, Stream

DOMAINS = ("photo", "art_painting", "cartoon", "sketch")  # each further from the world than the one before
CLASSES = ("dog", "elephant", "giraffe", "guitar", "horse", "house", "person")
LAYOUTS = {
    "arrays": ("pacs_32.npz",),
    "folders": tuple(f"{domain}/{label}" for domain in DOMAINS for label in CLASSES),
}
FOLDERS = ("pacs", "PACS", "pacs/PACS", "PACS/kfold", "kfold", "pacs/kfold")


class Pictures(NamedTuple):
    """Labels and domains by number, and how to get some of the images."""

    labels: Tensor
    domain_of: Tensor
    select: Callable[[Tensor, Tensor, bool], Data]
    input_shape: tuple[int, ...]


def pacs(
    scenario: str = "instance",
    *,
    domains: Sequence[str] | None = None,
    seed: int = 0,
    limit: int | None = None,
    size: int = 32,
    normalise: str = "half",
    augment: bool = False,
    data_dir: str | Path | None = None,
) -> Stream:
    """Seven classes in four domains, a task each: photo, art_painting, cartoon, sketch; 70/10/20.

    The data has no official direct link: give the directory that holds photo/dog/*.jpg and so on, or
    the arrays pacs_32.npz.

    Args:
        scenario: "instance".
        domains: the domains to use, in the order in which they come.
        seed: fixes the split.
        limit: at most this many training images per task, the same number of each class.
        size: images are scaled to size x size pixels; the arrays have 32.
        normalise: "half", "imagenet", "cifar100" or "none".
        augment: random crops and mirroring of training batches.
        data_dir: where the files lie; the directory itself or its parent.

    """
    order = check_domains(scenario, domains, DOMAINS)
    Normalise(normalise)
    root = data_root(data_dir)
    found = find(root, LAYOUTS, FOLDERS)
    if found is None:
        wanted = "pacs_32.npz, or photo/, art_painting/, cartoon/, sketch/ with a directory per class"
        raise not_found("pacs", root, wanted, can_download=False)
    layout, folder = found
    if layout == "arrays":
        pictures = _from_arrays(folder / "pacs_32.npz", order, size, normalise, augment)
    else:
        pictures = _from_folders(folder, order, ImageOptions(size, normalise=normalise, augment=augment))
    return domain_stream(
        "pacs",
        pictures.labels,
        pictures.domain_of,
        order,
        pictures.select,
        splits=None,
        class_names=CLASSES,
        input_shape=pictures.input_shape,
        limit=limit,
        seed=seed,
        info={
            "source": f"PACS (Li et al. 2017), {layout} in {folder.name}",
            "licence": "research data without a formal licence",
            "split": "70/10/20 of each class in each domain",
            "normalise": normalise,
            "augment": augment,
        },
    )


def _from_arrays(file: Path, order: list[str], size: int, normalise: str, augment: bool) -> Pictures:
    require(
        size == 32, f"size={size}: {file.name} has images of 32x32; for others give the directories of images"
    )
    try:
        with np.load(file, allow_pickle=False) as npz:
            x, y, domain = npz["x"], npz["y"], npz["domain"]
            classes, names = [str(n) for n in npz["classes"]], [str(n) for n in npz["domains"]]
            rows = np.argsort(npz["filename"], kind="stable")
        label_of = np.array([CLASSES.index(name) for name in classes])
        task_of = np.array([order.index(name) if name in order else -1 for name in names])
    except Exception as error:  # damaged files make zip, zlib and numpy raise all sorts
        raise UserError(f"{file} is not PACS as arrays: {str(error).splitlines()[:1]}") from None
    rows = rows[task_of[domain[rows]] >= 0]
    images = np.ascontiguousarray(x[rows].transpose(0, 3, 1, 2))
    select = select_from(images, normalise=normalise, augment=augment)
    labels, tasks = (torch.from_numpy(v[rows]).long() for v in (label_of[y], task_of[domain]))
    return Pictures(labels, tasks, select, (3, 32, 32))


def _from_folders(folder: Path, order: list[str], options: ImageOptions) -> Pictures:
    files, labels, tasks = [], [], []
    for task, domain in enumerate(order):
        for label, name in enumerate(CLASSES):
            inside = folder / domain / name
            names = natural([f.name for f in inside.iterdir() if f.suffix.lower() in SUFFIXES])
            require(len(names) > 0, f"{inside} has no images")
            files += [inside / each for each in names]
            labels += [label] * len(names)
            tasks += [task] * len(names)
    images = image_set(files, options)
    kept = torch.tensor(images.kept)
    return Pictures(torch.tensor(labels)[kept], torch.tensor(tasks)[kept], images.select, images.input_shape)
