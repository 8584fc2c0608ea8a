"""The search over checkpoints by brute force: every choice, one sample and one mode at a time."""

import math
from itertools import product

FLOOR, TIE = 1e-12, 1e-12


def value(probs, drifts, weight, epochs):
    """-mean_s log(mean_i p[i][e_i][s]) + weight * sum_i drifts[i][e_i], lists of lists of numbers."""
    total = 0.0
    num_samples = len(probs[0][0])
    for s in range(num_samples):
        mean = sum(min(max(p[e][s], FLOOR), 1.0) for p, e in zip(probs, epochs, strict=True)) / len(probs)
        total -= math.log(mean)
    return total / num_samples + weight * sum(d[e] for d, e in zip(drifts, epochs, strict=True))


def all_values(probs, drifts, weight):
    """{epochs: value} for every choice."""
    choices = product(*(range(len(p)) for p in probs))
    return {epochs: value(probs, drifts, weight, epochs) for epochs in choices}


def best(probs, drifts, weight):
    """The least value, and the lexicographically first of the choices that reach it."""
    values = all_values(probs, drifts, weight)
    least = min(values.values())
    return min(epochs for epochs, v in values.items() if v <= least + TIE), least


def can_still_win(probs, drifts, num_modes, weight, margin):
    """Flags of one mode's checkpoints: each against each other one, at the worst sum of the other modes.

    A rival must be better by `margin`, a later one by 1e-11 more.
    """
    flags = []
    for e, row in enumerate(probs):
        beaten = False
        for f, other in enumerate(probs):
            if e == f:
                continue
            worst = 0.0
            for p, r in zip(row, other, strict=True):
                p, r = max(p, FLOOR), max(r, FLOOR)
                q = 0 if p > r else num_modes - 1
                worst += math.log((p + q) / (r + q)) / len(row)
            spare = weight * (drifts[e] - drifts[f]) - worst
            beaten = beaten or spare >= margin + (0 if f < e else 1e-11)
        flags.append(not beaten)
    return flags
