"""Runs as tasks of a real Ray cluster: the numbers of a run at home, whoever is killed meanwhile."""

import os
import re
import signal
import threading
import time
from contextlib import contextmanager
from dataclasses import replace
from importlib.util import find_spec
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from manymodes import cli, cluster, connection
from manymodes.away import Printed
from manymodes.config import Config
from manymodes.connection import Cluster
from manymodes.errors import DamagedFile, UserError
from manymodes.grid import execute_all
from manymodes.interrupts import Interrupted
from manymodes.jobs import Outcome
from manymodes.overview import Overview
from manymodes.parcels import Parcel, packed, unpack
from manymodes.runfiles import RunFiles
from manymodes.spaces import Space
from manymodes.sweep import execute
from manymodes.tune import Search, score
from tests.forked import differing, outcome
from tests.rayhead import ENVIRONMENT, descendants, listening, ray_head

EPOCHS = 60


def config(strategy="mota", seed=0, epochs=EPOCHS):
    return Config(
        {"name": strategy, "epochs": epochs, "batch_size": 8},
        {"name": "digits", "tasks": 2, "limit": 24, "scenario": "task"},
        {"name": "mlp", "hidden": [12]},
        seed,
        threads=1,
    )


@pytest.fixture(scope="module")
def head():
    if find_spec("ray") is None:  # not importorskip: what it listens on is settled when it is imported
        pytest.skip('needs Ray: pip install "manymodes[ray]"')
    if not Path("/proc/self/fd").exists():
        pytest.skip("finds the cluster's processes in /proc")
    with pytest.MonkeyPatch.context() as patch, ray_head() as found:
        for name, value in ENVIRONMENT.items():
            patch.setenv(name, value)
        patch.delenv("RAY_ADDRESS", raising=False)
        yield found


@pytest.fixture(scope="module")
def connected(head):
    """Connected once for several tests, as by somebody who uses the library within a Ray program."""
    import ray

    before = signal.getsignal(signal.SIGTERM)  # Ray takes it for itself
    ray.init(address=head[0], logging_level="ERROR", log_to_driver=False)
    signal.signal(signal.SIGTERM, before)
    yield Cluster(head[0], 0)
    ray.shutdown()


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """What the run is at home, never interrupted."""
    path = tmp_path_factory.mktemp("alone") / "run"
    execute(config(), path)
    return outcome(path)


@pytest.fixture
def begun(monkeypatch):
    """The process of every run that begins, in order."""
    found, before = [], Overview.begun

    def remember(self, number, where):
        found.append(int(where.rpartition(" ")[2]))
        before(self, number, where)

    monkeypatch.setattr(Overview, "begun", remember)
    return found


@contextmanager
def meanwhile(what):
    thread = threading.Thread(target=what)
    thread.start()
    yield
    thread.join()


def until(there, seconds=60):
    end = time.monotonic() + seconds
    while not there():
        assert time.monotonic() < end, "in vain"
        time.sleep(0.005)


def epochs_done(path):
    try:
        return len((path / "events.jsonl").read_bytes().splitlines())
    except FileNotFoundError:
        return 0


def test_the_command_line_has_runs_done_there_and_all_listens_on_loopback(head, tmp_path, capfd):
    words = ["compare", "--strategies", "finetune,ewc", "--stream", "digits", "--tasks", "2", "--limit", "24",
             "--model", "mlp", "--epochs", "2", "--threads", "1",
             "--out", str(tmp_path / "there")]  # fmt: skip
    assert cli.main([*words, "--engine", "ray", "--address", head[0], "--gpus-per-run", "0"]) == 0
    family = descendants(head[1])
    addresses = listening([head[1], *family, os.getpid()])
    capfd.readouterr()
    assert cli.main([*words[:-1], str(tmp_path / "here")]) == 0
    for path in (tmp_path / "here").iterdir():
        assert differing(outcome(path), outcome(tmp_path / "there" / path.name)) == []
    assert len(list((tmp_path / "there").iterdir())) == 2  # and no marker
    assert len(addresses) > 3
    loopback = ("0100007F:", "0000000000000000FFFF00000100007F:")
    assert [address for address in addresses if not address.startswith(loopback)] == []


