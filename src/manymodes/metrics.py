"""Metrics: pure functions of the accuracy matrix, and of probabilities and targets.

The accuracy matrix has T + 1 rows and T columns: row 0 is the initial model, row t the model after task t;
column v is the accuracy on task v's test data, from 0 to 1. All formulas are the paper's (Section 5).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from manymodes.errors import require

Matrix = NDArray[np.float64]


def _matrix(accuracy: ArrayLike) -> Matrix:
    try:
        matrix = np.asarray(accuracy, dtype=np.float64)
    except (TypeError, ValueError):  # ragged, or no numbers
        matrix = np.zeros(0)
    require(
        matrix.ndim == 2 and matrix.shape[0] == matrix.shape[1] + 1 and matrix.shape[1] > 0,
        f"an accuracy matrix has T + 1 rows (row 0: the initial model) and T columns of numbers, "
        f"not {_shape(accuracy)}",
    )
    return matrix


def _shape(given: Any) -> str:
    try:
        return str(np.shape(given))
    except ValueError:
        return "rows of different lengths"


def average_accuracy(accuracy: ArrayLike, after: int | None = None) -> float:
    """1/t sum_{v=1..t} Acc(theta_t, x_v), after task t (the last by default).

    >>> average_accuracy([[0.5, 0.5], [0.9, 0.6], [0.7, 0.9]])
    0.8
    """
    matrix = _matrix(accuracy)
    tasks = matrix.shape[1]
    t = tasks if after is None else after
    require(1 <= t <= tasks, f"after must be the number of a task, 1 to {tasks}, not {after!r}")
    return float(matrix[t, :t].mean())


def average_accuracies(accuracy: ArrayLike) -> list[float]:
    """The average accuracy after each task (the paper's Figure 2)."""
    matrix = _matrix(accuracy)
    return [float(matrix[t, :t].mean()) for t in range(1, matrix.shape[1] + 1)]


def backward_transfer(accuracy: ArrayLike) -> float:
    """1/(T-1) sum_{v<T} Acc(theta_T, x_v) - Acc(theta_v, x_v); 0 for a single task.

    >>> round(backward_transfer([[0.5, 0.5], [0.9, 0.6], [0.7, 0.9]]), 9)
    -0.2
    """
    matrix = _matrix(accuracy)
    tasks = matrix.shape[1]
    if tasks == 1:
        return 0.0
    learnt = matrix[np.arange(1, tasks), np.arange(tasks - 1)]
    return float((matrix[tasks, : tasks - 1] - learnt).mean())


def forward_transfer(accuracy: ArrayLike) -> float:
    """1/(T-1) sum_{v=2..T} Acc(theta_{v-1}, x_v) - Acc(theta_init, x_v); 0 for a single task.

    >>> round(forward_transfer([[0.5, 0.5], [0.9, 0.6], [0.7, 0.9]]), 9)
    0.1
    """
    matrix = _matrix(accuracy)
    tasks = matrix.shape[1]
    if tasks == 1:
        return 0.0
    before = matrix[np.arange(1, tasks), np.arange(1, tasks)]
    return float((before - matrix[0, 1:]).mean())


def remembering(accuracy: ArrayLike) -> float:
    """1 - |min(0, backward transfer)|.

    >>> round(remembering([[0.5, 0.5], [0.9, 0.6], [0.7, 0.9]]), 9)
    0.8
    """
    return 1.0 - abs(min(0.0, backward_transfer(accuracy)))


def forgetting(accuracy: ArrayLike) -> float:
    """1/(T-1) sum_{v<T} max_{t in 1..T-1} Acc(theta_t, x_v) - Acc(theta_T, x_v); 0 for a single task.

    The peak is over all earlier rows, so forgetting is never below minus the backward transfer.

    >>> round(forgetting([[0.5, 0.5], [0.9, 0.6], [0.7, 0.9]]), 9)
    0.2
    """
    matrix = _matrix(accuracy)
    tasks = matrix.shape[1]
    if tasks == 1:
        return 0.0
    peak = matrix[1:tasks, : tasks - 1].max(axis=0)
    return float((peak - matrix[tasks, : tasks - 1]).mean())


def just_learnt(accuracy: ArrayLike) -> float:
    """Mean accuracy on each task right after learning it: what forgetting is taken from."""
    return float(np.diag(_matrix(accuracy)[1:]).mean())


def task_drift(drift_TN: Sequence[Sequence[float]]) -> float:
    """1/(T-1) sum_{t=2..T} sum_i dist(theta_{i,t}, theta_{i,t-1}): from task 1's parameters on.

    `drift_TN[t][i]` is the mean squared change per parameter of mode i in task t.

    >>> task_drift([[9.0, 9.0], [1.0, 2.0], [3.0, 0.0]])
    3.0
    """
    later = [sum(row) for row in drift_TN[1:]]
    return sum(later) / len(later) if later else 0.0


def negative_log_likelihood(probabilities_SC: ArrayLike, targets_S: ArrayLike) -> float:
    """-1/S sum_s log p(y_s | x_s)."""
    probabilities, targets = np.asarray(probabilities_SC, np.float64), np.asarray(targets_S, int)
    chosen = probabilities[np.arange(len(targets)), targets]
    return float(-np.log(np.clip(chosen, 1e-12, None)).mean())


def calibration_error(probabilities_SC: ArrayLike, targets_S: ArrayLike, bins: int = 15) -> float:
    """Expected calibration error: mean |accuracy - confidence| over confidence bins, weighted by size.

    >>> round(calibration_error([[0.8, 0.2], [0.8, 0.2]], [0, 1]), 9)
    0.3
    """
    probabilities, targets = np.asarray(probabilities_SC, np.float64), np.asarray(targets_S, int)
    confidence, right = probabilities.max(axis=1), probabilities.argmax(axis=1) == targets
    bin_of = np.minimum((confidence * bins).astype(int), bins - 1)
    gaps = np.bincount(bin_of, weights=right - confidence, minlength=bins)
    return float(np.abs(gaps).sum() / len(targets))


def auroc(inside: ArrayLike, outside: ArrayLike) -> float:
    """The probability that a score of `outside` exceeds one of `inside` (ties count half).

    >>> auroc([0.1, 0.2], [0.3, 0.2])
    0.875
    """
    from scipy.stats import rankdata

    low, high = np.asarray(inside, np.float64), np.asarray(outside, np.float64)
    ranks = rankdata(np.concatenate([low, high]))[len(low) :]
    return float((ranks.sum() - len(high) * (len(high) + 1) / 2) / (len(low) * len(high)))


def mean_interval(values: Sequence[float], level: float = 0.95) -> tuple[float, float]:
    """Mean and half-width of its confidence interval by Student's t (0 for a single value).

    >>> [round(x, 3) for x in mean_interval([1.0, 2.0, 3.0])]
    [2.0, 2.484]
    """
    count = len(values)
    if count < 2:
        return (float(values[0]), 0.0) if values else (math.nan, 0.0)
    from scipy.special import stdtrit  # a tenth of the time that importing scipy.stats takes

    error = float(np.std(values, ddof=1)) / math.sqrt(count)
    return float(np.mean(values)), float(stdtrit(count - 1, (1 + level) / 2)) * error


def summary(accuracy: ArrayLike) -> dict[str, Any]:
    """Every metric of the accuracy matrix, by its key in metrics.json."""
    return {
        "average_accuracy": average_accuracy(accuracy),
        "average_accuracies": average_accuracies(accuracy),
        "backward_transfer": backward_transfer(accuracy),
        "forward_transfer": forward_transfer(accuracy),
        "remembering": remembering(accuracy),
        "forgetting": forgetting(accuracy),
        "just_learnt": just_learnt(accuracy),
    }
