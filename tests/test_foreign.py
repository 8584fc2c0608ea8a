"""Finished runs with a network or a strategy that is not one of ours are used like any other."""

import json
import sys
import types

import numpy as np
import pytest

from manymodes import EWC, cli
from tests.nets import wide


class Mine(EWC):
    """A strategy of one's own."""


SMALL = ("--stream", "digits", "--tasks", "2", "--limit", "20", "--epochs", "1")


@pytest.fixture
def timm(monkeypatch):
    """A stand-in: the real one makes its networks in the same way."""
    asked = []

    def create_model(name, *, num_classes, in_chans, pretrained):
        asked.append((name, pretrained))
        return wide(64 * in_chans, num_classes, 5)

    monkeypatch.setitem(sys.modules, "timm", types.SimpleNamespace(create_model=create_model))
    return asked


def line(capsys):
    return capsys.readouterr().err.splitlines()[-1]


def evaluated(run, tmp_path, *words):
    assert cli.main(["evaluate", str(run), *words, "--out", str(tmp_path / "e.json")]) == 0
    return [row["accuracy"] for row in json.loads((tmp_path / "e.json").read_text())["tasks"]]


def test_a_network_and_a_strategy_of_ones_own(tmp_path, capsys):
    own = ("--strategy", "tests.test_foreign:Mine", "--model", "tests.nets:wide")
    assert cli.main(["run", *own, "--width", "6", *SMALL, "--out", str(tmp_path / "runs")]) == 0
    (run,) = (tmp_path / "runs").iterdir()
    capsys.readouterr()
    assert cli.main(["evaluate", str(run)]) == 2
    assert "say so by adding --strategy tests.test_foreign:Mine" in line(capsys)
    assert cli.main(["evaluate", str(run), *own[:2]]) == 2
    assert "a network of your own: say which by adding --model tests.nets:wide" in line(capsys)
    assert cli.main(["evaluate", str(run), "--strategy", "ewc", *own[2:]]) == 2
    assert "was learnt by tests.test_foreign:Mine, not ewc" in line(capsys)
    final = json.loads((run / "metrics.json").read_text())["accuracy"][-1]
    assert evaluated(run, tmp_path, *own) == pytest.approx(final)  # of width 6, as the run says
    np.savez(tmp_path / "x.npz", x=np.zeros((3, 1, 8, 8), np.uint8), y=np.array(["0", "1", "0"]))
    assert cli.main(["predict", str(run), str(tmp_path / "x.npz"), *own]) == 0
    assert len(capsys.readouterr().out.splitlines()[-4:]) == 4
    assert cli.main(["learn", str(run), str(tmp_path / "x.npz"), "--val", "0", *own]) == 0


def test_a_network_of_a_library_is_made_again_without_its_weights(timm, tmp_path):
    words = ("run", "--strategy", "finetune", "--model", "timm:tiny", "--pretrained", "true", *SMALL)
    assert cli.main([*words, "--out", str(tmp_path / "runs")]) == 0
    (run,) = (tmp_path / "runs").iterdir()
    final = json.loads((run / "metrics.json").read_text())["accuracy"][-1]
    assert evaluated(run, tmp_path) == pytest.approx(final)
    assert timm == [("tiny", True), ("tiny", False)]
