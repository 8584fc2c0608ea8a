"""Many encoded images as data: decoded into memory while they fit, else read by workers as needed."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from manymodes.errors import UserError, require
from manymodes.streams.images import CropFlip, Normalise, UnreadableImage, decode, measure, select_from
from manymodes.streams.mapped import MappedData
from manymodes.task import Data

MEMORY_GB = 1.0  # sets up to this size, decoded, are held in memory
_CHUNK = 200


class ImageOptions(NamedTuple):
    """How a person wants her images."""

    size: int | None = None
    channels: int = 3
    normalise: str = "imagenet"
    augment: bool = False
    skip_unreadable: bool = False
    memory_gb: float = MEMORY_GB
    workers: int | None = None
    trusted: bool = False  # a published set: not worth opening half a million files before starting

    def check(self) -> None:
        """Values that make no sense."""
        size, workers = self.size, self.workers
        require(
            size is None or (isinstance(size, int) and size > 0), f"size={size!r}: give pixels, as size=32"
        )
        require(self.channels in (1, 3), f"channels={self.channels!r}: 3 for colour or 1 for grey")
        require(
            workers is None or (isinstance(workers, int) and workers >= 0),
            f"workers={workers!r}: give 0 or a number of processes",
        )
        Normalise(self.normalise)


class ImageSet(NamedTuple):
    """Readable images: which of the sources, how to get some of them as Data, and their shape."""

    kept: list[int]
    select: Callable[[Tensor, Tensor, bool], Data]
    input_shape: tuple[int, ...]
    unreadable: list[str]


class EncodedImages(Dataset[tuple[Tensor, int]]):
    """Images decoded when read: the `rows` of sources, each a path or a file's bytes."""

    def __init__(
        self,
        sources: Sequence[Path | bytes],
        rows: Sequence[int],
        targets: Tensor,
        size: int | None,
        channels: int,
    ) -> None:
        self.sources, self.rows, self.targets = sources, rows, targets
        self.size, self.channels = size, channels

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, i: int) -> tuple[Tensor, int]:
        """The image as uint8 (C, H, W) and its target."""
        source = self.sources[self.rows[i]]
        try:
            image = decode(source, size=self.size, channels=self.channels)
        except (UnreadableImage, OSError) as error:
            text = str(error)
            if isinstance(source, Path) and not source.exists():
                text = f"{source} is not there any more"
            raise UserError(f"image {text}; put it back and give the same command again") from None
        return image, int(self.targets[i])


def image_set(sources: Sequence[Path | bytes], options: ImageOptions) -> ImageSet:
    """Images of one size (or resized to one), checked before anything is learnt from them.

    What does not fit in memory is checked by its headers only, unless unreadable images are to be
    skipped: then everything is decoded once.
    """
    options.check()
    failures: dict[int, str] = {}
    shape = _shape(sources, options, failures)
    in_memory = len(sources) * shape[0] * shape[1] * shape[2] <= options.memory_gb * 1e9
    images = torch.empty((len(sources) if in_memory else 0, *shape), dtype=torch.uint8)

    def load(i: int) -> None:
        if i not in failures:
            image = decode(sources[i], size=options.size, channels=options.channels)
            if in_memory:
                images[i] = image

    if in_memory or options.skip_unreadable:
        _each(load, len(sources), failures)
    elif options.size is not None and not options.trusted:
        _each(lambda i: measure(sources[i]), len(sources), failures)
    kept = [i for i in range(len(sources)) if i not in failures]
    reasons = [failures[i] for i in sorted(failures)]
    _report(reasons, len(sources), options.skip_unreadable)
    if in_memory:
        rows = None if len(kept) == len(sources) else np.array(kept)
        held = images.numpy()
        select = select_from(held, normalise=options.normalise, augment=options.augment, rows=rows)
        return ImageSet(kept, select, shape, reasons)
    return ImageSet(kept, _from_files(sources, kept, options), shape, reasons)


def _each(work: Callable[[int], Any], count: int, failures: dict[int, str]) -> dict[int, Any]:
    """work(i) for every i, by threads (decoders let go of the lock); what cannot be read is noted."""

    def some(start: int) -> list[tuple[int, Any]]:
        done = []
        for i in range(start, min(start + _CHUNK, count)):
            try:
                done.append((i, work(i)))
            except UnreadableImage as error:
                failures[i] = str(error)
        return done

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        return {i: value for chunk in pool.map(some, range(0, count, _CHUNK)) for i, value in chunk}


def _shape(
    sources: Sequence[Path | bytes], options: ImageOptions, failures: dict[int, str]
) -> tuple[int, int, int]:
    """The shape asked for, or the one that all images have."""
    if options.size is not None:
        return options.channels, options.size, options.size
    sizes = _each(lambda i: measure(sources[i]), len(sources), failures)
    examples: dict[tuple[int, int], int] = {}
    for i, size in sizes.items():
        examples.setdefault(size, i)
    if len(examples) > 1:
        shown = ", ".join(f"{w}x{h} ({_name(sources, i)})" for (w, h), i in list(examples.items())[:3])
        raise UserError(
            f"the images have {len(examples)} different sizes, such as {shown}: give size=..., to which all "
            "are scaled"
        )
    width, height = next(iter(examples), (1, 1))
    return options.channels, height, width


def _name(sources: Sequence[Path | bytes], i: int) -> str:
    source = sources[i]
    return f"number {i}" if isinstance(source, bytes) else source.name


def _report(reasons: list[str], count: int, skip: bool) -> None:
    if not reasons:
        return
    text = f"{len(reasons)} of {count} images cannot be read, such as {reasons[0]}"
    if not skip or len(reasons) == count:
        raise UserError(f"{text}; remove them, or give skip_unreadable=True")
    warnings.warn(f"{text}; skipped", stacklevel=4)


def _from_files(
    sources: Sequence[Path | bytes], kept: Sequence[int], options: ImageOptions
) -> Callable[[Tensor, Tensor, bool], Data]:
    workers = default_workers() if options.workers is None else options.workers

    def select(index: Tensor, targets: Tensor, training: bool) -> Data:
        rows = [kept[i] for i in index.tolist()]
        return MappedData(
            EncodedImages(sources, rows, targets, options.size, options.channels),
            transform=Normalise(options.normalise),
            augment=CropFlip() if options.augment and training else None,
            targets=targets,
            workers=workers,
            varies=False,
        )

    return select


def default_workers() -> int:
    """Processes that decode: half of the cores, at most eight, so that training keeps the others."""
    return max(1, min(8, (os.cpu_count() or 2) // 2))
