"""Lower bounds for the search over checkpoints: a relaxed optimum, a quadratic minorant, its enumeration.

Notation: `parts[i]` (E_i, S) is mode i's share p / N of the mean true-class probability, `costs[i]` (E_i,)
its drift penalty. A choice e has the mean m_s = sum_i parts[i][e_i, s] and the value

    f(e) = -mean_s log m_s + sum_i costs[i][e_i].

Everything here is an algebraic lower bound of f, computed in float64; what float32 is used for (the place
where a bound is tangent) affects how tight a bound is, never whether it holds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Labels = NDArray[np.intp]

CHUNK = 2048  # prefixes expanded at once: bounds the memory of the enumeration
SMALLEST_TANGENT = (
    1e-3  # of the largest possible mean: keeps every ratio below 1,000, so rounding below 1e-12
)


@dataclass(frozen=True)
class Tables:
    """f(e) >= sum_i unary[i][e_i] + sum_{i<j} pair[i][j][e_i, e_j] for every choice e."""

    unary: list[Array]
    pair: list[list[Array]]  # pair[j][i] is pair[i][j] transposed; pair[i][i] is empty


def relax(
    parts: Sequence[NDArray[Any]],
    costs: Sequence[Array],
    mixture: list[Array],
    iterations: int,
    tolerance: float,
) -> list[Array]:
    """Minimise f over mixtures of checkpoints (a convex problem) by exponentiated gradient.

    x_i <- x_i * exp(-step * gradient), normalised per mode; the step grows while f falls. Stops once the
    linearisation proves that f is within `tolerance` of its minimum.
    """
    num_samples = parts[0].shape[1]
    kind = parts[0].dtype

    def mean(weights: list[Array]) -> NDArray[Any]:
        return np.sum([x.astype(kind) @ p for x, p in zip(weights, parts, strict=True)], axis=0)

    def value(weights: list[Array], mean_S: NDArray[Any]) -> float:
        penalty = sum(float(x @ c) for x, c in zip(weights, costs, strict=True))
        return float(-np.log(mean_S).mean(dtype=np.float64)) + penalty

    mean_S = mean(mixture)
    current, step, gradient = value(mixture, mean_S), 10.0, None
    for _ in range(iterations):
        if gradient is None:
            slope_S = 1 / (mean_S * num_samples)
            gradient = [c - p @ slope_S for c, p in zip(costs, parts, strict=True)]
            if sum(float(x @ g - g.min()) for x, g in zip(mixture, gradient, strict=True)) <= tolerance:
                break
        trial = [x * np.exp(-step * (g - g.min())) for x, g in zip(mixture, gradient, strict=True)]
        trial = [np.maximum(x / x.sum(), 1e-30) for x in trial]
        trial_mean_S = mean(trial)
        attained = value(trial, trial_mean_S)
        if attained <= current:
            mixture, mean_S, current, gradient, step = trial, trial_mean_S, attained, None, step * 1.5
        else:
            step /= 3
    return mixture


def tangent(parts: Sequence[Array], mixture: Sequence[Array]) -> Array:
    """The mean (S,) of a mixture, kept away from zero where some choice is far better."""
    mean_S = np.sum([x / x.sum() @ p for x, p in zip(mixture, parts, strict=True)], axis=0)
    best_S = np.sum([p.max(0) for p in parts], axis=0)
    return np.maximum(mean_S, SMALLEST_TANGENT * best_S)


def linear_bounds(parts: Sequence[Array], costs: Sequence[Array], tangent_S: Array) -> list[Array]:
    """For every mode and checkpoint: a lower bound on f over all choices that contain it.

    -log m >= -log m0 - (m - m0) / m0, and what is linear is minimised mode by mode.
    """
    slope_S = 1 / (tangent_S * len(tangent_S))
    terms = [c - p @ slope_S for p, c in zip(parts, costs, strict=True)]
    least = 1 - float(np.log(tangent_S).mean()) + sum(float(t.min()) for t in terms)
    return [least + (t - t.min()) for t in terms]


def quadratic_tables(
    parts: Sequence[Array], costs: Sequence[Array], mixture: Sequence[Array], tangent_S: Array
) -> Tables:
    """A minorant of f that is quadratic in m, hence a sum over single checkpoints and over pairs.

    With u = (m - m0) / m0 and h(u) = u - log(1 + u): -log m = -log m0 - u + h(u). h(u) / u^2 falls in u, so
    h(u) >= c u^2 with c = h(u_max) / u_max^2, u_max what the best checkpoints together can reach. As u is a
    sum over modes, c u^2 is a sum over pairs of modes. This is what a relaxation cannot see: mixtures
    average the noise of checkpoints away (their u is small), single checkpoints cannot.
    """
    mixed = [x / x.sum() @ p for x, p in zip(mixture, parts, strict=True)]
    rescale_S = tangent_S / np.sum(mixed, axis=0)
    ratios = [(p - m * rescale_S) / tangent_S for p, m in zip(parts, mixed, strict=True)]
    highest_S = np.maximum(np.sum([u.max(0) for u in ratios], axis=0), 1e-4)
    curvature_S = (highest_S - np.log1p(highest_S)) / highest_S**2 / len(tangent_S)
    unary = [c - u.mean(1) for u, c in zip(ratios, costs, strict=True)]
    unary[0] = unary[0] - np.log(tangent_S).mean()
    root_S = np.sqrt(curvature_S)
    for i, u in enumerate(ratios):
        u *= root_S
        unary[i] += np.einsum("es,es->e", u, u)
    empty = np.zeros((0, 0))
    pair = [[empty] * len(parts) for _ in parts]
    for i, u in enumerate(ratios):
        for j in range(i):
            pair[i][j] = 2 * (u @ ratios[j].T)
            pair[j][i] = pair[i][j].T
    return Tables(unary, pair)


def _share(tables: Tables, mode: int, free: Sequence[int]) -> Array:
    """Half of the least that each checkpoint of `mode` pays together with each of the other free modes."""
    least = [tables.pair[mode][k].min(1) for k in free if k != mode]
    return 0.5 * np.sum(least, axis=0) if least else np.zeros(len(tables.unary[mode]))


def pair_bounds(tables: Tables) -> list[Array]:
    """For every mode and checkpoint: a lower bound of the tables over all choices that contain it."""
    modes = range(len(tables.unary))
    bounds = []
    for i in modes:
        rest = [j for j in modes if j != i]
        bound = tables.unary[i].copy()
        for j in rest:
            bound += (tables.pair[i][j] + tables.unary[j] + _share(tables, j, rest)).min(1)
        bounds.append(bound)
    return bounds


class Batch(NamedTuple):
    """Some complete choices (n, N), the least bound of what is still open, the prefixes visited so far."""

    choices: Labels
    open_bound: float
    visited: int


class _Prefixes(NamedTuple):
    """Choices of the first modes (n, depth), what they cost, and a bound on every completion."""

    labels: Labels
    cost: Array
    bound: Array


def completions(tables: Tables, cutoff: Callable[[], float]) -> Iterator[Batch]:
    """All choices whose table value is at most `cutoff()`: depth first, the most promising first.

    Memory stays bounded: CHUNK prefixes are expanded at a time. A batch without choices is yielded between
    expansions, so that the caller can look at the clock.
    """
    modes = range(len(tables.unary))
    shares = [[_share(tables, j, modes[depth + 1 :]) for j in modes] for depth in modes]
    stack = [_Prefixes(np.zeros((1, 0), np.intp), np.zeros(1), np.full(1, -np.inf))]
    visited = 0
    while stack:
        labels, cost, bound = stack.pop()
        keep = bound <= cutoff()
        depth = labels.shape[1]
        if depth == len(modes):
            yield Batch(labels[keep], _least(stack), visited)
        elif keep.any():
            children = _expand(tables, labels[keep], cost[keep], cutoff(), shares[depth])
            visited += len(children.cost)
            order = np.argsort(-children.bound, kind="stable")
            for first in range(0, len(order), CHUNK):
                some = order[first : first + CHUNK]
                stack.append(_Prefixes(*(field[some] for field in children)))
            yield Batch(np.zeros((0, len(modes)), np.intp), _least(stack), visited)


def _least(stack: list[_Prefixes]) -> float:
    return min((float(prefixes.bound.min()) for prefixes in stack), default=np.inf)


def _expand(tables: Tables, labels: Labels, cost: Array, cutoff: float, share: list[Array]) -> _Prefixes:
    """The prefixes with one more mode fixed whose bound is at most the cutoff; share[j] as in `_share`."""
    depth = labels.shape[1]
    later = range(depth + 1, len(tables.unary))
    added = []  # per mode not yet fixed: what each of its checkpoints adds to each prefix (n, E)
    for j in (depth, *later):
        adds = np.repeat(tables.unary[j][None], len(labels), axis=0)
        for i in range(depth):
            adds += tables.pair[i][j][labels[:, i]]
        added.append(adds)
    grown = cost[:, None] + added[0]
    quick = grown.copy()  # bound the prefix and the new checkpoint apart: no (prefix, checkpoint, E) array
    for j, adds in zip(later, added[1:], strict=True):
        quick += (adds + share[j]).min(1)[:, None] + tables.pair[depth][j].min(1)
    parent, label = np.nonzero(quick <= cutoff)
    bound = grown[parent, label]
    for first in range(0, len(parent), CHUNK):
        a, b = parent[first : first + CHUNK], label[first : first + CHUNK]
        for j, adds in zip(later, added[1:], strict=True):
            bound[first : first + CHUNK] += (adds[a] + tables.pair[depth][j][b] + share[j]).min(1)
    keep = bound <= cutoff
    parent, label = parent[keep], label[keep]
    return _Prefixes(np.column_stack([labels[parent], label]), grown[parent, label], bound[keep])