def test_a_worker_that_is_killed_in_mid_run(connected, alone, begun, tmp_path, capfd):
    path = tmp_path / "runs" / "one"

    def kill():
        until(lambda: RunFiles(path).checkpoints() and epochs_done(path) > EPOCHS)
        os.kill(int((path / ".lock").read_text()), signal.SIGKILL)

    with meanwhile(kill):
        execute_all([config()], tmp_path / "runs", paths=[path], cluster=connected, checkpoint_every=0)
    assert len(set(begun)) == 2  # two processes had it
    assert "it goes on from its last checkpoint" in capfd.readouterr().err
    assert differing(outcome(path), alone) == []


def test_the_same_where_the_disk_is_not_shared(connected, alone, begun, tmp_path, monkeypatch):
    path, elsewhere = tmp_path / "runs" / "one", cluster._marked

    @contextmanager
    def unseen(runs):
        with elsewhere(runs) as marker:
            yield marker.with_name("nowhere")

    monkeypatch.setattr(cluster, "_marked", unseen)

    def kill():
        until(lambda: len(RunFiles(path).checkpoints()) > 1)
        os.kill(begun[0], signal.SIGKILL)

    with meanwhile(kill):
        execute_all([config()], tmp_path / "runs", paths=[path], cluster=connected, checkpoint_every=0)
    assert len(set(begun)) == 2
    assert differing(outcome(path), alone) == []
    assert not list(path.glob("checkpoint-*"))


def test_ctrl_c_leaves_runs_that_go_on_anywhere(connected, tmp_path):
    runs = [config("finetune", epochs=400), config("finetune", 1), config("finetune", 2, 2)]
    path = tmp_path / runs[0].slug

    def interrupt():
        until(lambda: epochs_done(path) > 3)
        os.kill(os.getpid(), signal.SIGINT)

    with meanwhile(interrupt), pytest.raises(Interrupted, match="of 3 runs done; everything is saved"):
        execute_all(runs, tmp_path, jobs=1, cluster=connected, checkpoint_every=1000)
    assert RunFiles(path).checkpoints()
    assert not (tmp_path / runs[2].slug).exists()
    for one in (path, tmp_path / "alone"):
        execute(runs[0], one)
    assert differing(outcome(path), outcome(tmp_path / "alone")) == []


def test_a_search_has_its_trials_done_there(connected, tmp_path):
    spaces = [Space("strategy", "epochs", 1, 3, whole=True)]
    search = Search(config(epochs=2), spaces, tmp_path, seeds=[0, 1], jobs=2, cluster=connected)
    best = search.run(2)
    by_hand = [score(replace(search.configured(best.settings), seed=seed)) for seed in (0, 1)]
    assert best.value == pytest.approx(sum(by_hand) / 2)


def test_what_is_printed_elsewhere_is_told_in_lines():
    printed = Printed()
    print("a whole line\nhalf", end="", file=printed)
    assert printed.taken() == ["a whole line"]
    print(" of one", file=printed)
    assert (printed.taken(), printed.taken()) == (["half of one"], [])


