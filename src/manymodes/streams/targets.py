"""The targets of a map-style Dataset, without reading its inputs where that is possible."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.utils.data import ConcatDataset, Subset, TensorDataset

from manymodes.errors import UserError, require


def gather_targets(dataset: Any) -> Tensor:
    """The targets (S,): from an attribute that proves right on three samples, else by one pass over all.

    >>> gather_targets(Subset(TensorDataset(torch.zeros(4, 1), torch.tensor([5, 6, 7, 8])), [3, 1])).tolist()
    [8, 6]
    """
    count = len(dataset)
    require(count > 0, "the dataset is empty: give at least one sample")
    known = _known_targets(dataset)
    if known is not None and len(known) == count:
        probes = {0, count // 2, count - 1}
        if all(as_label(split_pair(dataset[i], i)[1], i) == int(known[i]) for i in probes):
            return known
    labels = [as_label(split_pair(dataset[i], i)[1], i) for i in range(count)]
    return torch.tensor(labels, dtype=torch.long)


def _known_targets(dataset: Any) -> Tensor | None:
    """What the dataset says of itself; a wrapper's indices are applied to what it wraps."""
    if isinstance(dataset, Subset):
        inner = _known_targets(dataset.dataset)
        return None if inner is None else inner[torch.as_tensor(list(dataset.indices), dtype=torch.long)]
    if isinstance(dataset, ConcatDataset):
        parts = [_known_targets(part) for part in dataset.datasets]
        whole = [part for part in parts if part is not None]
        return torch.cat(whole) if len(whole) == len(parts) else None
    if isinstance(dataset, TensorDataset):
        return _as_labels(dataset.tensors[1]) if len(dataset.tensors) == 2 else None
    if getattr(dataset, "target_transform", None) is not None:
        return None  # the attribute holds them untransformed
    for name in ("targets", "labels"):
        found = _as_labels(getattr(dataset, name, None))
        if found is not None:
            return found
    return None


def _as_labels(values: Any) -> Tensor | None:
    if values is None or callable(values):
        return None
    try:
        tensor = torch.as_tensor(values)
    except (TypeError, ValueError, RuntimeError):
        return None
    whole = not tensor.is_floating_point() and not tensor.is_complex() and tensor.ndim == 1
    return tensor.long() if whole else None


def split_pair(sample: Any, index: int) -> tuple[Any, Any]:
    """(input, target) of one sample."""
    if not isinstance(sample, tuple | list) or len(sample) < 2:
        raise UserError(
            f"sample {index} of the dataset is {type(sample).__name__}, not a pair (input, target); "
            "wrap the dataset so that dataset[i] gives one"
        )
    return sample[0], sample[1]


def as_label(value: Any, index: int) -> int:
    """A target as the number of an output."""
    try:
        number = float(value)
    except (TypeError, ValueError, RuntimeError):
        number = float("nan")
    if isinstance(value, str) or not number.is_integer():
        raise UserError(
            f"the target of sample {index} is {value!r}: targets are whole numbers, the output of each class"
        )
    return int(number)
