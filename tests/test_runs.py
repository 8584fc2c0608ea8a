"""`manymodes runs`: what lies in a folder of runs, told quickly and without trusting it."""

import json
import os
import shutil
import signal
import subprocess
import sys

import pytest

from manymodes.commands import runs
from manymodes.errors import UserError
from tests.forked import TINY, Forked, manymodes


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A run that is done, one that was interrupted, one that failed, and one that is damaged."""
    folder = tmp_path_factory.mktemp("runs")
    here = ("--out", str(folder))
    assert manymodes(folder, "run", "--strategy", "finetune", *TINY, *here)[0] == 0
    assert manymodes(folder, "run", "--strategy", "ewc", *TINY, "--lr", "1e30", *here)[0] == 2
    forked = Forked(folder / "o.txt", "run", "--strategy", "mota", *TINY, "--epochs", "300", *here)
    run = folder / "mota-digits-task-seed0"
    forked.until(lambda: (run / "checkpoint-0001-000002.safetensors").exists(), 120)
    forked.send(signal.SIGTERM)
    assert forked.wait() == 130
    shutil.copytree(folder / "finetune-digits-task-seed0", folder / "deep" / "er" / "[red]x")
    (folder / "deep" / "er" / "[red]x" / "metrics.json").write_text("{")
    (folder / "not a run").mkdir()
    return folder


def test_each_run_in_a_line(folder, capsys):
    assert runs.main([str(folder)]) == 0
    output = capsys.readouterr().out
    lines = {line.split()[0]: line for line in output.splitlines() if line.split()}
    done, failed = lines["finetune-digits-task-seed0"], lines["ewc-digits-task-seed0"]
    interrupted, damaged = lines["mota-digits-task-seed0"], lines["deep/er/[red]x"]
    assert "done" in done
    assert "3 tasks" in done
    assert "failed" in failed
    assert "the loss became" in output
    assert "interrupted" in interrupted
    assert "task 2/3, epoch" in interrupted
    assert "damaged" in damaged
    assert "2 to go on with" in output


def test_as_json(folder, capsys):
    assert runs.main([str(folder), "--json"]) == 0
    rows = {os.path.basename(row["path"]): row for row in json.loads(capsys.readouterr().out)}
    assert len(rows) == 4
    metrics = json.loads((folder / "finetune-digits-task-seed0" / "metrics.json").read_text())
    assert rows["finetune-digits-task-seed0"]["accuracy"] == metrics["average_accuracy"]
    assert 0 < rows["mota-digits-task-seed0"]["accuracy"] <= 1
    assert rows["[red]x"]["accuracy"] is None


def test_one_run(folder, capsys):
    run = folder / "mota-digits-task-seed0"
    assert runs.main(["show", str(run)]) == 0
    output = capsys.readouterr().out
    assert "status: interrupted" in output
    assert f"to go on: manymodes run --resume {run}" in output
    assert "checkpoint-0001-000000.safetensors" in output
    assert "  1: " in output
    assert "epochs 300" in output
    assert runs.main(["show", str(folder / "ewc-digits-task-seed0"), "--json"]) == 0
    assert "the loss became" in json.loads(capsys.readouterr().out)["why"]


def test_a_run_under_way(folder, tmp_path):
    forked = Forked(
        tmp_path / "o.txt", "run", "--strategy", "er", *TINY, "--epochs", "3000", "--out", str(tmp_path)
    )
    run = tmp_path / "er-digits-task-seed0"
    forked.until(lambda: (run / "events.jsonl").exists() and (run / "events.jsonl").stat().st_size > 0)
    assert runs.state_of(run).status == "running"
    assert runs.state_of(run).progress.startswith("task 1")
    forked.process.kill()
    forked.wait()
    assert runs.state_of(run).status == "interrupted"


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ([], "give one folder"),
        (["a", "b"], "give one folder"),
        (["/nowhere"], "there is no folder /nowhere"),
        (["--wide", "/tmp"], "unknown option --wide"),
        (["show"], "give one folder"),
    ],
)
def test_mistakes(words, told):
    with pytest.raises(UserError, match=told):
        runs.main(words)


def test_a_folder_that_is_no_run(folder):
    with pytest.raises(UserError, match="is not a run directory"):
        runs.main(["show", str(folder / "not a run")])


def test_an_empty_folder(tmp_path, capsys):
    assert runs.main([str(tmp_path)]) == 0
    assert f"no runs in {tmp_path}" in capsys.readouterr().out


def test_it_does_not_wait_for_torch(folder):
    code = (
        "import sys; from manymodes import cli; code = cli.main(['runs', sys.argv[1]]); "
        "sys.exit(code or ('torch' in sys.modules))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(folder)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
