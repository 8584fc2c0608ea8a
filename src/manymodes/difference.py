"""Vectors written down as their difference to another one: to the bit, and mostly in less room.

A mode that learns a task moves some of its weights a little and many not at all (in a ResNet-18 on images of
32 pixels two thirds of the weights only ever meet the padding). Of each block a mask says which numbers
differ; of those the differing bits (exclusive or) follow byte by byte, the bytes of one rank together: the
lowest are noise, the highest, sign and exponent, hardly differ and shrink.
"""

from __future__ import annotations

import zlib
from itertools import pairwise

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

BLOCK = 2**18  # numbers: what is between two steps stays in the cache
SAMPLE = 4096  # bytes that tell whether shrinking pays
PAYS = 0.75  # what shrinks less takes more time than it saves room

Words = NDArray[np.unsignedinteger]


def packed(values: Tensor, base: Tensor) -> Tensor:
    """What `unpacked` needs beside the base, as bytes.

    >>> values, base = torch.tensor([1.0, 2.0, 3.0]), torch.tensor([1.0, 2.0, 2.5])
    >>> unpacked(packed(values, base), base).tolist()
    [1.0, 2.0, 3.0]
    """
    new, old = _words(values), _words(base)
    pieces: list[bytes] = []
    for start in range(0, len(new), BLOCK):
        apart = new[start : start + BLOCK] ^ old[start : start + BLOCK]
        moved = apart != 0
        ranks = apart[moved].view(np.uint8).reshape(-1, new.itemsize).T
        pieces += [_shrunk(part.tobytes()) for part in (np.packbits(moved), *ranks)]
    lengths = np.array([len(piece) for piece in pieces], np.uint32).tobytes()
    return torch.frombuffer(bytearray(lengths + b"".join(pieces)), dtype=torch.uint8)


def unpacked(record: Tensor, base: Tensor) -> Tensor:
    """The values, given the same base."""
    values = base.detach().to("cpu", copy=True).contiguous()
    words = _words(values)
    blocks = range(0, len(words), BLOCK)
    content = record.numpy()
    begin = 4 * len(blocks) * (1 + words.itemsize)
    ends = begin + np.cumsum([0, *content[:begin].view(np.uint32)])
    pieces = (_grown(content[a:b].tobytes()) for a, b in pairwise(ends.tolist()))
    for start in blocks:
        block = words[start : start + BLOCK]
        moved = np.unpackbits(next(pieces), count=len(block)).astype(np.bool_)
        ranks = np.stack([next(pieces) for _ in range(words.itemsize)], axis=1)
        block[moved] ^= np.ascontiguousarray(ranks).view(words.dtype).reshape(-1)
    return values


def _words(values: Tensor) -> Words:
    """The numbers' bits."""
    plain = values.detach().cpu().contiguous()
    words: Words = plain.view(torch.uint8).numpy().view(f"u{plain.element_size()}")
    return words


def _shrunk(content: bytes) -> bytes:
    """With a first byte that says whether it is."""
    sample = content[:SAMPLE]
    if len(zlib.compress(sample, 1)) > PAYS * len(sample):
        return b"\0" + content
    return b"\1" + zlib.compress(content, 1)


def _grown(content: bytes) -> NDArray[np.uint8]:
    return np.frombuffer(zlib.decompress(content[1:]) if content[0] else content[1:], np.uint8)
