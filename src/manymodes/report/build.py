"""From run directories to files: report.html, table.md, table.tex, table.csv, figures."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from manymodes import store
from manymodes.report import tables, words
from manymodes.report.groups import experiments
from manymodes.report.runs import read_runs
from manymodes.report.tables import Table

if TYPE_CHECKING:
    from manymodes.report.chart import Chart, Columns
    from manymodes.report.page import Part
    from manymodes.report.runs import Run
    from manymodes.report.theme import Palette

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

    parts = [_part(content) for content in groups]
    text = page.render(parts, found.notes, export.viewer(), title or _title(groups))
    store.write_text(out / "report.html", text)
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
        store.write_text(out / name, text)
    return [out / name for name in contents]


def _title(groups: Sequence[Table]) -> str:
    first = groups[0].experiment
    more = f" and {len(groups) - 1} more" if len(groups) > 1 else ""
    return f"{first.title[:1].upper()}{first.title[1:]}{more}"


def _part(content: Table) -> Part:
    from manymodes.report import allocation, overview, single, theme
    from manymodes.report.page import Part, Section

    experiment = content.experiment
    methods = theme.of_methods(experiment.methods)
    modes = theme.of_modes(max(run.modes for m in experiment.methods for run in m.runs))
    tasks = theme.of_tasks(experiment.tasks)
    runs = [(m.label, run) for m in experiment.methods for run in m.runs]
    shown: list[tuple[str, Run, dict[str, Columns]]] = [
        (label, run, single.data(experiment, run) | allocation.data(run)) for label, run in runs[:LIMIT]
    ]
    sections = [
        Section("comparison", "Comparison", "", overview.charts(experiment, methods)),
        Section("run", "Each run", "", single.charts(experiment, tasks, modes), each=True),
    ]
    if any(run.modes > 1 or run.get("surfaces") for _, run in runs):
        charts = allocation.charts(experiment, modes)
        sections.append(Section("modes", "Modes", words.MODES, charts, each=True, empty=words.NO_MODES))
    palettes = {"methods": methods, "modes": modes, "tasks": tasks}
    return Part(content, sections, palettes, overview.data(experiment), shown)


def _figures(parts: Sequence[Part]) -> Iterator[tuple[str, Chart, Columns, Palette]]:
    """Every figure with its file name: overviews once, those of a run once per run."""
    for number, part in enumerate(parts):
        prefix = f"{part.table.experiment.stream}-{part.table.experiment.scenario}-" if number else ""
        for section in part.sections:
            for chart in section.charts:
                palette = part.palettes[chart.palette or "tasks"]
                if not section.each:
                    if part.data.get(chart.name):
                        yield f"{prefix}{chart.name}", chart, part.data[chart.name], palette
                    continue
                for _, run, data in part.runs:
                    if data.get(chart.name):
                        yield f"{run.path.name}-{chart.name}", chart, data[chart.name], palette