def test_what_a_person_sees():
    console = Console(file=StringIO(), force_terminal=True, width=100, legacy_windows=False)
    with Overview({1: "mota seed 0", 2: "ewc seed 0", 3: "er seed 0"}, 4, console) as overview:
        overview.begun(1, "node-7")
        overview.news(1, {"task": 1, "epoch": 3, "epochs": 5, "loss": 0.25})
        overview.begun(2, "node-8")
        overview.news(2, {"task": 0, "epoch": 1, "epochs": 5, "loss": None})
        overview.ended(Outcome(2, None, "no", diverged=True))
        with console.capture() as captured:
            console.print(overview.table())
    text = captured.get()
    assert re.search(r"mota seed 0 +node-7 +2 +3/5 +0.250", text)
    assert "4 runs: 1 done, 1 failed, 1 under way, 1 waiting" in text
    assert "ewc seed 0" not in text


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--engine", "slurm"], "unknown engine 'slurm'. Valid: local, ray"),
        (["--address", "auto"], "--address is for Ray: add --engine ray, or leave it out"),
        (["--gpus-per-run", "1"], "--gpus-per-run is for Ray: add --engine ray"),
        (["--engine", "ray", "--gpus-per-run", "1.5"], "a share from 0 to 1, or a whole number of GPUs"),
        (["--engine", "ray", "--address", "127.0.0.1:9"], "no Ray cluster answers at 127.0.0.1:9"),
        (["--engine", "ray", "--address", "there"], "must be HOST:PORT or auto, not 'there'"),
        (["--engine", "ray", "--jobs", "0"], "jobs must be a whole number from 1, not 0"),
    ],
)
def test_a_mistake_is_one_line(words, message, capsys):
    assert cli.main(["compare", "--strategies", "finetune", *words]) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("wanted", "there", "expected"), [(None, 0, 0.0), (None, 2, 1.0), (0.5, 2, 0.5), (0, 2, 0), (4, 2, 4)]
)
def test_the_share_of_a_gpu(wanted, there, expected, capsys, monkeypatch):
    monkeypatch.delenv("RAY_ADDRESS", raising=False)

    class Ray:
        @staticmethod
        def cluster_resources():
            return {"CPU": 2.0} | ({"GPU": float(there)} if there else {})

    assert connection.gpus(Ray, Cluster("auto", wanted)) == expected
    assert ("waiting for a machine with a GPU" in capsys.readouterr().out) == (expected > there)
    if expected > there:
        with pytest.raises(
            UserError, match="this machine has 2 GPUs; give less, or the --address of a cluster"
        ):
            connection.gpus(Ray, Cluster(None, wanted))


def test_without_ray_one_line_says_what_to_install(monkeypatch, tmp_path, capsys):
    monkeypatch.setitem(__import__("sys").modules, "ray", None)
    words = ["run", "--stream", "digits", "--epochs", "1", "--out", str(tmp_path / "runs"), "--engine", "ray"]
    assert cli.main(words) == 2
    assert 'pip install "manymodes[ray]"' in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


# ---- files that travel -------------------------------------------------------------------------------------


def test_parcels_carry_what_changed(tmp_path):
    here, there, known = tmp_path / "here", tmp_path / "there", {}
    (here / "pool").mkdir(parents=True)
    for name, text in (("pool/blob", "b"), ("checkpoint-1.safetensors", "1"), (".lock", "7"), (".a.tmp", "")):
        (here / name).write_text(text)
    first = packed(here, known)
    assert sorted(first.files) == ["checkpoint-1.safetensors", "pool/blob"]
    unpack(there, first)
    assert packed(here, known) == Parcel({}, [])
    (here / "checkpoint-1.safetensors").unlink()
    (here / "metrics.json").write_text("{}")
    second = packed(here, known)
    assert second == Parcel({"metrics.json": b"{}"}, ["checkpoint-1.safetensors"])
    unpack(there, second)
    assert sorted(p.name for p in there.rglob("*") if p.is_file()) == ["blob", "metrics.json"]


def test_what_is_referred_to_is_written_first(tmp_path, monkeypatch):
    order = []
    monkeypatch.setattr("manymodes.parcels.write_atomically", lambda path, write: order.append(path.name))
    unpack(
        tmp_path, Parcel(dict.fromkeys(["metrics.json", "checkpoint-2", "pool/z", "events.jsonl"], b""), [])
    )
    assert order == ["events.jsonl", "z", "checkpoint-2", "metrics.json"]


@pytest.mark.parametrize("name", ["../outside", "/etc/outside", "a/../../outside"])
def test_no_file_leaves_its_directory(name, tmp_path):
    with pytest.raises(DamagedFile, match=re.escape(repr(name))):
        unpack(tmp_path, Parcel({name: b""}, []))
    with pytest.raises(DamagedFile):
        unpack(tmp_path, Parcel({}, [name]))
