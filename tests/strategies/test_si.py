"""Synaptic intelligence against a hand-worked path, a plain loop, and its known mistakes."""

import pytest
import torch
from torch import nn

from manymodes import SI
from manymodes.errors import UserError
from manymodes.strategies.si import consolidated
from tests.reference import loops
from tests.reference.path_integral import on_quadratic
from tests.strategies.recording import PLAIN, assert_same_weights, network, recorded_tasks

CURVATURES = torch.tensor([0.5, 1.0, 3.0, 0.1], dtype=torch.float64)


class Bowl(nn.Module):
    """Its 'loss' is 1/2 sum_d curvature_d theta_d^2, whatever the input."""

    def __init__(self, start):
        super().__init__()
        self.theta = nn.Parameter(start.clone())

    def forward(self, x):
        return torch.zeros(len(x), 2, dtype=torch.float64) + 0 * self.theta.sum()


class OnBowl(SI):
    def loss(self, batch, valid):
        return 0.5 * (CURVATURES * self.model.theta.square()).sum()


def test_path_on_a_quadratic_by_hand():
    start = torch.tensor([1.0, -2.0, 0.5, 4.0], dtype=torch.float64)
    learner = OnBowl(Bowl(start), damping=0.01, **PLAIN | {"epochs": 1})
    paths = []
    learner.learn(
        torch.zeros(40, 1), torch.tensor([0, 1] * 20), on_epoch=lambda it: paths.append(it.path.clone())
    )
    # five steps of SGD with momentum
    assert len(paths) == 1
    theta, velocity, path = (
        start.clone(),
        torch.zeros(4, dtype=torch.float64),
        torch.zeros(4, dtype=torch.float64),
    )
    for _ in range(5):
        g = CURVATURES * theta
        velocity = 0.9 * velocity + g
        step = -0.05 * velocity
        path -= g * step
        theta += step
    torch.testing.assert_close(paths[0], path)
    torch.testing.assert_close(learner.springs.importance, path / ((theta - start) ** 2 + 0.01))


def test_path_of_plain_descent_in_closed_form():
    start = torch.tensor([1.0, -2.0, 0.5, 4.0], dtype=torch.float64)
    learner = OnBowl(Bowl(start), damping=0.01, **PLAIN | {"epochs": 1})
    new, paths = learner.new_optimiser, []

    def without_momentum(parameter, task):
        optimiser = new(parameter, task)
        optimiser.inner = torch.optim.SGD([parameter], lr=0.05)
        return optimiser

    learner.new_optimiser = without_momentum
    learner.learn(
        torch.zeros(80, 1), torch.tensor([0, 1] * 40), on_epoch=lambda it: paths.append(it.path.clone())
    )
    for d, curvature in enumerate(CURVATURES.tolist()):
        omega, delta = on_quadratic(curvature, start[d].item(), rate=0.05, steps=10)
        assert paths[0][d].item() == pytest.approx(omega, rel=1e-9)
        assert learner.modes.theta[0, d].item() == pytest.approx(start[d].item() + delta, rel=1e-9)
        assert learner.springs.importance[d].item() == pytest.approx(omega / (delta**2 + 0.01), rel=1e-9)


def test_the_path_of_small_steps_is_the_loss_that_was_lost():
    """What the method is named for: sum_d omega_d = L(start) - L(end) in the limit of small steps."""
    for rate, tolerance in ((1e-2, 2e-2), (1e-3, 2e-3)):
        omega, delta = on_quadratic(2.0, 3.0, rate, steps=round(1 / rate))
        lost = 2.0 / 2 * (3.0**2 - (3.0 + delta) ** 2)
        assert omega == pytest.approx(lost, rel=tolerance)


def test_three_tasks_equal_a_plain_loop():
    module, given = network(norm=True), recorded_tasks()
    learner = SI(network(norm=True), strength=3.0, damping=0.05, **PLAIN)
    reference = loops.SynapticIntelligence(3.0, 0.05)
    for task in given:
        learner.learn(task)
        reference.learn(module, task.train.drawn, PLAIN["lr"], task.classes)
        assert_same_weights(learner, module)
    names = [s.name for s in learner.model.segments]
    expected = torch.cat([reference.omega[n].flatten() for n in names])
    torch.testing.assert_close(learner.springs.importance, expected, rtol=1e-7, atol=1e-12)
    # BatchNorm's own parameters are held like all others
    norm = next(s for s in learner.model.segments if s.name == "1.weight")
    assert learner.springs.importance[norm.slice].abs().sum() > 0


def test_a_negative_path_adds_nothing_and_takes_nothing_away():
    path, delta = torch.tensor([1.0, -1.0, 0.0]), torch.tensor([1.0, 1.0, 0.0])
    assert consolidated(path, delta, 1.0).tolist() == [0.5, 0.0, 0.0]


def test_importances_only_grow():
    learner, before = SI(network(), **PLAIN), None
    for task in recorded_tasks():
        learner.learn(task)
        now = learner.springs.importance
        assert (now >= (0 if before is None else before)).all()
        before = now
    assert (now > 0).any()


def test_damping_zero_is_refused():
    with pytest.raises(UserError, match="damping"):
        SI(network(), damping=0.0)
