"""A person's own images: directories, or a CSV manifest."""

from __future__ import annotations

import csv
import os
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from manymodes.errors import UserError, require
from manymodes.streams.image_sets import MEMORY_GB, ImageOptions, image_set
from manymodes.streams.own import PARTS, Choices, first_seen, natural, own_stream, part_number
from manymodes.task import Stream

SUFFIXES = {".jpg", ".jpeg", ".png", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".ppm", ".pgm"}
ONLY = "all"  # the name of the task where a directory has no tasks


class Listing(NamedTuple):
    """One entry per image; parts is None where the data does not say."""

    paths: list[Path]
    labels: list[str]
    tasks: list[str]
    parts: list[int] | None
    task_order: list[str]


def folder(
    path: str | Path,
    *,
    scenario: str | None = None,
    seed: int = 0,
    head: str = "multi",
    limit: int | None = None,
    size: int | None = None,
    channels: int = 3,
    val: float = 0.1,
    test: float = 0.2,
    normalise: str = "imagenet",
    augment: bool = False,
    skip_unreadable: bool = False,
    workers: int | None = None,
    memory_gb: float = MEMORY_GB,
) -> Stream:
    """Your own images: `PATH/TASK/CLASS/*.jpg`, `PATH/CLASS/*.jpg` (one task), or a CSV `path,label,task`.

    A directory called train, val or test anywhere on the way names the part; so does a CSV column
    `split`. Otherwise every class of every task is cut at random. Tasks come in the order of their
    names, in a CSV in the order in which they first appear. A CSV's paths are relative to it.

    Args:
        path: the directory or the CSV file.
        scenario: "task", "class" or "instance"; unless given: the same classes everywhere make
            "instance", classes of their own in every task "task", anything else "class".
        seed: fixes the split.
        head: "multi" (an output per class) or "shared" (the tasks share outputs; scenario "task" only).
        limit: at most this many training images per task, the same number of each class.
        size: scale all images to size x size pixels (their central square); needed if sizes differ.
        channels: 3 for colour, 1 for grey.
        val: share of each class held out for validation, where the data names none.
        test: share of each class held out for testing, where the data has no parts.
        normalise: "imagenet", "half", "cifar100" or "none".
        augment: random crops and mirroring of training batches.
        skip_unreadable: leave out images that cannot be decoded, with a warning that counts them.
        workers: processes that decode images which do not fit in memory; half of the cores unless given.
        memory_gb: decoded images up to this size are held in memory.

    """
    root = Path(path).expanduser()
    listing = listed(root)
    options = ImageOptions(size, channels, normalise, augment, skip_unreadable, memory_gb, workers)
    images = image_set(listing.paths, options)
    labels, tasks = ([names[i] for i in images.kept] for names in (listing.labels, listing.tasks))
    present = set(tasks)
    return own_stream(
        root.stem,
        labels,
        tasks,
        None if listing.parts is None else [listing.parts[i] for i in images.kept],
        images.select,
        Choices(scenario, head, seed, limit, val, test),
        input_shape=images.input_shape,
        task_order=[task for task in listing.task_order if task in present],
        info={
            "source": str(root),
            "images": len(images.kept),
            "unreadable": images.unreadable,
            "normalise": normalise,
            "augment": augment,
        },
    )


def listed(root: Path) -> Listing:
    """The images of a directory or of a CSV manifest."""
    return _manifest(root) if root.is_file() else _directories(root)


def _directories(root: Path) -> Listing:
    require(root.is_dir(), f"{root} is neither a directory of images nor a CSV file")
    files = list(_walk(root, 4))
    ways = [file.relative_to(root).parts[:-1] for file in files]
    parts = [[PARTS[step.lower()] for step in way if step.lower() in PARTS] for way in ways]
    names = [tuple(step for step in way if step.lower() not in PARTS) for way in ways]
    depth = len(names[0])
    for file, name in zip(files, names, strict=True):
        require(
            1 <= len(name) <= 2 and len(name) == depth,
            f"{file} lies at another depth than {files[0]}: expected TASK/CLASS/*.jpg or CLASS/*.jpg, one of "
            "them everywhere",
        )
    given = [part[0] for part in parts if part]
    require(
        len(given) in (0, len(files)),
        f"{len(given)} of {len(files)} images in {root} lie below directories train, val, test: all or none "
        "should",
    )
    tasks = [name[0] if depth == 2 else ONLY for name in names]
    labels = [name[-1] for name in names]
    return Listing(files, labels, tasks, given or None, natural(set(tasks)))


def _walk(folder: Path, depth: int) -> Iterator[Path]:
    """The images below a directory, in the order of their names; an empty directory is a mistake."""
    names = natural([entry.name for entry in folder.iterdir() if not entry.name.startswith(".")])
    entries = [folder / name for name in names]
    entries = [entry for entry in entries if entry.is_dir() or entry.suffix.lower() in SUFFIXES]
    require(len(entries) > 0, f"directory {folder} has no images: put some there or remove it")
    for entry in entries:
        if not entry.is_dir():
            yield entry
            continue
        require(depth > 0, f"{entry} lies too deep: expected TASK/CLASS/*.jpg or CLASS/*.jpg")
        yield from _walk(entry, depth - 1)


def _manifest(file: Path) -> Listing:
    """The rows of a CSV `path,label[,task][,split]`."""
    try:
        with file.open(newline="", encoding="utf-8-sig") as lines:
            reader = csv.DictReader(lines, strict=True)
            columns = [column.strip() for column in reader.fieldnames or ()]
            for column in ("path", "label"):
                require(
                    column in columns,
                    f"{file} has no column {column!r} (it has: {', '.join(columns) or 'none'}): expected "
                    "path,label,task",
                )
            reader.fieldnames = columns
            rows = [_checked(row, reader.line_num, file) for row in reader]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise UserError(f"{file} cannot be read as a CSV file in UTF-8: {error}") from None
    require(len(rows) > 0, f"{file} lists no images")
    paths = [file.parent / row["path"] for row in rows]
    absent = [str(path) for path in paths if not os.path.isfile(path)]
    if absent:
        raise UserError(
            f"{len(absent)} of {len(paths)} images listed in {file} are not there, as {absent[0][:200]!r}"
        )
    tasks = [row.get("task") or ONLY for row in rows]
    parts = [part_number(row["split"], str(file)) for row in rows] if "split" in columns else None
    return Listing(paths, [row["label"] for row in rows], tasks, parts, first_seen(tasks))


def _checked(row: dict[str, str], line: int, file: Path) -> dict[str, str]:
    """One row without blanks around its values; every column of the header needs one."""
    for column, value in row.items():
        require(
            column is not None and isinstance(value, str) and bool(value.strip()),
            f"{file}, line {line}: "
            + ("more values than columns" if column is None else f"no value for {column!r}"),
        )
    return {column: value.strip() for column, value in row.items()}
