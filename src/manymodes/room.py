"""When memory has no room for a batch: pieces, one after another, whose gradients add up to the whole's."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from manymodes import distributed
from manymodes.errors import UserError
from manymodes.flat import FlatModel
from manymodes.task import Batch

Compute = Callable[[Batch], Tensor]


def fitting(model: FlatModel, batch: Batch, compute: Callable[[list[Batch]], Tensor]) -> Tensor:
    """compute(pieces) of a batch in as few pieces as there is room for.

    How much that is is found out once, said, and kept in `model.room`. A failed attempt leaves nothing:
    neither gradients (compute begins with none) nor statistics of BatchNorm.
    """
    while True:
        pieces = _cut(model, batch)
        before = _saved(model) if len(pieces[0].index) > model.fits else []
        try:
            value = compute(pieces)
        except torch.OutOfMemoryError:  # handled outside: the error holds on to what filled the memory
            pass
        else:
            model.fits = max(model.fits, len(pieces[0].index))
            return value
        for buffer, kept in before:
            buffer.copy_(kept)
        _make_room(model, len(pieces[0].index))


def in_pieces(compute: Compute, batch: Batch) -> Tensor:
    """compute(batch), rows of samples that do not depend on each other; in halves where there is no room."""
    try:
        return compute(batch)
    except torch.OutOfMemoryError:
        pass
    if len(batch.index) < 2:
        raise UserError("there is no room for a single sample: use a smaller model or input")
    _empty_cache()
    half = len(batch.index) // 2
    rows = (slice(None, half), slice(half, None))
    return torch.cat([in_pieces(compute, _rows(batch, some)) for some in rows])


def with_room(compute: Callable[[int], Tensor], size: int) -> Tensor:
    """compute(size), a pass over data in batches of a size that changes nothing; half of it where it must."""
    while True:
        try:
            return compute(size)
        except torch.OutOfMemoryError:
            pass
        if size < 2:
            raise UserError("there is no room for a single sample: use a smaller model or input")
        size = math.ceil(size / 2)
        _empty_cache()


def _cut(model: FlatModel, batch: Batch) -> list[Batch]:
    """Equal pieces of at most `model.room` samples; the same number in all processes."""
    count = len(batch.index)
    if not model.room:
        return [batch]
    largest = distributed.most(count, model.device)
    pieces = min(math.ceil(largest / model.room), max(1, count // _least(model.module)))
    if distributed.count() > 1:
        pieces = -distributed.most(-pieces, model.device)
    parts = torch.arange(count).tensor_split(pieces)
    return [_rows(batch, slice(int(part[0]), int(part[-1]) + 1)) for part in parts]


def _rows(batch: Batch, rows: slice) -> Batch:
    return Batch(*(tensor[rows] for tensor in batch))


def _make_room(model: FlatModel, tried: int) -> None:
    """From now on half as many samples at a time."""
    half = math.ceil(tried / 2)
    if tried <= _least(model.module) or half == model.room:  # pieces of less than two cannot be made
        least = "a single sample" if tried < 2 else f"{tried} samples (BatchNorm needs two)"
        raise UserError(f"there is no room for {least}: use a smaller model or input")
    if distributed.count() > 1:  # the others are in the middle of it and would wait
        raise UserError(
            f"there is no room for {tried} samples at a time: give --micro-batch {half}, or more processes"
        )
    model.room = half
    _empty_cache()
    norm = ", and BatchNorm normalises over so many" if _norms(model.module) else ""
    print(
        f"manymodes: no room for {tried} samples at a time: {half} from now on, gradients are added up{norm}",
        file=sys.stderr, flush=True,
    )  # fmt: skip


def _least(module: nn.Module) -> int:
    return 2 if _norms(module) else 1


def _norms(module: nn.Module) -> bool:
    """Whether something looks at the whole batch."""
    return any(isinstance(part, _BatchNorm) and part.training for part in module.modules())


def _saved(model: FlatModel) -> list[tuple[Tensor, Tensor]]:
    """What a forward pass that fails may have changed, with copies."""
    return [(buffer, buffer.clone()) for buffer in model.module.buffers()]


def _empty_cache() -> None:
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
