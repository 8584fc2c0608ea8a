"""Holm's correction by its definition, and the interval and paired test by scipy.stats."""

from __future__ import annotations

from collections.abc import Sequence

from scipy import stats


def holm(p: dict[str, float]) -> dict[str, float]:
    """For each value: the largest (m - k) p_(k) over all ranks k (from 0) up to its own."""
    ranked = sorted(p.values())
    found = {}
    for label, value in p.items():
        rank = max(k for k, other in enumerate(ranked) if other <= value)
        found[label] = max(min(1.0, ranked[k] * (len(p) - k)) for k in range(rank + 1))
    return found


def paired(differences: Sequence[float]) -> float:
    """Two-sided p of a paired t-test."""
    return float(stats.ttest_rel(differences, [0.0] * len(differences)).pvalue)
