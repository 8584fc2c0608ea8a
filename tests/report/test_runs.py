"""Reading run directories: what is whole is read, what is not is one clear line."""

from __future__ import annotations

import json
import math

import pytest

from manymodes.errors import UserError
from manymodes.report.groups import experiments
from manymodes.report.runs import read_events, read_run, read_runs
from tests.report.synthetic import comparison, write_run


def test_runs_are_found_in_folders_of_folders_and_by_themselves(tmp_path):
    one = write_run(tmp_path / "a" / "b", "ewc")
    write_run(tmp_path / "a", "mota")
    assert {run.strategy for run in read_runs([tmp_path]).runs} == {"ewc", "mota"}
    assert [run.path for run in read_runs([one]).runs] == [one.resolve()]
    assert len(read_runs([tmp_path, one, tmp_path / "a"]).runs) == 2, "each run once"


def test_unfinished_and_broken_runs_become_notes(tmp_path):
    good, unfinished, broken = (write_run(tmp_path, "ewc", seed=seed) for seed in range(3))
    (unfinished / "metrics.json").unlink()
    (broken / "metrics.json").write_text("{")
    found = read_runs([tmp_path])
    assert [run.path for run in found.runs] == [good.resolve()]
    assert len(found.notes) == 2
    assert "not finished" in found.notes[0] + found.notes[1]


def test_the_pretraining_of_a_reproduction_is_not_a_result(tmp_path):
    write_run(tmp_path, "ewc")
    write_run(tmp_path, "finetune").rename(tmp_path / "pretrained-auto-1")
    assert [run.strategy for run in read_runs([tmp_path]).runs] == ["ewc"]


@pytest.mark.parametrize("folder", ["missing", "empty"])
def test_nothing_to_report_is_one_clear_line(tmp_path, folder):
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match=r"is not a folder|no finished run"):
        read_runs([tmp_path / folder])


@pytest.mark.parametrize(
    "change",
    [
        {"accuracy": None},
        {"accuracy": [[1.0]]},
        {"accuracy": [[0.5, 0.5], [0.5, "x"], [0.5, 0.5]]},
        {"accuracy": [[0.5, 0.5], [0.5], [0.5, 0.5]]},
        {"accuracy": [[0.5, 0.5], [0.5, math.inf], [0.5, 0.5]]},
        {"drift": [[0.1]]},
        {"drift": "far"},
        {"modes": 0},
        {"modes": "two"},
    ],
)
def test_metrics_that_are_none_are_refused(tmp_path, change):
    path = write_run(tmp_path, "ewc", tasks=2)
    metrics = json.loads((path / "metrics.json").read_text()) | change
    (path / "metrics.json").write_text(json.dumps(metrics))
    with pytest.raises(UserError) as error:
        read_run(path)
    assert "metrics.json" in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    "text", ["", "[]", "strategy: x", "a: !!python/object/apply:os.system ['true']", "{", "&a [*a]"]
)
def test_configurations_that_are_none_are_refused(tmp_path, text):
    path = write_run(tmp_path, "ewc")
    (path / "config.yaml").write_text(text)
    with pytest.raises(UserError):
        read_run(path)


@pytest.mark.parametrize(
    "key", ["responsibility", "cosine", "layer_drift", "seconds_per_task", "layers", "surfaces"]
)
def test_what_an_older_run_did_not_record_is_left_out(tmp_path, key):
    path = write_run(tmp_path, "mota", modes=2)
    metrics = json.loads((path / "metrics.json").read_text())
    del metrics[key]
    (path / "metrics.json").write_text(json.dumps(metrics))
    assert read_run(path).get(key) == []


def test_an_epoch_that_was_repeated_counts_once(tmp_path):
    lines = [{"task": 0, "epoch": 1, "mode": 0, "loss": 9.0}, {"task": 0, "epoch": 1, "mode": 0, "loss": 1.0}]
    broken = ['{"task": 0, "epo', "[]", '{"task": 0, "epoch": 2, "mode": 0, "loss": NaN}']
    path = tmp_path / "events.jsonl"
    path.write_text("\n".join([*map(json.dumps, lines), *broken]))
    assert [event["loss"] for event in read_events(path)] == [1.0]
    assert read_events(tmp_path / "missing") == []


def test_methods_are_runs_that_differ_by_seed_alone_in_the_papers_order(tmp_path):
    comparison(tmp_path, seeds=3)
    write_run(tmp_path, "ewc", scenario="class")
    by_class, by_task = experiments(read_runs([tmp_path]).runs)
    assert (by_class.scenario, by_task.scenario) == ("class", "task")
    assert [m.label for m in by_task.methods] == [
        "finetune",
        "ewc",
        "er",
        "mota",
        "mota:modes=3",
        "multitask",
    ]
    assert [run.seed for run in by_task.methods[1].runs] == [0, 1, 2]
    assert by_task.methods[1].command.endswith("--seeds 0,1,2")
    assert by_task.best is not None
    assert by_task.best.label == "er", "multitask does not compete"


def test_equal_labels_are_told_apart_by_what_differs(tmp_path):
    write_run(tmp_path / "a", "ewc", model={"name": "mlp", "width": 1.0})
    write_run(tmp_path / "b", "ewc", model={"name": "mlp", "width": 0.5})
    labels = [m.label for m in experiments(read_runs([tmp_path]).runs)[0].methods]
    assert sorted(labels) == ["ewc (width 0.5)", "ewc (width 1.0)"]


def test_relative_drift_is_by_seed(tmp_path):
    for seed, base in ((0, 1.0), (1, 2.0)):
        write_run(tmp_path, "finetune", seed=seed, tasks=2, drift=[[9.0], [base]])
        write_run(tmp_path, "ewc", seed=seed, tasks=2, drift=[[9.0], [base / 4]])
    experiment = experiments(read_runs([tmp_path]).runs)[0]
    assert experiment.relative_drift(experiment.methods[1]) == [0.25, 0.25]
