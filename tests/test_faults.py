"""Whatever goes wrong around a run, nothing that was good is lost, and one line says what to do."""

import errno
import json
import os
import random
import resource
import shutil
import signal
import threading
import time
from contextlib import suppress
from pathlib import Path

import pytest
import torch

from manymodes import store
from manymodes.config import Config
from manymodes.errors import UserError
from manymodes.grid import SomeFailed, execute_all
from manymodes.interrupts import Interrupted
from manymodes.sweep import execute
from tests.forked import TINY, Forked, differing, manymodes, outcome, sound

RUN = ("run", "--strategy", "mota", *TINY)
ROOT = os.geteuid() == 0


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The run that nothing happens to."""
    folder = tmp_path_factory.mktemp("whole")
    code, output = manymodes(folder, *RUN, "--out", str(folder / "runs"))
    assert code == 0, output
    return outcome(folder / "runs" / NAME)


NAME = "mota-digits-task-seed0"


def line_of(output):
    """The one line that a person gets."""
    assert "Traceback" not in output, output
    lines = [line for line in output.splitlines() if line.startswith("manymodes: ")]
    assert len(lines) == 1, output
    return lines[0]


# ---- killed while writing ---------------------------------------------------------------------------


def killed_at(call):
    """Count the calls that change files, and die in the middle of one of them."""
    left = [call]

    def counted(function):
        def wrapped(*arguments, **options):
            left[0] -= 1
            if left[0] == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            return function(*arguments, **options)

        return wrapped

    for name in ("fsync", "replace", "truncate", "unlink"):
        setattr(os, name, counted(getattr(os, name)))
    store._bytes = counted(store._bytes)  # between the tensors of a file


@pytest.mark.parametrize("part", range(5))
def test_killed_while_writing(part, whole, tmp_path):
    call = random.SystemRandom().randrange(part * 60 + 1, part * 60 + 61)
    words = (*RUN, "--out", str(tmp_path / "runs"))
    code, output = manymodes(tmp_path, *words, hook=killed_at, arguments=(call,))
    assert code in (-signal.SIGKILL, 0), output
    run = tmp_path / "runs" / NAME
    assert sound(run) == [], f"killed at call {call}"
    code, output = manymodes(tmp_path, *words)
    assert code == 0, f"killed at call {call}: {output}"
    assert differing(outcome(run), whole) == [], f"killed at call {call}"
    assert not list(run.rglob("*.tmp"))


# ---- asked to stop ----------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_finishes_the_epoch_and_says_how_to_go_on(number, whole, tmp_path):
    words = (*RUN, "--checkpoint-every", "1000", "--out", str(tmp_path / "runs"))
    forked = Forked(tmp_path / "first.txt", *words, hook=slowly, arguments=(0.02,))
    run = tmp_path / "runs" / NAME
    forked.until(lambda: (run / "events.jsonl").exists() and (run / "events.jsonl").stat().st_size > 0)
    forked.send(number)
    assert forked.wait() == 130
    assert "stopping when this epoch is finished and saved; once more to stop at once" in forked.output
    (told,) = [line for line in forked.output.splitlines() if "To go on: " in line]
    assert "everything is saved" in told
    command = told.partition("To go on: ")[2].split()
    assert command == ["manymodes", "run", "--resume", str(run)]
    assert len(list(run.glob("checkpoint-*"))) >= 1
    code, output = manymodes(tmp_path, *command[1:])
    assert code == 0, output
    assert differing(outcome(run), whole) == []


def slowly(seconds):
    """Every step takes so long."""
    from manymodes.train import Optimiser

    step = Optimiser.step

    def slow(self):
        time.sleep(seconds)
        step(self)

    Optimiser.step = slow


def test_a_second_signal_stops_at_once(tmp_path):
    words = (*RUN, "--out", str(tmp_path / "runs"))
    forked = Forked(tmp_path / "first.txt", *words, hook=slowly, arguments=(0.3,))
    run = tmp_path / "runs" / NAME
    forked.until(lambda: (run / "events.jsonl").exists())
    time.sleep(0.3)
    forked.send(signal.SIGINT)
    forked.until(lambda: "once more" in forked.output)
    start = time.monotonic()
    forked.send(signal.SIGINT)
    assert forked.wait() == 130
    assert time.monotonic() - start < 2.0
    assert "Traceback" not in forked.output
    assert sound(run) == []


def tiny(strategy="finetune", seed=0, epochs=2, **options):
    return Config(
        {"name": strategy, "epochs": epochs, "batch_size": 8, **options},
        {"name": "digits", "tasks": 3, "limit": 24, "scenario": "task"},
        {"name": "mlp", "hidden": [12]},
        seed,
    )


def test_a_signal_stops_all_jobs_and_the_same_call_goes_on(tmp_path):
    configs = [tiny(seed=seed, epochs=60) for seed in range(3)]
    paths = [tmp_path / "runs" / config.slug for config in configs]

    def interrupt():
        while not all((path / "events.jsonl").exists() for path in paths[:2]):
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    thread.start()
    with pytest.raises(Interrupted, match="of 3 runs done; everything is saved"):
        execute_all(configs, tmp_path / "runs", jobs=2, checkpoint_every=1000)
    thread.join()
    assert all(list(path.glob("checkpoint-*")) for path in paths[:2])
    results = execute_all(configs, tmp_path / "runs", jobs=2)
    for config, result in zip(configs, results, strict=True):
        alone = execute(config, tmp_path / "alone" / config.slug)
        assert alone["accuracy"] == result["accuracy"]


# ---- a job that dies --------------------------------------------------------------------------------


def test_a_job_that_is_killed_takes_no_other_with_it(tmp_path, capfd):
    configs = [tiny(seed=0, epochs=300), tiny(seed=1), tiny("ewc", seed=2)]
    victim = tmp_path / "runs" / configs[0].slug

    def kill():
        while not (victim / "events.jsonl").exists():
            time.sleep(0.01)
        os.kill(int((victim / ".lock").read_text()), signal.SIGKILL)

    thread = threading.Thread(target=kill)
    thread.start()
    with pytest.raises(SomeFailed, match="1 of 3 runs failed") as failed:
        execute_all(configs, tmp_path / "runs", jobs=2)
    thread.join()
    assert failed.value.code == 1
    assert sorted(failed.value.results) == [1, 2]
    assert "its process died of SIGKILL, often for want of memory" in capfd.readouterr().out
    assert sound(victim) == []


def test_a_job_that_diverges_takes_no_other_with_it(tmp_path):
    configs = [tiny(lr=1e30), tiny(seed=1)]
    with pytest.raises(SomeFailed) as failed:
        execute_all(configs, tmp_path / "runs")
    assert sorted(failed.value.results) == [1]
    assert "the loss became" in failed.value.failures[0]


# ---- two writers ------------------------------------------------------------------------------------


def test_a_second_writer_is_refused(tmp_path):
    words = (*RUN, "--out", str(tmp_path / "runs"))
    first = Forked(tmp_path / "first.txt", *words, hook=slowly, arguments=(0.2,))
    run = tmp_path / "runs" / NAME
    first.until(lambda: (run / "events.jsonl").exists())
    code, output = manymodes(tmp_path, *words)
    assert code == 2
    assert f"{run} is in use by another process ({first.process.pid}): wait, or end it" in line_of(output)
    assert first.process.is_alive()
    first.process.kill()
    first.wait()


# ---- the disk ---------------------------------------------------------------------------------------


def limited(size):
    """No file may grow beyond so many bytes."""
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))


def test_a_limit_on_file_sizes(whole, tmp_path):
    words = (*RUN, "--out", str(tmp_path / "runs"))
    code, output = manymodes(tmp_path, *words, hook=limited, arguments=(9_000,))
    assert code == 2
    line = line_of(output)
    assert "the file is larger than this process may write (ulimit -f): raise the limit" in line
    run = tmp_path / "runs" / NAME
    assert sound(run) == []
    code, output = manymodes(tmp_path, *words)
    assert code == 0, output
    assert differing(outcome(run), whole) == []


def test_no_room_for_the_words_either(tmp_path):
    """Where the output goes to the full disk too: the exit code still says what happened."""
    code, output = manymodes(tmp_path, *RUN, "--out", str(tmp_path / "x"), hook=limited, arguments=(50,))
    assert (code, len(output)) == (2, 50)


def small_disk(folder, kilobytes):
    """A disk of so many kilobytes, for this process alone."""
    import ctypes

    libc = ctypes.CDLL(None, use_errno=True)
    new_mounts, private, recursive = 0x00020000, 1 << 18, 0x4000
    if libc.unshare(new_mounts) or libc.mount(b"none", b"/", None, private | recursive, None):
        os._exit(77)
    if libc.mount(b"tmpfs", folder.encode(), b"tmpfs", 0, f"size={kilobytes}k".encode()):
        os._exit(77)


def filled_then_freed(folder, kilobytes):
    """A small disk that is full at the second checkpoint; what lies there then is copied to see."""
    small_disk(folder, kilobytes)
    from manymodes.rundir import RunDir

    save, count = RunDir.checkpoint, [0]

    def checkpoint(self, learner, record):
        count[0] += 1
        if count[0] == 3:
            with open(Path(folder) / "ballast", "wb", buffering=0) as ballast, suppress(OSError):
                while True:
                    ballast.write(b"x" * 4096)
        try:
            save(self, learner, record)
        finally:
            if count[0] == 3:
                shutil.copytree(self.path, Path(folder).parent / "copy" / self.path.name)

    RunDir.checkpoint = checkpoint


@pytest.mark.skipif(not ROOT, reason="mounting a small disk needs root")
def test_a_full_disk(whole, tmp_path):
    disk = tmp_path / "disk"
    disk.mkdir()
    words = (*RUN, "--record-trajectory", "false", "--out")
    code, output = manymodes(tmp_path, *words, str(disk), hook=filled_then_freed, arguments=(str(disk), 400))
    if code == 77:
        pytest.skip("this kernel lets nobody mount")
    assert code == 2
    assert "no space is left on the disk: free some and try again" in line_of(output)
    copy = tmp_path / "copy" / NAME
    assert len(list(copy.glob("checkpoint-*.safetensors"))) == 2  # those of before, and nothing half-written
    assert sound(copy) == []
    assert not list(copy.glob(".check*"))
    code, output = manymodes(tmp_path, *words, str(tmp_path / "copy"))
    assert code == 0, output
    found, expected = outcome(copy), {k: v for k, v in whole.items() if "trajectory" not in k}
    assert differing(found, expected) == []


def nobody(folder):
    """Root may write everywhere: become somebody who may not."""
    os.chmod(folder, 0o555)
    if ROOT:
        os.setuid(65534)


def test_a_directory_that_cannot_be_written_to(tmp_path):
    for up in tmp_path.parents[: len(tmp_path.parents) - 2]:
        if ROOT:
            up.chmod(up.stat().st_mode | 0o055)
    out = tmp_path / "locked"
    out.mkdir()
    tmp_path.chmod(0o755)
    code, output = manymodes(tmp_path, *RUN, "--out", str(out / "runs"), hook=nobody, arguments=(str(out),))
    assert code == 2
    assert "permission denied: choose a place you may write to" in line_of(output)
    assert list(out.iterdir()) == []


def test_a_run_that_cannot_begin_leaves_nothing(tmp_path):
    code, output = manymodes(
        tmp_path, "run", "--stream", "folder", "--path", "/nowhere", "--out", str(tmp_path / "runs")
    )
    assert code == 2
    line_of(output)
    assert not (tmp_path / "runs").exists()


def test_links_are_not_followed(tmp_path):
    """A directory from elsewhere cannot make a run write outside of it."""
    words = (*RUN, "--out", str(tmp_path / "runs"))
    run, victim = tmp_path / "runs" / NAME, tmp_path / "victim"
    victim.write_text("precious")
    for name in (".lock", "events.jsonl", ".config.yaml.tmp"):
        run.mkdir(parents=True)
        (run / name).symlink_to(victim)
        code, output = manymodes(tmp_path, *words)
        assert victim.read_text() == "precious", name
        assert code in (0, 2)
        if code == 2:
            assert "symbolic link" in line_of(output)
        shutil.rmtree(run)


# ---- damaged checkpoints ----------------------------------------------------------------------------


def stopped(tmp_path, hook=None):
    """A run that was stopped after some checkpoints."""
    words = (*RUN, "--epochs", "4", "--out", str(tmp_path / "runs"))
    forked = Forked(tmp_path / "first.txt", *words, hook=hook)
    run = tmp_path / "runs" / NAME
    forked.until(lambda: (run / "checkpoint-0002-000002.safetensors").exists())
    forked.process.kill()
    forked.wait()
    return run, words


def cut(path):
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def flipped(path):
    data = bytearray(path.read_bytes())
    where = random.SystemRandom().randrange(len(data))
    data[where] ^= 1 << random.SystemRandom().randrange(8)
    path.write_bytes(data)


def emptied(path):
    path.write_bytes(b"")


@pytest.fixture(scope="module")
def four_epochs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("four")
    code, output = manymodes(folder, *RUN, "--epochs", "4", "--out", str(folder / "runs"))
    assert code == 0, output
    return outcome(folder / "runs" / NAME)


@pytest.mark.parametrize("damage", [cut, flipped, emptied])
def test_a_damaged_checkpoint_is_named_and_the_one_before_it_used(damage, four_epochs, tmp_path):
    run, words = stopped(tmp_path)
    newest = sorted(run.glob("checkpoint-*"))[-1]
    damage(newest)
    code, output = manymodes(tmp_path, *words)
    assert code == 0, output
    line = line_of(output)
    assert f"{newest} is damaged" in line
    assert "going on from the checkpoint before it" in line
    assert newest.with_suffix(".damaged").exists()
    assert differing(outcome(run), four_epochs) == []


def in_the_pool():
    from manymodes import checkpoints

    checkpoints.MEMORY_BYTES = 0


@pytest.mark.parametrize("damage", [flipped, Path.unlink])
def test_a_damaged_file_of_the_pool_costs_the_task_not_the_run(damage, four_epochs, tmp_path):
    run, words = stopped(tmp_path, hook=in_the_pool)
    for blob in (run / "pool").iterdir():
        damage(blob)
    code, output = manymodes(tmp_path, *words, hook=in_the_pool)
    assert code == 0, output
    assert output.count("going on from the checkpoint before it") == 2
    assert "checkpoint-0002-000000.damaged" not in {path.name for path in run.iterdir()}
    assert differing(outcome(run), four_epochs) == []


def test_a_damaged_older_checkpoint_is_no_obstacle(four_epochs, tmp_path):
    run, words = stopped(tmp_path, hook=in_the_pool)
    emptied(sorted(run.glob("checkpoint-*"))[-2])
    code, output = manymodes(tmp_path, *words, hook=in_the_pool)
    assert code == 0, output
    assert "is damaged" not in output
    assert differing(outcome(run), four_epochs) == []


def test_all_checkpoints_damaged(four_epochs, tmp_path):
    run, words = stopped(tmp_path)
    found = list(run.glob("checkpoint-*"))
    for path in found:
        cut(path)
    code, output = manymodes(tmp_path, *words)
    assert code == 0, output
    assert output.count("is damaged") == len(found)
    assert differing(outcome(run), four_epochs) == []


# ---- learning that goes wrong -----------------------------------------------------------------------


def diverging(task, epoch, mode):
    """The loss becomes NaN there."""
    from manymodes.strategies.base import Strategy

    step = Strategy.step

    def broken(self, number, batch, loss):
        value = step(self, number, batch, loss)
        here = (self.tasks_learnt, self.epochs_done + 1, number) == (task, epoch, mode)
        return value * float("nan") if here else value

    Strategy.step = broken


@pytest.mark.parametrize("every", ["0", "1000"])
def test_a_loss_that_is_no_number_leaves_the_last_good_epoch(every, tmp_path):
    words = ("run", "--strategy", "ensemble", *TINY, "--epochs", "4", "--checkpoint-every", every)
    words = (*words, "--out", str(tmp_path / "runs"))
    code, output = manymodes(tmp_path, *words, hook=diverging, arguments=(1, 3, 1))
    assert code == 2
    run = tmp_path / "runs" / "ensemble-digits-task-seed0"
    line = line_of(output)
    assert "the loss became nan in task 'task 2', epoch 3, mode 1: try a lower lr" in line
    assert f"the last good epoch is in {run / 'checkpoint-0001-000002.safetensors'}" in line
    state, _ = store.load_state(run / "checkpoint-0001-000002.safetensors", run / "pool")
    assert (state["epochs_done"], len(state["heads"])) == (2, 1)
    assert torch.isfinite(state["theta"]).all()
    code, output = manymodes(tmp_path, "runs", str(tmp_path / "runs"))
    assert "failed" in output
    assert "the loss became nan" in output
    code, output = manymodes(tmp_path, *words)  # it was the weather
    assert code == 0
    assert not (run / "failure.json").exists()


def test_a_loss_that_is_no_number_from_the_beginning(tmp_path):
    code, output = manymodes(tmp_path, *RUN, "--lr", "1e30", "--out", str(tmp_path / "runs"))
    assert code == 2
    assert "no epoch went well" in line_of(output)


def lost(path):
    """The data of task 3 is not there any more."""
    from manymodes import task

    build = task.Stream.__getitem__
    asked = []

    def getitem(self, index):
        asked.append(index)
        if index == 2 and Path(path).exists():
            raise FileNotFoundError(errno.ENOENT, "No such file or directory", "photos/zebra.jpg")
        return build(self, index)

    task.Stream.__getitem__ = getitem


def test_a_data_file_that_disappears(whole, tmp_path):
    (tmp_path / "gone").touch()
    words = (*RUN, "--out", str(tmp_path / "runs"))
    code, output = manymodes(tmp_path, *words, hook=lost, arguments=(str(tmp_path / "gone"),))
    assert code == 2
    line = line_of(output)
    assert "No such file or directory (photos/zebra.jpg)" in line
    assert "the same command goes on from its last checkpoint" in line
    run = tmp_path / "runs" / NAME
    assert (run / "checkpoint-0002-000000.safetensors").exists()
    (tmp_path / "gone").unlink()
    code, output = manymodes(tmp_path, *words)
    assert code == 0, output
    assert differing(outcome(run), whole) == []


def backwards():
    """The clock on the wall is set back again and again, as by a time server."""
    start = time.time()
    steps = iter(range(10**9))
    time.time = lambda: start - 3600.0 * next(steps)


def test_a_clock_that_goes_backwards(whole, tmp_path):
    code, output = manymodes(tmp_path, *RUN, "--out", str(tmp_path / "runs"), hook=backwards)
    assert code == 0, output
    run = tmp_path / "runs" / NAME
    assert differing(outcome(run), whole) == []
    events = [json.loads(line) for line in (run / "events.jsonl").read_text().splitlines()]
    assert all(event["seconds"] >= 0 for event in events)
    assert json.loads((run / "metrics.json").read_text())["seconds"] > 0


def test_an_error_of_the_disk_is_one_line_in_python_too(tmp_path):
    target = tmp_path / "file"
    target.write_text("")
    with pytest.raises(UserError, match="cannot write"):
        store.save_state(target / "inside" / "x.safetensors", {}, {})
