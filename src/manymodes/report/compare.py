"""Is a difference more than the seeds' luck? Paired over seeds, corrected for the number of comparisons."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from manymodes.report.groups import Experiment, Method


@dataclass(frozen=True)
class Difference:
    """A method minus the best one, over the seeds both have."""

    mean: float
    p: float | None  # None: fewer than two seeds in common
    seeds: int

    @property
    def tied(self) -> bool:
        """Whether the test does not tell them apart; a single seed never does."""
        return self.p is None or self.p >= 0.05


def differences(experiment: Experiment, key: str = "average_accuracy") -> dict[str, Difference]:
    """Every method against the best, by a paired t-test over seeds with Holm's correction."""
    best = experiment.best
    if best is None:
        return {}
    rivals = [m for m in experiment.methods if m is not best and not m.is_reference]
    pairs = {m.label: _paired(m, best, key) for m in rivals}
    raw = {label: paired_p(values) for label, values in pairs.items()}
    corrected = holm({label: p for label, p in raw.items() if p is not None})
    return {
        label: Difference(sum(v) / len(v) if v else math.nan, corrected.get(label), len(v))
        for label, v in pairs.items()
    }


def _paired(method: Method, best: Method, key: str) -> list[float]:
    mine, theirs = method.by_seed(key), best.by_seed(key)
    return [mine[seed] - theirs[seed] for seed in sorted(mine.keys() & theirs.keys())]


def paired_p(differences: Sequence[float]) -> float | None:
    """Two-sided p of Student's t on paired differences: t = mean / (sd / sqrt(n)), n - 1 degrees of freedom.

    >>> round(paired_p([0.01, 0.02, 0.03]), 4), paired_p([0.01])
    (0.0742, None)
    """
    count = len(differences)
    if count < 2:
        return None
    mean = sum(differences) / count
    variance = sum((d - mean) ** 2 for d in differences) / (count - 1)
    if variance <= 1e-18:
        return 1.0 if abs(mean) < 1e-12 else 0.0
    from scipy.special import stdtr

    return float(2 * stdtr(count - 1, -abs(mean) / math.sqrt(variance / count)))


def holm(p: dict[str, float]) -> dict[str, float]:
    """Holm's step-down correction: the k-th smallest of m times (m - k), never decreasing, at most 1.

    >>> {k: round(v, 6) for k, v in holm({"a": 0.01, "b": 0.04, "c": 0.03}).items()}
    {'a': 0.03, 'c': 0.06, 'b': 0.06}
    """
    found: dict[str, float] = {}
    largest = 0.0
    for rank, (label, value) in enumerate(sorted(p.items(), key=lambda item: item[1])):
        largest = max(largest, min(1.0, value * (len(p) - rank)))
        found[label] = largest
    return found
