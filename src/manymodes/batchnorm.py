"""BatchNorm over the whole batch when several processes have a part of it each.

Forward gathers every process's mean and variance of its part (2 C + 1 numbers), backward adds up the two
sums that every sample's gradient depends on (2 C numbers). What is heavy stays in PyTorch's own kernels.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from manymodes import distributed


@contextmanager
def whole_batch(module: nn.Module) -> Iterator[None]:
    """Inside, BatchNorms in train mode normalise by the batch of all processes together."""
    norms = [m for m in module.modules() if isinstance(m, _BatchNorm)] if distributed.count() > 1 else []
    norms = [norm for norm in norms if norm.training]
    for norm in norms:
        norm.forward = partial(_forward, norm)  # type: ignore[method-assign]
    try:
        yield
    finally:
        for norm in norms:
            del norm.forward  # the class's own is found again


def _forward(norm: _BatchNorm, inputs: Tensor) -> Tensor:
    norm._check_input_dim(inputs)
    mean, var, samples = _statistics(inputs.detach())
    if norm.track_running_stats and norm.running_mean is not None and norm.running_var is not None:
        assert norm.num_batches_tracked is not None
        norm.num_batches_tracked.add_(1)
        share = 1 / float(norm.num_batches_tracked) if norm.momentum is None else norm.momentum
        norm.running_mean.lerp_(mean.to(norm.running_mean), share)
        norm.running_var.lerp_((var * (samples / (samples - 1))).to(norm.running_var), share)
    apply: Callable[..., Tensor] = _Normalise.apply
    return apply(inputs, norm.weight, norm.bias, mean, var, samples, norm.eps)


def _statistics(inputs: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Mean and (biased) variance per channel over all processes' samples, and the number of values."""
    whole = inputs.to(torch.promote_types(inputs.dtype, torch.float32))
    mean, var = torch.batch_norm_update_stats(whole, None, None, 0.0)
    own = torch.cat([mean, var, mean.new_tensor([inputs.numel() / len(mean)])])
    rows = distributed.gather(own[None], distributed.count())
    counts = rows[:, -1:]
    means, variances = rows[:, :-1].chunk(2, dim=1)
    samples = counts.sum()
    mean = (means * counts).sum(0) / samples
    var = ((variances + (means - mean).square()) * counts).sum(0) / samples
    return mean, var, samples


class _Normalise(torch.autograd.Function):
    """(x - mean) / sqrt(var + eps) * weight + bias, where mean and var depend on everybody's x."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor | None, bias: Tensor | None, mean: Tensor, var: Tensor,
        samples: Tensor, eps: float,
    ) -> Tensor:  # fmt: skip
        ctx.save_for_backward(x, weight, mean, var, samples)
        ctx.eps = eps
        # With given statistics: PyTorch's fused kernel for eval mode.
        return torch.native_batch_norm(x, weight, bias, mean, var, False, 0.0, eps)[0]

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        """d x = w / s * (g - mean(g) - xhat * mean(g * xhat)), the means over everybody's samples."""
        x, weight, mean, var, samples = ctx.saved_tensors
        _, g_weight, g_bias = torch.ops.aten.native_batch_norm_backward(
            grads[0], x, weight, mean, var, None, None, False, ctx.eps, [False, True, True]
        )
        sums = distributed.sum_(torch.cat([g_weight, g_bias]).to(mean) / samples)
        mean_g_xhat, mean_g = sums.chunk(2)
        inverse = (var + ctx.eps).rsqrt()
        scale = inverse if weight is None else inverse * weight
        slope = scale * inverse * mean_g_xhat
        shape = (1, -1) + (1,) * (x.dim() - 2)
        scale_C11, slope_C11, offset_C11 = (
            each.view(shape).to(x.dtype) for each in (scale, slope, slope * mean - scale * mean_g)
        )
        g_x = torch.addcmul(offset_C11, x, slope_C11, value=-1).addcmul_(grads[0], scale_C11)
        affine = weight is not None
        return g_x, g_weight if affine else None, g_bias if affine else None, None, None, None, None
