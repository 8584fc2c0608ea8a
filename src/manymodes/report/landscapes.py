"""Loss landscapes that `manymodes landscape` left in run directories."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import altair as alt

from manymodes import files
from manymodes.errors import UserError
from manymodes.report.chart import PICKED, ROWS, Chart, Columns, named, number, percent, shaped, word
from manymodes.report.groups import Experiment
from manymodes.report.overview import SHOWN
from manymodes.report.runs import Run
from manymodes.report.theme import Palette


@dataclass(frozen=True)
class Landscape:
    """One mode of one run: grids of losses, the path in the plane, sharpness by task."""

    run: Run
    mode: int
    x: list[float]
    y: list[float]
    path: list[list[float]]
    loss: list[list[list[float]]]  # (rows along y, x, tasks)
    final: list[float]
    sharpness: list[float]
    explained: list[float]
    batchnorm: str


def read(run: Run) -> list[Landscape]:
    """The finished landscapes of a run; unfinished or damaged ones count as missing."""
    found = []
    for mode in range(run.modes):
        place = run.path / "landscape" / f"mode-{mode}.json"
        if not place.exists():
            continue
        try:
            s = files.read_json(place)
            made = Landscape(run, mode, s["x"], s["y"], s["path"], s["loss"], s["final"], s["sharpness"],
                             s["explained"], str(s["settings"]["batchnorm"]))  # fmt: skip
            if _is_whole(made):
                found.append(made)
        except (UserError, KeyError, TypeError, ValueError):
            continue
    return found


def _is_whole(made: Landscape) -> bool:
    tasks = made.run.tasks
    grid = len(made.loss) == len(made.y) and all(len(row) == len(made.x) for row in made.loss)
    cells = all(len(cell) == tasks and all(map(math.isfinite, cell)) for row in made.loss for cell in row)
    return grid and cells and len(made.final) == len(made.sharpness) == tasks and len(made.x) > 1


@dataclass(frozen=True)
class Scale:
    """The range of losses that the colours from 0 to 1 stand for, shared by all methods and tasks."""

    low: float
    high: float

    def level(self, loss: float) -> float:
        """0 at the lowest loss of all, 1 at the highest that is shown."""
        return round(min(1.0, max(0.0, (loss - self.low) / (self.high - self.low))), 3)


def scale(found: list[Landscape]) -> Scale:
    """From the lowest loss to the 95th percentile: a few far corners would leave all else one colour."""
    values = sorted(v for made in found for row in made.loss for cell in row for v in cell)
    if not values:
        return Scale(0.0, 1.0)
    high = values[min(len(values) - 1, int(0.95 * len(values)))]
    return Scale(values[0], high if high > values[0] else values[0] + 1.0)


def sharpness_chart(palette: Palette) -> Chart:
    """Sharpness of all methods."""
    x = alt.X("value:Q", title="increase of the loss", axis=alt.Axis(grid=True, tickCount=5))
    y = alt.Y("label:N", sort=palette.names, title=None, axis=alt.Axis(labelColor=alt.ExprRef("ink")))
    tips = [word("label", "method"), number("mode", "mode", "d"), number("task", "task", "d"),
            number("value", "sharpness"), number("loss", "loss in the basin")]  # fmt: skip
    base = alt.Chart(ROWS).encode(y=y, opacity=alt.condition(SHOWN, alt.value(1), alt.value(0.2)))
    color = named("label", palette.names, "method")
    spec = alt.layer(
        base.mark_tick(thickness=1.5, size=14).encode(x=x, color=color, tooltip=tips),
        base.mark_point(size=110, opacity=1).encode(
            x=alt.X("mean(value):Q", title="increase of the loss"),
            color=color,
            shape=shaped("label", palette.names, "method"),
        ),
    )
    return Chart(
        "sharpness",
        "Sharpness of the basins",
        "How much the loss of a task rises under a random step of fixed relative length. Thin marks: modes "
        "and tasks; large marks: their mean. Smaller is flatter.",
        72 + 30 * len(palette.names),
        spec.add_params(PICKED),
        "methods",
        wide=True,
    )


def surface_chart(experiment: Experiment, shared: Scale) -> Chart:
    """The grids of one run, a panel a mode and task."""
    axis = alt.Axis(grid=False, tickCount=3, format=".2~g")
    tips = [
        word("panel", "panel"),
        number("loss", "loss"),
        number("value", "on the shared scale", ".2f"),
        number("x", "along direction 1"),
        number("y", "along direction 2"),
        percent("plane", "of the path lies in this plane"),
    ]
    cells = (
        alt.Chart(ROWS)
        .transform_filter("datum.kind == 0")
        .transform_calculate(x2="datum.x + 1.06 * datum.w", y2="datum.y + 1.06 * datum.w")
        .mark_rect()
        .encode(
            x=alt.X("x:Q", title=None, axis=axis, scale=alt.Scale(nice=False, zero=False)),
            x2="x2:Q",
            y=alt.Y("y:Q", title=None, axis=axis, scale=alt.Scale(nice=False, zero=False)),
            y2="y2:Q",
            color=alt.Color(
                "value:Q", legend=None, scale=alt.Scale(domain=[0, 1], scheme="viridis", clamp=True)
            ),
            tooltip=tips,
        )
    )
    path = alt.Chart(ROWS).transform_filter("datum.kind > 0").encode(x="x:Q", y="y:Q", order="kind:Q")
    end = path.transform_filter("datum.w == 1")
    spec = alt.layer(
        cells,
        path.mark_line(color="#000000", strokeWidth=4, opacity=0.35),
        path.mark_line(color="#ffffff", strokeWidth=2),
        path.mark_point(color="#ffffff", size=18, opacity=1),
        end.mark_point(color="#ffffff", stroke="#000000", strokeWidth=1, size=70, opacity=1),
    )
    return Chart(
        "landscape",
        "Loss landscape",
        "Each task's loss in the plane of the weights' path; white: the path, from the start to the large "
        "mark. The colours, from 0 to 1, mean the same for all methods and tasks.",
        220,
        spec,
        panels=True,
        ramp=(f"0: loss {shared.low:.2f}", f"1: loss {shared.high:.2g} and more"),
        across=experiment.tasks if experiment.tasks <= 6 else 0,
    )


def sharpness(found: list[Landscape], label: str) -> list[dict[str, Any]]:
    """One row a task."""
    return [
        {"label": label, "mode": m.mode + 1, "task": task + 1, "value": value, "loss": m.final[task]}
        for m in found
        for task, value in enumerate(m.sharpness)
    ]


def rows(found: list[Landscape], shared: Scale) -> Columns:
    """Cells (kind 0) and path (kind 1, 2, ...); `w` is a cell's width, and 1 at the end of the path."""
    several = bool(found) and found[0].run.modes > 1
    made: Columns = (
        {name: [] for name in ("panel", "kind", "x", "y", "w", "loss", "value", "plane")} if found else {}
    )
    for scape in found:
        width = scape.x[1] - scape.x[0]
        xs, ys = ([_brief(v - width / 2) for v in axis] for axis in (scape.x, scape.y))
        cells, last = len(xs) * len(ys), len(scape.path)
        for task in range(scape.run.tasks):
            name = (f"Mode {scape.mode + 1}, task" if several else "Task") + f" {task + 1}"
            losses = [cell[task] for row in scape.loss for cell in row]
            made["panel"] += [name] * (cells + last)
            made["kind"] += [0] * cells + list(range(1, last + 1))
            made["x"] += xs * len(ys) + [_brief(x) for x, _ in scape.path]
            made["y"] += [y for y in ys for _ in xs] + [_brief(y) for _, y in scape.path]
            made["w"] += [_brief(width)] * cells + [int(n == last) for n in range(1, last + 1)]
            made["loss"] += [float(f"{loss:.3g}") for loss in losses] + [0] * last
            made["plane"] += [_brief(min(1.0, sum(scape.explained)))] * (cells + last)
            made["value"] += [shared.level(loss) for loss in losses] + [0] * last
    return made


def _brief(value: float) -> float:
    return float(f"{value:.4g}")
