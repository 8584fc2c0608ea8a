"""A run that is killed and goes on ends with the same bits as one that never was."""

import random
import signal
import time

import pytest
import torch

import manymodes as mm
from manymodes import checkpoints
from manymodes.errors import UserError
from manymodes.strategies.registry import REGISTRY, strategy_class
from tests.forked import TINY, Forked, differing, manymodes, outcome, sound

# Beside the defaults: checkpoints in the pool of the run, and everything that has state of its own.
CASES = [(name, ()) for name in REGISTRY] + [
    ("mota", ("--drift", "both", "--teacher", "joint", "--anchor", "merged", "--modes", "3")),
    ("mota", ("--search", "train", "--joint-weight", "0.5")),
    ("ensemble", ("--init", "seeds")),
    ("multitask", ("--restart", "true")),
    ("ewc", ("--optimiser", "sgd", "--fisher-kind", "sampled")),
]
IDS = ["".join([name, *options]).replace("--", " ") for name, options in CASES]


def all_in_the_pool():
    checkpoints.MEMORY_BYTES = 0


def killed_somewhere(tmp_path, out, words, chance, hook=None):
    """Start the run, and kill it after a random number of events and a moment more."""
    log = next(out.glob("*/events.jsonl"), None)
    before = len(log.read_text().splitlines()) if log else 0
    more = chance.randrange(1, 5)
    forked = Forked(tmp_path / f"killed-{chance.random()}.txt", *words, hook=hook)

    def far_enough():
        log = next(out.glob("*/events.jsonl"), None)
        return log is not None and len(log.read_text().splitlines()) >= before + more

    while forked.process.is_alive() and not far_enough():
        time.sleep(0.001)
    time.sleep(chance.random() * 0.03)
    forked.process.kill()
    return forked.wait()


@pytest.mark.parametrize(("strategy", "options"), CASES, ids=IDS)
def test_a_killed_run_ends_as_if_nothing_had_happened(strategy, options, tmp_path):
    seed = random.SystemRandom().randrange(10**6)
    chance = random.Random(seed)
    hook = all_in_the_pool if strategy == "mota" else None
    words = ("run", "--strategy", strategy, *options, *TINY)
    code, output = manymodes(tmp_path, *words, "--out", str(tmp_path / "whole"), hook=hook)
    assert code == 0, output
    out = tmp_path / "killed"
    killed_somewhere(tmp_path, out, (*words, "--out", str(out)), chance, hook)
    (run,) = out.iterdir()
    assert sound(run) == [], f"seed {seed}"
    code, output = manymodes(tmp_path, "run", "--resume", str(run), "--checkpoint-every", "0", hook=hook)
    assert code == 0, f"seed {seed}: {output}"
    (whole,) = (tmp_path / "whole").iterdir()
    assert differing(outcome(whole), outcome(run)) == [], f"seed {seed}"
    assert not list(run.rglob("*.tmp"))
    assert not list(run.glob("checkpoint-*"))
    assert not (run / "pool").exists()


def test_events_go_on_without_a_hole_or_a_repetition(tmp_path):
    words = (
        "run",
        "--strategy",
        "ensemble",
        *TINY,
        "--epochs",
        "6",
        "--log",
        "csv",
        "--out",
        str(tmp_path / "runs"),
    )
    words = tuple(w if w != "0" else "1000" for w in words)  # nothing is saved but the ends of tasks
    forked = Forked(tmp_path / "first.txt", *words)
    log = tmp_path / "runs" / "ensemble-digits-task-seed0" / "events.jsonl"
    forked.until(lambda: log.exists() and len(log.read_text().splitlines()) > 14)  # within task 2
    forked.process.kill()
    forked.wait()
    assert len(log.read_text().splitlines()) > 14
    code, output = manymodes(tmp_path, *words)
    assert code == 0, output
    events = outcome(log.parent)["events"]
    expected = [(t, e, m) for t in range(3) for e in range(1, 7) for m in range(2)]
    assert [(e["task"], e["epoch"], e["mode"]) for e in events] == expected
    logged = [line.split(",")[:2] for line in (log.parent / "log.csv").read_text().splitlines()]
    assert len({tuple(line) for line in logged}) == len(logged) == 1 + len(expected) * 3 + 3 * 4


