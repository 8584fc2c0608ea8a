"""Charts of one run: its accuracies, what it forgot, how far and where it moved, how long it took."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import altair as alt

from manymodes.report.chart import (
    ROWS,
    Chart,
    Columns,
    columns,
    heat_map,
    named,
    number,
    percent,
    tasks_axis,
    word,
)
from manymodes.report.groups import Experiment
from manymodes.report.runs import Run
from manymodes.report.theme import Palette

WRITTEN = 12  # up to this many tasks a cell has room for its number
DECADES = 4  # the heat map of layers shows drifts down to so many powers of ten below the largest
POINTS = 400  # of the loss curve of a run


def charts(experiment: Experiment, tasks: Palette, modes: Palette) -> list[Chart]:
    """The charts that every run has."""
    found = [_matrix(experiment), _tasks(experiment, tasks)]
    if experiment.tasks > 1:
        found += [_forgetting(), _drift(modes), _layers(experiment)]
    return [*found, _seconds(), _loss(modes)]


def data(experiment: Experiment, run: Run) -> dict[str, Columns]:
    """Their rows for one run."""
    matrix = [
        {"after": row, "task": task + 1, "value": value, "seen": int(row > task)}
        for row, values in enumerate(run.accuracy)
        for task, value in enumerate(values)
    ]
    return {
        "matrix": columns(matrix),
        "tasks": columns(
            {"after": r["after"], "task": f"task {r['task']}", "value": r["value"]}
            for r in matrix
            if r["seen"]
        ),
        "forgetting": columns(forgetting_rows(run.accuracy)),
        "drift": columns(_drift_rows(run)),
        "layers": columns(_layer_rows(experiment, run)),
        "seconds": columns({"task": n + 1, "value": s} for n, s in enumerate(run.get("seconds_per_task"))),
        "loss": columns(_loss_rows(run)),
    }


def _height(rows: int, row: int = 30, most: int = 520) -> int:
    return min(most, 74 + row * rows)


def _matrix(experiment: Experiment) -> Chart:
    values = [v for m in experiment.methods for r in m.runs for row in r.accuracy for v in row]
    after = alt.Axis(labelExpr="datum.value == 0 ? 'start' : datum.label")
    chart = heat_map(
        tasks_axis(title="accuracy on task"),
        alt.Y("after:O", title="after task", axis=after),
        alt.Text("value:Q", format=".0%") if experiment.tasks <= WRITTEN else None,
        [number("after", "after task", "d"), number("task", "on task", "d"), percent("value", "accuracy")],
        domain=(min(values), max(values)),
        faded="datum.seen == 0",
    )
    return Chart(
        "matrix",
        "Accuracy matrix",
        "Each row is the learner after one more task. Pale cells: tasks it has not met yet.",
        _height(experiment.tasks + 1),
        chart,
    )


def _tasks(experiment: Experiment, palette: Palette) -> Chart:
    base = alt.Chart(ROWS).encode(
        x=alt.X("after:O", title="after task", axis=alt.Axis(labelAngle=0)),
        y=alt.Y("value:Q", title="accuracy", axis=alt.Axis(format="%"), scale=alt.Scale(zero=False)),
        color=named("task", palette.names, "task"),
    )
    tips = [word("task", "of"), number("after", "after task", "d"), percent("value", "accuracy")]
    return Chart(
        "tasks",
        "Accuracy of each task over time",
        "From the moment a task is learnt; later tasks are stronger in colour.",
        _height(experiment.tasks + 1),
        alt.layer(base.mark_line(), base.mark_point(opacity=1).encode(tooltip=tips)),
        "tasks" if experiment.tasks <= WRITTEN else "",
    )


def _bars(y: alt.Y, tips: list[alt.Tooltip], **more: Any) -> alt.Chart:
    mark = alt.Chart(ROWS).mark_bar(size=22, cornerRadiusEnd=2, color=alt.ExprRef("high"))
    chart: alt.Chart = mark.encode(x=tasks_axis(title="task"), y=y, tooltip=tips, **more)
    return chart


def _forgetting() -> Chart:
    y = alt.Y("value:Q", title="points lost", axis=alt.Axis(format=".2~%", tickCount=5))
    tips = [number("task", "task", "d"), percent("peak", "best so far"), percent("final", "in the end"),
            percent("value", "forgotten")]  # fmt: skip
    ends = alt.Chart(ROWS).mark_tick(
        size=22, thickness=2, color=alt.ExprRef("high")
    )  # nothing lost is seen too
    return Chart(
        "forgetting",
        "Forgetting per task",
        "Best accuracy on the way minus accuracy in the end. Below zero: the task gained.",
        260,
        alt.layer(_bars(y, tips), ends.encode(x=tasks_axis(title="task"), y=y, tooltip=tips)),
    )


def forgetting_rows(accuracy: Sequence[Sequence[float]]) -> list[dict[str, Any]]:
    """max over t < T of Acc(theta_t, x_v), minus Acc(theta_T, x_v), for every task but the last.

    >>> forgetting_rows([[0.5, 0.5], [0.9, 0.6], [0.7, 0.9]])[0]["peak"]
    0.9
    """
    tasks = len(accuracy) - 1
    rows = []
    for task in range(tasks - 1):
        peak, final = max(row[task] for row in accuracy[1:tasks]), accuracy[tasks][task]
        rows.append({"task": task + 1, "peak": peak, "final": final, "value": peak - final})
    return rows


def _drift(modes: Palette) -> Chart:
    y = alt.Y(
        "value:Q",
        title="drift",
        axis=alt.Axis(tickCount=5, labelExpr="datum.value === 0 ? '0' : format(datum.value, '.1~e')"),
    )
    tips = [number("task", "task", "d"), word("mode", "mode"), number("value", "drift")]
    return Chart(
        "drift",
        "Drift per task",
        "Mean squared change per parameter, the modes on top of each other; from task 2 on.",
        260,
        _bars(y, tips, color=named("mode", modes.names, "mode")),
        "modes",
    )


def _drift_rows(run: Run) -> list[dict[str, Any]]:
    return [
        {"task": task + 1, "mode": f"mode {mode + 1}", "value": value}
        for task, row in enumerate(run.drift)
        for mode, value in enumerate(row)
        if task > 0
    ]


def _layers(experiment: Experiment) -> Chart:
    depth = max(len(run.get("layers")) for method in experiment.methods for run in method.runs)
    tips = [word("layer", "layer"), number("task", "task", "d"), number("drift", "drift, mean of modes")]
    chart = heat_map(
        tasks_axis(title="task"), alt.Y("layer:N", sort=None, title="layer"), None, tips, domain=(0, 1)
    )
    return Chart(
        "layers",
        "Drift per layer",
        "Mean squared change per parameter, from input to output; logarithmic, one scale for all runs.",
        _height(depth, 20 if depth > 8 else 30),
        chart,
    )


def _layer_rows(experiment: Experiment, run: Run) -> list[dict[str, Any]]:
    low, top = _range(experiment)
    rows = []
    for task, by_layer in enumerate(run.get("layer_drift")):
        for layer, modes in zip(run.get("layers"), by_layer, strict=True):
            drift = sum(modes) / len(modes)
            level = math.log(drift / low) / math.log(top / low) if drift > low else 0.0
            if task > 0:
                rows.append({"task": task + 1, "layer": str(layer), "value": level, "drift": drift})
    return rows


def _range(experiment: Experiment) -> tuple[float, float]:
    """The least and the largest drift of a layer over all runs, at most DECADES powers of ten apart."""
    values = [
        sum(modes) / len(modes)
        for method in experiment.methods
        for run in method.runs
        for by_layer in run.get("layer_drift")[1:]
        for modes in by_layer
    ]
    positive = [value for value in values if value > 0]
    top = max(positive, default=1.0)
    return max(min(positive, default=0.1), top / 10**DECADES) * 0.9, top


def _seconds() -> Chart:
    y = alt.Y("value:Q", title="seconds", axis=alt.Axis(tickCount=5))
    tips = [number("task", "task", "d"), number("value", "seconds")]
    return Chart("seconds", "Time per task", "Training and consolidation, in seconds.", 260, _bars(y, tips))


def _loss(modes: Palette) -> Chart:
    base = alt.Chart(ROWS).encode(
        x=alt.X("position:Q", title="task", axis=alt.Axis(grid=True, tickMinStep=1, format="d"),
                scale=alt.Scale(nice=False)),
        y=alt.Y("value:Q", title="training loss"),
        color=named("mode", modes.names, "mode"),
    )  # fmt: skip
    tips = [number("task", "task", "d"), number("epoch", "epoch", "d"), word("mode", "mode"),
            number("value", "loss")]  # fmt: skip
    hit = base.mark_point(size=40, opacity=0).encode(tooltip=tips)
    return Chart(
        "loss",
        "Training loss",
        "Every epoch of every task; a vertical line ends a task.",
        260,
        alt.layer(base.mark_line(strokeWidth=1.5), hit),
        "modes",
        wide=True,
    )


def _loss_rows(run: Run) -> list[dict[str, Any]]:
    events = [e for e in run.events if int(e.get("epochs") or 0) > 0 and 0 <= int(e["mode"]) < run.modes]
    step = max(1, math.ceil(len(events) / POINTS / max(1, run.modes)))
    return [
        {
            "position": e["task"] + e["epoch"] / e["epochs"],
            "task": e["task"] + 1,
            "epoch": e["epoch"],
            "mode": f"mode {e['mode'] + 1}",
            "value": e["loss"],
        }
        for e in events
        if (e["epochs"] - e["epoch"]) % step == 0
    ]
