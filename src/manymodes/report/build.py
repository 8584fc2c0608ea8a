"""From run directories to files: report.html, table.md, table.tex, table.csv, figures."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from manymodes import files
from manymodes.report import tables, words
from manymodes.report.groups import Experiment, experiments
from manymodes.report.runs import read_runs
from manymodes.report.tables import Table

if TYPE_CHECKING:
    from manymodes.report.chart import Chart, Columns
    from manymodes.report.page import Part, Section
    from manymodes.report.theme import Palette

MOST_VALUES = 600_000  # about single runs, some 6 bytes each; the viewer takes another 0.9 MB
HEAVY = ("landscape", "surface", "checkpoints", "loss")  # in the order in which they are given up
LIMIT = 60  # runs whose own charts go into the page; the tables and overviews hold them all


def write_report(
    folders: Sequence[Path],
    out: Path,
    formats: tuple[str, ...] = (),
    title: str = "",
    on_file: Callable[[Path], None] = lambda path: None,
) -> list[Path]:
    """Write everything into `out`; returns the files apart from the figures.

    Tables need no optional package and are written first; without Altair the page is a UserError.
    """
    found = read_runs(folders)
    groups = [tables.table(experiment) for experiment in experiments(found.runs)]
    written = _write_tables(groups, out)
    from manymodes.report import export

    export.check_packages()
    from manymodes.report import page
    from manymodes.report.chart import unchecked

    with unchecked():
        parts = [_part(content) for content in groups]
    notes = [*found.notes, *_lighter(parts)]
    text = page.render(parts, notes, export.viewer(), title or _title(groups))
    files.write_text(out / "report.html", text)
    if formats:
        export.write_figures(out / "figures", _figures(parts), formats, on_file)
    return [out / "report.html", *written]


def _write_tables(groups: Sequence[Table], out: Path) -> list[Path]:
    contents = {
        "table.md": tables.markdown(groups),
        "table.tex": tables.latex(groups),
        "table.csv": tables.csv_text(groups),
    }
    for name, text in contents.items():
        files.write_text(out / name, text)
    return [out / name for name in contents]


def _title(groups: Sequence[Table]) -> str:
    first = groups[0].experiment
    more = f" and {len(groups) - 1} more" if len(groups) > 1 else ""
    return f"{first.title[:1].upper()}{first.title[1:]}{more}"


def _part(content: Table) -> Part:
    from manymodes.report import allocation, landscapes, moving, overview, single, theme, tradeoff
    from manymodes.report.chart import columns
    from manymodes.report.page import Part, Section

    experiment = content.experiment
    methods = theme.of_methods(experiment.methods)
    modes = theme.of_modes(max(run.modes for m in experiment.methods for run in m.runs))
    tasks = theme.of_tasks(experiment.tasks)
    sections = [
        Section("comparison", "Comparison", "", overview.charts(experiment, methods)),
        Section("run", "Each run", "", _of_run(single.charts(experiment, tasks, modes))),
    ]
    data = overview.data(experiment)
    runs = [(m.label, run) for m in experiment.methods for run in m.runs]
    if any(run.modes > 1 or any(run.get("surfaces")) for _, run in runs):
        charts = _of_run(allocation.charts(experiment, modes))
        sections.append(Section("modes", "Modes", words.MODES, charts, words.NO_MODES))
    scapes = {run.path: landscapes.read(run) for _, run in runs}
    shared = landscapes.scale([scape for found in scapes.values() for scape in found])
    if any(scapes.values()):
        charts = [
            landscapes.sharpness_chart(methods),
            *_of_run([landscapes.surface_chart(experiment, shared)]),
        ]
        sections.append(Section("landscape", "Loss landscape", "", charts, words.NO_LANDSCAPE))
        told = [row for label, run in runs for row in landscapes.sharpness(scapes[run.path], label)]
        data["sharpness"] = columns(told)
    if tradeoff.varies(experiment):
        sections.append(_tradeoff(experiment, methods, data))
    if experiment.tasks > 1:
        text = moving.observation(experiment)
        sections.append(Section("drift", "Drift", text, moving.charts(experiment, methods)))
        data |= moving.data(experiment)
    shown = [
        (label, run, single.data(experiment, run) | allocation.data(run)
         | {"landscape": landscapes.rows(scapes[run.path], shared)})
        for label, run in runs[:LIMIT]
    ]  # fmt: skip
    return Part(content, sections, {"methods": methods, "modes": modes, "tasks": tasks}, data, shown)


def _tradeoff(experiment: Experiment, methods: Palette, data: dict[str, Columns]) -> Section:
    from manymodes.report import theorem, tradeoff
    from manymodes.report.page import Section

    found = theorem.measure(experiment)
    charts = [tradeoff.chart(experiment, methods)]
    data["tradeoff"] = tradeoff.data(experiment)
    if found.values:
        charts.append(theorem.chart())
        data["theorem"] = theorem.data(found)
    text = "\n".join([*tradeoff.recommendation(experiment), theorem.sentence(found)])
    return Section("tradeoff", "Trade-off", text, charts)


def _of_run(charts: Sequence[Chart]) -> list[Chart]:
    return [replace(chart, each=True) for chart in charts]


def _lighter(parts: list[Part]) -> list[str]:
    """Drop the largest data of all seeds but the first of each method until the page stays small."""
    notes = []
    for name in HEAVY:
        tables = [table for part in parts for _, _, data in part.runs for table in data.values()]
        if sum(len(values) for table in tables for values in table.values()) <= MOST_VALUES:
            break
        for part in parts:
            seen: set[str] = set()
            for label, _, data in part.runs:
                if label in seen and data.pop(name, {}):
                    notes.append(name)
                seen.add(label)
    dropped = ", ".join(dict.fromkeys(notes))
    return [f"To keep the page small, {dropped} is shown for the first seed of each method"] if notes else []


def _figures(parts: Sequence[Part]) -> Iterator[tuple[str, Chart, Columns, Palette]]:
    """Every figure with its file name: overviews once, those of a run once per run."""
    for number, part in enumerate(parts):
        prefix = f"{part.table.experiment.stream}-{part.table.experiment.scenario}-" if number else ""
        for chart in (chart for section in part.sections for chart in section.charts):
            palette = part.palettes[chart.palette or "tasks"]
            if not chart.each and part.data.get(chart.name):
                yield f"{prefix}{chart.name}", chart, part.data[chart.name], palette
            for _, run, data in part.runs if chart.each else ():
                if data.get(chart.name):
                    yield f"{run.path.name}-{chart.name}", chart, data[chart.name], palette
