"""Batches on their way to the device: while one is computed with, the next one is copied."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from manymodes.task import Batch


def on_device(batches: Iterator[Batch], device: torch.device) -> Iterator[Batch]:
    """The batches with inputs and targets on the device.

    To a GPU they are copied from page-locked memory by a stream of their own, one batch ahead, so that
    neither the processor nor the GPU waits for the copy.
    """
    if device.type == "cpu":
        return batches
    if device.type == "cuda":
        return _ahead(batches, device)
    return (_moved(batch, device) for batch in batches)


def _moved(batch: Batch, device: torch.device) -> Batch:
    return Batch(batch.index, _copy(batch.inputs, device), _copy(batch.targets, device))


def _copy(tensor: Tensor, device: torch.device) -> Tensor:
    if tensor.device.type == "cpu" and device.type == "cuda":
        tensor = tensor.pin_memory()
    return tensor.to(device, non_blocking=True)


def _ahead(batches: Iterator[Batch], device: torch.device) -> Iterator[Batch]:
    """One batch ahead, on a stream of its own."""
    copying = torch.cuda.Stream(device)
    waiting: tuple[Batch, torch.cuda.Event] | None = None
    for batch in batches:
        if batch.inputs.is_cuda:  # it was made by the computing stream
            copying.wait_stream(torch.cuda.current_stream(device))
        with torch.cuda.stream(copying):
            following = _moved(batch, device), copying.record_event()
        if waiting is not None:
            yield _arrived(*waiting, device)
        waiting = following
    if waiting is not None:
        yield _arrived(*waiting, device)


def _arrived(batch: Batch, copied: torch.cuda.Event, device: torch.device) -> Batch:
    """Wait for this copy; the memory belongs to the computing stream from here on."""
    computing = torch.cuda.current_stream(device)
    computing.wait_event(copied)
    for tensor in (batch.inputs, batch.targets):
        tensor.record_stream(computing)
    return batch
