"""How far the weights move: the multi-task learner against the others (what the paper starts from)."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import altair as alt

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
from manymodes.report.groups import Experiment
from manymodes.report.overview import SHOWN, drift_chart, drift_rows
from manymodes.report.theme import Palette
from manymodes.report.words import name_of


def charts(experiment: Experiment, palette: Palette) -> list[Chart]:
    """Multi-task learning against those that are held; drift over tasks, in sum, and what it cost."""
    against = [_against(experiment, palette)] if _ratios(experiment) else []
    drifts = [drift_chart(experiment, palette), _total(experiment, palette), _cost(experiment, palette)]
    return [*against, *drifts]


def data(experiment: Experiment) -> dict[str, Columns]:
    """Their rows."""
    rows = _rows(experiment)
    return {
        "against": columns(_against_rows(experiment)),
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


def _ratios(experiment: Experiment) -> dict[str, dict[int, float]]:
    """For EWC and every MOTA, by seed: how many times as far multi-task learning moves for a task."""
    multitask = experiment.method("multitask")
    reference = multitask.by_seed("task_drift") if multitask else {}
    found: dict[str, dict[int, float]] = {}
    for method in experiment.methods:
        if method.strategy in ("ewc", "mota"):
            own = method.by_seed("task_drift")
            ratios = {s: reference[s] / own[s] for s in own if own[s] > 0 and reference.get(s, 0) > 0}
            found |= {method.label: ratios} if ratios else {}
    return found


def _against_rows(experiment: Experiment) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    for label, by_seed in _ratios(experiment).items():
        mean = _typical(by_seed.values())
        rows.append({"label": label, "kind": "mean", "seed": -1, "seeds": len(by_seed), "ratio": mean})
        rows += [
            {"label": label, "kind": "seed", "seed": seed, "seeds": 1, "ratio": ratio}
            for seed, ratio in by_seed.items()
        ]
    return rows


def _typical(ratios: Iterable[float]) -> float:
    """The geometric mean: twice as far and half as far are as far."""
    logs = [math.log(ratio) for ratio in ratios]
    return math.exp(sum(logs) / len(logs))


def _against(experiment: Experiment, palette: Palette) -> Chart:
    rows = _against_rows(experiment)
    scale, marks = log_scale([1.0, *(row["ratio"] for row in rows)])
    title = "times as far as this method"
    x = alt.X("ratio:Q", title=title, scale=scale, axis=alt.Axis(format="~g", values=marks, grid=True))
    names = [name for name in palette.names if name in {row["label"] for row in rows}]
    y = alt.Y("label:N", sort=names, title=None, axis=alt.Axis(labelColor=alt.ExprRef("ink")))
    color = named("label", palette.names, "method")
    base = alt.Chart(ROWS).encode(y=y, opacity=alt.condition(SHOWN, alt.value(1), alt.value(0.2)))
    ratio = number("ratio", "times as far")
    spec = alt.layer(
        alt.Chart(ROWS).mark_rule(strokeDash=[4, 3], color=alt.ExprRef("muted")).encode(x=alt.datum(1)),
        base.transform_filter("datum.kind == 'seed'").mark_tick(thickness=1.5, size=14, opacity=0.6).encode(
            x=x, color=color, tooltip=[word("label", "multitask against"), number("seed", "seed", "d"), ratio]
        ),
        base.transform_filter("datum.kind == 'mean'").mark_point(size=110, opacity=1).encode(
            x=x, color=color, shape=shaped("label", palette.names, "method"),
            tooltip=[word("label", "multitask against"), ratio, number("seeds", "seeds", "d")],
        ),
    )  # fmt: skip
    return Chart(
        "against",
        "Multi-task learning against EWC and MOTA",
        "How many times as far multi-task learning moves for a task, with the same seed. Right of the dashed "
        "line it moves farther. Thin marks: seeds; large marks: their geometric mean.",
        72 + 34 * len(names),
        spec.add_params(PICKED),
        "methods",
        wide=True,
    )


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
    typical = {label: _typical(by_seed.values()) for label, by_seed in _ratios(experiment).items()}
    if not typical:
        return "How far each method moves the weights for a new task."
    parts = [f"{ratio:.2g} times as far as {name_of(label)}" for label, ratio in typical.items()]
    verdict = (
        "As the paper observes, a learner that sees all tasks does not stay where it was"
        if all(ratio > 1 for ratio in typical.values())
        else "The paper observes that a learner that sees all tasks moves farther than one that is held; "
        "here it does not always"
    )
    several = any(m.runs[0].modes > 1 for m in experiment.methods if m.label in typical)
    together = " (all its modes together)" if several else ""
    return f"Per task, multi-task learning moves {_listed(parts)}{together}. {verdict}."


def _listed(parts: list[str]) -> str:
    return " and ".join([", ".join(parts[:-1]), parts[-1]] if len(parts) > 1 else parts)
