"""Branch and bound over the checkpoints of all modes; `backtracking.py` is its public face.

A node is a set of checkpoints per mode. `solve` shrinks it with the bounds of `bounds.py` and
`pair_tables.py`, enumerates what those leave and evaluates that exactly. A node that is too large to
enumerate is split into one node per checkpoint of one mode; nodes wait in a heap, least bound first, so that
the least bound in the heap is a certificate at any time.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence
from dataclasses import dataclass
from time import monotonic
from typing import NamedTuple

import numpy as np

from manymodes.bounds import (
    Array,
    Flags,
    Labels,
    linear_bounds,
    relax,
    sum_negative_log,
    tangent,
    undominated,
)
from manymodes.pair_tables import CHUNK, Sieve, Tables, completions, pair_bounds, quadratic_tables

TIE = 1e-12  # values this close are equal: the choice with the smallest epochs is taken
SLACK = 1e-9  # more than rounding can move any bound or value (costs start at 0, so values are below 28)
BLOCK = 1 << 17  # numbers worked on at once: 1 MB, inside the cache
SIEVE_FROM = 64  # so many choices make a sieve worth its making
VISITS = 400_000  # prefixes enumerated before a node is split instead
RELAXATIONS = (8, 8, 8, 40)  # gradient steps between eliminations: short while many checkpoints can go


@dataclass
class _Box:
    """What a node still allows: per mode the checkpoints' numbers, parts, costs and weights in a mixture."""

    labels: list[Labels]
    parts: list[Array]
    costs: list[Array]
    mixture: list[Array]

    @property
    def size(self) -> int:
        return sum(map(len, self.labels))

    @property
    def combinations(self) -> int:
        return math.prod(map(len, self.labels))

    def restrict(self, masks: Sequence[Flags]) -> None:
        self.labels = [a[m] for a, m in zip(self.labels, masks, strict=True)]
        self.parts = [a[m] for a, m in zip(self.parts, masks, strict=True)]
        self.costs = [a[m] for a, m in zip(self.costs, masks, strict=True)]
        left = [a[m] for a, m in zip(self.mixture, masks, strict=True)]
        # A weight that fell to nothing could never return: lift it a little.
        self.mixture = [np.maximum(x / max(float(x.sum()), 1e-30), 1e-4 / max(len(x), 1)) for x in left]

    def relax(self, iterations: int, gap: float) -> None:
        singles = [p.astype(np.float32) for p in self.parts]
        self.mixture = relax(singles, self.costs, self.mixture, iterations, 0.03 * gap)


class _Node(NamedTuple):
    bound: float
    number: int  # nodes with equal bounds leave the heap in the order they came
    labels: list[Labels]


