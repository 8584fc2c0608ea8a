"""Theorem 1, measured: the total drift from the multi-task parameters, with several modes and with one.

    pi(N) = sum_i [ sum_{t in T(i)} mean_d (theta_{i,t,d} - theta_MTL,d)^2
                    - sum_{t=2..T} mean_d (theta_{1,t,d} - theta_MTL,d)^2 ]

T(i) are the tasks from the second on in which mode i moved (at least one: task 1 if there is none),
theta_MTL is the multi-task learner's final vector with the same network and seed, and the second sum is
that of the learner with one mode (MOTA with N = 1, else EWC) against the multi-task learner of its own
network.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import altair as alt
import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open

from manymodes.metrics import mean_interval
from manymodes.report.chart import ROWS, Chart, Columns, columns, number
from manymodes.report.groups import Experiment
from manymodes.report.runs import Run


@dataclass(frozen=True)
class Theorem:
    """pi by number of modes (one value a seed), or why it could not be measured."""

    values: dict[int, list[float]]
    reason: str = ""


def measure(experiment: Experiment) -> Theorem:
    """pi(N) from the recorded paths of the weights."""
    runs = [run for method in experiment.methods for run in method.runs]
    references = {_network(run): run for run in runs if run.strategy == "multitask"}
    if not references:
        return Theorem({}, "It needs a run of multitask with the same network and seed, as the reference.")
    singles = _singles(runs)
    values: dict[int, list[float]] = {}
    for run in runs:
        single, reference = singles.get(run.seed), references.get(_network(run))
        if run.strategy != "mota" or single is None or reference is None:
            continue
        base = references.get(_network(single))
        pi = None if base is None else pi_of(run, reference, single, base)
        if pi is not None:
            values.setdefault(run.modes, []).append(pi)
    if not values:
        return Theorem(
            {},
            "It needs MOTA, EWC (or MOTA with one mode) and multitask with the same network and seed, each "
            "with its recorded trajectory. At equal capacity the networks differ: run multitask at the width "
            "of a mode too.",
        )
    return Theorem(dict(sorted(values.items())))


def _network(run: Run) -> str:
    return json.dumps([run.config["model"], run.seed], sort_keys=True, default=str)


def _singles(runs: Sequence[Run]) -> dict[int, Run]:
    """For each seed the learner with one mode: MOTA's if it ran, else EWC."""
    found = {run.seed: run for run in runs if run.strategy == "ewc"}
    return found | {run.seed: run for run in runs if run.strategy == "mota" and run.modes == 1}


def pi_of(run: Run, reference: Run, single: Run, base: Run) -> float | None:
    """pi of one run; None where a trajectory is missing or the shapes differ."""
    own, alone = distances(run, reference), distances(single, base)
    if own is None or alone is None:
        return None
    tasks = run.tasks
    alone_sum = float(alone[1:, 0].sum())  # tasks 2..T
    total = 0.0
    for mode in range(run.modes):
        moved = [t for t in range(1, tasks) if run.drift[t][mode] > 0] or [0]
        total += float(own[moved, mode].sum()) - alone_sum
    return total


def distances(run: Run, reference: Run) -> NDArray[np.float64] | None:
    """Mean squared distance of every mode after every task to the reference's final vector, (T, N)."""
    target = _vectors(reference.path, reference.tasks)
    rows = [_vectors(run.path, task) for task in range(1, run.tasks + 1)]
    if target is None or any(row is None or row.shape[1] != target.shape[1] for row in rows):
        return None
    return np.stack(
        [np.square(row - target[:1]).mean(axis=1, dtype=np.float64) for row in rows if row is not None]
    )


def _vectors(run: Path, task: int) -> NDArray[np.float32] | None:
    """The modes after a task (N, P), if they were recorded."""
    try:
        with safe_open(run / "trajectory" / f"task-{task:04d}.safetensors", framework="np") as file:
            found: NDArray[np.float32] = file.get_tensor("theta")
            return found
    except (OSError, SafetensorError, ValueError):
        return None


def chart() -> Chart:
    """pi over N, with the line at zero."""
    base = alt.Chart(ROWS).encode(x=alt.X("modes:O", title="modes", axis=alt.Axis(labelAngle=0)))
    tips = [number("modes", "modes", "d"), number("value", "pi"), number("low", "95 % interval, from"),
            number("high", "to"), number("seeds", "seeds", "d")]  # fmt: skip
    y = alt.Y("value:Q", title="pi", axis=alt.Axis(format=".2~g", tickCount=5))
    zero = alt.Y("zero:Q", title="pi", axis=alt.Axis(format=".2~g", tickCount=5))
    spec = alt.layer(
        alt.Chart(ROWS).mark_rule(strokeDash=[4, 3], color=alt.ExprRef("muted")).encode(y=zero),
        base.mark_rule(strokeWidth=2, color=alt.ExprRef("high")).encode(y="low:Q", y2="high:Q"),
        base.mark_point(size=120, opacity=1, color=alt.ExprRef("high")).encode(y=y, tooltip=tips),
    )
    return Chart(
        "theorem",
        "Theorem 1: total drift against one mode",
        "Below zero, N modes stay closer to the multi-task parameters than one does.",
        300,
        spec,
    )


def data(found: Theorem) -> Columns:
    """The chart's rows."""
    return columns(_row(modes, values) for modes, values in found.values.items())


def _row(modes: int, values: list[float]) -> dict[str, Any]:
    mean, half = mean_interval(values)
    return {
        "modes": modes,
        "value": mean,
        "low": mean - half,
        "high": mean + half,
        "seeds": len(values),
        "zero": 0,
    }


def sentence(found: Theorem) -> str:
    """The sign and the minimum, in words."""
    if not found.values:
        return f"Theorem 1 is not measured here. {found.reason}"
    means = {modes: mean_interval(values)[0] for modes, values in found.values.items()}
    least = min(means, key=lambda modes: means[modes])
    negative = [str(modes) for modes, mean in means.items() if mean < 0]
    holds = f"negative for N = {', '.join(negative)}" if negative else "negative for no N that ran"
    return f"Theorem 1: pi is {holds}; it is least at N = {least} ({means[least]:.3g})."
