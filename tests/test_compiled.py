"""torch.compile for training steps: the same learner, compiled once, and clear when it cannot be done."""

import shutil

import pytest
import torch

from manymodes import MOTA, Finetune
from manymodes.compiled import compiled
from manymodes.errors import UserError
from tests import toys

OPTIONS = {"epochs": 2, "batch_size": 8, "lr": 0.02, "device": "cpu"}


@pytest.mark.skipif(shutil.which("g++") is None, reason="torch.compile needs a C++ compiler: g++")
def test_the_same_learner_from_one_compilation():
    """Two modes on two tasks, batches of two sizes; predictions are computed by the module itself."""
    from torch._dynamo.utils import counters

    counters.clear()
    # Not AdamW: a bias before BatchNorm has a gradient of rounding only, which it would scale up.
    options = OPTIONS | {"modes": 2, "optimiser": "sgd"}
    learners = [MOTA(toys.net(norm=True), compile=on, **options) for on in (False, True)]
    for task in (toys.task((0, 1), samples=16), toys.task((2, 3), samples=20)):
        for learner in learners:
            learner.learn(task)
    plain, fast = learners
    torch.testing.assert_close(fast.modes.theta, plain.modes.theta, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(fast.modes.buffers, plain.modes.buffers, rtol=1e-4, atol=1e-5)
    assert counters["stats"]["unique_graphs"] <= 2  # one of batches of 8, one of any size
    done = counters["stats"]["unique_graphs"]
    fast.predict(torch.zeros(3, 6))
    assert counters["stats"]["unique_graphs"] == done


def test_nothing_is_compiled_unless_asked(monkeypatch):
    monkeypatch.setattr(torch, "compile", lambda module: pytest.fail("compiled"))
    Finetune(toys.net(), **OPTIONS).learn(toys.task((0, 1)))
    Finetune(toys.net(), compile=True, **OPTIONS).predict(torch.zeros(3, 6))


def test_a_network_that_cannot_be_compiled_says_so(monkeypatch):
    from torch._dynamo.exc import BackendCompilerFailed

    def failing(module):
        def run(inputs):
            raise BackendCompilerFailed(print, RuntimeError("no compiler\n\nSet this and that"), None)

        return run

    monkeypatch.setattr(torch, "compile", failing)
    learner = Finetune(toys.net(), compile=True, **OPTIONS)
    before = learner.modes.theta.clone()
    with pytest.raises(UserError, match=r"cannot do this network here \(.*no compiler\): leave it out"):
        learner.learn(toys.task((0, 1)))
    assert torch.equal(learner.modes.theta, before)


def test_it_is_for_one_process(monkeypatch):
    monkeypatch.setattr("manymodes.compiled.distributed.count", lambda: 2)
    with pytest.raises(UserError, match="compile: with several processes leave it out"):
        compiled(toys.net())(torch.zeros(1, 6))