# ---- the same for library users ---------------------------------------------------------------------


@pytest.fixture(scope="module")
def stream():
    return mm.streams.digits(tasks=2, limit=24)


def small(strategy, stream):
    return strategy_class(strategy)(
        mm.models.mlp(64, (12,), outputs=stream.num_outputs), epochs=3, batch_size=8, seed=3
    )


@pytest.mark.parametrize("strategy", REGISTRY)
@pytest.mark.parametrize("when", [(0, 2), (1, 1), (1, 3)], ids=str)
def test_a_learner_saved_within_a_task_goes_on(strategy, when, stream, tmp_path):
    path = tmp_path / "learner.safetensors"

    def maybe(learner):
        if (learner.tasks_learnt, learner.epochs_done) == when:
            learner.save(path)

    torch.manual_seed(0)
    learner = small(strategy, stream)
    for task in stream:
        learner.learn(task, on_epoch=maybe)
    torch.manual_seed(1)  # the global generator does not matter
    loaded = mm.load(path)
    assert (loaded.tasks_learnt, loaded.epochs_done) == when
    loaded.recall([stream[t] for t in range(loaded.tasks_learnt)])
    for task in stream[loaded.tasks_learnt :]:
        loaded.learn(task)
    assert torch.equal(loaded.modes.theta, learner.modes.theta)
    assert torch.equal(loaded.modes.buffers, learner.modes.buffers)
    ends = []
    for number, one in enumerate((learner, loaded)):
        one.save(tmp_path / f"{number}.safetensors")
        ends.append((tmp_path / f"{number}.safetensors").read_bytes())
    assert ends[0] == ends[1]


def test_a_learner_within_a_task_refuses_another_one(stream, tmp_path):
    learner = small("ewc", stream)
    learner.learn(stream[0], on_epoch=lambda one: one.save(tmp_path / "x.safetensors"))
    loaded = mm.load(tmp_path / "x.safetensors")
    with pytest.raises(UserError, match=r"in the middle of task 'task 1'.*give it that first"):
        loaded.learn(stream[1])
    assert loaded.learn(stream[0]).tasks_learnt == 1


def test_counters_of_batches_survive(stream, tmp_path):
    """BatchNorm with momentum=None averages over all batches so far, by a counter that is no float."""
    net = torch.nn.Sequential(
        torch.nn.Flatten(),
        torch.nn.Linear(64, 12),
        torch.nn.BatchNorm1d(12, momentum=None),
        torch.nn.Linear(12, 10),
    )
    path = tmp_path / "x.safetensors"
    learner = mm.Finetune(net, epochs=4, batch_size=8)
    learner.learn(stream[0], on_epoch=lambda one: one.save(path) if one.epochs_done == 2 else None)
    loaded = mm.load(path, model=net).learn(stream[0])
    assert torch.equal(loaded.modes.buffers, learner.modes.buffers)


def test_frozen_parameters_are_saved(stream, tmp_path):
    net = mm.models.mlp(64, (12,), outputs=10)
    next(iter(net.parameters())).requires_grad_(False)
    learner = mm.Finetune(net, epochs=1).learn(stream[0])
    learner.save(tmp_path / "x.safetensors")
    loaded = mm.load(tmp_path / "x.safetensors")
    inputs = stream[0].train.inputs.float()
    assert torch.equal(loaded.predict(inputs), learner.predict(inputs))
    assert loaded.modes.theta.shape == learner.modes.theta.shape
    other = mm.models.mlp(64, (12,), outputs=10)
    mm.load(tmp_path / "x.safetensors", model=other)
    assert all(parameter.requires_grad for parameter in other.parameters())  # yours is not changed


