"""A quadratic minorant of the search's objective as tables over pairs of checkpoints, and its enumeration.

Notation as in `bounds.py`: `parts[i]` (E_i, S), `costs[i]` (E_i,), the mean m of a choice and its value f.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from manymodes.bounds import Array, Flags, Labels, sum_negative_log, tangent

CHUNK = 2048  # (partial) choices looked at together: bounds the memory of the enumeration
SIEVED = 16  # one sample in so many goes through the sieve


class Tables(NamedTuple):
    """f(e) >= sum_i unary[i][e_i] + sum_{i<j} pair[i][j][e_i, e_j] for every choice e.

    `pair[j][i]` is `pair[i][j]` transposed; `pair[i][i]` is not used. The tables come from -log m >=
    -log m0 - u + c u^2 per sample, u = m / m0 - 1, with m0 and c in `tangent_S` and `curvature_S`.
    """

    unary: list[Array]
    pair: list[list[Array]]
    tangent_S: Array
    curvature_S: Array

    def restrict(self, masks: Sequence[Flags]) -> Tables:
        """Only the checkpoints that are flagged."""
        unary = [single[mask] for single, mask in zip(self.unary, masks, strict=True)]
        pair = [[self.pair[i][j][a][:, b] for j, b in enumerate(masks)] for i, a in enumerate(masks)]
        return self._replace(unary=unary, pair=pair)

    def reorder(self, order: Sequence[int]) -> Tables:
        """The modes in another order."""
        pair = [[self.pair[i][j] for j in order] for i in order]
        return self._replace(unary=[self.unary[i] for i in order], pair=pair)

    def share(self, mode: int, others: Sequence[int]) -> Array:
        """Half of the least that each checkpoint of `mode` pays together with each of the other modes."""
        least = [self.pair[mode][k].min(1) for k in others if k != mode]
        return 0.5 * np.sum(least, axis=0) if least else np.zeros(len(self.unary[mode]))


def quadratic_tables(parts: Sequence[Array], costs: Sequence[Array], mixture: Sequence[Array]) -> Tables:
    """A minorant of f that is quadratic in m, hence a sum over single checkpoints and over pairs.

    With u = m / m0 - 1 and h(u) = u - log(1 + u): -log m = -log m0 - u + h(u). As h(u) / u^2 falls in u,
    h(u) >= c u^2 for c = h(u_max) / u_max^2, where u_max is what the best checkpoints together would reach.
    u is a sum over modes, so c u^2 is a sum over pairs of modes. This is what mixtures cannot see: they
    average the noise of checkpoints away (their u is small), single checkpoints cannot.
    """
    tangent_S = tangent(parts, mixture)
    highest_S = np.maximum(np.sum([p.max(0) for p in parts], axis=0) / tangent_S - 1, 1e-4)
    curvature_S = (highest_S - np.log1p(highest_S)) / highest_S**2
    mixed = [(x / x.sum()) @ p for x, p in zip(mixture, parts, strict=True)]
    rescale_S = tangent_S / np.sum(mixed, axis=0)
    ratios = [(p - m * rescale_S) / tangent_S for p, m in zip(parts, mixed, strict=True)]
    unary = [c - u.mean(1) for u, c in zip(ratios, costs, strict=True)]
    unary[0] -= np.log(tangent_S).mean()
    root_S = np.sqrt(curvature_S / len(tangent_S))
    for u, single in zip(ratios, unary, strict=True):
        u *= root_S
        single += np.einsum("es,es->e", u, u)
    pair = [[np.zeros((len(u), len(u)))] * len(parts) for u in ratios]
    for i, u in enumerate(ratios):
        for j in range(i):
            pair[i][j] = 2 * (u @ ratios[j].T)
            pair[j][i] = pair[i][j].T
    return Tables(unary, pair, tangent_S, curvature_S)


def pair_bounds(tables: Tables) -> list[Array]:
    """For every mode and checkpoint: a lower bound of the tables over all choices that contain it."""
    bounds = []
    for i, single in enumerate(tables.unary):
        others = [j for j in range(len(tables.unary)) if j != i]
        bound = single.copy()
        for j in others:
            bound += (tables.pair[i][j] + tables.unary[j] + tables.share(j, others)).min(1)
        bounds.append(bound)
    return bounds


class Sieve:
    """Replaces the minorant by the exact logarithm on the few samples where it is loosest.

    Most of what the tables miss is missed on a few samples (those that some checkpoints know and others do
    not), which some of the `choices` (n, N) the tables let through show. `gain` is what may be added to
    the table value of a choice with f still above it.
    """

    def __init__(self, parts: Sequence[Array], tables: Tables, choices: Labels) -> None:
        tangent_S, curvature_S = tables.tangent_S, tables.curvature_S
        self.num_samples = len(tangent_S)
        some = choices[:: 1 + len(choices) // 32]
        mean_NS = np.sum([p[some[:, i]] for i, p in enumerate(parts)], axis=0)
        u = mean_NS / tangent_S - 1
        missed_S = (u - np.log1p(u) - curvature_S * u**2).mean(0)
        worst = np.argsort(-missed_S, kind="stable")[: 1 + self.num_samples // SIEVED]
        self.parts = [np.ascontiguousarray(p[:, worst]) for p in parts]
        # -log m0 - u + c u^2 as a polynomial in m
        m0, c = tangent_S[worst], curvature_S[worst]
        self.constant, self.linear, self.square = (1 + c - np.log(m0)).sum(), -(1 + 2 * c) / m0, c / m0**2

    def gain(self, choices: Labels) -> Array:
        """Exact minus minorant on the loosest samples, for choices (n, N)."""
        mean_NS = self.parts[0][choices[:, 0]]
        for i in range(1, len(self.parts)):
            mean_NS += self.parts[i][choices[:, i]]
        gain = sum_negative_log(mean_NS) - self.constant - mean_NS @ self.linear
        mean_NS *= mean_NS
        return np.asarray((gain - mean_NS @ self.square) / self.num_samples)


class Batch(NamedTuple):
    """Choices (n, N), their table values, the least bound of what is still open, the prefixes visited."""

    choices: Labels
    values: Array
    open_bound: float
    visited: int


class _Prefixes(NamedTuple):
    """Choices of the first modes (n, depth), what they cost, and a bound on every completion."""

    labels: Labels
    cost: Array
    bound: Array


def completions(tables: Tables, cutoff: Callable[[], float]) -> Iterator[Batch]:
    """All choices whose table value is at most `cutoff()`: depth first, the most promising first.

    Modes with few checkpoints are fixed first. Memory stays bounded: CHUNK prefixes are expanded at a time.
    A batch without choices is yielded between expansions, so that the caller can look at the clock.
    """
    by_size = sorted(range(len(tables.unary)), key=lambda i: len(tables.unary[i]))
    column = np.argsort(by_size)
    tables = tables.reorder(by_size)
    modes = range(len(by_size))
    shares = [[tables.share(j, modes[depth + 1 :]) for j in modes] for depth in modes]
    stack = [_Prefixes(np.zeros((1, 0), np.intp), np.zeros(1), np.full(1, -np.inf))]
    visited = 0
    while stack:
        labels, cost, bound = stack.pop()
        keep = bound <= cutoff()
        depth = labels.shape[1]
        found = keep if depth == len(modes) else np.zeros_like(keep)
        if depth < len(modes) and keep.any():
            children = _expand(tables, labels[keep], cost[keep], cutoff(), shares[depth])
            visited += len(children.cost)
            order = np.argsort(-children.bound, kind="stable")
            for first in range(0, len(order), CHUNK):
                some = order[first : first + CHUNK]
                stack.append(_Prefixes(children.labels[some], children.cost[some], children.bound[some]))
        least = min((float(prefixes.bound.min()) for prefixes in stack), default=math.inf)
        choices = labels[found][:, column] if found.any() else np.zeros((0, len(modes)), np.intp)
        yield Batch(choices, bound[found], least, visited)


def _expand(tables: Tables, labels: Labels, cost: Array, cutoff: float, share: list[Array]) -> _Prefixes:
    """The prefixes with one more mode fixed whose bound is at most the cutoff."""
    depth = labels.shape[1]
    later = range(depth + 1, len(tables.unary))
    added = []  # per mode not yet fixed: what each of its checkpoints adds to each prefix (n, E)
    for j in (depth, *later):
        adds = np.repeat(tables.unary[j][None], len(labels), axis=0)
        for i in range(depth):
            adds += tables.pair[i][j][labels[:, i]]
        added.append(adds)
    grown = cost[:, None] + added[0]
    # First with prefix and new checkpoint apart: no (prefix, new, E) array is needed.
    quick = grown.copy()
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
