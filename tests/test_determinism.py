"""--deterministic: the same bits on the same machine with the same number of threads."""

import json
import random

import numpy as np
import pytest
import torch

from manymodes.config import Config
from manymodes.environment import changes, environment, pinned
from manymodes.errors import UserError
from manymodes.strategies.registry import REGISTRY
from manymodes.sweep import execute
from tests.forked import TINY, differing, manymodes, outcome


def config(strategy, model, deterministic=True):
    return Config(
        {"name": strategy, "epochs": 1, "batch_size": 8},
        {"name": "digits", "tasks": 2, "limit": 16, "scenario": "class"},
        model,
        7,
        1,
        deterministic,
    )


MLP, CNN = {"name": "mlp", "hidden": [8]}, {"name": "small_cnn", "width": 0.125}


@pytest.mark.parametrize("strategy", REGISTRY)
@pytest.mark.parametrize("model", [MLP, CNN], ids=["mlp", "cnn"])
def test_every_strategy(strategy, model, tmp_path):
    outcomes = []
    for number in range(2):
        # Neither the global generators nor what else was computed meanwhile matter.
        torch.manual_seed(number)
        random.seed(number)
        np.random.seed(number)
        _ = [torch.ones(number * 1000 + 7) for _ in range(number + 1)]
        execute(config(strategy, model), tmp_path / str(number))
        outcomes.append(outcome(tmp_path / str(number)))
    assert differing(*outcomes) == []
    environment = json.loads((tmp_path / "0" / "environment.json").read_text())
    assert environment["deterministic"] is True
    assert environment["threads"] == 1
    assert not torch.are_deterministic_algorithms_enabled()


def test_processes_agree(tmp_path):
    outcomes = []
    for number in range(2):
        out = tmp_path / str(number)
        code, output = manymodes(
            tmp_path, "run", *TINY, "--deterministic", "--threads", "1", "--out", str(out)
        )
        assert code == 0, output
        assert "--deterministic" in output  # in the command that repeats the row
        outcomes.append(outcome(next(out.iterdir())))
    assert differing(*outcomes) == []


def test_what_pytorch_cannot_promise_is_named(tmp_path):
    model = {"name": "tests.nets:scattering"}
    execute(config("finetune", model, deterministic=False), tmp_path / "loose")
    with pytest.raises(
        UserError, match=r"--deterministic: put_.* does not have a deterministic implementation"
    ):
        execute(config("finetune", model), tmp_path / "strict")
    assert not torch.are_deterministic_algorithms_enabled()


def test_pinned_restores():
    before = torch.get_num_threads()

    def fail():
        with pinned(before + 1, True):
            assert torch.are_deterministic_algorithms_enabled()
            assert torch.get_num_threads() == before + 1
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert torch.get_num_threads() == before
    assert not torch.are_deterministic_algorithms_enabled()


def test_environments_differ_by_what_matters():
    now = environment()
    assert changes(now, now) == []
    assert changes(now | {"cores": 999, "threads": 3}, now) == []
    assert changes(now | {"processor": "AVX9"}, now) == [f"processor was AVX9, is {now['processor']}"]
    assert changes("nonsense", now) == []
