"""Charts of the modes of one run: which task went where."""

from __future__ import annotations

from typing import Any

import altair as alt

from manymodes.report import choices
from manymodes.report.chart import (
    ROWS,
    Chart,
    Columns,
    columns,
    heat_map,
    number,
    percent,
    tasks_axis,
    word,
)
from manymodes.report.groups import Experiment
from manymodes.report.runs import Run
from manymodes.report.single import WRITTEN
from manymodes.report.theme import Palette


def charts(experiment: Experiment, modes: Palette) -> list[Chart]:
    """The charts that runs with several modes, or with backtracking, have."""
    chosen, *surfaces = choices.charts(modes)
    return [*_maps(experiment, modes), chosen, _cosine(), *surfaces]


def data(run: Run) -> dict[str, Columns]:
    """Their rows; charts that mean nothing for this run get none."""
    several = run.modes > 1
    return {
        "moved": columns(_moved_rows(run) if several else []),
        "responsibility": columns(_responsibility_rows(run) if several else []),
        "cosine": columns(_cosine_rows(run)),
    } | choices.data(run)


def _maps(experiment: Experiment, modes: Palette) -> list[Chart]:
    height = 74 + 30 * max(2, len(modes.names))
    text = alt.Text("value:Q", format=".0%") if experiment.tasks <= WRITTEN else None
    y = alt.Y("mode:N", title=None, sort=None)
    where = [number("task", "task", "d"), word("mode", "mode")]
    moved = heat_map(
        tasks_axis(title="task"), y, text, [*where, percent("value", "share of the movement"),
        number("drift", "drift")],
    )  # fmt: skip
    carried = heat_map(
        tasks_axis(title="task"), y, text, [*where, percent("value", "share in the end"),
        percent("then", "right after learning it")],
    )  # fmt: skip
    return [
        Chart(
            "moved",
            "Which mode moved",
            "Share of each mode in all that moved for a task. After task 1, where all start together.",
            height,
            moved,
        ),
        Chart(
            "responsibility",
            "Which mode knows the answer",
            "Share of each mode in the probability of the true class, on each task's test data, in the end.",
            height,
            carried,
        ),
    ]


def _moved_rows(run: Run) -> list[dict[str, Any]]:
    rows = []
    for task, drifts in enumerate(run.drift):
        total = sum(drifts)
        for mode, drift in enumerate(drifts):
            share = drift / total if total > 0 else 0.0
            if task > 0:
                rows.append({"task": task + 1, "mode": f"mode {mode + 1}", "value": share, "drift": drift})
    return rows


def _responsibility_rows(run: Run) -> list[dict[str, Any]]:
    by_row = run.get("responsibility")
    if not by_row:
        return []
    return [
        {
            "task": task + 1,
            "mode": f"mode {mode + 1}",
            "value": share,
            "then": by_row[task + 1][task][mode],
        }
        for task, shares in enumerate(by_row[-1])
        for mode, share in enumerate(shares)
    ]


def _cosine() -> Chart:
    base = alt.Chart(ROWS).encode(
        x=tasks_axis(),
        y=alt.Y("value:Q", title="cosine", scale=alt.Scale(zero=False, nice=True)),
        detail="pair:N",
    )
    tips = [word("pair", "modes"), number("task", "after task", "d"), number("value", "cosine", ".3f")]
    color = alt.ExprRef("high")
    return Chart(
        "cosine",
        "Similarity of the modes",
        "Cosine of every pair's weights, averaged over layers. 1 is the same direction, 0 unrelated.",
        260,
        alt.layer(base.mark_line(color=color), base.mark_point(opacity=1, color=color).encode(tooltip=tips)),
    )


def _cosine_rows(run: Run) -> list[dict[str, Any]]:
    return [
        {"task": task + 1, "pair": f"{i + 1} and {j + 1}", "value": matrix[i][j]}
        for task, matrix in enumerate(run.get("cosine"))
        for i in range(run.modes)
        for j in range(i + 1, run.modes)
    ]
