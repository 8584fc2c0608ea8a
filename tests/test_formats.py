"""Files of every format there has been are read, and go on where they stopped."""

import json
import shutil

import pytest
import torch

import manymodes as mm
from manymodes import store
from manymodes.runfiles import RunFiles
from manymodes.strategies.registry import REGISTRY
from manymodes.sweep import execute
from manymodes.task import as_data
from tests.golden.write import CONFIG, HERE, samples

FORMATS = sorted(HERE.glob("format*"))
ONE = HERE / "format1" / "ewc.safetensors"


def test_there_is_a_folder_of_every_format():
    assert [folder.name for folder in FORMATS] == [f"format{n}" for n in range(1, store.FORMAT + 1)]
    assert sorted(store.MIGRATIONS) == list(range(1, store.FORMAT))


@pytest.mark.parametrize("folder", FORMATS, ids=lambda folder: folder.name)
@pytest.mark.parametrize("name", REGISTRY)
def test_a_learner_in_the_middle_of_a_task_predicts_the_same_and_goes_on(folder, name):
    learner = mm.load(folder / f"{name}.safetensors")
    assert (learner.tasks_learnt, learner.epochs_done) == (1, 1)
    expected = torch.tensor(json.loads((folder / "predictions.json").read_text())[name])
    torch.testing.assert_close(learner.predict(samples(0)[0], classes=range(4)), expected)
    learner.recall([mm.Task("1", as_data(*samples(0)), None, None, (0, 1))])
    learner.learn(*samples(1))
    assert learner.tasks_learnt == 2


@pytest.mark.parametrize("folder", FORMATS, ids=lambda folder: folder.name)
def test_an_interrupted_run_goes_on(folder, tmp_path):
    run = RunFiles(tmp_path / "run")
    shutil.copytree(folder / "run", run.path)
    assert run.status() == "interrupted"
    before = [json.loads(line) for line in (run.path / "events.jsonl").read_text().splitlines()]
    learnt = store.read_meta(run.checkpoints()[-1])[0]["record"]["accuracy"]
    result = execute(CONFIG, run.path)
    after = [json.loads(line) for line in (run.path / "events.jsonl").read_text().splitlines()]
    assert after[: len(before)] == before
    assert len(after) == 12  # two modes, two tasks, three epochs
    assert result["accuracy"][: len(learnt)] == learnt
    assert not list(run.path.glob("*.damaged"))


def test_a_migration_changes_what_is_read_and_told(monkeypatch, tmp_path):
    """As if the next format kept the options under another name."""

    def renamed(body):
        meta = body["meta"]
        return body | {"meta": {"settings" if k == "options" else k: v for k, v in meta.items()}}

    _, before = store.load_state(ONE)
    monkeypatch.setattr(store, "FORMAT", 2)
    monkeypatch.setattr(store, "MIGRATIONS", {1: renamed})
    state, meta = store.load_state(ONE)
    assert meta["settings"] == before["options"]
    assert "options" not in meta
    assert store.read_meta(ONE)[0] == meta
    store.save_state(tmp_path / "new.safetensors", state, meta)
    assert store.load_state(tmp_path / "new.safetensors")[1] == meta  # written as 2: not migrated again


def test_a_migration_that_fails_is_one_line(monkeypatch):
    monkeypatch.setattr(store, "FORMAT", 2)
    monkeypatch.setattr(store, "MIGRATIONS", {1: lambda body: body["none"]})
    with pytest.raises(mm.UserError, match=r"ewc\.safetensors is damaged: KeyError 'none'"):
        store.load_state(ONE)
