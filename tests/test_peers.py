"""The comparison with Avalanche: what it says it measures, and, where Avalanche is, that both sides agree."""

import importlib
import re
import time
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch

import manymodes as mm

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"


@pytest.fixture
def peers(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return importlib.import_module("peers")


def words(text):
    return re.sub(r"\s+", " ", text)


def test_every_difference_is_written_down(peers):
    page = words((BENCHMARKS / "PEERS.md").read_text(encoding="utf-8"))
    for known in peers.DIFFERENCES.values():
        for difference in known:
            assert words(difference) in page
    methods = {name.partition(",")[0] for name in peers.METHODS if peers.METHODS[name][2] != "the same"}
    assert methods <= peers.DIFFERENCES.keys()  # what differs says why


def test_every_method_is_timed_beside_a_bare_loop(peers, monkeypatch, capsys):
    monkeypatch.setattr(peers, "SAMPLES", 64)
    monkeypatch.setattr(peers, "theirs", None)
    found = peers.timed(1, 1, time.process_time)
    ratios = peers.show_time(found, 1)
    assert ratios.keys() == {"bare loop", *peers.TARGETS}
    assert all(ratio > 0 for ratio in ratios.values())
    assert all(0 < once < whole for whole, once, _ in found["ewc"])  # the Fisher
    assert "once a task" in capsys.readouterr().out


def test_where_definitions_agree_so_do_the_weights(peers):
    if find_spec("avalanche") is None:
        pytest.skip("needs Avalanche: make avalanche")
    stream = mm.streams.digits("task", limit=30)[:3]
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Flatten(), *mm.models.mlp(64, (12,), outputs=10).children())
    start = torch.nn.utils.parameters_to_vector(net.parameters())
    for name in ("finetune", "ewc", "ewc, one spring a task", "lwf"):
        cls, settings, _ = peers.METHODS[name]
        options = peers.TRAINING | settings | {"epochs": 2}
        own = peers.ours(cls, net, options, stream, 0).modes.theta[0]
        other = peers.theirs.learnt(name, net, options, peers.parts(stream), 10, heads=True, seed=0)
        other = torch.nn.utils.parameters_to_vector(other.parameters()).detach()
        assert (own - start).norm() > 0.1
        torch.testing.assert_close(own, other, rtol=0, atol=2e-3)
