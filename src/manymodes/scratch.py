"""Vectors on disk for as long as this process lives."""

from __future__ import annotations

import tempfile

import torch
from torch import Tensor

from manymodes.errors import UserError
from manymodes.files import reason


class Scratch:
    """Vectors like a first one in a file without a name: the system frees it however the process ends.

    >>> scratch = Scratch(torch.zeros(2))
    >>> first, second = scratch.put(torch.ones(2)), scratch.put(torch.zeros(2))
    >>> scratch.drop(first)
    >>> scratch.get(second).tolist(), scratch.put(torch.ones(2)) == first
    ([0.0, 0.0], True)
    """

    def __init__(self, like: Tensor) -> None:
        self._file = tempfile.TemporaryFile(prefix="manymodes-")  # noqa: SIM115
        self._dtype, self._bytes = like.dtype, like.numel() * like.element_size()
        self._free: list[int] = []
        self._slots = 0

    def put(self, vector: Tensor) -> int:
        """Write a vector; returns the slot to get it back from."""
        slot = self._free.pop() if self._free else self._slots
        self._slots = max(self._slots, slot + 1)
        try:
            self._file.seek(slot * self._bytes)
            self._file.write(vector.detach().cpu().contiguous().view(torch.uint8).numpy().data)
            self._file.flush()
        except OSError as error:
            raise UserError(
                f"cannot write checkpoints into {tempfile.gettempdir()}: {reason(error)} "
                "(the environment variable TMPDIR names another place)"
            ) from None
        return slot

    def get(self, slot: int) -> Tensor:
        """The vector of a slot."""
        self._file.seek(slot * self._bytes)
        data = bytearray(self._bytes)
        self._file.readinto(data)
        return torch.frombuffer(data, dtype=torch.uint8).clone().view(self._dtype)

    def drop(self, slot: int) -> None:
        """Let the slot be used again."""
        self._free.append(slot)
