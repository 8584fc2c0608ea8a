"""Squared gradients sample by sample: for parameters without a layer rule, and for any module at all."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from manymodes.flat import FlatModel

CHUNK = 1 << 24  # numbers in the per-sample gradients held at once: 64 MB


class SampleSquares:
    """Sum over samples of (J_s^T v_s)^2 for some parameters of a module, vectorised where torch can."""

    def __init__(self, module: nn.Module, dtype: torch.dtype) -> None:
        self.module, self.dtype = module, dtype
        self.vectorises = True

    def __call__(
        self, parameters: dict[str, nn.Parameter], inputs: Tensor, v_SC: Tensor
    ) -> dict[str, Tensor]:
        """The sums by parameter name, for inputs (S, ...) and cotangents of the logits."""
        if self.vectorises:
            try:
                return self._vectorised(parameters, inputs, v_SC)
            except Exception:  # torch.func says no in many ways; if the module is at fault, the loop says so
                self.vectorises = False
        return self._loop(parameters, inputs, v_SC)

    @torch.no_grad()  # of the surroundings: torch.func.grad records what it needs itself
    def _vectorised(
        self, parameters: dict[str, nn.Parameter], inputs: Tensor, v_SC: Tensor
    ) -> dict[str, Tensor]:
        def value(values: dict[str, Tensor], x: Tensor, v_C: Tensor) -> Tensor:
            logits_1C: Tensor = functional_call(self.module, values, (x[None],))
            return (logits_1C[0] * v_C).sum()

        values = {name: p.detach() for name, p in parameters.items()}
        sums = {name: torch.zeros_like(p, dtype=self.dtype) for name, p in values.items()}
        size = max(1, CHUNK // sum(p.numel() for p in values.values()))
        for x, v in zip(inputs.split(size), v_SC.split(size), strict=True):
            for name, grads in vmap(grad(value), in_dims=(None, 0, 0))(values, x, v).items():
                sums[name].add_(grads.to(self.dtype).square_().sum(0))
        return sums

    def _loop(self, parameters: dict[str, nn.Parameter], inputs: Tensor, v_SC: Tensor) -> dict[str, Tensor]:
        sums = {n: torch.zeros_like(p, dtype=self.dtype, requires_grad=False) for n, p in parameters.items()}
        for x, v in zip(inputs.split(1), v_SC.split(1), strict=True):
            for name, squares in squares_of(self.module(x), parameters, v, self.dtype).items():
                sums[name].add_(squares)
        return sums


def squares_of(
    logits_SC: Tensor, parameters: dict[str, nn.Parameter], v_SC: Tensor, dtype: torch.dtype
) -> dict[str, Tensor]:
    """The square of the gradient of sum(logits * v), by plain autograd; the graph is kept."""
    grads: tuple[Tensor | None, ...] = (None,) * len(parameters)
    if logits_SC.requires_grad and parameters:
        wanted = list(parameters.values())
        grads = torch.autograd.grad(logits_SC, wanted, v_SC, retain_graph=True, allow_unused=True)
    return {
        name: torch.zeros_like(p, dtype=dtype, requires_grad=False)
        if g is None  # the logits do not depend on it
        else g.to_dense().to(dtype).square()
        for (name, p), g in zip(parameters.items(), grads, strict=True)
    }


@contextmanager
def untouched(flat: FlatModel) -> Iterator[None]:
    """Eval mode, gradients on, full precision; afterwards modes, buffers and generators are as before."""
    kept = [
        (m, n, b, b.clone()) for m in flat.module.modules() for n, b in m._buffers.items() if b is not None
    ]
    tables = (m for m in flat.module.modules() if isinstance(m, nn.Embedding | nn.EmbeddingBag))
    rescaled = [m.weight for m in tables if m.max_norm is not None]  # whenever they are read
    kept_weights = [(w, w.detach().clone()) for w in rescaled]
    devices = [flat.device] if flat.device.type == "cuda" else []
    with (
        torch.inference_mode(False),
        torch.enable_grad(),
        torch.autocast(flat.device.type, enabled=False),
        torch.random.fork_rng(devices=devices),
        flat.evaluating(),
    ):
        try:
            yield
        finally:
            with torch.no_grad():
                for module, name, buffer, copy in kept:
                    module._buffers[name] = buffer
                    if not torch.equal(buffer, copy):
                        buffer.copy_(copy)
                for weight, copy in kept_weights:
                    weight.copy_(copy)
