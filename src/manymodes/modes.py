"""Modes: N parameter vectors as the rows of a matrix, and the distribution they form together."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.functional import log_softmax

from manymodes.flat import FlatModel

TINY = 1e-24  # a layer whose squared norm is smaller counts as zero


class Modes:
    """`theta` (N, P) and `buffers` (N, B): one row a mode, its BatchNorm statistics included."""

    def __init__(self, theta: Tensor, buffers: Tensor) -> None:
        self.theta, self.buffers = theta, buffers

    @classmethod
    def of(cls, model: FlatModel, count: int = 1) -> Modes:
        """`count` copies of the model's present state."""
        return cls(
            model.theta.detach().repeat(count, 1).contiguous(),
            model.buffers.detach().repeat(count, 1).contiguous(),
        )

    def __len__(self) -> int:
        return len(self.theta)

    def interpolate(self, alpha: Tensor, out: Tensor) -> Tensor:
        """theta_hat = sum_i alpha_i theta_i, written into `out` (P,)."""
        return torch.mv(self.theta.T, alpha, out=out)


def simplex(count: int, generator: torch.Generator) -> Tensor:
    """A point drawn uniformly from the simplex of `count` weights that sum to one.

    >>> simplex(3, torch.Generator().manual_seed(0)).sum().item()
    1.0
    """
    draws = -torch.log1p(-torch.rand(count, generator=generator, dtype=torch.float64))
    return (draws / draws.sum()).float()


def cosine(theta_NP: Tensor, layers: Sequence[slice]) -> tuple[Tensor, Tensor]:
    """Mean cosine similarity over layers and pairs of modes, and its gradient (N, P).

    dist = 1 / (M (N^2 - N) / 2) * sum_l sum_{i<j} cos(theta_i^l, theta_j^l): the paper's "distance",
    which is a similarity and therefore minimised. With u_i the normalised rows of a layer,
    d cos_ij / d theta_i = (u_j - cos_ij u_i) / |theta_i|. A row of zeros has no direction: its cosines and
    its gradient are zero.

    >>> value, gradient = cosine(torch.tensor([[3.0, 0.0], [0.0, 2.0]]), [slice(0, 2)])
    >>> value.item(), gradient.tolist()
    (0.0, [[0.0, 0.3333333432674408], [0.5, 0.0]])
    """
    count = len(theta_NP)
    gradient = torch.zeros_like(theta_NP)
    total = theta_NP.new_zeros(())
    if count < 2 or not layers:
        return total, gradient
    scale = 2.0 / (len(layers) * count * (count - 1))
    for layer in layers:
        rows = theta_NP[:, layer]
        gram = rows @ rows.T
        squares = gram.diagonal()
        inverse = torch.where(squares > TINY, squares.clamp_min(TINY).rsqrt(), 0.0)
        pairs = torch.outer(inverse, inverse).fill_diagonal_(0.0)  # 1 / (|theta_i| |theta_j|)
        similarity = gram * pairs
        total = total + similarity.sum() / 2
        # The gradient of every mode is a combination of the rows: one small matrix times the layer.
        mixing = pairs - torch.diag(similarity.sum(dim=1) * inverse.square())
        gradient[:, layer] = (scale * mixing) @ rows
    return total * scale, gradient


def pairwise_cosine(theta_NP: Tensor, layers: Sequence[slice]) -> Tensor:
    """The layer-wise mean cosine of every pair of modes, (N, N)."""
    unit = [torch.nn.functional.normalize(theta_NP[:, layer], dim=1) for layer in layers]
    grams = [u @ u.T for u in unit] or [torch.eye(len(theta_NP))]
    return torch.stack(grams).mean(dim=0)


def joint(log_probs_NSC: Tensor, log_weights_NS: Tensor | None = None) -> Tensor:
    """log rho = logsumexp over modes - log N: the average of the modes' distributions, in log space.

    With weights (N, S), which sum to one over the modes, it is the weighted average.

    >>> joint(torch.tensor([[[0.5, 0.5]], [[0.0, 1.0]]]).log()).exp().tolist()
    [[0.25, 0.75]]
    """
    if log_weights_NS is not None:
        return torch.logsumexp(log_probs_NSC + log_weights_NS[:, :, None], dim=0)
    return torch.logsumexp(log_probs_NSC, dim=0) - math.log(len(log_probs_NSC))


@torch.no_grad()
def joint_loss(
    logits_SC: Tensor, targets_S: Tensor, rest_S: Tensor, num_modes: int, joint_weight: float
) -> tuple[Tensor, Tensor]:
    """-mean_s of joint_weight * log rho(y|x) + (1 - joint_weight) * log p(y|x), and its gradient (S, C).

    p is a mode's softmax, rho = (p + exp(rest)) / N, where rest = log sum_{j != i} p_j(y|x) is given. With
    r = p / (p + exp(rest)), what the mode is responsible for, the gradient on the logits is
    (joint_weight * r + 1 - joint_weight) * (p - one_hot(y)) / S.

    >>> value, gradient = joint_loss(torch.zeros(1, 2), torch.tensor([0]), torch.tensor([0.5]).log(), 2, 1.0)
    >>> round(value.exp().item(), 4), gradient.tolist()
    (2.0, [[-0.25, 0.25]])
    """
    log_p_SC, where = log_softmax(logits_SC, dim=1), targets_S[:, None]
    own_S = log_p_SC.gather(1, where).squeeze(1)
    joint_S = torch.logaddexp(own_S, rest_S)
    value = joint_weight * math.log(num_modes) - torch.lerp(own_S, joint_S, joint_weight).mean()
    pull_S = own_S.sub_(joint_S).exp_().mul_(joint_weight / len(own_S)).add_((1 - joint_weight) / len(own_S))
    p_SC = log_p_SC.exp_()
    p_SC.scatter_add_(1, where, p_SC.new_full(where.shape, -1))
    return value, p_SC.mul_(pull_S[:, None])