class Search:
    """The least f over all choices; `parts`, `costs` and f as in `bounds.py`, costs starting at 0."""

    def __init__(self, parts: list[Array], costs: list[Array], deadline: float) -> None:
        self.parts, self.costs, self.deadline = parts, costs, deadline
        self.value, self.epochs = math.inf, tuple(0 for _ in parts)
        self.evaluated = self.nodes = 0

    def run(self) -> float:
        """Search until done or late; the certified lower bound. `value` and `epochs` hold the best found."""
        cheapest = np.array([[int(c.argmin()) for c in self.costs]])
        self.evaluate(cheapest)
        heap = [_Node(0.0, 0, [np.flatnonzero(c <= self.cutoff()) for c in self.costs])]
        pushed = 1
        while heap and heap[0].bound <= self.cutoff():
            if self.nodes and self.late():
                return min(self.value, heap[0].bound - SLACK)
            node = heapq.heappop(heap)
            self.nodes += 1
            for bound, labels in self.solve(node):
                heapq.heappush(heap, _Node(bound, pushed, labels))
                pushed += 1
        return self.value

    def cutoff(self) -> float:
        """A bound above this cannot hold a better choice, nor an equal one."""
        return self.value + SLACK

    def late(self) -> bool:
        """Whether the time is over."""
        return monotonic() > self.deadline

    def solve(self, node: _Node) -> list[tuple[float, list[Labels]]]:
        """Finish a node and return [], or return what it leaves open: (bound, checkpoints per mode)."""
        box = _Box(
            node.labels,
            [p[kept] for p, kept in zip(self.parts, node.labels, strict=True)],
            [c[kept] for c, kept in zip(self.costs, node.labels, strict=True)],
            [np.full(len(kept), 1 / len(kept)) for kept in node.labels],
        )
        bound = self._shrink_linearly(box, node.bound)
        if box.combinations:
            box.restrict(_undominated(box))
        while box.combinations:
            before = box.size
            tables = quadratic_tables(box.parts, box.costs, box.mixture)
            bounds = pair_bounds(tables)
            bound = max(bound, max(float(b.min()) for b in bounds))
            masks = [b <= self.cutoff() for b in bounds]
            box.restrict(masks)
            if box.combinations and box.size > 0.8 * before:
                left = [b[mask] for b, mask in zip(bounds, masks, strict=True)]
                return self._enumerate(box, tables.restrict(masks), left, bound)
            if box.combinations:
                box.relax(RELAXATIONS[-1], self.value - bound)
        return []

    def _shrink_linearly(self, box: _Box, bound: float) -> float:
        """Relax and drop what the linear bound excludes, in turns; a bound on what is left of the box."""
        for turn, iterations in enumerate(RELAXATIONS):
            if not box.combinations:
                break
            box.relax(iterations, self.value - bound)
            if turn in (0, len(RELAXATIONS) - 1):
                self._descend(box)
            bounds = linear_bounds(box.parts, box.costs, tangent(box.parts, box.mixture))
            bound = max(bound, max(float(b.min()) for b in bounds))
            box.restrict([b <= self.cutoff() for b in bounds])
        return bound

    def _enumerate(
        self, box: _Box, tables: Tables, bounds: list[Array], bound: float
    ) -> list[tuple[float, list[Labels]]]:
        """Evaluate what the tables leave; split the box if that is too much, hand it back if time is over."""
        free = sum(len(kept) > 1 for kept in box.labels)
        sieve = None
        for batch in completions(tables, self.cutoff):
            if sieve is None and len(batch.choices) >= SIEVE_FROM:
                sieve = Sieve(box.parts, tables, batch.choices)
            for first in range(0, len(batch.choices), CHUNK):
                choices = batch.choices[first : first + CHUNK]
                if sieve is not None:
                    values = batch.values[first : first + CHUNK] + sieve.gain(choices)
                    choices = choices[values <= self.cutoff()]
                self.evaluate(np.column_stack([kept[choices[:, i]] for i, kept in enumerate(box.labels)]))
            if batch.open_bound < math.inf:
                if self.late():
                    return [(max(bound, batch.open_bound), box.labels)]
                if free > 1 and batch.visited > VISITS:
                    return _split(box, bounds, max(bound, batch.open_bound))
        return []

    def evaluate(self, choices: Labels) -> None:
        """Compute f for choices (n, N), keep the best; of equal ones the one with the smallest epochs."""
        rows = max(1, BLOCK // self.parts[0].shape[1])
        for first in range(0, len(choices), rows):
            block = choices[first : first + rows]
            mean_NS = self.parts[0][block[:, 0]]
            cost = self.costs[0][block[:, 0]]
            for i in range(1, len(self.parts)):
                mean_NS += self.parts[i][block[:, i]]
                cost += self.costs[i][block[:, i]]
            self.evaluated += len(block)
            values = sum_negative_log(mean_NS) / mean_NS.shape[1] + cost
            least = min(self.value, float(values.min()))
            tied = [tuple(int(e) for e in row) for row in block[values <= least + TIE]]
            if self.value <= least + TIE:
                tied.append(self.epochs)
            self.value, self.epochs = least, min(tied)

    def _descend(self, box: _Box) -> None:
        """Coordinate descent inside the box, from the checkpoint with the largest weight in every mode."""
        choice = [int(x.argmax()) for x in box.mixture]
        rows = max(1, BLOCK // box.parts[0].shape[1])
        best, before = math.inf, math.nan
        while best != before:
            before = best
            for i, (part, cost) in enumerate(zip(box.parts, box.costs, strict=True)):
                others = [j for j in range(len(choice)) if j != i]
                rest_S = sum((box.parts[j][choice[j]] for j in others), np.zeros(part.shape[1]))
                blocks = [part[first : first + rows] + rest_S for first in range(0, len(part), rows)]
                self.evaluated += len(part)
                values = np.concatenate([sum_negative_log(b) for b in blocks]) / part.shape[1] + cost
                values += sum(float(box.costs[j][choice[j]]) for j in others)
                if values.min() < best:
                    best, choice[i] = float(values.min()), int(values.argmin())
        self.evaluate(np.array([[kept[k] for kept, k in zip(box.labels, choice, strict=True)]]))


def _split(box: _Box, bounds: list[Array], bound: float) -> list[tuple[float, list[Labels]]]:
    """One node per checkpoint of the mode whose checkpoints raise the bound most on average."""
    modes = [i for i, kept in enumerate(box.labels) if len(kept) > 1]
    split = max(modes, key=lambda i: float(bounds[i].mean()))
    children = []
    for k, own in enumerate(bounds[split]):
        labels = [kept if i != split else kept[k : k + 1] for i, kept in enumerate(box.labels)]
        children.append((max(bound, float(own)), labels))
    return children


def _undominated(box: _Box) -> list[Flags]:
    """The checkpoints of each mode that no other one of the same mode replaces, whatever the rest does."""
    lows, highs = [p.min(0) for p in box.parts], [p.max(0) for p in box.parts]
    flags = []
    for i, (part, cost) in enumerate(zip(box.parts, box.costs, strict=True)):
        others = [j for j in range(len(lows)) if j != i]
        low_S = sum((lows[j] for j in others), np.zeros(part.shape[1]))
        high_S = sum((highs[j] for j in others), np.zeros(part.shape[1]))
        flags.append(undominated(part, cost, low_S, high_S))
    return flags
