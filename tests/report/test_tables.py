"""The tables: right numbers, best marked, nothing that a label holds does anything."""

from __future__ import annotations

import csv
import io
import re
import shutil
import subprocess

import numpy as np
import pytest

from manymodes.report import tables
from manymodes.report.groups import experiments
from manymodes.report.runs import read_runs
from tests.report.synthetic import comparison, write_run

HOSTILE = r"""<script>alert(1)</script>|*a*_b_ `c` \d & 50% $x$ #1 {y} ~z ^"q'"""


def _tables(folder):
    return [tables.table(e) for e in experiments(read_runs([folder]).runs)]


def test_markdown_holds_the_numbers_and_marks_the_best(tmp_path):
    text = tables.markdown(_tables(comparison(tmp_path, seeds=3)))
    runs = [r for r in read_runs([tmp_path]).runs if r.strategy == "er"]
    mean = 100 * np.mean([np.mean(r.accuracy[-1]) for r in runs])
    line = next(line for line in text.splitlines() if line.startswith("| er "))
    assert f"**{mean:.1f} ± " in line, "ER has the highest accuracy of those that compete"
    upper = next(line for line in text.splitlines() if line.startswith("| multitask "))
    assert "**" not in upper
    widths = {line.count(" | ") for line in text.splitlines() if line.startswith("| ") and "---" not in line}
    assert len(widths) == 1, "every row has as many cells"


def test_csv_can_be_read_back(tmp_path):
    rows = list(csv.DictReader(io.StringIO(tables.csv_text(_tables(comparison(tmp_path, seeds=2))))))
    assert [row["method"] for row in rows][:2] == ["finetune", "ewc"]
    for row in rows:
        run = next(r for r in read_runs([tmp_path]).runs if r.metrics["label"] == row["method"])
        seeds = [r for r in read_runs([tmp_path]).runs if r.metrics["label"] == row["method"]]
        assert float(row["average_accuracy"]) == pytest.approx(
            np.mean([np.mean(r.accuracy[-1]) for r in seeds]), rel=1e-5
        )
        assert int(row["parameters"]) == run.metrics["capacity"]
    assert next(row for row in rows if row["method"] == "ewc")["networks_kept"] == "2"
    assert next(row for row in rows if row["method"] == "er")["replay_samples"] == "100"


def test_latex_is_balanced_and_uses_booktabs(tmp_path):
    text = tables.latex(_tables(comparison(tmp_path)))
    for rule in (r"\toprule", r"\midrule", r"\bottomrule"):
        assert text.count(rule) == 1
    assert text.count("{") == text.count("}")
    body = text[text.index(r"\midrule") : text.index(r"\bottomrule")]
    ends = [line for line in body.splitlines() if line.endswith(r"\\")]
    assert len({len(re.findall(r"(?<!\\)&", line)) for line in ends}) == 1
    assert r"\mathbf" in body


@pytest.mark.skipif(
    shutil.which("pdflatex") is None, reason="needs LaTeX: apt-get install texlive-latex-recommended"
)
def test_latex_compiles(tmp_path):
    write_run(comparison(tmp_path), "si", label=HOSTILE)
    (tmp_path / "table.tex").write_text(tables.latex(_tables(tmp_path)), encoding="utf-8")
    packages = r"\documentclass{article}\usepackage{booktabs,graphicx,amsmath}"
    (tmp_path / "all.tex").write_text(packages + r"\begin{document}\input{table}\end{document}")
    words = ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", "all"]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, errors="replace")
    assert done.returncode == 0, done.stdout[-2000:]
    assert "Overfull" not in done.stdout


def test_labels_are_harmless_everywhere(tmp_path):
    write_run(tmp_path, "ewc", label=HOSTILE)
    write_run(tmp_path, "finetune")
    found = _tables(tmp_path)
    assert "<script>" not in tables.markdown(found)
    text = tables.latex(found)
    line = next(line for line in text.splitlines() if "script" in line)
    assert len(re.findall(r"(?<!\\)&", line)) == len(found[0].columns) + 1
    assert r"\textbackslash{}d" in line
    assert not re.search(r"(?<!\\)[%#_]", line)


@pytest.mark.parametrize("label", ["=1+1", "+cmd", "@sum", "\tx"])
def test_a_spreadsheet_runs_no_label(tmp_path, label):
    write_run(tmp_path, "ewc", label=label)
    text = tables.csv_text(_tables(tmp_path))
    cell = next(csv.DictReader(io.StringIO(text)))["method"]
    assert cell[0] == "'"


def test_numbers_are_written_for_people():
    percent, plain = tables.COLUMNS[0], tables.COLUMNS[1]
    assert percent.text([0.5]) == "50.0"
    assert percent.text([0.5, 0.7]).startswith("60.0 ± ")
    assert plain.text([3.13e-5]) == "3.1e-05"
    assert plain.text([]) == tables.NONE
