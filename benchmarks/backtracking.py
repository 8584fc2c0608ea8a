"""How fast `backtrack` finds and proves the best checkpoints, on curves like those of training.

    python benchmarks/backtracking.py [--seeds 3] [--repeats 3] [--time-limit 10] [--json PATH]

One line per size and noise of the curves, over seeds: seconds (median and worst), the certified gap
(value - lower bound) / value of the worst seed, how many seeds were proven optimal, and how many choices were
evaluated out of how many there are. `can_still_win` is timed as training calls it: after every epoch, on
the checkpoints that are left and the new one.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
from pathlib import Path
from time import perf_counter

import numpy as np
import torch
from torch import Tensor

from manymodes.backtracking import backtrack, can_still_win

SIZES = [(2, 201, 5000), (4, 51, 1000), (6, 51, 1000), (10, 51, 1000)]
# Noise from epoch to epoch in logits, and what all logits are multiplied by (overconfident networks).
CURVES = {"smooth": (0.3, 1.0), "noisy": (1.0, 1.0), "wild": (3.0, 1.0), "overconfident": (0.6, 4.0)}


def lifelike(
    modes: int, checkpoints: int, samples: int, seed: int = 0, noise: float = 1.0, confidence: float = 1.0
) -> tuple[Tensor, Tensor]:
    """True-class probabilities (N, E, S) and drifts (N, E) as training makes them.

    Samples differ in difficulty, which the modes share in part; each is learnt at its own pace, some are
    unlearnt later (overfitting), and correlated noise moves all of them from epoch to epoch. Drift rises
    and levels off. All of it in logits, epoch 0 being the untouched mode.
    """
    random = np.random.default_rng(seed)
    time_E = np.linspace(0, 1, checkpoints)[:, None]
    easy_S = random.normal(1.0, 1.5, samples)
    probs, drifts = [], []
    for _ in range(modes):
        start_S = random.normal(-2.0, 1.0, samples) + 0.3 * easy_S
        end_S = easy_S + random.normal(0.8, 1.2, samples)
        pace_S = np.exp(random.normal(np.log(0.12), 0.6, samples))
        forget_S = 1.5 * np.clip(random.normal(-0.3, 1.0, samples), 0, None)
        logits = end_S + (start_S - end_S) * np.exp(-time_E / pace_S) - forget_S * np.clip(time_E - 0.4, 0, 1)
        wobble_S = np.zeros(samples)
        for e in range(1, checkpoints):
            wobble_S = 0.5 * wobble_S + random.normal(0, noise * math.sqrt(0.75), samples)
            logits[e] += wobble_S
        probs.append(1 / (1 + np.exp(-confidence * logits)))
        drift_E = (1 - np.exp(-time_E[:, 0] / 0.3)) * random.uniform(1, 1.3)
        drifts.append(drift_E * np.exp(random.normal(0, 0.05, checkpoints)))
    return torch.from_numpy(np.stack(probs)).float(), torch.from_numpy(np.stack(drifts))


def search(size: tuple[int, int, int], curves: str, arguments: argparse.Namespace) -> dict[str, object]:
    """One line of the table."""
    noise, confidence = CURVES[curves]
    seconds, gaps, proven, evaluated = [], [], 0, []
    for seed in range(arguments.seeds):
        probs, drifts = lifelike(*size, seed=seed, noise=noise, confidence=confidence)
        for _ in range(arguments.repeats):
            start = perf_counter()
            choice = backtrack(probs, drifts, 0.02, time_limit=arguments.time_limit)
            seconds.append(perf_counter() - start)
        gaps.append((choice.value - choice.lower_bound) / choice.value)
        proven += choice.proven
        evaluated.append(choice.evaluated)
    return {
        "modes": size[0],
        "checkpoints": size[1],
        "samples": size[2],
        "curves": curves,
        "seconds_median": statistics.median(seconds),
        "seconds_worst": max(seconds),
        "gap_worst": max(gaps),
        "proven": proven,
        "seeds": arguments.seeds,
        "evaluated_worst": max(evaluated),
        "choices": float(size[1]) ** size[0],
    }


def prune(epochs: int, samples: int) -> dict[str, object]:
    """`can_still_win` after every epoch of one mode."""
    probs, drifts = lifelike(1, epochs, samples, noise=1.0)
    kept: list[int] = []
    seconds = 0.0
    for epoch in range(epochs):
        rows = [*kept, epoch]
        start = perf_counter()
        wins = can_still_win(probs[0, rows], drifts[0, rows], 2, 0.02, only_last_is_new=True)
        seconds += perf_counter() - start
        kept = [row for row, win in zip(rows, wins.tolist(), strict=True) if win]
    return {
        "checkpoints": epochs,
        "samples": samples,
        "seconds_per_epoch": seconds / epochs,
        "kept": len(kept),
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--time-limit", type=float, default=10.0)
    parser.add_argument("--json", type=Path, default=None)
    arguments = parser.parse_args()
    backtrack(*lifelike(2, 5, 30), 0.02)  # the first call loads libraries

    print(
        "modes  checkpoints  samples  curves         seconds (worst)    gap     proven  evaluated / choices"
    )
    lines = []
    for size in SIZES:
        for curves in CURVES:
            line = search(size, curves, arguments)
            lines.append(line)
            print(
                "{modes:>5}  {checkpoints:>11}  {samples:>7}  {curves:<13}  {seconds_median:7.3f} "
                "({seconds_worst:6.3f})  {gap_worst:6.2%}  {proven:>4}/{seeds}  "
                "{evaluated_worst:>9} / {choices:.2g}".format(**line),
                flush=True,
            )
    pruning = prune(201, 5000)
    print(
        "can_still_win, {checkpoints} epochs x {samples} samples: {seconds_per_epoch:.4f} s per epoch and "
        "mode, {kept} kept".format(**pruning)
    )
    if arguments.json is not None:
        arguments.json.write_text(json.dumps({"search": lines, "can_still_win": pruning}, indent=2) + "\n")


if __name__ == "__main__":
    main()
