"""Samples of any kind written into a batch one by one: in new memory, or in some that is there already."""

from __future__ import annotations

import mmap
import multiprocessing
from collections.abc import Iterable
from math import prod
from typing import NamedTuple

import torch
from torch import Tensor

from manymodes.errors import require


class Plan(NamedTuple):
    """How a batch lies in memory: as its first sample does, so that a copy is a copy of bytes."""

    shape: tuple[int, ...]  # of one sample
    order: tuple[int, ...]  # its dimensions, from the outermost in memory
    dtype: torch.dtype

    @classmethod
    def of(cls, sample: Tensor) -> Plan:
        """The plan of batches of such samples.

        >>> Plan.of(torch.zeros(8, 9, 3).permute(2, 0, 1)).order
        (1, 2, 0)
        """
        order = sorted(range(sample.dim()), key=sample.stride, reverse=True)
        return cls(tuple(sample.shape), tuple(order), sample.dtype)

    def size(self, count: int) -> int:
        """Bytes of a batch."""
        return count * prod(self.shape) * self.dtype.itemsize

    def batch(self, count: int, memory: Tensor | None = None) -> Tensor:
        """A batch (count, *shape), in the given bytes if there are any."""
        stored = [count, *(self.shape[dimension] for dimension in self.order)]
        if memory is None:
            batch = torch.empty(stored, dtype=self.dtype)
        else:
            batch = memory[: self.size(count)].view(self.dtype).view(stored)
        return batch.permute(0, *(1 + self.order.index(d) for d in range(len(self.order))))


def stacked(samples: Iterable[Tensor], numbers: list[int], memory: Tensor | None = None) -> Tensor | Plan:
    """The samples as a batch; only its plan where it fits into the memory and was written there."""
    batch, written = torch.empty(0), False
    for row, (sample, number) in enumerate(zip(samples, numbers, strict=True)):
        if row == 0:
            plan = Plan.of(sample)
            written = memory is not None and plan.size(len(numbers)) <= len(memory)
            batch = plan.batch(len(numbers), memory if written else None)
        require(
            sample.shape == batch.shape[1:],
            f"mixed sizes: sample {numbers[0]} has shape {tuple(batch.shape[1:])}, sample {number} "
            f"{tuple(sample.shape)}; resize them to one size",
        )
        if sample.dtype != batch.dtype:
            batch, written = batch.to(torch.promote_types(batch.dtype, sample.dtype)), False
        batch[row] = sample
    return plan if written else batch


def shared_memory(count: int, size: int) -> Tensor | None:
    """Places for `count` batches of `size` bytes that processes forked later see, too; None without fork."""
    if "fork" not in multiprocessing.get_all_start_methods():
        return None
    room = -(-size // 64) * 64  # any kind of number may begin there
    return torch.frombuffer(mmap.mmap(-1, max(count * room, 64)), dtype=torch.uint8)[: count * room].view(
        count, room
    )


def keep_freed_memory() -> None:
    """Have the C library keep what batches of up to 32 MB leave, instead of handing it back page by page.

    glibc takes the size of the largest block it has seen freed, 32 MB at most, for what a program takes again
    and again. Until then a batch of 128 images of 128 pixels costs 6,000 page faults, half of decoding it.
    """
    torch.empty(2**25 - 2**16, dtype=torch.uint8)
