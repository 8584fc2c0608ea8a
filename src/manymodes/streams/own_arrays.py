"""A person's own arrays: images, tables, time series; from an npz file or from memory."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from manymodes.errors import UserError, one_line, require, unknown
from manymodes.streams.images import Normalise, select_from
from manymodes.streams.own import Choices, first_seen, natural, own_stream, part_number
from manymodes.task import Data, Stream, TensorData

Array = NDArray[Any]
KEYS = ("x", "y", "task", "split")


def arrays(
    path: str | Path | Mapping[str, Any],
    *,
    scenario: str | None = None,
    seed: int = 0,
    head: str = "multi",
    limit: int | None = None,
    val: float = 0.1,
    test: float = 0.2,
    normalise: str = "half",
    augment: bool = False,
    integers: bool = False,
    title: str | None = None,
) -> Stream:
    """Your own arrays: an npz file, or a dict, with x (S, ...), y (S,) and perhaps task (S,), split (S,).

    uint8 images (S, H, W), (S, H, W, 3) or (S, 3, H, W) are kept as uint8 and normalised per batch;
    everything else (tables (S, F), series (S, C, L)) becomes float32 and is used as it is. Labels and
    tasks may be numbers or names; numbered tasks come in their order, named ones as they first appear.

    Args:
        path: an npz file, or a dict of arrays or tensors.
        scenario: "task", "class" or "instance"; unless given: the same classes everywhere make
            "instance", classes of their own in every task "task", anything else "class".
        seed: fixes the split.
        head: "multi" (an output per class) or "shared" (the tasks share outputs; scenario "task" only).
        limit: at most this many training samples per task, the same number of each class.
        val: share of each class held out for validation, where `split` names none.
        test: share of each class held out for testing, where there is no `split`.
        normalise: for images: "half", "imagenet", "cifar100" or "none".
        augment: random crops and mirroring of training batches; images only.
        integers: keep whole numbers as they are (for embeddings).
        title: the stream's name; the file's unless given.

    >>> x, y = torch.randn(60, 4), torch.arange(60) % 3
    >>> stream = arrays({"x": x, "y": y, "task": torch.arange(60) // 30})
    >>> stream.scenario, len(stream), stream.num_outputs, stream.input_shape
    ('instance', 2, 3, (4,))

    """
    given = _opened(path)
    inputs, labels = given["x"], _names(given["y"], "y")
    tasks = _names(given["task"], "task") if "task" in given else ["all"] * len(labels)
    for key in given:
        require(
            len(given[key]) == len(inputs),
            f"x has {len(inputs)} samples but {key} has {len(given[key])}: give one entry per sample",
        )
    named = _names(given["split"], "split") if "split" in given else None
    parts = None if named is None else [part_number(part, "the arrays") for part in named]
    numbered = "task" in given and given["task"].dtype.kind in "iufb"
    x = _inputs(inputs, integers)
    file = None if isinstance(path, Mapping) else Path(path)
    return own_stream(
        title or (file.stem if file else "arrays"),
        labels,
        tasks,
        parts,
        _select(x, normalise, augment),
        Choices(scenario, head, seed, limit, val, test),
        input_shape=tuple(x.shape[1:]),
        task_order=natural(set(tasks)) if numbered else first_seen(tasks),
        info={
            "source": str(file) if file else "memory",
            "samples": len(x),
            "normalise": normalise if x.dtype == torch.uint8 else None,
        },
    )


def _select(x: Tensor, normalise: str, augment: bool) -> Callable[[Tensor, Tensor, bool], Data]:
    Normalise(normalise)
    if x.dtype == torch.uint8:
        return select_from(x.numpy(), normalise=normalise, augment=augment)
    require(not augment, "augment=True crops and mirrors images: x is not uint8 images")
    return lambda index, targets, _: TensorData(x[index], targets)


def _opened(source: str | Path | Mapping[str, Any]) -> dict[str, Array]:
    """The arrays by name; nothing in a file is unpickled."""
    if isinstance(source, Mapping):
        found = {key: _array(value, key) for key, value in source.items()}
    else:
        found = _read(Path(source).expanduser())
    for key in found:
        if key not in KEYS:
            raise unknown("array", key, KEYS)
    for key in ("x", "y"):
        require(key in found, f"there is no array {key!r}: give x (samples, ...) and y (samples,)")
    for key, value in found.items():
        require(value.ndim >= 1, f"{key} is a single value: give one entry per sample")
        require(
            key == "x" or value.ndim == 1, f"{key} has shape {value.shape}: give one entry per sample, (S,)"
        )
    return found


def _read(file: Path) -> dict[str, Array]:
    require(file.is_file(), f"{file} is not there: give an npz file with x, y and perhaps task, split")
    try:
        loaded = np.load(file, allow_pickle=False)
        if isinstance(loaded, np.ndarray):
            raise UserError(f"{file} is a single array: give an npz file with x and y")
        with loaded as npz:
            found = {key: npz[key] for key in npz.files if key in KEYS}
    except UserError:
        raise
    except Exception as error:  # damaged files make zip, zlib and numpy raise all sorts
        raise UserError(f"{file} cannot be read as an npz file of plain arrays: {one_line(error)}") from None
    for key, value in found.items():  # a member without numpy's header comes as its bytes
        require(isinstance(value, np.ndarray), f"{file} cannot be read: its {key!r} is no array")
    return found


def _array(value: Any, key: str) -> Array:
    try:
        return value.detach().cpu().numpy() if isinstance(value, Tensor) else np.asarray(value)
    except (TypeError, ValueError) as error:
        raise UserError(f"{key} cannot become an array: {str(error).splitlines()[0]}") from None


def _names(values: Array, key: str) -> list[str]:
    """Labels or tasks as text: 3 and 3.0 are "3"."""
    kind = values.dtype.kind
    if kind == "f":
        require(
            bool(np.isfinite(values).all() and (values == np.round(values)).all()),
            f"{key} has values that are no whole numbers (or NaN): give whole numbers or names",
        )
        values = values.astype(np.int64)
    if kind == "S":
        return [value.decode("utf-8", "replace") for value in values.tolist()]
    if kind == "O" and not all(isinstance(value, str | int | np.integer) for value in values.tolist()):
        raise UserError(f"{key} has entries that are neither whole numbers nor names")
    require(kind in "iufbUO", f"{key} is of type {values.dtype}: give whole numbers or names")
    return [str(value) for value in values.tolist()]


def _inputs(values: Array, integers: bool) -> Tensor:
    """uint8 images channels first, whole numbers as int64 if asked, anything else finite float32."""
    require(values.dtype.kind in "iufb", f"x is of type {values.dtype}: give numbers")
    require(len(values) > 0 and values.size > 0, "x is empty: give at least one sample")
    if values.dtype == np.uint8 and values.ndim in (3, 4):
        if values.ndim == 3:
            values = values[:, None]
        elif values.shape[1] not in (1, 3) and values.shape[3] in (1, 3):
            values = values.transpose(0, 3, 1, 2)
        return torch.from_numpy(np.ascontiguousarray(values))
    if integers and values.dtype.kind in "iu":
        return torch.from_numpy(values.astype(np.int64))
    with np.errstate(over="ignore"):
        floats = np.ascontiguousarray(values, dtype=np.float32)
    if not np.isfinite(floats).all():
        bad = np.flatnonzero(~np.isfinite(floats.reshape(len(floats), -1)).all(1))
        raise UserError(
            f"x has NaN or infinite values in {len(bad)} of {len(floats)} samples, first in sample {bad[0]}: "
            "replace them or leave these samples out"
        )
    return torch.from_numpy(floats)
