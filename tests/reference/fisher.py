"""The diagonal Fisher the slow way: one sample, one label, one backward at a time."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn


def log_likelihoods(
    module: nn.Module, x: Tensor, classes: Sequence[int], rest: Tensor | None, modes: int
) -> Tensor:
    """log((softmax(logits over the classes) + rest) / modes) of one sample, (len(classes),)."""
    log_p = module(x[None])[0, list(classes)].log_softmax(0)
    return log_p if rest is None else torch.log((log_p.exp() + rest[list(classes)]) / modes)


def diagonal(
    module: nn.Module,
    inputs: Tensor,
    targets: Tensor | None = None,
    kind: str = "empirical",
    *,
    classes: Sequence[int] | None = None,
    rest: Tensor | None = None,
    modes: int = 1,
) -> dict[str, Tensor]:
    """By parameter name, for "empirical" and "exact". The module is put in eval mode and stays there."""
    module.eval()
    parameters = {n: p for n, p in module.named_parameters() if p.requires_grad}
    sums = {n: torch.zeros_like(p, dtype=torch.float64) for n, p in parameters.items()}
    for s, x in enumerate(inputs):
        logits = module(x[None])
        valid = list(range(logits.shape[1]) if classes is None else classes)
        values = log_likelihoods(module, x, valid, None if rest is None else rest[s], modes)
        for k, label in enumerate(valid):
            weight = float(values[k].detach().exp()) if kind == "exact" else float(label == int(targets[s]))
            if weight == 0:
                continue
            grads = torch.autograd.grad(
                values[k], list(parameters.values()), retain_graph=True, allow_unused=True
            )
            for name, g in zip(parameters, grads, strict=True):
                if g is not None:
                    sums[name] += weight * g.to_dense().double().square()
    return {name: total / len(inputs) for name, total in sums.items()}


def softmax_regression(weight: Tensor, bias: Tensor, inputs: Tensor) -> tuple[Tensor, Tensor]:
    """The exact Fisher of logits = W x + b in closed form: F(W_ci) = mean p_c (1 - p_c) x_i^2."""
    p = (inputs @ weight.T + bias).softmax(1)
    variance = p * (1 - p)
    return variance.T @ inputs.square() / len(inputs), variance.mean(0)
