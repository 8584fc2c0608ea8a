"""What a chart is: one Altair specification without colours or data, which serve screen and print."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import altair as alt

Columns = dict[str, list[Any]]

ROWS = alt.NamedData("rows")
PICKED = alt.param(name="picked", value="")  # the method a person points at in the legend; "" is none


@dataclass(frozen=True)
class Chart:
    """A figure: what it is called, how to read it, its specification.

    `palette` says whose colours it uses: "methods", "modes", "tasks" or "" for none. A chart with `panels`
    is drawn once for every value of the data's field `panel`.
    """

    name: str
    title: str
    about: str
    height: int
    spec: alt.TopLevelMixin
    palette: str = ""
    panels: bool = False
    wide: bool = False
    each: bool = False  # its data are those of the run that is picked
    ramp: tuple[str, str] | None = None  # what the ends of a colour scale of panels mean
    across: int = 0  # panels in a row, where there is room

    def vega(self) -> dict[str, Any]:
        """The specification as JSON, with legends."""
        found: dict[str, Any] = self.spec.to_dict(validate=False)
        found["width"], found["height"] = "container", self.height
        found["autosize"] = {"type": "fit", "contains": "padding"}
        found["description"] = self.title
        found.pop("config", None)
        return found

    def for_screen(self) -> dict[str, Any]:
        """Without legends of names: the page has its own, which wraps and works with the keyboard."""
        return _without_legends(self.vega()) if self.palette else self.vega()


def _without_legends(node: Any) -> Any:
    if isinstance(node, list):
        return [_without_legends(item) for item in node]
    if not isinstance(node, dict):
        return node
    found = {key: _without_legends(value) for key, value in node.items()}
    for channel in ("color", "shape", "strokeDash", "fill"):
        encoding = found.get(channel)
        if isinstance(encoding, dict) and encoding.get("type") in ("nominal", "ordinal"):
            found[channel] = encoding | {"legend": None}
    return found


@contextmanager
def unchecked() -> Iterator[None]:
    """Without Altair's check of every piece against the schema, which takes seconds; the tests do it."""
    with alt.utils.schemapi.debug_mode(False):
        yield


def columns(rows: Iterable[dict[str, Any]]) -> Columns:
    """Rows with equal keys, turned into columns: a third of the size in the page.

    >>> columns([{"a": 1, "b": 2}, {"a": 3, "b": 4}])
    {'a': [1, 3], 'b': [2, 4]}
    """
    rows = list(rows)
    return {key: [short(row[key]) for row in rows] for key in (rows[0] if rows else ())}


def short(value: Any) -> Any:
    """Numbers to five significant digits: nobody sees more, and the page stays small."""
    return float(f"{value:.5g}") if isinstance(value, float) else value


def named(field: str, names: Sequence[str], title: str, **more: Any) -> alt.Color:
    """Colour by name; the colours themselves come from the configuration."""
    return alt.Color(field, type="nominal", scale=alt.Scale(domain=list(names)), title=title, **more)


def shaped(field: str, names: Sequence[str], title: str) -> alt.Shape:
    """Shape by name, so that no reader depends on colour."""
    return alt.Shape(field, type="nominal", scale=alt.Scale(domain=list(names)), title=title)


def percent(field: str, title: str) -> alt.Tooltip:
    """A share of one, as a tooltip."""
    return alt.Tooltip(field, type="quantitative", title=title, format=".1%")


def number(field: str, title: str, form: str = ".3~g") -> alt.Tooltip:
    """A number, as a tooltip."""
    return alt.Tooltip(field, type="quantitative", title=title, format=form)


def word(field: str, title: str) -> alt.Tooltip:
    """A name, as a tooltip."""
    return alt.Tooltip(field, type="nominal", title=title)


def tasks_axis(field: str = "task", title: str = "after task") -> alt.X:
    """Tasks from left to right."""
    return alt.X(field, type="ordinal", title=title, axis=alt.Axis(labelAngle=0))


def accuracy_scale(values: Sequence[float]) -> alt.Scale:
    """Around the values, never beyond 0 and 1: an interval may reach further, an accuracy cannot."""
    low, high = min(values, default=0.0), max(values, default=1.0)
    pad = max(0.01, 0.08 * (high - low))
    return alt.Scale(domain=[max(0.0, low - pad), min(1.0, high + pad)], nice=False, zero=False)


def log_scale(values: Sequence[float]) -> tuple[alt.Scale, list[float]]:
    """A logarithmic scale that fits the values, and round numbers on it for the axis.

    >>> log_scale([0.012, 0.3])[1]
    [0.01, 0.02, 0.05, 0.1, 0.2, 0.5]
    """
    positive = [v for v in values if v > 0] or [1.0]
    low, high = min(positive), max(positive)
    exponents = range(math.floor(math.log10(low)) - 1, math.ceil(math.log10(high)) + 1)
    steps = (1, 2, 5) if math.log10(high / low) < 3 else (1,)
    marks = [float(f"{step}e{exponent}") for exponent in exponents for step in steps]
    first = max((m for m in marks if m <= low), default=low)
    last = min((m for m in marks if m >= high), default=high)
    if first == last:
        last = first * 10
    return alt.Scale(type="log", domain=[first, last], nice=False), [m for m in marks if first <= m <= last]


def heat_map(
    x: alt.X,
    y: alt.Y,
    text: alt.Text | None,
    tooltip: list[alt.Tooltip],
    *,
    domain: tuple[float, float] = (0, 1),
    faded: str = "false",
) -> alt.LayerChart | alt.FacetChart:
    """Cells coloured by `value`, with their values written in where there is room; paler where `faded`."""
    low, high = domain
    color = alt.Color("value:Q", scale=alt.Scale(domain=[low, high], clamp=True), legend=None)
    seen = alt.condition(faded, alt.value(0.3), alt.value(1))
    cells = alt.Chart(ROWS).mark_rect(stroke=alt.ExprRef("paper"), strokeWidth=1)
    layers = [cells.encode(x=x, y=y, color=color, opacity=seen, tooltip=tooltip)]
    if text is not None:
        dark = f"datum.value > {low:.6g} + flip * {high - low:.6g} && !({faded})"
        ink = alt.condition(dark, alt.value(alt.ExprRef("onfill")), alt.value(alt.ExprRef("cell")))
        marks = alt.Chart(ROWS).mark_text(fontSize=11)  # it lies above the cell, so it needs the tooltip too
        layers.append(marks.encode(x=x, y=y, text=text, color=ink, tooltip=tooltip))
    return alt.layer(*layers)
