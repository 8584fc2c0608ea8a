"""Whose log-likelihood a Fisher is of: the gradient of it on the logits, for true, drawn or all labels."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from manymodes.errors import TrainingDiverged, UserError, require
from manymodes.task import Batch

KINDS = ("empirical", "sampled", "exact")
NEGLIGIBLE = 1e-8  # the share of a sample's squared gradients on the logits that "exact" may leave out


@dataclass(frozen=True)
class Likelihood:
    """log p_y, or with `rest` log((p_y + rest_y) / modes), p the softmax over `classes`.

    On the logits the gradient is share_y * (one_hot(y) - p), where share = p / (p + rest), or 1.
    `draws` has a uniform number for each sample, for the kind "sampled".
    """

    kind: str
    classes: Sequence[int] | None
    rest: Tensor | None
    modes: int
    draws: Tensor

    def cotangents(self, batch: Batch, logits_SC: Tensor) -> tuple[int, Callable[[int], Tensor]]:
        """How many gradients (S, C) there are, and the k-th; their squares add up to the kind's."""
        _check_finite(batch, logits_SC)
        columns = self._columns(logits_SC)
        # S x C numbers are few: double precision keeps 1 - p right where a prediction is sure.
        precision = torch.float32 if logits_SC.device.type == "mps" else torch.float64
        log_p = logits_SC[:, columns].to(precision).log_softmax(dim=1)
        p = q = log_p.exp()
        share = torch.ones_like(p)
        if self.rest is not None:
            rest = self._rest(self.rest, batch, logits_SC)[:, columns].to(p)
            _check_sum(rest, batch, self.modes)
            share = torch.sigmoid(log_p - rest.log())
            q = (p + rest) / (p + rest).sum(dim=1, keepdim=True)
        if self.kind == "empirical":
            labels_SK = _positions(batch, columns, logits_SC.shape[1])
        elif self.kind == "sampled":
            below = q.cumsum(dim=1)
            draw = self.draws[batch.index.cpu()].to(q)[:, None]
            labels_SK = (below <= draw * below[:, -1:]).sum(dim=1, keepdim=True)
        else:
            labels_SK = _by_weight(p, q, share)

        def cotangent(k: int) -> Tensor:
            y = labels_SK[:, k : k + 1]
            scale = share.gather(1, y)
            if self.kind == "exact":
                scale = scale * q.gather(1, y).sqrt()
            v = (torch.zeros_like(p).scatter_(1, y, 1.0) - p) * scale
            return torch.zeros_like(logits_SC).index_copy_(1, columns, v.to(logits_SC))

        return labels_SK.shape[1], cotangent

    def _columns(self, logits_SC: Tensor) -> Tensor:
        outputs = logits_SC.shape[1]
        given = list(range(outputs)) if self.classes is None else [int(c) for c in self.classes]
        require(
            len(given) > 0 and len({*given}) == len(given) and min(given) >= 0 and max(given) < outputs,
            f"classes={given}: give different outputs of the module, 0 to {outputs - 1}",
        )
        return torch.tensor(given, device=logits_SC.device)

    def _rest(self, rest: Tensor, batch: Batch, logits_SC: Tensor) -> Tensor:
        outputs = logits_SC.shape[1]
        require(
            rest.dim() == 2 and rest.shape[1] == outputs,
            f"rest has shape {tuple(rest.shape)}: give (samples, {outputs}), a column for every output",
        )
        return rest[batch.index.to(rest.device)].to(logits_SC.device)


def _check_sum(rest_SC: Tensor, batch: Batch, modes: int) -> None:
    sums = rest_SC.sum(dim=1)
    good = (rest_SC >= 0).all(dim=1) & ((sums - (modes - 1)).abs() <= 0.01 * modes)
    if not good.all():
        first = int((~good).nonzero()[0])
        raise UserError(
            f"rest must be the sum of the other modes' probabilities, {modes - 1} with modes={modes}, but "
            f"for sample {int(batch.index[first])} it is {sums[first].item():.4g} over the classes"
        )


def _by_weight(p: Tensor, q: Tensor, share: Tensor) -> Tensor:
    """All labels (S, K), each sample's heaviest first, up to where what is left is negligible for all.

    A label weighs q * share^2 * |one_hot - p|^2.
    """
    squares = 1 - 2 * p + p.square().sum(dim=1, keepdim=True)
    weights, order = (q * share.square() * squares.clamp_min(0)).sort(dim=1, descending=True)
    left = weights.flip(1).cumsum(dim=1).flip(1)
    return order[:, : int((left > NEGLIGIBLE * left[:, :1]).sum(dim=1).max())]


def _positions(batch: Batch, columns: Tensor, outputs: int) -> Tensor:
    """Where in `columns` the true labels are (S, 1)."""
    targets = batch.targets.to(columns.device)
    where = columns.new_full((outputs,), -1)
    where[columns] = torch.arange(len(columns), device=columns.device)
    inside = (targets >= 0) & (targets < outputs)
    found = torch.where(inside, where[targets.clamp(0, outputs - 1)], -1)
    if (found < 0).any():
        first = int((found < 0).nonzero()[0])
        target, sample = int(targets[first]), int(batch.index[first])
        if not inside[first]:
            raise UserError(
                f"target {target} of sample {sample} is not an output of the module: it has {outputs}, "
                f"0 to {outputs - 1}"
            )
        raise UserError(
            f"target {target} of sample {sample} is not among classes={columns.tolist()}: targets are output "
            "indices, whatever the classes are"
        )
    return found[:, None]


def _check_finite(batch: Batch, logits_SC: Tensor) -> None:
    finite = logits_SC.isfinite().all(dim=1)
    if finite.all():
        return
    first = int((~finite).nonzero()[0])
    what = f"the module's output for sample {int(batch.index[first])} is not finite"
    if not bool(batch.inputs[first].isfinite().all()):
        raise UserError(f"{what}, and neither is its input: remove or fill it")
    raise TrainingDiverged(f"{what}, and a Fisher of it would not be either")
