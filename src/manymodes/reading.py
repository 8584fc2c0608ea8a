"""What a person hands to a finished learner: a folder of images, an npz file, a CSV of numbers."""

from __future__ import annotations

import csv
import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from manymodes.errors import DamagedFile, UserError, require
from manymodes.preparation import Preparation
from manymodes.streams.images import UnreadableImage, decode, measure
from manymodes.streams.own_folder import SUFFIXES, listed

LABELS = ("label", "y", "target", "class")  # a CSV's column of these names is no feature
KINDS = "a folder of images, an image, an npz file with x, or a CSV file of numbers"


@dataclass(frozen=True)
class Samples:
    """Raw samples by number, read when asked for. `labels` are names, None where there are none."""

    where: str
    names: list[str]
    labels: list[str] | None
    preparation: Preparation
    held: Tensor | None  # arrays
    paths: list[Path] | None  # images

    def __len__(self) -> int:
        return len(self.names)

    def read(self, start: int = 0, stop: int | None = None) -> Tensor:
        """Samples start to stop, checked, in the learner's raw type."""
        if self.held is not None:
            return self.preparation.check(self.held[start:stop], self.where)
        assert self.paths is not None
        paths = self.paths[start:stop]
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            images = list(pool.map(lambda path: _image(path, self.preparation), paths))
        return torch.stack(images)

    def batches(self, size: int) -> Iterator[tuple[list[str], Tensor]]:
        """(names, raw) of `size` samples after another: memory does not grow with their number."""
        for start in range(0, len(self), size):
            yield self.names[start : start + size], self.read(start, start + size)


def samples_of(path: str | Path, preparation: Preparation, *, labelled: bool = False) -> Samples:
    """The samples of a folder of images, an image, an npz file or a CSV file.

    Labelled: a folder has a directory per class (or is a CSV manifest path,label), an npz file has y,
    a CSV file a column `label`.
    """
    root = Path(path).expanduser()
    require(root.exists(), f"{root} is not there: give {KINDS}")
    suffix = root.suffix.lower()
    if root.is_dir() or suffix in SUFFIXES:
        return _images(root, preparation, labelled)
    if suffix == ".npz":
        return _npz(root, preparation, labelled)
    require(suffix == ".csv", f"{root} is not {KINDS}")
    if "path" in _header(root):
        return _images(root, preparation, labelled=True)
    return _csv(root, preparation, labelled)


def readable(samples: Samples) -> tuple[Samples, list[str]]:
    """The samples without images whose file cannot be opened as one, and what is wrong with those."""
    if samples.paths is None:
        return samples, []
    kept, wrong = [], []
    for number, path in enumerate(samples.paths):
        try:
            decode(path)
            kept.append(number)
        except UnreadableImage as error:
            wrong.append(str(error))
    require(len(kept) > 0, f"{samples.where}: no image can be read, such as {wrong[0] if wrong else ''}")
    return subset(samples, kept), wrong


def subset(samples: Samples, rows: Sequence[int]) -> Samples:
    """Some of the samples, in this order."""
    return replace(
        samples,
        names=[samples.names[i] for i in rows],
        labels=None if samples.labels is None else [samples.labels[i] for i in rows],
        held=None if samples.held is None else samples.held[torch.tensor(list(rows), dtype=torch.long)],
        paths=None if samples.paths is None else [samples.paths[i] for i in rows],
    )


# ---- images -----------------------------------------------------------------------------------------


def _images(root: Path, preparation: Preparation, labelled: bool) -> Samples:
    require(
        preparation.image,
        f"{root} holds images, but this learner takes {preparation.dtype} of shape {preparation.shape}",
    )
    if labelled:
        listing = listed(root)
        require(
            len(listing.task_order) == 1,
            f"{root} holds {len(listing.task_order)} tasks ({', '.join(listing.task_order[:3])}...): "
            "give the folder of one",
        )
        paths, labels = listing.paths, listing.labels
    else:
        paths = [root] if root.is_file() else _below(root)
        require(len(paths) > 0, f"{root} has no images ({', '.join(sorted(SUFFIXES))})")
        labels = None
    base = root if root.is_dir() else root.parent
    names = [str(p.relative_to(base)) if p.is_relative_to(base) else str(p) for p in paths]
    return Samples(str(root), names, labels, preparation, None, paths)


def _below(root: Path) -> list[Path]:
    found = (p for p in root.rglob("*") if p.suffix.lower() in SUFFIXES and p.is_file())
    return sorted(p for p in found if not any(part.startswith(".") for part in p.relative_to(root).parts))


