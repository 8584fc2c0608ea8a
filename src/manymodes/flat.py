"""An nn.Module seen as one flat vector: parameters, gradient, float buffers."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import MethodType
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from manymodes.errors import UserError, require


class Segment(NamedTuple):
    """Where one parameter (or buffer) lies in the flat vector."""

    name: str
    slice: slice
    shape: torch.Size


class FlatModel:
    """A module whose trainable parameters are views into one vector `theta` (P,).

    `theta.grad` is allocated once and the parameters' gradients are views into it, so the ordinary
    forward and backward of the module read and fill flat vectors. Float buffers (BatchNorm's running
    statistics) lie in `buffers` (B,) the same way; integer buffers, and float ones of an odd type beside
    others, stay with the module.

    `bind` points the module at another vector without copying: this is how one module serves many
    modes. Frozen parameters are not part of theta; tied ones count once.

    >>> flat = FlatModel(nn.Linear(3, 2))
    >>> flat.theta.shape, [segment.name for segment in flat.segments]
    (torch.Size([8]), ['weight', 'bias'])
    >>> flat.module(torch.zeros(1, 3)).sum().backward()
    >>> flat.theta.grad.tolist()
    [0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 1.0, 1.0]
    """

    def __init__(self, module: nn.Module) -> None:
        check_module(module)
        self.module = module
        named = [(n, p) for n, p in module.named_parameters() if is_lazy(p) or p.requires_grad]
        _check(named)
        self.segments = _segments([(n, p) for n, p in named])
        self._parameters = [p for _, p in named]
        with torch.no_grad():
            vector = torch.cat([p.detach().reshape(-1) for p in self._parameters])
        self.theta = nn.Parameter(vector)
        self.theta.grad = torch.zeros_like(vector)

        floats = [(n, b) for n, b in module.named_buffers() if b.is_floating_point()]
        kinds = [b.dtype for _, b in floats]
        kind = vector.dtype if vector.dtype in kinds or not kinds else kinds[0]
        owned = [(n, b) for n, b in floats if b.dtype == kind]
        self.buffer_segments = _segments(owned)
        self._buffers = [b for _, b in owned]
        flattened = [b.detach().reshape(-1).to(vector.device) for b in self._buffers]
        self.buffers = torch.cat(flattened) if owned else vector.new_zeros(0)
        for parameter, (_, where, shape) in zip(self._parameters, self.segments, strict=True):
            parameter.grad = self.theta.grad[where].view(shape)
        for part in module.modules():
            if isinstance(part, nn.modules.batchnorm._BatchNorm) and vector.is_cuda:
                part.forward = MethodType(_without_cudnn, part)  # type: ignore[method-assign]
        self.bind(self.theta.data, self.buffers)
        self.room = 0  # the most samples that a step computes with at once; 0: the whole batch
        self.fits = 0  # how many there was room for so far

    @property
    def device(self) -> torch.device:
        """Where the parameters live."""
        return self.theta.device

    @property
    def grad(self) -> Tensor:
        """The flat gradient (P,), always allocated."""
        assert self.theta.grad is not None
        return self.theta.grad

    def bind(self, theta: Tensor, buffers: Tensor | None = None) -> None:
        """Let the module read and write these vectors from now on; nothing is copied."""
        assert theta.shape == self.theta.shape
        assert theta.is_contiguous()
        self.theta.data = theta
        for parameter, (_, where, shape) in zip(self._parameters, self.segments, strict=True):
            parameter.data = theta[where].view(shape)
        if buffers is not None:
            assert buffers.shape == self.buffers.shape
            self.buffers = buffers
            for buffer, (_, where, shape) in zip(self._buffers, self.buffer_segments, strict=True):
                buffer.data = buffers[where].view(shape)

    @contextmanager
    def bound(self, theta: Tensor, buffers: Tensor | None = None) -> Iterator[FlatModel]:
        """Bind for the length of a `with` block, then return to the vectors of before."""
        before = self.theta.data, self.buffers
        self.bind(theta, buffers)
        try:
            yield self
        finally:
            self.bind(*before)

    @contextmanager
    def evaluating(self) -> Iterator[FlatModel]:
        """Eval mode inside, each submodule's own mode restored afterwards."""
        modes = [(m, m.training) for m in self.module.modules()]
        self.module.eval()
        try:
            yield self
        finally:
            for module, training in modes:
                module.training = training

    def layers(self) -> list[slice]:
        """The slices of weight tensors with two or more dimensions: the paper's layers."""
        return [s.slice for s in self.segments if len(s.shape) >= 2]


def _without_cudnn(norm: nn.modules.batchnorm._BatchNorm, inputs: Tensor) -> Tensor:
    """cuDNN reads 16 bytes at once and crashes on views that start in between; PyTorch itself does not."""
    with torch.backends.cudnn.flags(enabled=False):
        return type(norm).forward(norm, inputs)


def _segments(named: list[tuple[str, Tensor]] | list[tuple[str, nn.Parameter]]) -> list[Segment]:
    segments, start = [], 0
    for name, tensor in named:
        segments.append(Segment(name, slice(start, start + tensor.numel()), tensor.shape))
        start += tensor.numel()
    return segments


def check_module(module: object) -> None:
    """A module, not its class and nothing else."""
    require(isinstance(module, nn.Module), f"the model must be a torch.nn.Module, not {_described(module)}")


def _described(value: object) -> str:
    return f"the class {value.__name__}: call it" if isinstance(value, type) else repr(value)


def _check(named: list[tuple[str, nn.Parameter]]) -> None:
    lazy = [name for name, parameter in named if is_lazy(parameter)]
    require(
        not lazy,
        f"parameter {', '.join(lazy)} is lazy (no shape yet): run one batch through the module first",
    )
    require(bool(named), "the module has no trainable parameter: set requires_grad on at least one")
    kinds = {(p.dtype, p.device) for _, p in named}
    if len(kinds) > 1:
        example = {str(p.dtype): n for n, p in named}
        raise UserError(
            "parameters have mixed types or devices ("
            + ", ".join(f"{n!r} is {t}" for t, n in example.items())
            + "): convert the module first, e.g. module.float()"
        )
    name, parameter = named[0]
    require(parameter.is_floating_point(), f"parameter {name!r} is {parameter.dtype}, not floating point")
