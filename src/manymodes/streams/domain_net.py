"""DomainNet: 345 classes in six domains (Peng et al. 2019), the cleaned version."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

from manymodes.errors import UserError, require, unknown
from manymodes.streams.domains import check_domains, domain_stream, official_splits
from manymodes.streams.extract import extract
from manymodes.streams.fetch import Remote, fetch_file
from manymodes.streams.image_sets import MEMORY_GB, ImageOptions, image_set
from manymodes.streams.places import data_root, not_found
from manymodes.task import Stream

SITE = "http://csr.bu.edu/ftp/visda/2019/multi-source"
# the publisher gives no checksums: the first download is recorded, later ones are held to it
ZIPS = {
    "clipart": f"{SITE}/groundtruth/clipart.zip",
    "infograph": f"{SITE}/infograph.zip",
    "painting": f"{SITE}/groundtruth/painting.zip",
    "quickdraw": f"{SITE}/quickdraw.zip",
    "real": f"{SITE}/real.zip",
    "sketch": f"{SITE}/sketch.zip",
}
LISTS = f"{SITE}/domainnet/txt"
FOLDERS = ("", "domainnet", "DomainNet", "domain_net")
SPLITS = {
    "paper": "70/10/20 of each class in each domain",
    "official": "90/10 of train lists; test lists",
}


def domainnet(
    scenario: str = "instance",
    *,
    domains: Sequence[str] | None = None,
    seed: int = 0,
    limit: int | None = None,
    split: str = "paper",
    size: int = 64,
    normalise: str = "imagenet",
    augment: bool = False,
    skip_unreadable: bool = False,
    workers: int | None = None,
    memory_gb: float = MEMORY_GB,
    data_dir: str | Path | None = None,
    download: bool = False,
) -> Stream:
    """345 classes in six domains, a task each: clipart, infograph, painting, quickdraw, real, sketch.

    The lists DOMAIN_train.txt and DOMAIN_test.txt name the images; these lie in DOMAIN/CLASS/*.

    Args:
        scenario: "instance".
        domains: the domains to use, in the order in which they come.
        seed: fixes the split.
        limit: at most this many training images per task, the same number of each class.
        split: "paper" pools each domain's lists and splits 70/10/20; "official" keeps the test lists and
            cuts the training lists 90/10 into train and val.
        size: images are scaled to size x size pixels (their central square).
        normalise: "imagenet", "half", "cifar100" or "none".
        augment: random crops and mirroring of training batches.
        skip_unreadable: leave out images that cannot be decoded, with a warning that counts them.
        workers: processes that decode images which do not fit in memory; half of the cores unless given.
        memory_gb: decoded images up to this size are held in memory.
        data_dir: where the files lie; the directory itself or its parent.
        download: fetch and unpack what is missing (about 18 GB for all six domains).

    """
    order = check_domains(scenario, domains, tuple(ZIPS))
    if split not in SPLITS:
        raise unknown("split", split, SPLITS)
    root = data_root(data_dir)
    if download:
        fetch(root, order)
    folder = _find(root, order)
    files, labels, tasks, is_test, class_names = _read_lists(folder, order)
    options = ImageOptions(size, 3, normalise, augment, skip_unreadable, memory_gb, workers, trusted=True)
    images = image_set(files, options)
    label_S, task_S = (torch.tensor([values[i] for i in images.kept]) for values in (labels, tasks))
    test_S = np.array([is_test[i] for i in images.kept])
    groups = task_S * len(class_names) + label_S
    return domain_stream(
        "domainnet",
        label_S,
        task_S,
        order,
        images.select,
        splits=official_splits(test_S, groups, seed) if split == "official" else None,
        class_names=class_names,
        input_shape=images.input_shape,
        limit=limit,
        seed=seed,
        info={
            "source": f"DomainNet, cleaned version (Peng et al. 2019), {folder.name}",
            "licence": "research use only",
            "split": SPLITS[split],
            "unreadable": images.unreadable,
            "normalise": normalise,
            "augment": augment,
        },
    )


def remotes(domains: Sequence[str] | None = None) -> list[Remote]:
    """The lists, then the archives, of some domains or all."""
    domains = tuple(ZIPS) if domains is None else domains
    lists = [f"{domain}_{part}.txt" for domain in domains for part in ("train", "test")]
    return [Remote(f"{LISTS}/{name}", name) for name in lists] + [
        Remote(ZIPS[domain], f"{domain}.zip") for domain in domains
    ]


def fetch(root: Path, domains: Sequence[str] | None = None) -> Path:
    """Download what is missing, unpack it, and remove each archive once it is unpacked."""
    domains = tuple(ZIPS) if domains is None else domains
    folder = next(
        (root / name for name in FOLDERS if (root / name / f"{domains[0]}_train.txt").exists()),
        root / "domainnet",
    )
    for remote in remotes(domains):
        domain = remote.filename.removesuffix(".zip")
        if not remote.filename.endswith(".zip"):
            fetch_file(remote, folder)
        elif not (folder / domain).is_dir():
            archive = fetch_file(remote, folder)
            extract(archive, folder / domain, inner=domain)
            archive.unlink()
    return folder


def _find(root: Path, domains: Sequence[str]) -> Path:
    wanted = "DOMAIN_train.txt, DOMAIN_test.txt and the directories DOMAIN/CLASS/ of each domain"
    folder = next(
        (root / name for name in FOLDERS if (root / name / f"{domains[0]}_train.txt").is_file()), None
    )
    if folder is None:
        raise not_found("domainnet", root, wanted)
    for domain in domains:
        for part in ("train", "test"):
            file = folder / f"{domain}_{part}.txt"
            require(file.is_file(), f"{file} is not there: give data_dir with {wanted}")
        state = "is packed" if (folder / f"{domain}.zip").is_file() else "is not there"
        require(
            (folder / domain).is_dir(),
            f"{folder / domain} {state}: unpack or fetch it with: manymodes data fetch domainnet",
        )
    return folder


def _read_lists(
    folder: Path, domains: Sequence[str]
) -> tuple[list[Path], list[int], list[int], list[bool], list[str]]:
    """Files, labels, tasks, whether in a test list, and the classes' names in the order of their numbers."""
    files, labels, tasks, is_test = [], [], [], []
    names: dict[int, str] = {}
    for task, domain in enumerate(domains):
        for part in ("train", "test"):
            listing = folder / f"{domain}_{part}.txt"
            for number, line in enumerate(
                listing.read_text(encoding="utf-8", errors="replace").splitlines(), start=1
            ):
                path, _, label = line.strip().rpartition(" ")
                pieces = Path(path).parts
                if not label.isdecimal() or len(pieces) != 3 or pieces[0] != domain or ".." in pieces:
                    raise UserError(
                        f"{listing}, line {number}: expected '{domain}/CLASS/FILE NUMBER', got {line[:80]!r}"
                    )
                known = names.setdefault(int(label), pieces[1])
                require(
                    known == pieces[1],
                    f"{listing}, line {number}: class {label} is {pieces[1]!r} here, {known!r} before",
                )
                files.append(folder / path)
                labels.append(int(label))
                tasks.append(task)
                is_test.append(part == "test")
    numbers = sorted(names)
    dense = {number: i for i, number in enumerate(numbers)}
    return files, [dense[label] for label in labels], tasks, is_test, [names[number] for number in numbers]
