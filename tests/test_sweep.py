"""Many runs: the same results alone, one after another or at the same time; what is done stays done."""

import json
import os
import signal
import threading
import time

import pytest
import torch

from manymodes.config import Config
from manymodes.environment import pinned
from manymodes.errors import UserError
from manymodes.grid import SomeFailed, execute_all
from manymodes.interrupts import Interrupted, Stop
from manymodes.sweep import execute
from tests.forked import differing, outcome


def config(strategy="finetune", seed=0, **options):
    return Config(
        {"name": strategy, "epochs": 2, "batch_size": 8} | options,
        {"name": "digits", "tasks": 2, "limit": 16, "scenario": "task"},
        {"name": "mlp", "hidden": [8]},
        seed,
    )


CONFIGS = [config("mota"), config("er", 1), config("ewc", 2)]


def test_jobs_do_not_change_results(tmp_path):
    told = []
    together = execute_all(
        CONFIGS, tmp_path / "jobs", jobs=2, on_result=lambda c, result: told.append((c.slug, result["seed"]))
    )
    alone = execute_all(CONFIGS, tmp_path / "alone")
    for one in CONFIGS:
        assert differing(outcome(tmp_path / "jobs" / one.slug), outcome(tmp_path / "alone" / one.slug)) == []
    assert [r["accuracy"] for r in together] == [r["accuracy"] for r in alone]
    assert sorted(told) == sorted((c.slug, c.seed) for c in CONFIGS)


def test_what_is_done_is_not_done_again(tmp_path):
    first = execute_all(CONFIGS[:2], tmp_path)
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}
    assert execute_all(CONFIGS[:2], tmp_path) == first
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")} == before


def test_finished_runs_are_read_from_where_nothing_can_be_written(tmp_path):
    execute(CONFIGS[0], tmp_path / "run")
    (tmp_path / "run" / ".lock").unlink()
    execute(CONFIGS[0], tmp_path / "run")
    assert not (tmp_path / "run" / ".lock").exists()


def test_an_order_of_runs_does_not_change_them(tmp_path):
    """A small network takes one thread; the next run must not inherit that."""
    before = torch.get_num_threads()
    with pinned(2):
        execute(CONFIGS[0], tmp_path / "run")
        assert torch.get_num_threads() == 2
    assert torch.get_num_threads() == before


def test_if_all_fail_for_one_reason_that_is_the_error(tmp_path):
    configs = [config(seed=seed, strength=1) for seed in range(2)]
    with pytest.raises(UserError, match="unknown option of strategy 'finetune'") as error:
        execute_all(configs, tmp_path)
    assert not isinstance(error.value, SomeFailed)
    assert error.value.code == 2


def test_stopping_between_runs(tmp_path):
    stop_at = []

    def on_result(one, result):
        stop_at.append(one)
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(0.5)

    with pytest.raises(KeyboardInterrupt):
        execute_all(CONFIGS, tmp_path, on_result=on_result)
    assert stop_at == CONFIGS[:1]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_a_stop_that_somebody_else_asks_for(tmp_path):
    flag = threading.Event()
    flag.set()
    with pytest.raises(Interrupted, match="stopped in task 1, after epoch 1 of 2; everything is saved"):
        execute(CONFIGS[2], tmp_path / "run", stop=Stop(flag))
    result = execute(CONFIGS[2], tmp_path / "run")
    assert result["accuracy"] == execute(CONFIGS[2], tmp_path / "whole")["accuracy"]


def test_a_stop_in_the_last_epoch_still_goes_on_to_the_end(tmp_path):
    """Seconds of a run that was interrupted are those of both parts."""
    flag = threading.Event()
    flag.set()
    with pytest.raises(Interrupted):
        execute(CONFIGS[0], tmp_path / "run", stop=Stop(flag), checkpoint_every=0)
    checkpoint = sorted((tmp_path / "run").glob("checkpoint-*"))[-1]
    from manymodes import store

    elapsed = store.read_meta(checkpoint)[0]["record"]["elapsed"]
    assert elapsed > 0
    result = execute(CONFIGS[0], tmp_path / "run")
    assert result["seconds_per_task"][0] > elapsed


def test_signals_that_are_ignored_stay_ignored():
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)  # nohup
    try:
        with Stop().listening():
            assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
            assert signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL
        assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    finally:
        signal.signal(signal.SIGHUP, before)


def test_metrics_that_are_none_are_named(tmp_path):
    execute(CONFIGS[0], tmp_path / "run")
    for content, told in (("[1]", "does not hold the metrics"), ("{", "not valid JSON")):
        (tmp_path / "run" / "metrics.json").write_text(content)
        with pytest.raises(UserError, match=told):
            execute(CONFIGS[0], tmp_path / "run")
    assert json.loads((tmp_path / "run" / "environment.json").read_text())["threads"] == 1
