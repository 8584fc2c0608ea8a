"""The run directory: what is written when, which checkpoints stay, who may write."""

import itertools
import json
from pathlib import Path

import pytest
import torch

import manymodes as mm
from manymodes import checkpoints, store
from manymodes.checkpoints import Checkpoints
from manymodes.config import Config, differences
from manymodes.errors import UserError
from manymodes.rundir import RunDir
from manymodes.scratch import Scratch
from manymodes.strategies.base import Event
from manymodes.sweep import execute

CONFIG = Config(
    {"name": "finetune", "epochs": 2, "batch_size": 8},
    {"name": "digits", "tasks": 3, "limit": 16, "scenario": "task"},
    {"name": "mlp", "hidden": [8]},
)


@pytest.fixture
def directory(tmp_path):
    run = RunDir(tmp_path / "run", 0)
    with run.locked():
        run.begin(CONFIG)
        yield run


@pytest.fixture
def learner():
    return mm.Finetune(mm.models.mlp(64, (8,), outputs=10), epochs=3)


def record():
    from manymodes.run import Record

    return Record(capacity=7)


def put(run, learner, tasks, epochs):
    """A checkpoint at a point of the run."""
    learner.heads = [(0,)] * tasks
    learner.epochs_done = epochs
    run.checkpoint(learner, record())


def names(run):
    return [path.name.removeprefix("checkpoint-").removesuffix(".safetensors") for path in run.checkpoints()]


def test_the_order_of_names_is_the_order_of_time(directory, learner):
    directory.restore(learner)
    course = [(0, 1), (0, 2), (0, 3), (1, None), (1, 1), (1, 2), (1, 3), (2, None), (2, 1)]
    seen = []
    for tasks, epochs in course:
        put(directory, learner, tasks, epochs)
        found = names(directory)
        assert found == sorted(found)
        newest = store.load_state(directory.checkpoints()[-1])[0]
        assert (len(newest["heads"]), newest["epochs_done"]) == (tasks, epochs)
        seen.append(found)
    assert seen[2] == ["0000-000002", "0000-000003"]
    assert seen[4] == ["0001-000000", "0001-000001"]
    # The last two, and the last one between tasks: nothing of a pool can spoil that.
    assert seen[6] == ["0001-000000", "0001-000002", "0001-000003"]
    assert seen[8] == ["0002-000000", "0002-000001"]


def test_many_tasks_and_epochs_stay_in_order(directory, learner):
    directory.restore(learner)
    for tasks, epochs in [(9, 99), (99, 9), (999, 1000), (1000, None), (1000, 100_000)]:
        put(directory, learner, tasks, epochs)
        assert names(directory)[-1] == f"{tasks:04d}-{epochs or 0:06d}"


def test_the_pool_holds_what_the_checkpoints_refer_to(directory, learner, monkeypatch):
    monkeypatch.setattr(checkpoints, "MEMORY_BYTES", 0)
    directory.restore(learner)
    pool = Checkpoints(1, 1.0, learner.workspace)
    own = type(learner).state_dict
    monkeypatch.setattr(type(learner), "state_dict", lambda self: own(self) | {"pool": pool.state_dict()})
    seen = []
    for epoch in range(1, 5):
        # Each is better than the one before on what that one was good at, so that it drops out.
        pool.add(0, epoch, torch.full((4,), float(epoch)), torch.zeros(0), torch.full((3,), 0.1 * epoch), 0.0)
        put(directory, learner, 0, epoch)
        seen.append(len(list(directory.pool.iterdir())))
    assert seen == [1, 2, 2, 2]
    state, _ = store.load_state(directory.checkpoints()[-1], directory.pool)
    assert state["pool"][0][0]["weights"].load()["theta"].tolist() == [4.0] * 4
    first = {path.name: path.stat().st_mtime_ns for path in directory.pool.iterdir()}
    put(directory, learner, 0, 5)
    assert {path.name: path.stat().st_mtime_ns for path in directory.pool.iterdir()}.items() <= first.items()


