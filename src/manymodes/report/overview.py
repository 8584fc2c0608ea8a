"""Charts that set the methods of an experiment side by side."""

from __future__ import annotations

from collections.abc import Sequence
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
    tasks_axis,
    word,
)
from manymodes.report.groups import Experiment
from manymodes.report.theme import Palette

SHOWN = "picked === '' || datum.label === picked"


def charts(experiment: Experiment, palette: Palette) -> list[Chart]:
    """The overview's charts."""
    if experiment.tasks == 1:
        return [_final(experiment, palette)]
    return [_progress(experiment, palette), _final(experiment, palette)]


def data(experiment: Experiment) -> dict[str, Columns]:
    """Their rows."""
    return {
        "final": columns(_final_rows(experiment)),
        "progress": columns(_progress_rows(experiment)),
    }


def _final(experiment: Experiment, palette: Palette) -> Chart:
    rows = _final_rows(experiment)
    scale = accuracy_scale(_around([row["value"] for row in rows], [row["low"] for row in rows]))
    axis = alt.Axis(format="%", grid=True, tickCount=5)
    x = alt.X("value:Q", title="average accuracy after the last task", axis=axis, scale=scale)
    y = alt.Y("label:N", sort=palette.names, title=None, axis=alt.Axis(labelColor=alt.ExprRef("ink")))
    tips = [word("label", "method"), percent("value", "mean"), percent("low", "95 % interval, from"),
            percent("high", "to"), number("seeds", "seeds", "d")]  # fmt: skip
    base = alt.Chart(ROWS).encode(y=y, opacity=alt.condition(SHOWN, alt.value(1), alt.value(0.2)))
    color = named("label", palette.names, "method")
    seeds = base.transform_filter("datum.kind == 'seed'").mark_tick(thickness=1.5, size=14, opacity=0.55)
    means = base.transform_filter("datum.kind == 'mean'")
    spec = alt.layer(
        seeds.encode(
            x=x, color=color, tooltip=[word("label", "method"), percent("value", "seed's accuracy")]
        ),
        means.mark_rule(strokeWidth=2, clip=True).encode(
            x=alt.X("low:Q"), x2="high:Q", color=color, tooltip=tips
        ),
        means.mark_point(size=110, opacity=1).encode(
            x=x, color=color, shape=shaped("label", palette.names, "method"), tooltip=tips
        ),
    )
    return Chart(
        "final",
        "Average accuracy",
        "Mean over seeds with its 95 % interval; thin marks are single seeds. An interval that reaches the "
        "edge goes on.",
        72 + 30 * len(palette.names),
        spec.add_params(PICKED),
        "methods",
        wide=True,
    )


def _around(values: list[float], ends: list[float]) -> list[float]:
    """The values, and the interval ends that leave them two thirds of the room: two seeds reach far."""
    spread = max(0.02, max(values) - min(values))
    return [*values, max(min(ends), min(values) - spread / 2)]


def _final_rows(experiment: Experiment) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    for method in experiment.methods:
        mean, half = method.mean("average_accuracy")
        count = len(method.runs)
        common = {"label": method.label, "seeds": count}
        rows.append(common | {"kind": "mean", "value": mean, "low": mean - half, "high": mean + half})
        if count > 1:
            rows += [
                common | {"kind": "seed", "value": value, "low": value, "high": value}
                for value in method.values("average_accuracy")
            ]
    return rows


def _lines(
    y: alt.Y, title: str, palette: Palette, tips: list[alt.Tooltip], x_title: str = "after task"
) -> alt.LayerChart | alt.FacetChart:
    base = alt.Chart(ROWS).encode(x=tasks_axis(title=x_title))
    color = named("label", palette.names, "method")
    seen = alt.condition(SHOWN, alt.value(1), alt.value(0.12))
    band = base.mark_area(clip=True).encode(
        y=alt.Y("low:Q", title=title), y2="high:Q", color=color,
        opacity=alt.condition("datum.label === picked", alt.value(0.2), alt.value(0)),
    )  # fmt: skip
    # a layer for each kind of dash: as an encoding it would dash the marks of the legend
    kinds = {tuple(dash): [n for n, d in zip(palette.names, palette.dashes, strict=True) if d == dash]
             for dash in palette.dashes}  # fmt: skip
    lines = [
        base.mark_line(strokeDash=list(dash))
        .transform_filter(alt.FieldOneOfPredicate("label", names))
        .encode(y=y, color=color, opacity=seen)
        for dash, names in kinds.items()
    ]
    points = base.mark_point(opacity=1).encode(
        y=y, color=color, shape=shaped("label", palette.names, "method"), opacity=seen, tooltip=tips
    )
    return alt.layer(band, *lines, points).add_params(PICKED)


def _progress(experiment: Experiment, palette: Palette) -> Chart:
    title = "average accuracy on the tasks so far"
    scale = accuracy_scale([row["value"] for row in _progress_rows(experiment)])
    y = alt.Y("value:Q", title=title, axis=alt.Axis(format="%"), scale=scale)
    tips = [word("label", "method"), word("task", "after task"), percent("value", "average accuracy"),
            percent("low", "95 % interval, from"), percent("high", "to")]  # fmt: skip
    return Chart(
        "progress",
        "Average accuracy after each task",
        "Over all tasks learnt so far: a method that forgets falls as tasks arrive. Pick a method above "
        "to see its 95 % interval.",
        360,
        _lines(y, title, palette, tips),
        "methods",
        wide=True,
    )


def _progress_rows(experiment: Experiment) -> list[dict[str, Any]]:
    rows = []
    for method in experiment.methods:
        per_seed = [run.numbers["average_accuracies"] for run in method.runs]
        rows += [
            _interval(method.label, task + 1, [seed[task] for seed in per_seed])
            for task in range(experiment.tasks)
        ]
    return rows


def _interval(label: str, task: int, values: Sequence[float]) -> dict[str, Any]:
    mean, half = mean_interval(values)
    return {"label": label, "task": task, "value": mean, "low": mean - half, "high": mean + half}


def drift_chart(experiment: Experiment, palette: Palette) -> Chart:
    """How far each method moves for each task."""
    title = "drift"
    scale, marks = log_scale([row["value"] for row in drift_rows(experiment)])
    y = alt.Y("value:Q", title=title, axis=alt.Axis(format=".0e", values=marks), scale=scale)
    tips = [word("label", "method"), word("task", "task"), number("value", "drift"),
            number("low", "least of the seeds"), number("high", "most")]  # fmt: skip
    return Chart(
        "drift_over_tasks",
        "How far the weights move for each task",
        "Mean squared change per parameter, summed over modes; logarithmic.",
        340,
        _lines(y, title, palette, tips, "task"),
        "methods",
        wide=True,
    )


def drift_rows(experiment: Experiment) -> list[dict[str, Any]]:
    """Mean over seeds, from task 2 on."""
    rows = []
    for method in experiment.methods:
        for task in range(1, experiment.tasks):
            values = [sum(run.drift[task]) for run in method.runs]
            mean = sum(values) / len(values)
            if min(values) > 0:  # a logarithmic scale has no place for what did not move
                rows.append(
                    {
                        "label": method.label,
                        "task": task + 1,
                        "value": mean,
                        "low": min(values),
                        "high": max(values),
                    }
                )
    return rows
