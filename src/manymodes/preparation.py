"""How a raw sample becomes network input, as plain numbers that travel with a learner."""

from __future__ import annotations

import copy
import math
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from manymodes.errors import DamagedFile, UserError, require
from manymodes.task import Data, Stream

DTYPES = {"uint8": torch.uint8, "int64": torch.int64, "float32": torch.float32}
PROBES = 8


@dataclass(frozen=True)
class Preparation:
    """raw (S, *shape) -> raw * scale + shift; scale and shift have one entry, or one per channel.

    Whole numbers of words (int64) are left as they are: networks look them up.

    >>> Preparation((2,), "float32", scale=(0.5,), shift=(-1.0,))(torch.tensor([[0.0, 4.0]])).tolist()
    [[-1.0, 1.0]]
    """

    shape: tuple[int, ...]
    dtype: str
    scale: tuple[float, ...] = (1.0,)
    shift: tuple[float, ...] = (0.0,)

    @property
    def plain(self) -> bool:
        """Whether inputs are used as they are."""
        return self.dtype == "int64" or (set(self.scale) == {1.0} and set(self.shift) == {0.0})

    @property
    def image(self) -> bool:
        """Whether samples are pictures (C, H, W)."""
        return self.dtype == "uint8" and len(self.shape) == 3 and self.shape[0] in (1, 3)

    def coefficients(self) -> tuple[Tensor, Tensor]:
        """Scale and shift, shaped to meet a batch."""
        shape = (-1,) + (1,) * max(0, len(self.shape) - 1)
        return torch.tensor(self.scale).view(shape), torch.tensor(self.shift).view(shape)

    def __call__(self, raw: Tensor) -> Tensor:
        """Network input: one multiply and one add."""
        if self.plain:
            return raw if self.dtype == "int64" else raw.float()
        scale, shift = (t.to(raw.device) for t in self.coefficients())
        return raw.to(scale.dtype).mul(scale).add_(shift)  # as Normalise rounds

    def check(self, raw: Tensor, where: str) -> Tensor:
        """The raw samples in the type and shape that this learner learnt from, or one line."""
        require(
            tuple(raw.shape[1:]) == self.shape,
            f"{where}: samples have the shape {tuple(raw.shape[1:])}, this learner's have {self.shape}",
        )
        whole = not raw.is_floating_point()
        require(
            self.dtype == "float32" or whole,
            f"{where}: samples are {raw.dtype}, this learner's are {self.dtype}",
        )
        require(
            self.dtype != "uint8" or len(raw) == 0 or (int(raw.min()) >= 0 and int(raw.max()) <= 255),
            f"{where}: this learner's pixels are whole numbers from 0 to 255",
        )
        bad = raw.flatten(1).isfinite().all(dim=1).logical_not() if not whole else torch.zeros(0)
        require(
            not bool(bad.any()),
            f"{where}: NaN or infinite values in {int(bad.sum())} of {len(raw)} samples, first in sample "
            f"{int(bad.float().argmax()) if len(bad) else 0}: fill them or leave these samples out",
        )
        return raw.to(DTYPES[self.dtype])

    def as_dict(self) -> dict[str, Any]:
        """As plain values."""
        return {k: list(v) if isinstance(v, tuple) else v for k, v in asdict(self).items()}

    @classmethod
    def from_dict(cls, given: Any, where: str = "this learner") -> Preparation:
        """What `as_dict` gave, if it makes sense."""
        try:
            shape, dtype = tuple(given["shape"]), given["dtype"]
            numbers = [tuple(float(v) for v in given[key]) for key in ("scale", "shift")]
            assert dtype in DTYPES
            assert all(type(n) is int and n > 0 for n in shape)
            assert all(len(v) in (1, shape[0] if shape else 1) for v in numbers)
            assert all(math.isfinite(v) for row in numbers for v in row)
        except (KeyError, TypeError, ValueError, AssertionError):
            raise DamagedFile(f"{where} is damaged: it does not say how its inputs are prepared") from None
        return cls(shape, dtype, numbers[0], numbers[1])


def about(stream: Stream, data: Data | None = None) -> dict[str, Any]:
    """What a learner's file says about where it comes from: names of the outputs, and the inputs.

    `data` is some data of the stream, if it is at hand.

    >>> from manymodes.streams import digits
    >>> about(digits())["input"]
    {'shape': [1, 8, 8], 'dtype': 'uint8', 'scale': [0.0625], 'shift': [0.0]}
    """
    return {
        "stream": stream.name,
        "scenario": stream.scenario,
        "head": stream.info.get("head", "multi"),
        "class_names": list(stream.class_names),
        "input": inputs_of(data or stream[0].train),
    }


def inputs_of(data: Data) -> dict[str, Any] | None:
    """A data set's preparation as plain values, if it is one."""
    found = preparation_of(data)
    return None if found is None else found.as_dict()


@torch.no_grad()
def preparation_of(data: Data) -> Preparation | None:
    """The preparation that a data set's transform amounts to; None if it is another kind of function."""
    raw = _raw(data)
    if raw is None or len(raw) == 0:
        return None
    dtype = next((name for name, dtype in DTYPES.items() if dtype == raw.dtype), None)
    transform = getattr(data, "transform", None)
    if dtype is None:
        return None
    shape = tuple(raw.shape[1:])
    if transform is None:
        return Preparation(shape, dtype) if dtype != "uint8" or len(shape) != 3 else None
    zeros, ones = torch.zeros(1, *shape, dtype=raw.dtype), torch.ones(1, *shape, dtype=raw.dtype)
    try:
        shift = _per_channel(transform(zeros), shape)
        scale = _named_scale(transform, shape) or [
            one - zero for one, zero in zip(_per_channel(transform(ones), shape), shift, strict=True)
        ]
        found = Preparation(shape, dtype, tuple(scale), tuple(shift))
        same = torch.allclose(found(raw), transform(raw), rtol=1e-5, atol=1e-5)
    except (RuntimeError, ValueError, TypeError, UserError):
        return None
    return found if same else None


def _raw(data: Data) -> Tensor | None:
    """A few samples before transform and augmentation."""
    view = copy.copy(data)
    if getattr(view, "transform", None) is not None:
        view.transform = view.augment = None  # type: ignore[attr-defined]
    if hasattr(view, "workers"):
        view.workers = 0  # not worth starting processes for
    if len(view) == 0:
        return None
    return next(iter(view.batches([torch.arange(min(PROBES, len(view)))]))).inputs


def _per_channel(values: Tensor, shape: tuple[int, ...]) -> list[float]:
    """The value of each channel (of all, if they agree) of a constant picture."""
    rows = values[0].reshape(shape[0], -1) if len(shape) > 1 else values.reshape(1, -1)
    firsts = [float(row[0]) for row in rows]
    return firsts[:1] if len(set(firsts)) == 1 else firsts


def _named_scale(transform: Any, shape: tuple[int, ...]) -> list[float] | None:
    """The very factors of a Normalise, to the bit."""
    scale = getattr(transform, "scale", None)
    if not isinstance(scale, Tensor) or scale.dim() != 3:
        return None
    if shape[0] == 1 and len(scale) > 1:
        scale = scale.mean(0, keepdim=True)
    values = [float(v) for v in scale.flatten()]
    return values[:1] if len(set(values)) == 1 else values