def _image(path: Path, preparation: Preparation) -> Tensor:
    channels, height, width = preparation.shape
    try:
        if height == width:
            return decode(path, size=height, channels=channels)
        require(
            measure(path) == (width, height),
            f"image {path} has {'x'.join(map(str, measure(path)))} pixels, not {width}x{height}",
        )
        return decode(path, channels=channels)
    except UnreadableImage as error:
        raise UserError(f"image {error}; remove it, or give --skip-unreadable") from None
    except OSError as error:
        raise UserError(f"image {path}: {error.strerror or error}") from None


# ---- arrays and tables ------------------------------------------------------------------------------


def _npz(file: Path, preparation: Preparation, labelled: bool) -> Samples:
    try:
        loaded = np.load(file, allow_pickle=False)
        found = {key: loaded[key] for key in loaded.files if key in ("x", "y")}
    except Exception as error:  # damaged files make zip, zlib and numpy raise all sorts
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise DamagedFile(f"{file} cannot be read as an npz file of plain arrays: {reason}") from None
    require("x" in found, f"{file} has no array 'x': give x (samples, ...)" + (" and y" if labelled else ""))
    require("y" in found or not labelled, f"{file} has no array 'y': labels are needed here")
    x = found["x"]
    require(x.ndim >= 1 and x.dtype.kind in "iufb", f"{file}: x is no array of numbers (samples, ...)")
    labels = [_name(v) for v in found["y"].ravel().tolist()] if "y" in found else None
    return _table(file, x, labels, preparation)


def _header(file: Path) -> list[str]:
    try:
        with file.open(newline="", encoding="utf-8-sig") as lines:
            return [cell.strip() for cell in next(csv.reader(lines), [])]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise UserError(f"{file} cannot be read as a CSV file in UTF-8: {error}") from None


def _csv(file: Path, preparation: Preparation, labelled: bool) -> Samples:
    """Numbers, a sample per line; a first line that is not all numbers names the columns."""
    header = _header(file)
    named = not all(_is_number(cell) for cell in header)
    column = next((header.index(name) for name in LABELS if named and name in header), None)
    require(
        column is not None or not labelled,
        f"{file} has no column 'label' (its first line: {', '.join(header)[:200]})",
    )
    rows, labels = [], []
    with file.open(newline="", encoding="utf-8-sig") as lines:
        reader = csv.reader(lines)
        try:
            for row in reader:
                if not row or (named and reader.line_num == 1):
                    continue
                require(
                    len(row) == len(header),
                    f"{file}, line {reader.line_num}: {len(row)} values, the first line has {len(header)}",
                )
                if column is not None:
                    labels.append(row.pop(column).strip())
                rows.append([_number(cell, file, reader.line_num) for cell in row])
        except (UnicodeDecodeError, csv.Error) as error:
            raise UserError(f"{file} cannot be read as a CSV file in UTF-8: {error}") from None
    require(len(rows) > 0, f"{file} has no sample")
    return _table(file, np.asarray(rows), [_name(v) for v in labels] if labels else None, preparation)


def _table(file: Path, x: NDArray[Any], labels: Sequence[str] | None, preparation: Preparation) -> Samples:
    require(len(x) > 0, f"{file} has no sample")
    require(
        labels is None or len(labels) == len(x), f"{file}: {len(x)} samples but {len(labels or ())} labels"
    )
    shape = preparation.shape
    if x.ndim == 4 and preparation.image and x.shape[1:] != shape and x.shape[3] == shape[0]:
        x = x.transpose(0, 3, 1, 2)
    elif x.shape[1:] != shape and int(np.prod(x.shape[1:])) == int(np.prod(shape)) and x.ndim in (2, 3):
        x = x.reshape(len(x), *shape)  # flat rows, or grey pictures without their channel
    if preparation.dtype != "float32" and x.dtype.kind == "f" and bool((x == np.round(x)).all()):
        x = x.astype(np.int64)
    tensor = torch.from_numpy(np.ascontiguousarray(x if x.dtype.kind != "f" else x.astype(np.float32)))
    names = [str(number) for number in range(len(x))]
    return Samples(str(file), names, None if labels is None else list(labels), preparation, tensor, None)


def _is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return True


def _number(cell: str, file: Path, line: int) -> float:
    try:
        return float(cell)
    except ValueError:
        raise UserError(f"{file}, line {line}: {cell[:40]!r} is not a number") from None


def _name(value: Any) -> str:
    """Labels as text: 3, 3.0 and "3.0" are all "3".

    >>> _name(3.0), _name("3"), _name("cat")
    ('3', '3', 'cat')
    """
    text = value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value).strip()
    return text[:-2] if text.endswith(".0") and text[:-2].lstrip("-").isdecimal() else text
