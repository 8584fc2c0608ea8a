"""How exactly products of single-precision numbers are computed on a GPU."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

PRECISIONS = ("fp32", "tf32", "bf16")


@contextmanager
def exactness(precision: str, device: torch.device) -> Iterator[None]:
    """Inside, TF32 (10 bits of mantissa, several times faster) is used if it was asked for, and only then.

    PyTorch itself has it on for convolutions and off for matrix products. Processors have no TF32: there
    "tf32" is "fp32".
    """
    if device.type != "cuda":
        yield
        return
    matmul, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
    before = matmul.allow_tf32, cudnn.allow_tf32
    matmul.allow_tf32 = cudnn.allow_tf32 = precision == "tf32"
    try:
        yield
    finally:
        matmul.allow_tf32, cudnn.allow_tf32 = before
