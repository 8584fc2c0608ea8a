"""Lower bounds for the search over checkpoints: mixtures of checkpoints, and dominance.

Notation: `parts[i]` (E_i, S) is mode i's share p / N of the mean true-class probability, `costs[i]` (E_i,)
its drift penalty. A choice e has the mean m_s = sum_i parts[i][e_i, s] and the value

    f(e) = -mean_s log m_s + sum_i costs[i][e_i].

Every bound here is an inequality, computed in float64. What is computed in float32 (the point where a
bound is tangent) decides how tight a bound is, never whether it holds.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Flags = NDArray[np.bool_]
Labels = NDArray[np.intp]

SMALLEST_TANGENT = 1e-3  # of the largest mean: keeps all ratios below 1,000, so rounding far below 1e-9
FOLD = 24  # this many floored probabilities multiplied stay above the least float64
SPAN = 256  # samples compared at once
STRICT = 1e-11  # a later checkpoint must be better by this much to displace an earlier one


def relax(
    parts: Sequence[NDArray[np.float32]],
    costs: Sequence[Array],
    mixture: Sequence[Array],
    iterations: int,
    tolerance: float,
) -> list[Array]:
    """Minimise f over mixtures of checkpoints (a convex problem) by exponentiated gradient.

    x_i <- x_i * exp(-step * gradient), normalised per mode; the step grows while f falls. Stops once the
    linearisation shows that f is within `tolerance` of its minimum.
    """

    def value(weights: list[Array], mean_S: NDArray[Any]) -> float:
        penalty = sum(float(x @ c) for x, c in zip(weights, costs, strict=True))
        return penalty - float(np.log(mean_S).mean(dtype=np.float64))

    best = list(mixture)
    mean_S = _mean(parts, best)
    current, step = value(best, mean_S), 10.0
    gradient: list[Array] = []
    for _ in range(iterations):
        if not gradient:
            slope_S = 1 / (mean_S * len(mean_S))
            gradient = [c - p @ slope_S for c, p in zip(costs, parts, strict=True)]
            if sum(float(x @ g - g.min()) for x, g in zip(best, gradient, strict=True)) <= tolerance:
                break
        raw = [x * np.exp(-step * (g - g.min())) for x, g in zip(best, gradient, strict=True)]
        trial = [np.maximum(x / x.sum(), 1e-30) for x in raw]
        trial_mean_S = _mean(parts, trial)
        attained = value(trial, trial_mean_S)
        if attained <= current:
            best, mean_S, current, gradient, step = trial, trial_mean_S, attained, [], step * 1.5
        else:
            step /= 3
    return best


def _mean(parts: Sequence[NDArray[Any]], mixture: Sequence[Array]) -> NDArray[Any]:
    mean_S = np.zeros(parts[0].shape[1], parts[0].dtype)
    for x, p in zip(mixture, parts, strict=True):
        mean_S += (x / x.sum()).astype(p.dtype) @ p
    return mean_S


def tangent(parts: Sequence[Array], mixture: Sequence[Array]) -> Array:
    """The mean (S,) of a mixture, kept away from zero where some choice is far better."""
    highest_S = np.sum([p.max(0) for p in parts], axis=0)
    return np.asarray(np.maximum(_mean(parts, mixture), SMALLEST_TANGENT * highest_S))


def linear_bounds(parts: Sequence[Array], costs: Sequence[Array], tangent_S: Array) -> list[Array]:
    """For every mode and checkpoint: a lower bound on f over all choices that contain it.

    -log m >= -log m0 - (m - m0) / m0, and what is linear is least where it is least in every mode.
    """
    slope_S = 1 / (tangent_S * len(tangent_S))
    terms = [c - p @ slope_S for p, c in zip(parts, costs, strict=True)]
    least = 1 - float(np.log(tangent_S).mean()) + sum(float(t.min()) for t in terms)
    return [least + (t - t.min()) for t in terms]


def sum_negative_log(mean_RS: Array) -> Array:
    """-sum_s log of each row (R,), with one logarithm for FOLD numbers."""
    rows, num_samples = mean_RS.shape
    cut = num_samples // FOLD * FOLD
    folded = np.multiply.reduce(mean_RS[:, :cut].reshape(rows, FOLD, cut // FOLD), axis=1)
    return np.asarray(-np.log(folded).sum(1) - np.log(mean_RS[:, cut:].prod(1)))


def undominated(part: Array, cost: Array, rest_low_S: Array, rest_high_S: Array) -> Flags:
    """Flags (E,) of one mode's checkpoints that some choice of the other modes may need.

    Let q_s be what the other modes contribute, anywhere in [low_s, high_s]. Exchanging e for e' changes f by
    cost[e'] - cost[e] + mean_s log((p_e + q) / (p_e' + q)). The ratio is monotone in q, so the logarithm is
    at most the larger of its values at the two ends, and e' is never worse than e if

        cost[e] - cost[e'] >= mean_s max(low_e - low_e', high_e - high_e'),    low_e = log(p_e + low),
                            = mean_s (high_e - high_e') + mean_s max(0, g_e - g_e'),    g = low - high.

    Of equal checkpoints the earliest stays. Everything in the last mean is positive, so most comparisons are
    over after a few samples.
    """
    high = np.log(part + rest_high_S)
    gap = np.log(part + rest_low_S) - high
    high_mean, gap_mean = high.mean(1), gap.mean(1)
    number, flags = np.arange(len(cost)), np.ones(len(cost), np.bool_)
    num_samples = part.shape[1]
    for e in range(len(cost)):
        spare = cost[e] - cost - (high_mean[e] - high_mean) - np.where(number < e, 0.0, STRICT)
        # The mean of positive parts is at least the positive part of the mean. STRICT lets rounding pass.
        rivals = np.flatnonzero((spare >= np.maximum(0, gap_mean[e] - gap_mean - STRICT)) & (number != e))
        spare = spare[rivals] * num_samples
        for first in range(0, num_samples, SPAN):
            if not len(rivals):
                break
            span = slice(first, first + SPAN)
            spare -= np.maximum(0, gap[e, span] - gap[rivals, span]).sum(1)
            rivals, spare = rivals[spare >= 0], spare[spare >= 0]
        flags[e] = not len(rivals)
    return flags


def undominated_with_last(part: Array, cost: Array, rest_low_S: Array, rest_high_S: Array) -> Flags:
    """`undominated` where that is known of all but the last: one comparison with each, both ways."""
    high = np.log(part + rest_high_S)
    gap = np.log(part + rest_low_S) - high
    apart = gap[:-1] - gap[-1]
    more = (cost[:-1] - cost[-1]) - (high[:-1] - high[-1]).mean(1)  # what an earlier one costs more, at least
    flags = np.ones(len(cost), np.bool_)
    flags[:-1] = more - STRICT < np.maximum(0, apart).mean(1)
    flags[-1] = not (-more >= np.maximum(0, -apart).mean(1)).any()
    return flags
