"""Every chart: valid Vega-Lite, draws what its rows hold, for screen and for print."""

from __future__ import annotations

import json
import re

import pytest

pytest.importorskip("altair")
vl_convert = pytest.importorskip("vl_convert")

from manymodes.report import build, export, tables  # noqa: E402
from manymodes.report.chart import log_scale  # noqa: E402
from manymodes.report.groups import experiments  # noqa: E402
from manymodes.report.runs import read_runs  # noqa: E402
from manymodes.report.single import forgetting_rows  # noqa: E402
from tests.report.synthetic import comparison, write_run  # noqa: E402


@pytest.fixture(scope="module")
def parts(tmp_path_factory):
    folder = comparison(tmp_path_factory.mktemp("runs"), landscape=4, trajectory=True)
    return [build._part(tables.table(e)) for e in experiments(read_runs([folder]).runs)]


def _charts(parts):
    return {chart.name: chart for part in parts for section in part.sections for chart in section.charts}


EXPECTED = {
    "progress", "final", "matrix", "tasks", "forgetting", "drift", "layers", "seconds", "loss", "moved",
    "responsibility", "chosen", "cosine", "surface", "checkpoints", "sharpness", "landscape", "tradeoff",
    "theorem", "against", "drift_over_tasks", "total", "cost",
}  # fmt: skip


def test_every_figure_of_the_report_is_there(parts):
    assert set(_charts(parts)) == EXPECTED


@pytest.mark.parametrize("name", sorted(EXPECTED))
def test_specification_follows_the_schema(parts, name):
    _charts(parts)[name].spec.to_dict(validate=True)


@pytest.mark.parametrize("name", sorted(EXPECTED))
def test_screen_and_print_share_one_specification(parts, name):
    chart = _charts(parts)[name]
    screen, whole = chart.for_screen(), chart.vega()

    def without(node):
        if isinstance(node, dict):
            return {key: without(value) for key, value in node.items() if key != "legend"}
        return [without(item) for item in node] if isinstance(node, list) else node

    assert without(screen) == without(whole)
    assert not re.search(
        r'#[0-9a-f]{6}"', json.dumps(screen).replace("#ffffff", "").replace("#000000", "")
    ), "colours belong to the theme"


def test_every_figure_is_printed_with_marks_in_it(parts):
    seen = set()
    for name, chart, rows, palette in build._figures(parts):
        if chart.name in seen:
            continue
        seen.add(chart.name)
        svg = vl_convert.vegalite_to_svg(export.specification(chart, rows, palette))
        marks = re.findall(
            r'role="graphics-symbol" aria-roledescription="(?:point|bar|line mark|rect|tick|rule)', svg
        )
        assert marks, f"{name} is empty"
        assert "NaN" not in svg, name
        assert "undefined" not in svg, name
    assert seen == EXPECTED


@pytest.mark.parametrize(
    "name", ["progress", "final", "drift_over_tasks", "tradeoff", "tasks", "drift", "chosen"]
)
def test_a_printed_figure_has_a_legend_of_its_names(parts, name):
    figures = list(build._figures(parts))
    _, chart, rows, palette = next(f for f in figures if f[1].name == name and len(f[3].names) > 1)
    svg = vl_convert.vegalite_to_svg(export.specification(chart, rows, palette))
    legend = svg[svg.index("role-legend-label") :]
    assert [label for label in palette.names if f">{label}<" not in legend] == []
    symbols = re.findall(r'<g class="mark-symbol role-legend-symbol".*?</g>', svg, re.DOTALL)
    assert len(symbols) >= len(palette.names)
    weak = [s for s in symbols if re.search(r'opacity="0(\.\d+)?"|stroke-dasharray="[1-9]', s)]
    assert not weak, "the legend's marks are as strong as those of the chart, and whole"


def test_a_printed_landscape_has_its_scale_and_a_row_for_each_mode(parts):
    figures = [
        f for f in build._figures(parts) if f[1].name == "landscape" and "Mode 2" in str(f[2]["panel"])
    ]
    _, chart, rows, palette = figures[0]
    specification = export.specification(chart, rows, palette)
    svg = vl_convert.vegalite_to_svg(specification)
    assert svg.count(f">{chart.ramp[0]}<") == svg.count(f">{chart.ramp[1]}<") == 1
    assert specification["columns"] == 4  # tasks
    assert chart.for_screen()["layer"][0]["encoding"]["color"]["legend"] is None


def test_figures_are_written_in_every_format(tmp_path):
    write_run(tmp_path, "mota", modes=2, tasks=2)
    build.write_report([tmp_path], tmp_path, ("svg", "pdf", "png"))
    starts = {".svg": b"<svg", ".pdf": b"%PDF", ".png": b"\x89PNG"}
    found = list((tmp_path / "figures").iterdir())
    names = {path.stem for path in found}
    assert len(found) == 3 * len(names)
    assert {"progress", "final"} <= names
    for path in found:
        assert path.read_bytes().startswith(starts[path.suffix])


def test_a_stream_of_one_task_and_a_run_of_one_mode_have_their_charts(tmp_path):
    write_run(tmp_path, "finetune", tasks=1)
    part = build._part(tables.table(experiments(read_runs([tmp_path]).runs)[0]))
    assert [section.key for section in part.sections] == ["comparison", "run"]
    for name, chart, rows, palette in build._figures([part]):
        vl_convert.vegalite_to_svg(export.specification(chart, rows, palette))
        assert rows, name


def test_forgetting_is_peak_minus_final_over_earlier_rows():
    accuracy = [[0.9, 0.1], [0.5, 0.2], [0.7, 0.9]]
    rows = forgetting_rows(accuracy)
    assert len(rows) == 1
    assert rows[0]["value"] == pytest.approx(0.5 - 0.7), "the initial model and the last row are no peaks"


@pytest.mark.parametrize("values", [[1.0], [0.0, 2.0], [1e-9, 1e9], [3e-5, 4e-5], []])
def test_logarithmic_axes_hold_their_values(values):
    scale, marks = log_scale(values)
    low, high = scale.to_dict()["domain"]
    assert 0 < low < high
    assert all(low <= v <= high for v in values if v > 0)
    assert 1 <= len(marks) <= 24
