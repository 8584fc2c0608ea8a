"""Several processes learn what one learns; they start, stop, die and go on as one."""

import json
import os
import signal
import time
from pathlib import Path

import pytest
import torch

from manymodes import cli, distributed, store
from manymodes.errors import TrainingDiverged, UserError
from manymodes.grid import execute_all
from manymodes.locks import held
from manymodes.runfiles import RunFiles
from tests import together
from tests.forked import Forked, manymodes, sound
from tests.laws.cases import Case, all_cases
from tests.torchrun import finished, ranks, torchrun

pytestmark = pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="finds ranks in /proc")
TINY = (
    "--stream", "digits", "--tasks", "2", "--limit", "40", "--model", "mlp", "--model.hidden", "[8]",
    "--batch_size", "9", "--strategy", "ewc", "--epochs", "60",
)  # fmt: skip


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """What two processes found together, and what one finds alone."""
    folder = tmp_path_factory.mktemp("together")
    code, output = finished(folder, together.__file__, str(folder / "found"))
    assert code == 0, output
    return [store.load_state(folder / f"found-{rank}")[0] for rank in range(2)]


@pytest.fixture(scope="module")
def alone():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield together.everything()
    torch.set_num_threads(threads)


def close(ours, theirs, where=""):
    """Nested values equal, floating-point tensors up to the rounding of double precision."""
    if isinstance(ours, torch.Tensor):
        theirs = theirs.to(ours.dtype)
        assert torch.allclose(ours, theirs, rtol=1e-6, atol=1e-9), (where, (ours - theirs).abs().max())
    elif isinstance(ours, dict):
        assert ours.keys() == theirs.keys(), where
        for key in ours:
            close(ours[key], theirs[key], f"{where}.{key}")
    elif isinstance(ours, list | tuple):
        assert len(ours) == len(theirs), where
        for number, pair in enumerate(zip(ours, theirs, strict=True)):
            close(*pair, f"{where}.{number}")
    elif isinstance(ours, float):
        assert ours == pytest.approx(theirs, rel=1e-6), where
    else:
        assert ours == theirs, where


@pytest.mark.parametrize("case", all_cases(), ids=str)
def test_two_processes_learn_what_one_learns(case, results, alone):
    for found in results:
        close(found["learners"][str(case)], alone[str(case)])


def test_both_processes_have_the_same_bits(results):
    for name, learner in results[0]["learners"].items():
        theta, other = learner["state"]["theta"], results[1]["learners"][name]["state"]["theta"]
        assert torch.equal(theta, other), name


def test_modes_that_learn_apart_are_whole_when_they_are_saved(results):
    halves = [learner for learner in results[0]["learners"].values() if "gone on with" in learner]
    assert len(halves) == 2
    for learner in halves:
        close(learner["gone on with"], learner["state"])


def test_more_processes_than_modes_are_refused(monkeypatch):
    monkeypatch.setattr(distributed, "count", lambda: 3)
    with pytest.raises(UserError, match="3 processes for 2 modes; start at most as many"):
        together.fresh(Case("mota", {"mode_parallel": True}))


def test_an_error_of_one_process_is_everybodys(monkeypatch):
    """The first learns on, the second does not: nobody may wait for it."""
    learner = together.fresh(Case("mota", {"mode_parallel": True}))
    monkeypatch.setattr(
        distributed, "everyone", lambda told: [told, told._replace(error=TrainingDiverged("no"))]
    )
    with pytest.raises(TrainingDiverged, match="no"):
        learner.at_once(lambda mode: None)


def test_batchnorm_sees_the_whole_batch(results):
    for found in results:
        close(found["norms"], together.norms())


def test_the_pieces(results):
    for found in results:
        assert found["few"].tolist() == [0]
        assert found["gathered"].tolist() == [0, 1, 2, 3, 4]
        close(found["state"], {"a": [torch.tensor(0), 0], "b": None})
        assert found["anyone"] == [True, False]
    # 3 + 2 own samples and 4 + 4 others: shares 1/2 over 3/5, and 1/2 over 2/5
    assert [found["balance"] for found in results] == pytest.approx([5 / 6, 5 / 4])


def test_processes_of_one_machine_share_memory_and_others_do_the_same(results):
    for found in results:
        assert found["near"]
        close(found["between machines"]["norms"], together.norms())
        assert found["between machines"]["gathered"].tolist() == [0, 1, 2, 3, 4]
        assert found["between machines"]["sum"].tolist() == [0.5, 0.5]


