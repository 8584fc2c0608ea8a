"""Accuracy against capacity (the paper's Figure 4), and how many modes to take."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import altair as alt

from manymodes.report.chart import (
    PICKED,
    ROWS,
    Chart,
    Columns,
    accuracy_scale,
    columns,
    named,
    number,
    percent,
    shaped,
    word,
)
from manymodes.report.groups import Experiment, Method
from manymodes.report.theme import Palette

ROOM = 1.02  # a capacity that exceeds another by two per cent counts as equal
ALMOST = 0.005  # with one seed there is no interval: half a point counts as none


@dataclass(frozen=True)
class Point:
    """A method as a point: N modes of one network, together of some capacity."""

    method: Method
    family: str  # the same strategy and network, whatever N
    modes: int
    mean: float
    half: float


def points(experiment: Experiment) -> list[Point]:
    """Every method that says how large it is."""
    return [
        Point(m, _family(m), m.runs[0].modes, *m.mean("average_accuracy"))
        for m in experiment.methods
        if m.capacity > 0
    ]


def _family(method: Method) -> str:
    config = method.runs[0].config
    strategy = {k: v for k, v in config["strategy"].items() if k != "modes"}
    return json.dumps([strategy, config["model"]], sort_keys=True, default=str)


def varies(experiment: Experiment) -> bool:
    """Whether there is a trade-off to show: the same strategy with different N, or different capacities."""
    found = points(experiment)
    modes: dict[str, set[int]] = {}
    for point in found:
        modes.setdefault(point.method.strategy, set()).add(point.modes)
    capacities = [p.method.capacity for p in found]
    return any(len(n) > 1 for n in modes.values()) or (
        bool(capacities) and max(capacities) > 1.5 * min(capacities)
    )


def chart(experiment: Experiment, palette: Palette) -> Chart:
    """Points joined along N, single networks as reference lines."""
    found = rows(experiment)
    scale = accuracy_scale([row["value"] for row in found])
    y = alt.Y("value:Q", title="average accuracy", axis=alt.Axis(format="%", tickCount=6), scale=scale)
    x = alt.X(
        "capacity:Q",
        title="parameters of all modes together",
        scale=alt.Scale(type="log", padding=40, nice=False),
        axis=alt.Axis(format="~s", grid=False, tickCount=6),
    )
    color = named("label", palette.names, "method")
    tips = [word("label", "method"), number("modes", "modes", "d"), number("capacity", "parameters", ",d"),
            percent("value", "average accuracy"), percent("half", "± 95 % interval")]  # fmt: skip
    seen = alt.condition("picked === '' || datum.label === picked", alt.value(1), alt.value(0.2))
    base = alt.Chart(ROWS)
    single, several = (
        base.transform_filter("datum.reference == 1"),
        base.transform_filter("datum.reference == 0"),
    )
    spec = alt.layer(
        single.mark_rule(strokeDash=[4, 3], strokeWidth=1.5).encode(
            y=y, color=color, opacity=seen, tooltip=tips
        ),
        several.mark_line(strokeWidth=1.5, color=alt.ExprRef("axis")).encode(
            x=x, y=y, detail="family:N", order="modes:Q"
        ),
        several.mark_rule(strokeWidth=1.5, clip=True).encode(
            x=x, y="low:Q", y2="high:Q", color=color, opacity=seen
        ),
        several.mark_point(size=130, opacity=1).encode(
            x=x, y=y, color=color, shape=shaped("label", palette.names, "method"), opacity=seen, tooltip=tips
        ),
        several.mark_text(dx=8, dy=-12, align="left", fontSize=11).encode(
            x=x, y=y, text="name:N", opacity=seen
        ),
    )
    return Chart(
        "tradeoff",
        "Accuracy against capacity",
        "Numbers at the points: how many modes. Lines join the same network with more modes; dashed lines "
        "are learners with a single network.",
        380,
        spec.add_params(PICKED),
        "methods",
        wide=True,
    )


def rows(experiment: Experiment) -> list[dict[str, Any]]:
    """One row a method."""
    found = points(experiment)
    counts = {p.method.strategy: sum(q.method.strategy == p.method.strategy for q in found) for p in found}
    return [
        {
            "label": p.method.label,
            "family": str(sorted({q.family for q in found}).index(p.family)),
            "modes": p.modes,
            "name": f"N = {p.modes}",
            "capacity": p.method.capacity,
            "value": p.mean,
            "half": p.half,
            "low": p.mean - p.half,
            "high": p.mean + p.half,
            "reference": int(p.modes == 1 and counts[p.method.strategy] == 1),
        }
        for p in found
    ]


def data(experiment: Experiment) -> Columns:
    """The chart's rows as columns."""
    return columns(rows(experiment))


def recommendation(experiment: Experiment) -> list[str]:
    """For each capacity with a choice: how many modes to take, and why, in plain words.

    Methods that keep old data do not compete. Of those that the spread over seeds does not tell from the
    best, the one with the fewest modes is taken.
    """
    rivals = [p for p in points(experiment) if not p.method.is_reference and not _keeps_data(p.method)]
    told: list[tuple[int, str]] = []
    for capacity in _levels([p.method.capacity for p in rivals]):
        within = [p for p in rivals if p.method.capacity <= capacity]
        several = [p for p in within if p.modes > 1]
        if len(within) > 1 and several:
            advice = _advice(within, several)
            if not told or told[-1][1] != advice:
                told.append((capacity, advice))
    return [f"Up to {capacity:,} parameters: {advice}" for capacity, advice in told]


def _levels(capacities: list[int]) -> list[int]:
    """The distinct capacities, nearly equal ones as one."""
    found: list[int] = []
    for capacity in sorted(capacities):
        if found and capacity <= found[-1] * ROOM:
            found[-1] = capacity
        else:
            found.append(capacity)
    return found


def _keeps_data(method: Method) -> bool:
    return bool(method.runs[0].metrics["storage"].get("replay_samples"))


def _advice(within: list[Point], several: list[Point]) -> str:
    best = max(within, key=lambda p: p.mean)
    enough = [p for p in within if p.mean >= best.mean - (best.half or ALMOST)]
    chosen = min(enough, key=lambda p: (p.modes, -p.mean))
    text = f"{_modes(chosen)} ({_score(chosen)})"
    if chosen is not best:
        gain = (best.mean - chosen.mean) * 100
        spread = "less than the seeds' spread" if best.half else "too little to tell with one seed"
        return f"{text}; {_modes(best)} ({best.method.label}) would bring {gain:.1f} points more, {spread}."
    other = max((p for p in several if p is not chosen), key=lambda p: p.mean, default=None)
    if other is None:
        return f"{text}."
    told = f"{_modes(other)} ({other.method.label}) reach {(chosen.mean - other.mean) * 100:.1f} points"
    return f"{text}; {told} less."


def _score(point: Point) -> str:
    return f"{point.method.label}, {point.mean * 100:.1f} %"


def _modes(point: Point) -> str:
    return "a single network" if point.modes == 1 else f"{point.modes} modes"
