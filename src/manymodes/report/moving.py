"""How far the weights move: the multi-task learner against the others (what the paper starts from)."""

from __future__ import annotations

from typing import Any

import altair as alt

from manymodes.metrics import mean_interval
from manymodes.report.chart import (
    PICKED,
    ROWS,
    Chart,
    Columns,
    accuracy_scale,
    columns,
    log_scale,
    named,
    number,
    percent,
    shaped,
    word,
)
from manymodes.report.groups import Experiment, Method
from manymodes.report.overview import SHOWN, drift_chart, drift_rows
from manymodes.report.theme import Palette


def charts(experiment: Experiment, palette: Palette) -> list[Chart]:
    """Drift over tasks, drift in sum, and what it cost."""
    return [drift_chart(experiment, palette), _total(experiment, palette), _cost(experiment, palette)]


def data(experiment: Experiment) -> dict[str, Columns]:
    """Their rows."""
    rows = _rows(experiment)
    return {
        "drift_over_tasks": columns(drift_rows(experiment)),
        "total": columns(rows),
        "cost": columns(rows),
    }


def _rows(experiment: Experiment) -> list[dict[str, Any]]:
    return [
        {
            "label": method.label,
            "seed": run.seed,
            "drift": run.numbers["task_drift"],
            "forgetting": run.numbers["forgetting"],
            "accuracy": run.numbers["average_accuracy"],
        }
        for method in experiment.methods
        for run in method.runs
        if run.numbers["task_drift"] > 0
    ]


def _total(experiment: Experiment, palette: Palette) -> Chart:
    scale, marks = log_scale([row["drift"] for row in _rows(experiment)])
    axis = alt.Axis(format=".0e", values=marks, grid=True)
    x = alt.X("drift:Q", title="mean drift per task", scale=scale, axis=axis)
    y = alt.Y("label:N", sort=palette.names, title=None, axis=alt.Axis(labelColor=alt.ExprRef("ink")))
    tips = [word("label", "method"), number("seed", "seed", "d"), number("drift", "drift")]
    spec = (
        alt.Chart(ROWS)
        .mark_point(size=80)
        .encode(
            x=x, y=y, color=named("label", palette.names, "method"), tooltip=tips,
            shape=shaped("label", palette.names, "method"),
            opacity=alt.condition(SHOWN, alt.value(0.9), alt.value(0.15)),
        )
        .add_params(PICKED)
    )  # fmt: skip
    return Chart(
        "total",
        "Mean drift per task",
        "One mark a seed; from task 2 on, summed over modes.",
        72 + 30 * len(palette.names),
        spec,
        "methods",
    )


def _cost(experiment: Experiment, palette: Palette) -> Chart:
    rows = _rows(experiment)
    scale, marks = log_scale([row["drift"] for row in rows])
    x = alt.X("drift:Q", title="mean drift per task", scale=scale, axis=alt.Axis(format=".0e", values=marks))
    y = alt.Y("accuracy:Q", title="average accuracy", axis=alt.Axis(format="%"),
              scale=accuracy_scale([row["accuracy"] for row in rows]))  # fmt: skip
    tips = [word("label", "method"), number("seed", "seed", "d"), number("drift", "drift"),
            percent("accuracy", "average accuracy"), percent("forgetting", "forgetting")]  # fmt: skip
    spec = (
        alt.Chart(ROWS)
        .mark_point(size=80)
        .encode(
            x=x, y=y, color=named("label", palette.names, "method"), tooltip=tips,
            shape=shaped("label", palette.names, "method"),
            opacity=alt.condition(SHOWN, alt.value(0.9), alt.value(0.15)),
        )
        .add_params(PICKED)
    )  # fmt: skip
    return Chart(
        "cost",
        "Does moving far cost accuracy?",
        "One mark a seed. If staying put were all, points would fall from left to right.",
        72 + 30 * len(palette.names),
        spec,
        "methods",
    )


def observation(experiment: Experiment) -> str:
    """Multi-task learning against EWC and MOTA, as the paper's first figure has it."""
    multitask = experiment.method("multitask")
    others = [m for m in (experiment.method("ewc"), experiment.method("mota")) if m is not None]
    if multitask is None or not others or not _drift(multitask):
        return "How far each method moves the weights for a new task."
    parts = [f"{_times(_drift(multitask) / _drift(m))} as far as {m.label}" for m in others if _drift(m) > 0]
    farther = all(_drift(multitask) > _drift(m) for m in others)
    verdict = (
        "As the paper observes, a learner that sees all tasks does not stay where it was"
        if farther
        else "The paper observes that a learner that sees all tasks moves farther than one that is held; "
        "here it does not always"
    )
    together = " (all its modes together)" if others[-1].runs[0].modes > 1 else ""
    return f"Per task, multi-task learning moves {' and '.join(parts)}{together}. {verdict}."


def _drift(method: Method) -> float:
    return mean_interval(method.values("task_drift"))[0]


def _times(ratio: float) -> str:
    return f"{ratio:.2g} times"
