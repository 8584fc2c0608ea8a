"""Backtracking: which checkpoint of every mode to keep, found exactly or with a certificate.

TODO
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from time import monotonic

import numpy as np
import torch
from torch import Tensor

from manymodes.bounds import (
    Array,
    Labels,
    completions,
    linear_bounds,
    pair_bounds,
    quadratic_tables,
    relax,
    tangent,
)
from manymodes.errors import require

FLOOR = 1e-12  # a probability below counts as this: one lost sample costs 27.6, not infinity
TIE = 1e-12  # values closer than this (relative to the larger of 1 and the value) are equal
SLACK = 1e-9  # what bounds may be off by rounding, with room to spare
FOLD = 24  # FOLD floored probabilities multiplied stay above the least float64
BLOCK = 1 << 17  # numbers worked on at once: 1 MB, inside the cache
VISITS = 400_000  # prefixes enumerated before a node is split instead


@dataclass(frozen=True)
class Choice:
    epochs: tuple[int, ...]
    value: float
    lower_bound: float
    evaluated: int = field(default=0, compare=False)

    @property
    def proven(self) -> bool:
        return self.value - self.lower_bound <= SLACK * max(1.0, abs(self.value))


class _Search:
    def __init__(self, parts, costs, num_samples, deadline):
        self.parts, self.costs, self.num_samples, self.deadline = parts, costs, num_samples, deadline
        self.value, self.epochs, self.evaluated = math.inf, (), 0
        self.log = []

    def cutoff(self):
        return self.value + SLACK * max(1.0, abs(self.value))

    def late(self):
        return monotonic() > self.deadline

    def nll(self, mean_MS):
        self.evaluated += len(mean_MS)
        cut = mean_MS.shape[1] // FOLD * FOLD
        product = np.multiply.reduce(mean_MS[:, :cut].reshape(len(mean_MS), FOLD, cut // FOLD), axis=1)
        return -(np.log(product).sum(1)+np.log(mean_MS[:,cut:].prod(1))) / self.num_samples

    def evaluate(self, choices):
        rows = max(1, BLOCK // self.parts[0].shape[1])
        for first in range(0, len(choices), rows):
            block = choices[first : first + rows]
            mean = self.parts[0][block[:, 0]]
            cost = self.costs[0][block[:, 0]]
            for i in range(1, len(self.parts)):
                mean += self.parts[i][block[:, i]]
                cost = cost + self.costs[i][block[:, i]]
            values = self.nll(mean) + cost
            self.offer(block, values)

    def offer(self, choices, values):
        least = float(values.min())
        if least > self.cutoff():
            return
        tie = TIE * max(1.0, abs(least))
        new = min(least, self.value)
        near = choices[values <= new + tie]
        cands = [tuple(int(c) for c in row) for row in near]
        if self.epochs and self.value <= new + tie:
            cands.append(self.epochs)
        self.epochs = min(cands)
        self.value = new

    def descend(self, choice):
        choice = np.array(choice)
        rows = max(1, BLOCK // self.parts[0].shape[1])
        best = math.inf
        while True:
            before = best
            for i, (p, c) in enumerate(zip(self.parts, self.costs)):
                rest = sum(self.parts[j][choice[j]] for j in range(len(choice)) if j != i)
                pen = sum(self.costs[j][choice[j]] for j in range(len(choice)) if j != i)
                v = (
                    np.concatenate([self.nll(p[f : f + rows] + rest) for f in range(0, len(p), rows)])
                    + c
                    + pen
                )
                k = int(v.argmin())
                if v[k] < best:
                    best = v[k]
                    choice[i] = k
            if not best < before:
                break
        self.evaluate(choice[None])

    def solve(self, kept, bound):
        """children or []"""
        P = [p[k] for p, k in zip(self.parts, kept)]
        C = [c[k] for c, k in zip(self.costs, kept)]
        x = [np.full(len(c), 1 / len(c)) for c in C]
        root = not self.epochs
        for rnd in range(6):
            size = sum(map(len, C))
            P32 = [p.astype(np.float32) for p in P]
            t = monotonic()
            tol = 1e-3 if not self.epochs else 0.03 * max(self.value - bound, 1e-6)
            x = relax(P32, C, x, 8 if rnd < 3 else 40, tol)
            t1 = monotonic()
            if root and rnd in (0, 3):
                self.descend([k[v.argmax()] for k, v in zip(kept, x)])
            t2 = monotonic()
            t0 = tangent(P, x)
            lb = linear_bounds(P, C, t0)
            bound = max(bound, max(float(b.min()) for b in lb))
            keep = [b <= self.cutoff() for b in lb]
            if not all(k.any() for k in keep):
                return None, bound
            kept, P, C, x = zip(*[(k[m], p[m], c[m], v[m]) for k, p, c, v, m in zip(kept, P, C, x, keep)])
            x = [np.maximum(v / v.sum(), 1e-4 / len(v)) for v in x]
            t3 = monotonic()
            if root:
                self.log.append(
                    (
                        "lin",
                        [len(c) for c in C],
                        round(bound, 5),
                        round(self.value, 5),
                        round(t1 - t, 4),
                        round(t2 - t1, 4),
                        round(t3 - t2, 4),
                    )
                )
            if rnd >= 3 and sum(map(len, C)) > 0.8 * size:
                break
        while True:
            size = sum(map(len, C))
            t = monotonic()
            t0 = tangent(P, x)
            tables = quadratic_tables(P, C, x, t0)
            lb = pair_bounds(tables)
            bound = max(bound, max(float(b.min()) for b in lb))
            keep = [b <= self.cutoff() for b in lb]
            if not all(k.any() for k in keep):
                return None, bound
            lb = [b[m] for b, m in zip(lb, keep)]
            kept, P, C, x = map(
                list, zip(*[(k[m], p[m], c[m], v[m]) for k, p, c, v, m in zip(kept, P, C, x, keep)])
            )
            if root:
                self.log.append(("quad", [len(c) for c in C], round(bound, 5), round(monotonic() - t, 4)))
            if sum(map(len, C)) > 0.8 * size:
                break
            x = relax([p.astype(np.float32) for p in P], C, x, 40, 0.03 * max(self.value - bound, 1e-6))
        from manymodes.bounds import Tables

        order = (
            np.argsort([len(c) for c in C], kind="stable")
            if ORDER == 1
            else np.argsort([-len(c) for c in C], kind="stable")
            if ORDER == 2
            else np.arange(len(C))
        )
        idx = [np.nonzero(m)[0] for m in keep]
        tables = Tables(
            [tables.unary[i][idx[i]] for i in order],
            [[tables.pair[i][j][np.ix_(idx[i], idx[j])] if i != j else None for j in order] for i in order],
        )
        t = monotonic()
        n = 0
        v = 0
        ob = np.inf
        for choices, ob, v in completions(tables, self.cutoff):
            if len(choices):
                n += len(choices)
                full = np.empty_like(choices)
                for d, i in enumerate(order):
                    full[:, i] = kept[i][choices[:, d]]
                self.evaluate(full)
            if self.late() or v > VISITS and sum(len(c) > 1 for c in C) > 1:
                ob = min(ob, self.value)
                break
        else:
            if root:
                self.log.append(("enum done", v, n, round(monotonic() - t, 4)))
            return None, max(bound, min(self.value, np.inf))
        if root:
            self.log.append(("enum cut", v, n, round(monotonic() - t, 4)))
        bound = max(bound, ob) if np.isfinite(ob) else bound
        i = max(range(len(C)), key=lambda i: lb[i].mean() if len(C[i]) > 1 else -np.inf)
        return [
            (max(bound, float(lb[i][k])), [kk if j != i else kk[k : k + 1] for j, kk in enumerate(kept)])
            for k in range(len(C[i]))
        ], bound

    def run(self):
        heap = [(-np.inf, 0, [np.arange(len(c)) for c in self.costs])]
        n = 1
        nodes = 0
        while heap:
            b, _, kept = heapq.heappop(heap)
            if b > self.cutoff():
                break
            if nodes and self.late():
                heapq.heappush(heap, (b, 0, kept))
                break
            ch, b = self.solve(kept, b)
            nodes += 1
            for cb, ck in ch or []:
                heapq.heappush(heap, (cb, n, ck))
                n += 1
        self.nodes = nodes
        return min([self.value] + [h[0] for h in heap])


ORDER = 1


def prep(P, D, w=1.0):
    N, E, S = P.shape
    S2 = -(-S // FOLD) * FOLD
    parts = []
    for p in P:
        q = np.full((E, S2), 1 / N)
        q[:, :S] = np.clip(p, FLOOR, 1) / N
        parts.append(q)
    return parts, [w * np.asarray(d, float) for d in D], S