def test_what_goes_to_the_pool_as_it_is_loaded_stays_there(directory, monkeypatch):
    """A checkpoint that holds everything itself, restored where less fits into memory."""

    def mota():
        return mm.MOTA(mm.models.mlp(64, (8,), outputs=10), epochs=2, batch_size=8)

    learner = mota()
    for task in mm.streams.digits(tasks=2, limit=16):
        learner.learn(task, on_epoch=lambda one: directory.checkpoint(one, record()))
    learner = mota()
    monkeypatch.setattr(checkpoints, "MEMORY_BYTES", 0)
    directory.restore(learner)
    rows = [row for rows in learner._checkpoints.kept for row in rows]
    assert rows
    assert all(row.weights.load()["packed"].numel() > 0 for row in rows)


def test_checkpoints_in_the_three_places_are_the_same(tmp_path, monkeypatch):
    generator = torch.Generator().manual_seed(0)
    thetas, buffers = torch.randn(6, 40, generator=generator), torch.randn(6, 3, generator=generator)
    probabilities = torch.rand(6, 9, generator=generator)
    pools, bases = [], [thetas[0].clone(), torch.randn(40, generator=generator)]
    places = ((2**20, None), (0, tmp_path / "pool"), (0, None), (350, None))
    for (memory, folder), base in itertools.product(places, (None, bases)):
        monkeypatch.setattr(checkpoints, "MEMORY_BYTES", memory)
        pool = Checkpoints(2, 0.1, folder, base)
        for n in range(6):
            pool.add(n % 2, n, thetas[n].clone(), buffers[n].clone(), probabilities[n], 0.1)
        pools.append(pool)
        again = Checkpoints(2, 0.1, folder, base)
        again.load_state_dict(pool.state_dict())
        pools.append(again)
    for pool in pools:
        assert [[row.epoch for row in rows] for rows in pool.kept] == [
            [row.epoch for row in r] for r in pools[0].kept
        ]
        for mode, rows in enumerate(pool.kept):
            for row in rows:
                theta, buffer = torch.empty(40), torch.empty(3)
                pool.load(mode, row.epoch, theta, buffer)
                assert torch.equal(theta, thetas[row.epoch])
                assert torch.equal(buffer, buffers[row.epoch])


