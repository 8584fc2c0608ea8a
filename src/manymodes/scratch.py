"""Vectors on disk for as long as this process lives."""

from __future__ import annotations

import tempfile

import torch
from torch import Tensor

from manymodes.errors import UserError
from manymodes.files import reason


class Scratch:
    """Records of a fixed size in a file without a name: the system frees it however the process ends.

    >>> scratch = Scratch(8)
    >>> first, second = scratch.put(torch.ones(1), torch.ones(1)), scratch.put(torch.zeros(2))
    >>> scratch.drop(first)
    >>> scratch.get(second).view(torch.float32).tolist(), scratch.put(torch.ones(2)) == first
    ([0.0, 0.0], True)
    """

    def __init__(self, size: int) -> None:
        self._file = tempfile.TemporaryFile(prefix="manymodes-")  # noqa: SIM115
        self._bytes = size
        self._free: list[int] = []
        self._slots = 0

    def put(self, *vectors: Tensor) -> int:
        """Write a record, the vectors one after the other; returns the slot to get it back from."""
        slot = self._free.pop() if self._free else self._slots
        self._slots = max(self._slots, slot + 1)
        try:
            self._file.seek(slot * self._bytes)
            for vector in vectors:
                self._file.write(vector.detach().cpu().contiguous().view(torch.uint8).numpy().data)
            self._file.flush()
        except OSError as error:
            raise UserError(
                f"cannot write checkpoints into {tempfile.gettempdir()}: {reason(error)} "
                "(the environment variable TMPDIR names another place)"
            ) from None
        return slot

    def get(self, slot: int) -> Tensor:
        """The bytes of a slot."""
        self._file.seek(slot * self._bytes)
        record = torch.empty(self._bytes, dtype=torch.uint8)
        self._file.readinto(record.numpy().data)
        return record

    def drop(self, slot: int) -> None:
        """Let the slot be used again."""
        self._free.append(slot)
