"""Every registered method beside the others: the digits in three scenarios, and real CIFAR-100, small."""

import json
import re
from pathlib import Path

import pytest

from manymodes.cli import main
from manymodes.strategies.registry import ALL
from manymodes.task import SCENARIOS

SHARED = Path(__file__).parents[2] / "shared" / "data"


def compared(folder, *words):
    """The metrics of every method, by scenario and name, after one command."""
    assert main(["compare", "--strategies", "all", "--seeds", "0", "--out", str(folder), *words]) == 0
    found = {}
    for path in folder.glob("*/metrics.json"):
        metrics = json.loads(path.read_text())
        found.setdefault(metrics["scenario"], {})[metrics["label"]] = metrics
    assert all(sorted(methods) == sorted(ALL) for methods in found.values())
    return found


def sound(found, tasks):
    for name, m in found.items():
        assert len(m["accuracy"]) == tasks + 1, name
        assert all(0 <= a <= 1 for row in m["accuracy"] for a in row), name
        assert m["forgetting"] >= -m["backward_transfer"] - 1e-9, name
        assert m["storage"]["parameters"] == m["capacity"], name


def test_all_methods_on_the_digits_in_all_scenarios(tmp_path, capsys):
    words = ["--stream", "digits", "--scenarios", "all", "--tasks", "3", "--epochs", "6", "--limit", "150"]
    found = compared(tmp_path, *words)
    assert sorted(found) == sorted(SCENARIOS)
    table = capsys.readouterr().out
    rows = [re.sub(rf"^({'|'.join(SCENARIOS)})? +", "", line.strip()) for line in table.splitlines()]
    for name in ALL:
        assert sum(row.startswith(f"{name} ") for row in rows) == len(SCENARIOS), name
    for scenario, methods in found.items():
        sound(methods, 3)
        accuracy = {name: m["average_accuracy"] for name, m in methods.items()}
        best = max(a for name, a in accuracy.items() if name != "multitask")
        assert accuracy["multitask"] > best - 0.1
        if scenario != "task":  # in task-IL these tasks hardly disturb each other
            assert accuracy["er"] > accuracy["finetune"] + 0.1


@pytest.mark.skipif(not (SHARED / "cifar100").exists(), reason="needs ../shared/data/cifar100")
def test_all_methods_on_real_cifar100(tmp_path):
    words = ["--stream", "split-cifar100", "--stream.data_dir", str(SHARED), "--stream.classes", "9"]
    words += ["--tasks", "3", "--limit", "240", "--model", "small-cnn", "--width", "0.25", "--epochs", "3"]
    (found,) = compared(tmp_path, *words).values()
    sound(found, 3)
    for name, m in found.items():
        assert m["average_accuracy"] > 0.4, name  # of three classes each: better than chance
