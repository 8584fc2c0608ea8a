"""`make bench`: from the scripts' results to one table, a JSON file and a picture."""

import importlib.util
import json
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parents[1] / "benchmarks"
RESULTS = {
    "step": {"settings": {"mlp": {"ratio": {"bare": 1.0, "finetune": 1.05}, "must": {"finetune": 1.1}}}},
    "modes": {"settings": {"mlp": {"ratio": {"finetune": [1, 1, 1], "mota, 2 modes": [1.5, 1.4, 1.6]}}}},
    "fisher": {"rows": {"manymodes, empirical": {"ratio_to_training": 0.7, "samples_per_second": 700},
                        "BackPACK": {"ratio_to_training": 0.5, "samples_per_second": 500}}},
    "backtracking": {"search": [
        {"modes": modes, "checkpoints": 51, "samples": 1000, "curves": "smooth", "seconds_worst": 0.2,
         "gap_worst": 0.04, "proven": 2, "seeds": 3} for modes in (4, 6, 10)
    ]},
    "memory": {"epochs": 200, "memory_more": 0.1, "disk": 7.0},
    "start": {"manymodes --help": 0.1},
}  # fmt: skip


@pytest.fixture
def bench():
    spec = importlib.util.spec_from_file_location("bench", HERE / "bench.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_table_of_what_lies_there(bench, tmp_path, monkeypatch, capsys):
    for name, content in RESULTS.items():
        (tmp_path / f"{name}.json").write_text(json.dumps(content))
    monkeypatch.setattr(sys, "argv", ["bench.py", "--show", f"--out={tmp_path}"])
    bench.main()
    lines = capsys.readouterr().out.splitlines()
    assert "6 of 9 bounds reached" in lines
    missed = [line.split("  ")[0] for line in lines if line.endswith("NOT reached")]
    assert missed == [
        "epoch of N modes / N epochs of finetune",
        "backtracking, proven, worst seed",  # one seed of three was not proven
        "disk for checkpoints",
    ]
    rows = json.loads((tmp_path / "bench.json").read_text())
    assert [row["value"] for row in rows if "BackPACK" in row["what"]] == [1.4]
    assert (tmp_path / "bench.svg").read_text().startswith("<svg")


def test_more_may_be_better_or_worse(bench):
    assert bench.Row("", "", 0.7, must=0.6, more=True).reached
    assert not bench.Row("", "", 0.7, must=0.6).reached
    assert bench.Row("", "", 0.5, must=1.0).share == bench.Row("", "", 2.0, must=1.0, more=True).share == 0.5


def test_nothing_to_show_says_so(bench, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["bench.py", "--show", f"--out={tmp_path}"])
    with pytest.raises(SystemExit) as error:
        bench.main()
    assert error.value.code == 2
    assert "there is no result in" in capsys.readouterr().err


def test_every_script_that_it_runs_is_there(bench):
    assert all((HERE / f"{name}.py").is_file() for name in bench.SCRIPTS)
