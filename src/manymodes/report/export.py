"""What needs vl-convert: the viewer that goes into the page, and figures as files."""

from __future__ import annotations

import importlib.util
import json
import os
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

from manymodes import files
from manymodes.errors import UserError, unknown
from manymodes.report.chart import Chart, Columns
from manymodes.report.theme import Palette, printed

FORMATS = ("svg", "pdf", "png")
WIDTH, PANEL = 620, 220  # of a printed figure, and of a panel in one with panels


def check_packages() -> None:
    """Altair and vl-convert, or one line that says how to get them."""
    missing = [name for name in ("altair", "vl_convert") if importlib.util.find_spec(name) is None]
    if missing:
        raise UserError(
            f'charts need {" and ".join(missing)}: pip install "manymodes[report]" (the tables are written)'
        )


def parse_formats(text: str) -> tuple[str, ...]:
    """`svg,pdf` as a tuple; empty for none."""
    names = tuple(filter(None, (name.strip().lower() for name in text.split(","))))
    for name in names:
        if name not in FORMATS:
            raise unknown("format in --figures", name, FORMATS)
    return names


def viewer() -> str:
    """Vega, Vega-Lite and Vega-Embed as one script. Bundling takes seconds, so it is kept in the cache."""
    import vl_convert

    release = version("vl-convert-python")
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    path = base / "manymodes" / f"vega-of-vl-convert-{release}.js"
    with suppress(OSError, UnicodeDecodeError):
        return path.read_text(encoding="utf-8")
    script = str(vl_convert.javascript_bundle("window.vegaEmbed = vegaEmbed;")).replace(
        "</script", "<\\/script"
    )
    with suppress(UserError):  # a home that cannot be written to costs time, nothing else
        files.write_text(path, script)
    return script


def specification(chart: Chart, rows: Columns, palette: Palette) -> dict[str, Any]:
    """The whole chart for print: data, colours, width."""
    spec = chart.vega() | {"config": printed(palette), "datasets": {"rows": _records(rows)}}
    if chart.panels:
        return _panels(spec, list(dict.fromkeys(rows["panel"])), chart)
    return spec | {"width": WIDTH}


def _panels(spec: dict[str, Any], panels: list[str], chart: Chart) -> dict[str, Any]:
    if chart.ramp is not None:
        _with_ramp(spec, chart.ramp)
    top = {key: spec.pop(key) for key in ("config", "datasets", "$schema", "autosize", "description")}
    del top["autosize"]  # not for concatenated charts
    parts = [
        spec
        | {"title": panel, "width": PANEL, "height": PANEL}
        | {"transform": [{"filter": {"field": "panel", "equal": panel}}, *spec.get("transform", [])]}
        for panel in panels
    ]
    return top | {"concat": parts, "columns": chart.across or 4}


def _with_ramp(node: Any, ends: tuple[str, str]) -> None:
    """The colour scale, which the page draws itself, as a legend."""
    if isinstance(node, list):
        for item in node:
            _with_ramp(item, ends)
    elif isinstance(node, dict):
        color = node.get("color")
        if isinstance(color, dict) and color.get("field") == "value":
            said = f"datum.value == 0 ? {json.dumps(ends[0])} : {json.dumps(ends[1])}"
            color["legend"] = {"title": None, "values": [0, 1], "labelExpr": said, "gradientLength": 160}
        for item in node.values():
            _with_ramp(item, ends)


def _records(rows: Columns) -> list[dict[str, Any]]:
    return [dict(zip(rows, values, strict=True)) for values in zip(*rows.values(), strict=True)]


def write_figures(
    folder: Path,
    figures: Iterable[tuple[str, Chart, Columns, Palette]],
    formats: tuple[str, ...],
    on_file: Callable[[Path], None] = lambda path: None,
) -> int:
    """Each figure in each format; returns how many files."""
    import vl_convert

    count = 0
    for name, chart, rows, palette in figures:
        svg = str(vl_convert.vegalite_to_svg(specification(chart, rows, palette)))
        for form in formats:
            path = folder / f"{name}.{form}"
            if form == "svg":
                files.write_text(path, svg)
            else:
                content = (
                    vl_convert.svg_to_pdf(svg) if form == "pdf" else vl_convert.svg_to_png(svg, scale=2.0)
                )
                files.write_atomically(path, partial(_write, content))
            on_file(path)
            count += 1
    return count


def _write(content: bytes, path: Path) -> None:
    path.write_bytes(content)
