"""Bytes on disk for as long as this process lives."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass

import torch
from torch import Tensor

from manymodes.errors import UserError
from manymodes.files import reason

BLOCK = 2**18  # bytes: of a record's last block half is wasted on average


@dataclass(frozen=True)
class Record:
    """Where in the file the bytes are."""

    blocks: tuple[int, ...]
    size: int


class Scratch:
    """Records of any size in a file without a name: the system frees it however the process ends.

    >>> scratch = Scratch()
    >>> first, second = scratch.put(torch.ones(1), torch.ones(1)), scratch.put(torch.zeros(2))
    >>> scratch.drop(first)
    >>> scratch.get(second).view(torch.float32).tolist(), scratch.put(torch.ones(2)) == first
    ([0.0, 0.0], True)
    """

    def __init__(self) -> None:
        self._file = tempfile.TemporaryFile(prefix="manymodes-")  # noqa: SIM115
        self._free: list[int] = []
        self._blocks = 0

    @property
    def size(self) -> int:
        """How long the file is."""
        return self._blocks * BLOCK

    def put(self, *vectors: Tensor) -> Record:
        """Write a record, the vectors one after the other; returns where to get it back from."""
        parts = [vector.detach().cpu().contiguous().view(-1).view(torch.uint8) for vector in vectors]
        content = (parts[0] if len(parts) == 1 else torch.cat(parts)).numpy().data
        count = -(-len(content) // BLOCK)
        blocks = [self._free.pop() if self._free else self._new() for _ in range(count)]
        try:
            for number, block in enumerate(blocks):
                self._file.seek(block * BLOCK)
                self._file.write(content[number * BLOCK :][:BLOCK])
            self._file.flush()
        except OSError as error:
            raise UserError(
                f"cannot write checkpoints into {tempfile.gettempdir()}: {reason(error)} "
                "(the environment variable TMPDIR names another place)"
            ) from None
        return Record(tuple(blocks), len(content))

    def get(self, record: Record) -> Tensor:
        """The bytes of a record."""
        content = torch.empty(record.size, dtype=torch.uint8)
        for number, block in enumerate(record.blocks):
            self._file.seek(block * BLOCK)
            self._file.readinto(content[number * BLOCK :][:BLOCK].numpy().data)
        return content

    def drop(self, record: Record) -> None:
        """Let its blocks be used again."""
        self._free.extend(reversed(record.blocks))

    def _new(self) -> int:
        self._blocks += 1
        return self._blocks - 1
