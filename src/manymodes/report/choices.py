"""Charts of backtracking: which epochs it kept, and what it chose from."""

from __future__ import annotations

import math
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
    shaped,
    tasks_axis,
    word,
)
from manymodes.report.runs import Run
from manymodes.report.theme import Palette

CELLS = 21  # checkpoints of a mode that a surface shows at most


def charts(modes: Palette) -> list[Chart]:
    """The epochs kept; for two modes the surface, for other numbers the checkpoints of each."""
    return [_chosen(modes), _surface(), _checkpoints(modes)]


def data(run: Run) -> dict[str, Columns]:
    """Their rows."""
    return {
        "chosen": columns(_chosen_rows(run)),
        "surface": columns(_surface_rows(run) if run.modes == 2 else []),
        "checkpoints": columns(_checkpoint_rows(run) if run.modes != 2 else []),
    }


def _chosen(modes: Palette) -> Chart:
    tips = [number("task", "task", "d"), word("mode", "mode"), number("value", "epoch chosen", "d"),
            number("epochs", "of epochs", "d")]  # fmt: skip
    spec = (
        alt.Chart(ROWS)
        .mark_point(size=90, opacity=1)
        .encode(
            x=tasks_axis(title="task"),
            xOffset=alt.XOffset("mode:N", scale=alt.Scale(domain=modes.names)),
            y=alt.Y("value:Q", title="epoch kept", axis=alt.Axis(tickMinStep=1, format="d")),
            color=named("mode", modes.names, "mode"),
            shape=shaped("mode", modes.names, "mode"),
            tooltip=tips,
        )
    )
    return Chart(
        "chosen",
        "Epochs that backtracking kept",
        "Every mode is rewound to the epoch at which loss and drift are best together. Epoch 0: the mode did "
        "not move.",
        260,
        spec,
        "modes",
    )


def _chosen_rows(run: Run) -> list[dict[str, Any]]:
    last: dict[int, int] = {}
    for event in run.events:
        last[int(event["task"])] = max(last.get(int(event["task"]), 0), int(event.get("epochs") or 0))
    rows = []
    for task, epochs in enumerate(run.get("chosen")):
        if not isinstance(epochs, list) or len(epochs) != run.modes:
            continue
        rows += [
            {"task": task + 1, "mode": f"mode {mode + 1}", "value": int(epoch), "epochs": last.get(task, 0)}
            for mode, epoch in enumerate(epochs)
        ]
    return rows


def _surface() -> Chart:
    epochs = [number("a", "epoch of mode 1", "d"), number("b", "epoch of mode 2", "d")]
    tips = [
        *epochs,
        number("nll", "loss"),
        number("drift", "weighted drift"),
        number("sum", "together", ".4~g"),
    ]
    x = alt.X("a:O", title="mode 1", axis=alt.Axis(labelAngle=0))
    y = alt.Y("b:O", title="mode 2", sort="descending")
    cells = heat_map(x, y, None, tips)
    chosen = (
        alt.Chart(ROWS)
        .transform_filter("datum.kept == 1")
        .mark_point(size=110, filled=False, strokeWidth=2.5, color=alt.ExprRef("accent"), opacity=1)
        .encode(x=x, y=y, tooltip=tips)
    )
    return Chart(
        "surface",
        "What backtracking chose from",
        "Loss of the two modes together plus weighted drift, for every pair of epochs; the fainter "
        "the better, the ring is the choice.",
        220,
        alt.layer(cells, chosen),
        panels=True,
    )


def _surfaces(run: Run) -> list[tuple[int, dict[str, Any]]]:
    """Task numbers and surfaces, as far as they are whole."""
    return [
        (task, surface)
        for task, surface in enumerate(run.get("surfaces"))
        if isinstance(surface, dict)
        and all(len(surface.get(key) or []) == run.modes for key in ("epochs", "drift", "nll", "chosen"))
    ]


def _thinned(epochs: list[int], chosen: int) -> list[int]:
    """Positions of at most CELLS epochs, the chosen one among them."""
    step = max(1.0, (len(epochs) - 1) / (CELLS - 1))
    wanted = {round(step * k) for k in range(CELLS)}
    return [n for n, epoch in enumerate(epochs) if n in wanted or epoch == chosen]


def _surface_rows(run: Run) -> list[dict[str, Any]]:
    rows = []
    for task, surface in _surfaces(run):
        joint, (first, second) = surface.get("joint") or [], surface["epochs"]
        if len(joint) != len(first):
            continue
        weight, chosen = float(surface["weight"]), list(surface["chosen"])
        cells = [
            (a, b, joint[a][b], weight * (surface["drift"][0][a] + surface["drift"][1][b]))
            for a in _thinned(first, chosen[0])
            for b in _thinned(second, chosen[1])
        ]
        low, high = (end(nll + drift for _, _, nll, drift in cells) for end in (min, max))
        rows += [
            {
                "panel": f"Task {task + 1}",
                "a": first[a],
                "b": second[b],
                "nll": nll,
                "drift": drift,
                "sum": nll + drift,
                # A square root shows the differences near the optimum, which decide.
                "value": round(math.sqrt((nll + drift - low) / (high - low)), 3) if high > low else 0.0,
                "kept": int([first[a], second[b]] == chosen),
            }
            for a, b, nll, drift in cells
        ]
    return rows


def _checkpoints(modes: Palette) -> Chart:
    tips = [word("mode", "mode"), number("epoch", "epoch", "d"), number("nll", "its own loss"),
            number("drift", "weighted drift")]  # fmt: skip
    base = alt.Chart(ROWS).encode(
        x=alt.X("drift:Q", title="weighted drift", axis=alt.Axis(tickCount=3, format=".1~g")),
        y=alt.Y("nll:Q", title="own loss", scale=alt.Scale(zero=False), axis=alt.Axis(tickCount=4)),
        color=named("mode", modes.names, "mode"),
    )
    chosen = base.transform_filter("datum.kept == 1").mark_point(
        size=150, filled=False, strokeWidth=2, opacity=1
    )
    return Chart(
        "checkpoints",
        "What backtracking chose from",
        "Every point is a mode at the end of an epoch: its drift and its own loss. Rings are the choice.",
        220,
        alt.layer(base.mark_point(size=30).encode(tooltip=tips), chosen.encode(tooltip=tips)),
        "modes",
        panels=True,
    )


def _checkpoint_rows(run: Run) -> list[dict[str, Any]]:
    rows = []
    for task, surface in _surfaces(run):
        weight = float(surface["weight"])
        for mode, epochs in enumerate(surface["epochs"]):
            drift, nll, chosen = surface["drift"][mode], surface["nll"][mode], surface["chosen"][mode]
            rows += [
                {
                    "panel": f"Task {task + 1}",
                    "mode": f"mode {mode + 1}",
                    "epoch": epochs[n],
                    "drift": weight * drift[n],
                    "nll": nll[n],
                    "kept": int(epochs[n] == chosen),
                }
                for n in _thinned(epochs, chosen)
            ]
    return rows