def test_scratch_space_has_no_name(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr("manymodes.scratch.BLOCK", 1024)
    scratch = Scratch()
    slots = [scratch.put(torch.full((1000,), float(n))) for n in range(3)]
    assert list(tmp_path.iterdir()) == []  # nothing to leak, however the process ends
    assert [scratch.get(slot).view(torch.float32).unique().tolist() for slot in slots] == [[0], [1], [2]]
    scratch.drop(slots[1])
    long, short = scratch.put(torch.arange(1500.0)), scratch.put(torch.arange(3.0))
    assert scratch.get(long).view(torch.float32).tolist() == list(range(1500))
    assert scratch.get(short).view(torch.float32).tolist() == [0, 1, 2]
    assert scratch.get(slots[2]).view(torch.float32).unique().tolist() == [2]
    assert scratch.size == (3 * 4 - 4 + 6 + 1) * 1024  # what was dropped is used again


def test_events_are_cut_to_the_checkpoint(directory, learner):
    def event(epoch):
        directory.event(Event(0, "t", epoch, 9, 0, 1, float("inf"), 0.0, 0.0, 0.1))

    directory.restore(learner)
    event(1)
    put(directory, learner, 0, 1)
    event(2)
    directory.restore(learner)
    event(2)
    lines = (directory.path / "events.jsonl").read_text().splitlines()
    assert [json.loads(line)["epoch"] for line in lines] == [1, 2]
    assert json.loads(lines[0])["loss"] is None


def test_saving_costs_a_bounded_share_of_the_time(directory, learner, monkeypatch):
    clock, saved = [0.0], []
    directory.checkpoint_every = None
    directory.restore(learner)
    monkeypatch.setattr("manymodes.rundir.time.monotonic", lambda: clock[0])
    save = store.save_state

    def slow(*arguments):
        clock[0] += 2.0
        saved.append(clock[0])
        save(*arguments)

    monkeypatch.setattr(store, "save_state", slow)
    directory._saved = 0.0
    for epoch in range(1, 1000):
        clock[0] += 1.0
        learner.epochs_done = epoch
        if directory.due():
            directory.checkpoint(learner, record())
    assert saved[0] == 3.0  # what it costs is not known before the first
    assert 2 <= len(saved) <= 4
    assert 2.0 * len(saved) / clock[0] < 0.01


def test_another_configuration_is_refused_with_the_difference(directory):
    other = Config(CONFIG.strategy | {"epochs": 3}, CONFIG.stream, CONFIG.model, 5)
    with pytest.raises(
        UserError, match=r"strategy.epochs is 2 there, 3 here; seed is 0 there, 5 here"
    ) as error:
        directory.check(other)
    assert "give another --out" in str(error.value)
    directory.check(CONFIG)


def test_an_option_that_an_older_version_did_not_have_counts_as_its_default():
    older = CONFIG.as_dict()
    del older["deterministic"], older["threads"]
    wanted = Config(
        CONFIG.strategy | {"lr": 2e-3, "device": "auto"}, CONFIG.stream | {"seed": None}, CONFIG.model
    )
    assert differences(older, wanted) == []
    changed = Config(CONFIG.strategy | {"lr": 1.0}, CONFIG.stream, CONFIG.model, 0, 0, True)
    assert differences(older, changed) == [
        "strategy.lr is 0.002 there, 1.0 here",
        "deterministic is False there, True here",
    ]


@pytest.mark.parametrize(
    "content", ["", "3", "strategy: 3", "[]", "strategy: {}\nstream: {}\n", "a: &x 1\nb: *x"]
)
def test_a_config_that_is_none(content, directory):
    (directory.path / "config.yaml").write_text(content)
    with pytest.raises(UserError, match=r"config.yaml is not"):
        directory.check(CONFIG)


def test_a_run_goes_on_with_the_threads_it_began_with(tmp_path):
    path = tmp_path / "run"
    execute(CONFIG, path)
    (path / "metrics.json").unlink()
    environment = json.loads((path / "environment.json").read_text())
    assert environment["threads"] == 1  # a small network
    run = RunDir(path)
    assert run.threads() == 1
    environment["threads"] = 10**6
    (path / "environment.json").write_text(json.dumps(environment))
    assert run.threads() is None  # more than there are here


def test_another_machine_is_noticed(tmp_path, capsys):
    path = tmp_path / "run"
    execute(CONFIG, path)
    (path / "metrics.json").unlink()
    environment = json.loads((path / "environment.json").read_text()) | {"torch": "1.0"}
    (path / "environment.json").write_text(json.dumps(environment))
    execute(CONFIG, path)
    assert f"torch was 1.0, is {torch.__version__}): the last bits may differ" in capsys.readouterr().out


def test_the_order_of_the_classes_and_the_sizes_of_tasks_are_saved(directory):
    stream = mm.streams.digits(tasks=3, limit=16)
    directory.keep(stream)
    saved = json.loads((directory.path / "stream.json").read_text())
    assert saved["class_names"] == list(stream.class_names)
    assert saved["info"]["class_order"] == stream.info["class_order"]
    assert {name: part["train"] for name, part in saved["info"]["samples"].items()} == {
        task.name: len(task.train) for task in stream
    }


def test_other_data_is_refused_once_something_was_learnt_from_it(directory, learner):
    directory.keep(mm.streams.digits(tasks=3, limit=16))
    directory.keep(mm.streams.digits(tasks=3, limit=15))  # nothing depends on it yet
    put(directory, learner, 0, 1)
    directory.keep(mm.streams.digits(tasks=3, limit=15))
    with pytest.raises(UserError, match=r"is not what it was \(info\.limit was 15, is 16\): put it back"):
        directory.keep(mm.streams.digits(tasks=3, limit=16))
    (directory.path / "stream.json").write_text("{")
    directory.keep(mm.streams.digits(tasks=3, limit=16))  # damaged: there is nothing to compare with


def test_nothing_is_left_of_a_finished_run_but_results(tmp_path):
    result = execute(CONFIG, tmp_path / "run", record_trajectory="false")
    found = sorted(str(p.relative_to(tmp_path / "run")) for p in (tmp_path / "run").rglob("*") if p.is_file())
    assert found == [
        ".lock", "config.yaml", "environment.json", "events.jsonl", "learner.safetensors", "metrics.json",
        "stream.json", str(Path("weights") / "mode0.safetensors"),
    ]  # fmt: skip
    assert execute(CONFIG, tmp_path / "run") == result
    assert "elapsed" in result
