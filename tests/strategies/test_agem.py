"""A-GEM: the projection against quadratic programming, the whole method against a plain loop."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from manymodes import AGEM
from manymodes.strategies.agem import project
from tests.reference import loops
from tests.reference.projection import closest
from tests.strategies.recording import (
    GROUPS,
    PLAIN,
    assert_same_weights,
    network,
    recorded_replay,
    recorded_tasks,
)

SIZE = st.integers(1, 8)


@given(SIZE, st.integers(0, 2**31))
def test_projection_is_the_closest_gradient_that_does_not_oppose_the_memory(size, seed):
    random = np.random.default_rng(seed)
    g, r = random.normal(size=size), random.normal(size=size)
    found = torch.tensor(g)
    project(found, torch.tensor(r), 0.0)
    np.testing.assert_allclose(found.numpy(), closest(g, r), atol=1e-5)
    assert float(found @ torch.tensor(r)) >= -1e-12
    if g @ r >= 0:
        np.testing.assert_array_equal(found.numpy(), g)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_zero_reference_changes_nothing_and_stays_finite(dtype):
    g = torch.tensor([1.0, -2.0, 3.0], dtype=dtype)
    before = g.clone()
    project(g, torch.zeros(3, dtype=dtype), 1e-7)
    assert torch.equal(g, before)
    tiny = torch.full((3,), -1e-20, dtype=dtype)
    project(g, tiny, 1e-7)
    assert torch.isfinite(g).all()


@pytest.mark.parametrize("norm", [False, True])
def test_three_tasks_equal_a_plain_loop(norm):
    module, learner = network(norm=norm), AGEM(network(norm=norm), budget=7, epsilon=1e-7, **PLAIN)
    projected = []
    for number, task in enumerate(recorded_tasks()):
        replays = recorded_replay(learner)
        learner.learn(task)
        step = loops.finetune(task.classes)
        if number > 0:
            step = loops.agem(task.classes, replays, lambda label: GROUPS[label // 2], 1e-7, projected)
        loops.train(module, task.train.drawn, PLAIN["lr"], step)
        assert_same_weights(learner, module)
    assert 0 < sum(projected) < len(projected)  # both cases happened


def test_the_memory_fills_every_quota():
    """Not one batch, as in a known bug: every class of every task up to the budget."""
    learner = AGEM(network(), budget=9, **PLAIN)
    for number, task in enumerate(recorded_tasks()):
        learner.learn(task)
        assert torch.bincount(learner.memory.targets).tolist() == [9] * (2 * number + 2)


def test_heads_that_the_task_does_not_use_get_a_gradient_from_the_memory():
    """Where the task alone would give an old head none, what opposes the memory is still removed."""
    first, second = recorded_tasks(2)
    learner = AGEM(network(), budget=9, **PLAIN).learn(first)
    head = slice(learner.model.segments[-1].slice.start, learner.model.segments[-1].slice.start + 2)
    before = learner.modes.theta[0, head].clone()
    learner.learn(second)
    assert torch.isfinite(learner.modes.theta).all()
    assert not torch.equal(learner.modes.theta[0, head], before)


def test_the_reference_gradient_is_there_only_while_training():
    first, second = recorded_tasks(2)
    learner, sizes = AGEM(network(), **PLAIN).learn(first), []
    learner.learn(second, on_epoch=lambda it: sizes.append(it.storage()["reference_gradient"]))
    assert sizes == [learner.modes.theta.numel()] * 2
    assert learner.storage()["reference_gradient"] == 0