def test_both_cut_their_parts_into_as_many_pieces(results):
    """8 and 7 samples in threes; what rehearsal exchanges within a step would not meet otherwise."""
    for found in results:
        close(found["in pieces"], together.in_pieces(0))


def test_only_loopback_listens(results):
    """Any listening socket of the processes, and there is one: where they meet."""
    listening = [address for found in results for address in found["listens"]]
    assert listening
    assert all(address.startswith("0100007F:") for address in listening)


def test_alone_nothing_happens():
    tensor = torch.ones(2)
    assert distributed.part(tensor) is tensor
    assert distributed.gather(tensor, 2) is tensor
    assert distributed.sum_(tensor) is tensor
    with distributed.joined():
        assert (distributed.count(), distributed.number(), distributed.first()) == (1, 0, True)


# ---- the command line -----------------------------------------------------------------------------------


def events_of(out):
    logs = list(out.glob("*/events.jsonl"))
    return [json.loads(line) for line in logs[0].read_text().splitlines()] if logs else []


def metrics_of(out):
    (path,) = out.glob("*/metrics.json")
    return json.loads(path.read_text())


EPOCHS = 60


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The run by a single process that was never interrupted."""
    out = tmp_path_factory.mktemp("whole")
    code, output = manymodes(out, "run", *TINY, "--out", str(out / "runs"))
    assert code == 0, output
    return metrics_of(out / "runs")


def same_as(whole, out):
    found = metrics_of(out)
    for name in ("nll", "drift"):
        assert torch.allclose(torch.tensor(found[name]), torch.tensor(whole[name]), rtol=1e-2, atol=1e-3)
    told = [(e["task"], e["epoch"]) for e in events_of(out)]
    assert told == [(task, epoch + 1) for task in (0, 1) for epoch in range(EPOCHS)]


def until(out, process, more):
    """Wait for so many more events, while the process lives."""
    wanted, end = len(events_of(out)) + more, time.monotonic() + 120
    while len(events_of(out)) < wanted and process.poll() is None and time.monotonic() < end:
        time.sleep(0.01)
    assert process.poll() is None, process.communicate()[0]


def test_a_dying_process_ends_the_run_and_two_go_on(whole, tmp_path):
    out = tmp_path / "runs"
    words = ("-m", "manymodes", "run", *TINY, "--checkpoint_every", "0", "--out", str(out))
    with torchrun(tmp_path, *words) as process:
        until(out, process, 4)
        os.kill(ranks(process.pid)[1], signal.SIGKILL)
        output, _ = process.communicate(timeout=60)
    assert process.returncode != 0
    assert "one of the 2 processes is gone" in output or "SIGTERM" in output
    assert "[rank0]: Traceback" not in output
    (run,) = out.iterdir()
    assert sound(run) == []
    assert not held(run / ".lock")
    assert RunFiles(run).checkpoints()
    assert not (run / "metrics.json").exists()
    code, output = finished(tmp_path, *words)
    assert code == 0, output
    assert output.count("Results:") == 1
    assert not list(run.glob("checkpoint-*"))
    same_as(whole, out)


def test_begun_by_one_gone_on_with_by_two_finished_by_one(whole, tmp_path):
    out = tmp_path / "runs"
    words = ("run", *TINY, "--checkpoint_every", "0", "--out", str(out))
    forked = Forked(tmp_path / "begun.txt", *words)
    forked.until(lambda: len(events_of(out)) > 3)
    forked.process.kill()
    forked.wait()
    with torchrun(tmp_path, "-m", "manymodes", *words) as process:
        until(out, process, 4)
        process.send_signal(signal.SIGINT)  # Ctrl-C
        output, _ = process.communicate(timeout=60)
    assert output.count("everything is saved") == 1, output
    assert "processes was 1, is 2" in output
    assert 8 <= len(events_of(out)) < 2 * EPOCHS
    (run,) = out.iterdir()
    code, output = manymodes(tmp_path, "run", "--resume", str(run))
    assert code == 0, output
    same_as(whole, out)


def test_what_is_for_one_process_says_so(monkeypatch, capsys, tmp_path):
    for name, value in {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1"}.items():
        monkeypatch.setenv(name, value)
    assert cli.main(["tune", "--space", "lr=1e-3..1e-1:log"]) == 2
    told = "manymodes: process 1: error: manymodes tune is for one process: start it without torchrun\n"
    assert capsys.readouterr().err == told
    monkeypatch.setattr(distributed, "count", lambda: 2)
    with pytest.raises(UserError, match="--jobs 2: torchrun has one run at a time"):
        execute_all([], tmp_path, jobs=2)
