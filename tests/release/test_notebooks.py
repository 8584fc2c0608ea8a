"""The notebooks run from top to bottom, and print what is kept in them but for the numbers."""

import re
import runpy

import pytest

from tests.release.conftest import ROOT

nbformat = pytest.importorskip("nbformat", reason="needs nbclient: pip install manymodes[docs]")
pytest.importorskip("nbclient", reason="needs nbclient: pip install manymodes[docs]")
pytest.importorskip("ipykernel", reason="needs ipykernel: pip install manymodes[docs]")
pytest.importorskip("altair", reason="needs altair: pip install manymodes[report]")

NOTEBOOKS = sorted(ROOT.glob("docs/notebooks/*.ipynb"))


def printed(notebook):
    """Of every cell: its text without numbers, and which kinds of pictures it has."""
    found = []
    for cell in notebook.cells:
        for output in cell.get("outputs", []):
            text = re.sub(r"[-+]?[\d.]+", "#", "".join(output.get("text", "")))
            found.append((" ".join(text.split()), sorted(output.get("data", {}))))
    return found


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs(path):
    kept = nbformat.read(path, as_version=4)
    nbformat.validate(kept)
    fresh = runpy.run_path(str(ROOT / "docs" / "notebooks.py"))["executed"](path)
    assert printed(fresh) == printed(kept), "run docs/notebooks.py"
    assert any("image/svg+xml" in kinds for _, kinds in printed(fresh))
    code = [cell for cell in kept.cells if cell.cell_type == "code"]
    lines = [line for cell in code for line in cell.source.splitlines()]
    assert max(map(len, lines)) <= 100


def test_there_are_two():
    assert [path.stem for path in NOTEBOOKS] == ["forgetting", "modes"]
