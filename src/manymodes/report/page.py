"""The page: everything in one HTML file that opens offline, works with the keyboard, in light and dark."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

from manymodes.report import words
from manymodes.report.chart import Chart, Columns
from manymodes.report.htmltable import comparison
from manymodes.report.runs import Run
from manymodes.report.tables import Table
from manymodes.report.theme import TOKENS, Palette, config

HERE = Path(__file__).parent


@dataclass(frozen=True)
class Section:
    """Some charts under a heading."""

    key: str
    title: str
    text: str
    charts: list[Chart]
    empty: str = ""  # what to say where the picked run has none of the charts


@dataclass(frozen=True)
class Part:
    """All that the page shows of one experiment."""

    table: Table
    sections: list[Section]
    palettes: dict[str, Palette]
    data: dict[str, Columns]
    runs: list[tuple[str, Run, dict[str, Columns]]]  # method, run, data by chart


def render(parts: Sequence[Part], notes: Sequence[str], viewer: str, title: str) -> str:
    """The page as text."""
    body = "\n".join(_part(number, part, len(parts) > 1) for number, part in enumerate(parts))
    pieces = {
        "title": escape(title),
        "style": _asset("page.css"),
        "tokens": _tokens(),
        "lead": _lead(parts[0]) if len(parts) == 1 else "",  # with several each says it below its heading
        "facts": _facts(parts),
        "nav": _nav(parts),
        "body": body,
        "notes": _notes(notes),
        "data": _json(_data(parts)),
        "viewer": viewer,
        "script": _asset("page.js"),
    }
    # One pass, so that nothing that is put in is looked at again.
    return re.sub(r"<!--\{(\w+)\}-->", lambda found: pieces[found[1]], _asset("page.html"))


def _asset(name: str) -> str:
    return (HERE / name).read_text(encoding="utf-8")


def _tokens() -> str:
    rules = {
        theme: "".join(f"--{name}:{value};" for name, value in tokens.items())
        for theme, tokens in TOKENS.items()
    }
    return f":root{{{rules['light']}}}@media(prefers-color-scheme:dark){{:root{{{rules['dark']}}}}}"


def _json(value: Any) -> str:
    # Inside <script>, "<" could begin "</script" or "<!--" of a label.
    return json.dumps(value, allow_nan=False, separators=(",", ":")).replace("<", "\\u003c")


def _data(parts: Sequence[Part]) -> dict[str, Any]:
    return {
        "themes": {theme: config(theme) for theme in TOKENS},
        "experiments": [
            {
                "charts": {
                    chart.name: {
                        "spec": chart.for_screen(),
                        "palette": chart.palette,
                        "panels": chart.panels,
                        "each": chart.each,
                        "height": chart.height,
                    }
                    for section in part.sections
                    for chart in section.charts
                },
                "palettes": {name: palette.as_dict() for name, palette in part.palettes.items()},
                "data": part.data,
                "runs": [
                    {"method": method, "seed": run.seed, "modes": run.modes, "data": data}
                    for method, run, data in part.runs
                ],
            }
            for part in parts
        ],
    }


def _part(number: int, part: Part, several: bool) -> str:
    experiment = part.table.experiment
    heading = f"<h2 id=e{number}>{escape(experiment.title)}</h2>" if several else ""
    lead = _lead(part) if several else ""
    sections = "\n".join(_section(number, part, section) for section in part.sections)
    return f"<div class=experiment data-experiment={number}>{heading}{lead}{sections}</div>"


def _lead(part: Part) -> str:
    return f"<p class=lead>{escape(words.headline(part.table))}</p>"


def _section(number: int, part: Part, section: Section) -> str:
    figures = "\n".join(_figure(number, chart) for chart in section.charts)
    before = comparison(part.table, part.palettes["methods"]) if section.key == "comparison" else ""
    if any(chart.each for chart in section.charts):
        before += _picker(number, part)
    if any(chart.palette == "methods" for chart in section.charts):
        before += f"<div class=legend data-experiment={number} data-palette=methods></div>"
    text = "".join(f"<p class=text>{escape(line)}</p>" for line in section.text.splitlines())
    if section.empty:
        before += f"<p class=empty hidden>{escape(section.empty)}</p>"
    return (
        f"<section id=e{number}-{section.key}><h3>{escape(section.title)}</h3>"
        f"{text}{before}<div class=figures>{figures}</div></section>"
    )


def _figure(number: int, chart: Chart) -> str:
    kind = (" panels across" if chart.across else " panels") if chart.panels else ""
    legend = (
        f"<div class=legend data-experiment={number} data-palette={chart.palette}></div>"
        if chart.palette in ("modes", "tasks")
        else "<div class=legend></div>"
    )
    if chart.ramp is not None:
        ends = [f"<span>{escape(end)}</span>" for end in chart.ramp]
        legend = f"<div class='legend ramp'>{ends[0]}<i></i>{ends[1]}</div>"
    style = f' style="--across:{chart.across}"' if chart.across else ""
    style = style if chart.panels else f' style="height:{chart.height}px"'
    return (
        f'<figure class="{"wide" if chart.wide or chart.panels else ""}" id=e{number}-figure-{chart.name}>'
        f"<figcaption><strong>{escape(chart.title)}</strong><span>{escape(chart.about)}</span></figcaption>"
        f"{legend}<div class='chart{kind}' role=group aria-label=\"{escape(chart.title)}\" "
        f"data-experiment={number} data-chart={chart.name}{style}></div>"
        f"<details class=numbers><summary>Numbers</summary><div></div></details></figure>"
    )


def _picker(number: int, part: Part) -> str:
    methods = list(dict.fromkeys(method for method, _, _ in part.runs))
    # A method with several modes has most to show.
    first = next((method for method, run, _ in part.runs if run.modes > 1), methods[0])
    options = "".join(
        f'<option value="{n}"{" selected" if m == first else ""}>{escape(m)}</option>'
        for n, m in enumerate(methods)
    )
    return (
        f"<form class=picker data-experiment={number}>"
        f"<label>Method <select name=method>{options}</select></label>"
        "<label>Seed <select name=seed></select></label></form>"
    )


def _nav(parts: Sequence[Part]) -> str:
    links = []
    for number, part in enumerate(parts):
        if len(parts) > 1:
            links.append(f"<a class=main href=#e{number}>{escape(part.table.experiment.title)}</a>")
        links += [f"<a href=#e{number}-{s.key}>{escape(s.title)}</a>" for s in part.sections]
    return "".join(links)


def _facts(parts: Sequence[Part]) -> str:
    facts = words.facts([part.table for part in parts], [run for part in parts for _, run, _ in part.runs])
    return "".join(f"<div><dt>{escape(k)}</dt><dd>{escape(v)}</dd></div>" for k, v in facts.items())


def _notes(notes: Sequence[str]) -> str:
    if not notes:
        return ""
    items = "".join(f"<li>{escape(note)}</li>" for note in notes)
    return f"<section class=notes><h3>Left out</h3><ul>{items}</ul></section>"
