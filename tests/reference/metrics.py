"""The paper's metrics, index by index: acc[t][v - 1] is Acc(theta_t, x_v), row 0 the initial model."""

import math


def average_accuracy(acc, t):
    """1/t sum_{v=1..t} Acc(theta_t, x_v)."""
    total = 0.0
    for v in range(1, t + 1):
        total += acc[t][v - 1]
    return total / t


def backward_transfer(acc):
    """1/(T-1) sum_{v=1..T-1} Acc(theta_T, x_v) - Acc(theta_v, x_v)."""
    T, total = len(acc) - 1, 0.0
    for v in range(1, T):
        total += acc[T][v - 1] - acc[v][v - 1]
    return total / (T - 1)


def forward_transfer(acc):
    """1/(T-1) sum_{v=2..T} Acc(theta_{v-1}, x_v) - Acc(theta_init, x_v)."""
    T, total = len(acc) - 1, 0.0
    for v in range(2, T + 1):
        total += acc[v - 1][v - 1] - acc[0][v - 1]
    return total / (T - 1)


def remembering(acc):
    """1 - |min(0, BWT)|."""
    return 1 - abs(min(0, backward_transfer(acc)))


def forgetting(acc):
    """1/(T-1) sum_{v=1..T-1} max_{t in 1..T-1} (Acc(theta_t, x_v) - Acc(theta_T, x_v))."""
    T, total = len(acc) - 1, 0.0
    for v in range(1, T):
        peak = -math.inf
        for t in range(1, T):
            peak = max(peak, acc[t][v - 1] - acc[T][v - 1])
        total += peak
    return total / (T - 1)


def task_drift(drift):
    """1/(T-1) sum_{t=2..T} sum_i dist(theta_{i,t}, theta_{i,t-1})."""
    total = 0.0
    for t in range(1, len(drift)):
        for distance in drift[t]:
            total += distance
    return total / (len(drift) - 1)


def negative_log_likelihood(probabilities, targets):
    """-1/S sum_s log p(y_s | x_s), probabilities below 1e-12 counting as 1e-12."""
    total = 0.0
    for row, target in zip(probabilities, targets, strict=True):
        total -= math.log(max(row[target], 1e-12))
    return total / len(targets)


def calibration_error(probabilities, targets, bins):
    """sum_b |B_b| / S * |mean right in B_b - mean confidence in B_b|."""
    members = [[] for _ in range(bins)]
    for row, target in zip(probabilities, targets, strict=True):
        best = max(range(len(row)), key=lambda c: row[c])
        members[min(int(row[best] * bins), bins - 1)].append((best == target, row[best]))
    total = 0.0
    for inside in members:
        if inside:
            right = sum(r for r, _ in inside) / len(inside)
            confidence = sum(c for _, c in inside) / len(inside)
            total += len(inside) / len(targets) * abs(right - confidence)
    return total


def auroc(inside, outside):
    """The share of pairs in which the outside score is larger; a tie is half a pair."""
    wins = 0.0
    for low in inside:
        for high in outside:
            wins += 1.0 if high > low else 0.5 if high == low else 0.0
    return wins / (len(inside) * len(outside))
