"""Backtracking: which checkpoint of every mode to keep, found exactly or with a certificate.

Every mode kept one checkpoint per epoch. Only the true class matters, so the whole search runs on a row of
numbers per checkpoint, and no network is evaluated. With p[i, e, s] the probability that checkpoint e of
mode i gives to the true class of held-out sample s, choose e_1..e_N to minimise

    f(e) = -mean_s log(mean_i p[i, e_i, s]) + weight * sum_i drifts[i, e_i].

There are prod E_i choices (51^6 = 1.8e10), and f couples all modes. Three lower bounds make it small:

1. Mixtures. Let every mode mix its checkpoints with weights on the simplex: f becomes convex, and wherever
   it is linearised, the line lies below it. At (about) the relaxed optimum, gradient steps away from it cost
   something for every checkpoint; a checkpoint whose cost exceeds the distance to the best choice found
   (coordinate descent) is dropped. This leaves gaps from 0.1 % to some 10 %, since a mixture averages the
   noise of single checkpoints away and a choice cannot.
2. Curvature. What the linearisation throws away is h(u) = u - log(1 + u) >= 0, u the relative distance of
   the mean from the tangent point. h(u) >= c_s u^2 with a c_s that holds for all choices left; and since u is
   a sum over modes, this is a sum over *pairs* of checkpoints: N (N - 1) / 2 matrix products give tables that
   bound f of every choice by additions, noise included. Fewer checkpoints give a larger c_s, so dropping and
   tightening take turns.
3. Enumeration. Modes are fixed one after the other, thousands of partial choices at a time, and a partial
   choice goes on only if its table value plus the least of the rest can still win. Complete choices pass a
   sieve, the exact logarithm on the few samples where the tables are loosest; what is left is evaluated.

A node that is still too large is split into one node per checkpoint of one mode and each is treated the same
way, least bound first; when the time is over the least bound of the open nodes is the certificate.
`bounds.py` has the linear bounds, `pair_tables.py` the quadratic one, `checkpoint_search.py` the search.

Conventions. Probabilities below 1e-12 count as 1e-12, so a zero costs 27.6 and not infinity. Everything that
decides is float64; bounds must fail by more than 1e-9 before anything is dropped. Values that differ by at
most 1e-12 are equal, and of equal choices the one with the lexicographically smallest epochs is returned.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from time import monotonic

import numpy as np
import torch
from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]
from torch import Tensor

from manymodes.bounds import Array, undominated, undominated_with_last
from manymodes.checkpoint_search import SLACK, Search
from manymodes.errors import UserError, require

FLOOR = 1e-12  # probabilities below count as this
ROUNDING = 1e-4  # how far above 1 a probability may come out of a network


@dataclass(frozen=True)
class Choice:
    """One checkpoint per mode, its value f, a proven lower bound on f, and how many f were computed."""

    epochs: tuple[int, ...]
    value: float
    lower_bound: float
    evaluated: int = field(default=0, compare=False)

    @property
    def proven(self) -> bool:
        """Whether no choice is better."""
        return self.value - self.lower_bound <= SLACK * max(1.0, abs(self.value))


def backtrack(
    true_class_probs: Tensor | Sequence[Tensor],
    drifts: Tensor | Sequence[Tensor],
    weight: float,
    *,
    time_limit: float = 10.0,
) -> Choice:
    """The checkpoint of every mode that is best jointly.

    Minimises -mean_s log(mean_i p[i, e_i, s]) + weight * sum_i drifts[i, e_i] over e_1..e_N.

    Args:
        true_class_probs: probability of the true class (N, E, S), or per mode (E_i, S).
        drifts: what each checkpoint's drift is, not negative: (N, E), or per mode (E_i,).
        weight: how much drift counts against the negative log-likelihood.
        time_limit: seconds after which the best choice found so far is returned; `lower_bound` then says
            how much better another one could be at most. The first bound is computed in any case.

    Two modes, the second checkpoint of each knows what the other's first knows, and drift is free:

    >>> probs = torch.tensor([[[0.9, 0.1], [0.2, 0.8]], [[0.7, 0.1], [0.1, 0.9]]])
    >>> choice = backtrack(probs, torch.zeros(2, 2), 1.0)
    >>> choice.epochs, round(choice.value, 4), choice.proven
    ((0, 1), 0.6931, True)
    """
    rows, penalties = _checked(true_class_probs, drifts)
    _check_number("weight", weight)
    require(time_limit >= 0, f"time_limit is {time_limit}: give seconds, 0 or more")
    deadline = monotonic() + time_limit
    parts = [np.clip(row, FLOOR, 1) / len(rows) for row in rows]
    costs = [weight * penalty for penalty in penalties]
    offset = sum(float(cost.min()) for cost in costs)
    # The products here are small: threads of the linear algebra would cost more than they bring.
    with threadpool_limits(1, user_api="blas"):
        search = Search(parts, [cost - cost.min() for cost in costs], deadline)
        least = search.run()
    mean_S = np.sum([part[e] for part, e in zip(parts, search.epochs, strict=True)], axis=0)
    value = float(sum(cost[e] for cost, e in zip(costs, search.epochs, strict=True)) - np.log(mean_S).mean())
    lower_bound = value if least >= search.value else min(value, offset + least)
    return Choice(search.epochs, value, lower_bound, search.evaluated)


def can_still_win(
    true_class_probs_i: Tensor,
    drifts_i: Tensor,
    num_modes: int,
    weight: float,
    *,
    only_last_is_new: bool = False,
) -> Tensor:
    """Which checkpoints of one mode may be part of an optimum, whatever the other modes will bring.

    Checkpoint e cannot win if another one e' of the same mode is at least as good for every possible sum q_s
    in [0, N - 1] of the other modes' probabilities:

        weight * (d_e - d_e') >= mean_s max_q log((p_e + q) / (p_e' + q))
                               = mean_s { log(p_e / p_e')                          where p_e > p_e'
                                        { log((p_e + N - 1) / (p_e' + N - 1))      elsewhere.

    Nothing is lost: `backtrack` on the checkpoints that are left chooses the same as on all. Of equal ones
    the earliest is left, and at least one always is.

    Args:
        true_class_probs_i: probability of the true class, by this mode's checkpoints (E, S).
        drifts_i: their drifts (E,).
        num_modes: N, this mode included.
        weight: as for `backtrack`.
        only_last_is_new: all but the last are known to be such that each can still win among them: so many
            comparisons are left as there are checkpoints, not pairs of them.

    Returns:
        Booleans (E,) on the device of the probabilities.

    >>> probs = torch.tensor([[0.5, 0.5], [0.4, 0.5], [0.9, 0.3], [0.5, 0.5]])
    >>> can_still_win(probs, torch.zeros(4), num_modes=2, weight=1.0).tolist()
    [True, False, True, False]
    """
    require(num_modes >= 1, f"num_modes is {num_modes}: give the number of modes, 1 or more")
    _check_number("weight", weight)
    (row,), (penalty,) = _checked([true_class_probs_i], [drifts_i])
    part, none_S = np.clip(row, FLOOR, 1), np.zeros(row.shape[1])
    compare = undominated_with_last if only_last_is_new else undominated
    flags = compare(part, weight * penalty, none_S, none_S + (num_modes - 1))
    return torch.from_numpy(flags).to(true_class_probs_i.device)


def _checked(
    probs: Tensor | Sequence[Tensor], drifts: Tensor | Sequence[Tensor]
) -> tuple[list[Array], list[Array]]:
    """Per mode the probabilities (E_i, S) and drifts (E_i,) in float64, or a UserError."""
    require(len(probs) > 0, "true_class_probs is empty: give at least one mode")
    require(
        len(probs) == len(drifts),
        f"true_class_probs has {len(probs)} modes but drifts has {len(drifts)}: give both for every mode",
    )
    rows = [_array(f"true_class_probs[{i}]", row, "(checkpoints, samples)", 2) for i, row in enumerate(probs)]
    penalties = [_array(f"drifts[{i}]", row, "(checkpoints,)", 1) for i, row in enumerate(drifts)]
    for i, (row, penalty) in enumerate(zip(rows, penalties, strict=True)):
        require(
            len(row) == len(penalty),
            f"mode {i} has {len(row)} rows of true_class_probs but {len(penalty)} drifts: give one drift per "
            "checkpoint",
        )
        require(
            row.shape[1] == rows[0].shape[1],
            f"true_class_probs[{i}] has {row.shape[1]} samples but true_class_probs[0] has "
            f"{rows[0].shape[1]}: evaluate every mode on the same samples",
        )
        low, high = float(row.min()), float(row.max())
        require(
            low >= 0 and high <= 1 + ROUNDING,
            f"true_class_probs[{i}] goes from {low:.6g} to {high:.6g}: give probabilities, from 0 to 1",
        )
        require(
            float(penalty.min()) >= 0,
            f"drifts[{i}] contains {float(penalty.min()):.6g}: a drift is 0 or more",
        )
    return rows, penalties


def _array(name: str, values: Tensor, shape: str, axes: int) -> Array:
    """A finite float64 array of that many axes, none of them empty."""
    tensor = torch.as_tensor(values)
    tensor = tensor if tensor.dtype == torch.float32 else tensor.double()
    array: Array = tensor.numpy(force=True).astype(np.float64)
    if array.ndim != axes or array.size == 0:
        raise UserError(f"{name} has shape {tuple(array.shape)}: give {shape}, none of them 0")
    if not np.isfinite(array).all():
        raise UserError(f"{name} contains NaN or infinity: drop the checkpoints where training diverged")
    return array


def _check_number(name: str, value: float) -> None:
    require(math.isfinite(value) and value >= 0, f"{name} is {value}: give a finite number, 0 or more")