# ---- --resume ---------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def begun(tmp_path_factory):
    """A run that was stopped after some epochs, and what it would have become."""
    folder = tmp_path_factory.mktemp("begun")
    forked = Forked(
        folder / "output.txt", "run", "--strategy", "ewc", *TINY, "--epochs", "200", "--out", str(folder)
    )
    run = folder / "ewc-digits-task-seed0"
    forked.until(lambda: len(list(run.glob("checkpoint-*"))) >= 2)
    forked.send(signal.SIGTERM)
    assert forked.wait() == 130
    return run


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--lr", "0.5"], "strategy.lr is 0.002 there, 0.5 here"),
        (["--strategy", "mota"], "was begun with --strategy ewc, not mota"),
        (["--stream.limit", "25"], "stream.limit is 24 there, 25 here"),
        (["--seed", "4"], r"seed is 0 there, 4 here"),
        (["--seeds", "0,1"], r"seeds are \[0\] there, \[0, 1\] here"),
        (["--threads", "2"], "threads is 0 there, 2 here"),
        (["--deterministic"], "deterministic is False there, True here"),
        (["--out", "elsewhere"], "--out does not go with --resume"),
        (["--profile", "paper"], "--profile does not go with --resume"),
        (["--banana", "3"], "unknown option '--banana'"),
    ],
)
def test_resume_refuses_what_contradicts(begun, words, told):
    from manymodes.commands.resume import resumed

    with pytest.raises(UserError, match=told):
        resumed(["--resume", str(begun), *words])


def test_resume_accepts_what_says_the_same(begun):
    from manymodes.commands.resume import resumed

    words = ["--strategy", "ewc", "--epochs", "200", "--hidden", "[12]", "--seeds", "0", "--jobs", "1"]
    config, _, folder = resumed([f"--resume={begun}", *words])
    assert config.strategy["epochs"] == 200
    assert config.model["hidden"] == [12]
    assert folder == begun


def test_resume_needs_a_run(tmp_path):
    code, output = manymodes(tmp_path, "run", "--resume", str(tmp_path))
    assert code == 2
    assert "is not a run directory: it has no config.yaml" in output


def test_a_directory_of_unknown_origin_imports_nothing(begun, tmp_path):
    """Its configuration may name any module: that is imported only if the person names it too."""
    hostile = tmp_path / "run"
    hostile.mkdir()
    (tmp_path / "evil.py").write_text(f"open({str(tmp_path / 'pwned')!r}, 'w')")
    text = (begun / "config.yaml").read_text().replace("name: ewc", "name: evil:Learner")
    (hostile / "config.yaml").write_text(text)
    code, output = manymodes(
        tmp_path, "run", "--resume", str(hostile), hook=in_folder, arguments=(str(tmp_path),)
    )
    assert code == 2
    assert (
        "imports strategy 'evil:Learner': if that is yours, say so by adding --strategy evil:Learner"
        in output
    )
    assert not (tmp_path / "pwned").exists()
    code, output = manymodes(tmp_path, "runs", str(tmp_path), hook=in_folder, arguments=(str(tmp_path),))
    assert code == 0
    assert not (tmp_path / "pwned").exists()


def in_folder(folder):
    import os

    os.chdir(folder)


def test_a_finished_run_says_so_and_shows_its_table(tmp_path):
    words = ("run", "--strategy", "finetune", *TINY, "--out", str(tmp_path / "runs"))
    assert manymodes(tmp_path, *words)[0] == 0
    (run,) = (tmp_path / "runs").iterdir()
    before = {path: path.stat().st_mtime_ns for path in run.rglob("*")}
    code, output = manymodes(tmp_path, "run", "--resume", str(run))
    assert code == 0
    assert f"{run} is done:" in output
    assert "finetune" in output
    assert {path: path.stat().st_mtime_ns for path in run.rglob("*")} == before


def test_a_config_that_was_edited_is_refused(begun, tmp_path):
    import shutil

    run = tmp_path / "edited"
    shutil.copytree(begun, run)
    text = (run / "config.yaml").read_text()
    (run / "config.yaml").write_text(text.replace("lr: 0.002", "lr: 0.02"))
    before = sorted(path.name for path in run.iterdir())
    code, output = manymodes(tmp_path, "run", "--resume", str(run))
    assert code == 2
    assert "was edited since checkpoint-" in output
    assert "strategy.lr is 0.002 there, 0.02 here" in output
    assert {name for name in before if name.startswith("checkpoint")} <= {path.name for path in run.iterdir()}


def test_compare_has_no_resume(tmp_path):
    code, output = manymodes(tmp_path, "compare", "--resume", str(tmp_path))
    assert code == 2
    assert "give its command again" in output
