"""Processes on one machine exchange numbers through memory that all of them see."""

from __future__ import annotations

import mmap
import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

SHARED = Path("/dev/shm")  # memory by the name of a file
BLOCK = 2**20  # bytes of each process that are under way at once: few enough for the processor's cache


class Neighbours:
    """K processes and a block of memory for each, through which longer tensors go block by block.

    They wait for each other in log2(K) rounds: in round j process k tells k + 2^j and hears k - 2^j, by a
    byte through a pipe. A process that waits leaves its core to others; whoever is gone has closed its pipes,
    which ends the others' wait at once. Nothing listens anywhere, and nothing is left behind.

    Blocks alternate between two places: who writes into one has met everybody at the other, and so everybody
    has finished reading.
    """

    def __init__(self, memory: mmap.mmap, pipes: list[tuple[int, int]], number: int, count: int) -> None:
        self._places = torch.frombuffer(memory, dtype=torch.uint8).view(2, count + 1, BLOCK)
        self._pipes, self._number, self._count = pipes, number, count
        self._turn = 0

    def gather(self, tensor: Tensor) -> Tensor:
        """Everybody's tensor, (K, ...), in the order of the processes."""
        found = tensor.new_empty(self._count, *tensor.shape)
        own = tensor.contiguous().view(-1).view(torch.uint8)
        all_ = found.view(-1).view(torch.uint8).view(self._count, len(own))
        for part, them in zip(own.split(BLOCK), all_.split(BLOCK, dim=1), strict=True):
            place = self._place(torch.uint8)[:-1, : len(part)]
            place[self._number] = part
            self._meet()
            them.copy_(place)
        return found

    def sum_(self, tensor: Tensor, divisor: Tensor | None = None) -> Tensor:
        """The sum of everybody's tensors, divided, in place: each process works out a share for all."""
        for part in tensor.view(-1).split(BLOCK // tensor.element_size()):
            place = self._place(tensor.dtype)[:, : len(part)]
            place[self._number] = part
            self._meet()
            share = place.tensor_split(self._count, dim=1)[self._number]
            torch.sum(share[:-1], 0, out=share[-1])
            if divisor is not None:
                share[-1].div_(divisor)
            self._meet()
            part.copy_(place[-1])
        return tensor

    def close(self) -> None:
        """Tell the others that this process takes no more part."""
        for ends in self._pipes:
            for end in ends:
                os.close(end)
        self._pipes = []

    def _place(self, dtype: torch.dtype) -> Tensor:
        """A row for each process, and one for what is made of them."""
        self._turn = 1 - self._turn
        return self._places[self._turn].view(dtype)

    def _meet(self) -> None:
        for tell, hear in self._pipes:
            os.write(tell, b".")
            if not os.read(hear, 1):
                raise ConnectionError("it has closed its pipe")


def met(number: int, count: int, everyone: Callable[[Any], list[Any]]) -> Neighbours | None:
    """Bring processes together that can talk by `everyone`; None for all if they do not share memory."""
    rounds = [2**j for j in range((count - 1).bit_length())]
    folder: str | None = everyone(_begun(count, rounds) if number == 0 else None)[0]
    if folder is None:
        return None
    try:
        heard = [_opened(f"{folder}/{number}-{by}", os.O_RDONLY | os.O_NONBLOCK) for by in rounds]
        memory = _opened(f"{folder}/memory", os.O_RDWR)
        if min(everyone(min([memory, *heard]))) < 0:
            return None
        told = [_opened(f"{folder}/{(number + by) % count}-{by}", os.O_WRONLY) for by in rounds]
        everyone(None)  # all ends of all pipes are open
    finally:
        if number == 0:
            shutil.rmtree(folder)
    for end in heard:
        os.set_blocking(end, True)
    shared = mmap.mmap(memory, 0)
    os.close(memory)
    return Neighbours(shared, list(zip(told, heard, strict=True)), number, count)


def _begun(count: int, rounds: list[int]) -> str | None:
    """A folder that only this user enters, with the memory and the pipes; their names live for a moment."""
    if not SHARED.is_dir():
        return None
    folder = tempfile.mkdtemp(prefix="manymodes-", dir=SHARED)
    try:
        with open(f"{folder}/memory", "xb") as memory:
            os.posix_fallocate(
                memory.fileno(), 0, 2 * (count + 1) * BLOCK
            )  # or there is no room: now, not later
        for number in range(count):
            for by in rounds:
                os.mkfifo(f"{folder}/{number}-{by}", 0o600)
    except OSError:
        shutil.rmtree(folder)
        return None
    return folder


def _opened(path: str, how: int) -> int:
    """A descriptor, or -1: the process is on another machine, or belongs to somebody else."""
    try:
        return os.open(path, how)
    except OSError:
        return -1
