"""Quadratics and distillation against autograd and plain loops."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from manymodes import penalties
from manymodes.penalties import Quadratic, distillation, old_groups

SEEDS = st.integers(0, 2**31)


def draw(seed, *shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def printed(theta, anchor, importance, strength):
    """strength / 2 sum_d F_d (theta_d - anchor_d)^2, one parameter at a time."""
    total = 0.0
    for t, a, f in zip(theta, anchor, importance, strict=True):
        total = total + strength / 2 * f * (t - a) ** 2
    return total


@given(SEEDS, st.integers(1, 12), st.floats(0, 1e4), st.integers(1, 13))
def test_value_and_gradient_are_those_of_the_formula(seed, size, strength, block):
    theta, anchor, importance = draw(seed, 3, size)
    importance = importance.square()
    theta.requires_grad_(True)
    expected = printed(theta, anchor, importance, strength)
    expected.backward()
    penalty = Quadratic(anchor, importance, strength)
    torch.testing.assert_close(penalty.value(theta.detach()), expected.detach())
    gradient = draw(seed + 1, size)
    before = gradient.clone()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(penalties, "BLOCK", block)
        penalty.add_gradient(theta.detach(), gradient)
    torch.testing.assert_close(gradient - before, theta.grad, rtol=1e-7, atol=1e-9)


@given(SEEDS, st.integers(1, 8), st.integers(2, 12))
def test_merging_is_exact(seed, size, tasks):
    """One merged quadratic has the gradient of the sum of separate ones, everywhere, and the same shape."""
    anchors = draw(seed, tasks, size)
    importances = draw(seed + 1, tasks, size).square() * (draw(seed + 2, tasks, size) > 0)  # zeros among them
    merged = Quadratic(anchors[0], importances[0], 7.0)
    for anchor, importance in zip(anchors[1:], importances[1:], strict=True):
        merged.merge(anchor, importance)
    values = []
    for theta in draw(seed + 3, 3, size):
        expected, got, value = (
            torch.zeros(size, dtype=torch.float64),
            torch.zeros(size, dtype=torch.float64),
            0.0,
        )
        for anchor, importance in zip(anchors, importances, strict=True):
            separate = Quadratic(anchor, importance, 7.0)
            separate.add_gradient(theta, expected)
            value += separate.value(theta).item()
        merged.add_gradient(theta, got)
        torch.testing.assert_close(got, expected, rtol=1e-6, atol=1e-9)
        values.append(value - merged.value(theta).item())
    assert max(values) - min(values) < 1e-6 * (1 + abs(values[0]))  # they differ by a constant
    assert merged.importance.shape == (size,)


def test_merging_in_float32_keeps_a_millionth():
    anchors, importances = draw(0, 50, 200).float(), draw(1, 50, 200).square().float()
    merged = Quadratic(anchors[0], importances[0], 1.0)
    for anchor, importance in zip(anchors[1:], importances[1:], strict=True):
        merged.merge(anchor, importance)
    theta, got = draw(2, 200).float(), torch.zeros(200)
    merged.add_gradient(theta, got)
    expected = (importances.double() * (theta.double() - anchors.double())).sum(dim=0)
    scale = (importances.double() * (theta.double() - anchors.double()).abs()).sum(dim=0)
    assert ((got - expected).abs() / scale).max() < 1e-6


def test_where_nothing_matters_the_anchor_moves_along():
    penalty = Quadratic(torch.zeros(2), torch.tensor([0.0, 1.0]), 1.0)
    penalty.merge(torch.ones(2), torch.zeros(2))
    assert penalty.anchor.tolist() == [1.0, 0.0]


def test_accumulating_adds_importance_and_moves_the_anchor():
    theta = torch.tensor([3.0, 4.0])
    penalty = Quadratic(torch.zeros(2), torch.tensor([1.0, 2.0]), 1.0)
    penalty.accumulate(theta, torch.tensor([1.0, 0.5]))
    theta.zero_()  # its anchor is its own
    assert penalty.anchor.tolist() == [3.0, 4.0]
    assert penalty.importance.tolist() == [2.0, 2.5]


def test_merging_changes_no_tensor_that_others_hold():
    anchor, importance = torch.zeros(2), torch.ones(2)
    penalty = Quadratic(anchor, importance, 1.0)
    penalty.merge(torch.ones(2), torch.ones(2))
    penalty.accumulate(torch.ones(2), torch.ones(2))
    assert anchor.tolist() == [0.0, 0.0]
    assert importance.tolist() == [1.0, 1.0]


def test_state_round_trip():
    penalty = Quadratic(draw(0, 3), draw(1, 3).square(), 5.0)
    again = Quadratic.from_state(penalty.state_dict(), 5.0, torch.device("cpu"))
    theta = draw(2, 3)
    assert again.value(theta) == penalty.value(theta)
    assert Quadratic.from_state(None, 5.0, torch.device("cpu")) is None


# ---- distillation ------------------------------------------------------------------------------------


def by_loops(logits, teacher, groups, temperature):
    """T^2 / S sum_s sum_g sum_c p_c log(p_c / q_c), one term at a time."""
    total = 0.0
    for group, teacher_SG in zip(groups, teacher, strict=True):
        for row, teacher_G in zip(logits, teacher_SG, strict=True):
            exps = [torch.exp(row[c] / temperature) for c in group.tolist()]
            for position, log_p in enumerate(teacher_G):
                p, q = torch.exp(log_p), exps[position] / sum(exps)
                total = total + p * torch.log(p / q)
    return temperature**2 * total / len(logits)


GROUPS = st.sampled_from(
    [((0, 1),), ((0, 1), (2, 3)), ((1, 3), (0,)), ((0, 1, 2, 3, 4),), ((4, 2, 0), (1, 3))]
)


@given(SEEDS, GROUPS, st.floats(0.5, 5))
def test_distillation_is_a_double_loop(seed, classes, temperature):
    groups = [torch.tensor(c) for c in classes]
    teacher = [torch.log_softmax(draw(seed, 4, len(c)), dim=1) for c in classes]
    logits = draw(seed + 1, 4, 5).requires_grad_(True)
    expected = by_loops(logits, teacher, groups, temperature)
    expected.backward()
    gradient, logits.grad = logits.grad, None
    got = distillation(logits, teacher, groups, temperature)
    got.backward()
    torch.testing.assert_close(got, expected, rtol=1e-8, atol=1e-10)
    torch.testing.assert_close(logits.grad, gradient, rtol=1e-8, atol=1e-10)


def test_distillation_vanishes_for_the_teacher_itself_and_pulls_towards_it():
    teacher = draw(0, 6, 4)
    groups = [torch.tensor([0, 1]), torch.tensor([2, 3])]
    soft = [torch.log_softmax(teacher[:, g] / 2, dim=1) for g in groups]
    assert distillation(teacher, soft, groups, 2.0).item() == pytest.approx(0, abs=1e-12)
    logits = torch.zeros(6, 4, dtype=torch.float64, requires_grad=True)
    before = distillation(logits, soft, groups, 2.0)
    before.backward()
    assert distillation(logits.detach() - logits.grad, soft, groups, 2.0) < before
    assert all(not t.requires_grad for t in soft)


def test_the_gradient_keeps_its_size_at_high_temperature():
    """What the factor T^2 is for: without it the pull would fade with the temperature squared."""
    teacher, sizes = draw(0, 6, 4), []
    for temperature in (1.0, 50.0):
        logits = torch.zeros(6, 4, dtype=torch.float64, requires_grad=True)
        soft = [torch.log_softmax(teacher / temperature, dim=1)]
        distillation(logits, soft, [torch.arange(4)], temperature).backward()
        sizes.append(logits.grad.norm().item())
    assert 0.3 < sizes[1] / sizes[0] < 3


@pytest.mark.parametrize(
    ("seen", "groups"),
    [
        ([], []),
        ([(0, 1)], [[0, 1]]),
        ([(0, 1), (2, 3)], [[0, 1], [2, 3]]),  # task-IL: a softmax each
        ([(0, 1), (0, 1, 2, 3)], [[0, 1, 2, 3]]),  # class-IL: one over everything seen
        ([(0, 1, 2), (0, 1, 2)], [[0, 1, 2]]),  # instance-IL: always the same
        ([(1, 0), (0, 1)], [[0, 1]]),  # in whatever order
        ([(0, 1), (1, 2)], [[0, 1], [1, 2]]),  # they overlap, neither holds the other
    ],
)
def test_old_groups(seen, groups):
    assert [g.tolist() for g in old_groups(seen)] == groups


def test_kl_of_a_known_pair():
    logits, teacher = torch.tensor([[0.0, 0.0]]), [torch.tensor([[0.75, 0.25]]).log()]
    expected = 0.75 * math.log(0.75 / 0.5) + 0.25 * math.log(0.25 / 0.5)
    assert distillation(logits, teacher, [torch.tensor([0, 1])], 1.0).item() == pytest.approx(
        expected, rel=1e-6
    )
