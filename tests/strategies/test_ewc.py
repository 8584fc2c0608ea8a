"""EWC: closed-form Fisher, a plain loop with separate springs, cost that does not grow with tasks."""

import pytest
import torch
from torch import nn

from manymodes import EWC
from manymodes.penalties import Quadratic
from tests.reference import fisher as slow_fisher
from tests.reference import loops
from tests.strategies.recording import PLAIN, assert_same_weights, network, recorded_tasks


def flattened(learner, named):
    return torch.cat([named[s.name].flatten() for s in learner.model.segments])


@pytest.mark.parametrize("anchor", ["merged", "previous"])
@pytest.mark.parametrize("kind", ["empirical", "exact"])
def test_three_tasks_equal_a_plain_loop(anchor, kind):
    module = network(norm=True)
    learner = EWC(network(norm=True), strength=30.0, anchor=anchor, fisher_kind=kind, **PLAIN)
    past = []
    for task in recorded_tasks():
        learner.learn(task)
        loops.train(module, task.train.drawn, PLAIN["lr"], loops.ewc(task.classes, 30.0, past))
        assert_same_weights(learner, module)
        found = slow_fisher.diagonal(
            module, task.train.inputs, task.train.targets, kind, classes=task.classes
        )
        past.append((loops.values(module), found))
        if anchor == "previous":  # all importances pull to where the last task ended
            past = [(past[-1][0], importance) for _, importance in past]
        total = flattened(learner, {n: sum(f[n] for _, f in past) for n in found})
        torch.testing.assert_close(learner.springs.importance, total, rtol=1e-7, atol=1e-12)


def test_importance_of_softmax_regression_in_closed_form():
    module = nn.Linear(6, 4).double()
    learner = EWC(module, fisher_kind="exact", **PLAIN)
    x = torch.randn(50, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    learner.learn(x, torch.arange(50) % 4)
    theta = learner.modes.theta[0]
    weight, bias = slow_fisher.softmax_regression(theta[:24].view(4, 6), theta[24:], x)
    torch.testing.assert_close(learner.springs.importance, torch.cat([weight.flatten(), bias]))


def test_one_half_belongs_to_the_penalty():
    """strength / 2 * F d^2, so that a strength means here what it means in the paper."""
    learner = EWC(network(), strength=4.0, **PLAIN).learn(recorded_tasks(1)[0])
    theta, importance = learner.modes.theta[0], learner.springs.importance
    theta += 0.5
    assert learner.penalty(0) == pytest.approx(float(4.0 / 2 * (importance * 0.25).sum()), rel=1e-9)


@pytest.mark.parametrize("anchor", ["merged", "previous"])
def test_the_penalty_costs_the_same_after_any_number_of_tasks(anchor, monkeypatch):
    calls, kept = [], []
    add = Quadratic.add_gradient

    def counted(self, theta, gradient):
        calls[-1] += 1
        add(self, theta, gradient)

    monkeypatch.setattr(Quadratic, "add_gradient", counted)
    learner = EWC(network(), anchor=anchor, **PLAIN)
    for task in recorded_tasks() + recorded_tasks():
        calls.append(0)
        learner.learn(task)
        kept.append(learner.storage())
    steps = PLAIN["epochs"] * 3
    assert calls == [0] + [steps] * 5
    assert all(storage == kept[0] for storage in kept)
    assert learner.springs.importance.shape == learner.springs.anchor.shape == learner.model.theta.shape


def test_ten_separate_penalties_have_the_merged_gradient():
    """Over the importances and anchors of a real learner, to a millionth."""
    learner, separate = EWC(network().float(), anchor="merged", strength=50.0, **PLAIN), []
    importance_before = torch.zeros_like(learner.model.theta.data)
    for t in range(10):
        task = recorded_tasks()[t % 3]
        learner.learn(task.train.inputs.float() + 0.1 * t, task.train.targets, classes=task.classes)
        theta, total = learner.modes.theta[0].clone(), learner.springs.importance.clone()
        separate.append(Quadratic(theta, total - importance_before, 50.0))
        importance_before = total
    there = torch.randn(len(total), generator=torch.Generator().manual_seed(0))
    merged, summed = torch.zeros_like(there), torch.zeros_like(there, dtype=torch.float64)
    learner.springs.add_gradient(there, merged)
    for penalty in separate:
        exact = Quadratic(penalty.anchor.double(), penalty.importance.double(), 50.0)
        exact.add_gradient(there.double(), summed)
    assert (merged - summed).norm() <= 1e-6 * summed.norm()
