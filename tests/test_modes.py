"""Modes: interpolation, the cosine between them, the simplex, the joint distribution."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats
from torch import nn

from manymodes.flat import FlatModel
from manymodes.modes import Modes, cosine, joint, joint_loss, pairwise_cosine, simplex
from tests.reference import modes as slow
from tests.toys import net

SIZES = st.lists(st.integers(1, 7), min_size=1, max_size=4)


def vectors(modes, sizes, seed, gap=2):
    """Random (N, P) with gaps (biases) between the layers, and the layers' slices."""
    layers, start = [], 0
    for size in sizes:
        layers.append(slice(start, start + size))
        start += size + gap
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(modes, start, generator=generator, dtype=torch.float64), layers


@given(st.integers(2, 6), SIZES, st.integers(0, 2**31))
def test_cosine_and_its_gradient_are_those_of_the_printed_formula(modes, sizes, seed):
    theta, layers = vectors(modes, sizes, seed)
    theta.requires_grad_(True)
    expected = slow.cosine(theta, layers)
    expected.backward()
    value, gradient = cosine(theta.detach(), layers)
    torch.testing.assert_close(value, expected.detach(), rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(gradient, theta.grad, rtol=1e-9, atol=1e-11)


@given(st.integers(2, 5), SIZES, st.integers(0, 2**31), st.data())
def test_a_row_of_zeros_has_no_direction(modes, sizes, seed, data):
    theta, layers = vectors(modes, sizes, seed)
    row, layer = data.draw(st.integers(0, modes - 1)), data.draw(st.sampled_from(layers))
    theta[row, layer] = 0.0
    value, gradient = cosine(theta, layers)
    assert torch.isfinite(gradient).all()
    assert gradient[row, layer].tolist() == [0.0] * (layer.stop - layer.start)
    expected = torch.triu(pairwise_cosine(theta, layers), diagonal=1).flatten().tolist()
    assert value.item() == pytest.approx(sum(expected) / (modes * (modes - 1) / 2), abs=1e-12)
    others = [m for m in range(modes) if m != row]
    if len(others) > 1:  # the others see each other as before
        alone = cosine(theta[others], [layer])[1] * (len(others) * (len(others) - 1)) / (modes * (modes - 1))
        torch.testing.assert_close(gradient[others, layer], alone[:, layer] / len(layers))


def test_cosine_of_equal_modes_is_one_and_flat():
    theta = torch.randn(1, 20).repeat(3, 1)
    value, gradient = cosine(theta, [slice(0, 10), slice(12, 20)])
    assert value.item() == pytest.approx(1.0, abs=1e-6)
    assert gradient.abs().max() < 1e-6  # a saddle: only alpha breaks the tie


def test_cosine_does_not_see_what_is_no_layer_nor_length():
    theta, layers = vectors(3, [4, 3], seed=1)
    longer = theta.clone()
    longer[1] *= 7.0
    longer[:, 4:6] += 3.0
    assert cosine(longer, layers)[0].item() == pytest.approx(cosine(theta, layers)[0].item(), abs=1e-12)
    assert cosine(theta, layers)[1][:, 4:6].abs().max() == 0


def test_cosine_without_pairs_or_layers_is_zero():
    for theta, layers in ((torch.randn(1, 4), [slice(0, 4)]), (torch.randn(3, 4), [])):
        value, gradient = cosine(theta, layers)
        assert value.item() == 0
        assert gradient.abs().sum() == 0
        assert gradient.shape == theta.shape


@given(st.integers(2, 5), SIZES, st.integers(0, 2**31))
def test_cosine_is_the_mean_of_the_pairwise_ones(modes, sizes, seed):
    theta, layers = vectors(modes, sizes, seed)
    pairs = pairwise_cosine(theta, layers)
    torch.testing.assert_close(pairs.diagonal(), torch.ones(modes, dtype=pairs.dtype))
    upper = pairs[torch.triu_indices(modes, modes, 1).unbind()]
    torch.testing.assert_close(cosine(theta, layers)[0], upper.mean(), rtol=1e-9, atol=1e-12)


def test_pairwise_cosine_without_layers_is_the_identity():
    assert torch.equal(pairwise_cosine(torch.randn(2, 3), []), torch.eye(2))


# ---- the simplex -------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [2, 3, 6])
def test_the_simplex_is_uniform(count):
    """Marginals of the uniform distribution on the simplex are Beta(1, N - 1); all pairs covary alike."""
    generator = torch.Generator().manual_seed(11)
    draws = torch.stack([simplex(count, generator) for _ in range(4000)])
    assert (draws >= 0).all()
    torch.testing.assert_close(draws.sum(dim=1), torch.ones(4000))
    torch.testing.assert_close(draws.mean(dim=0), torch.full((count,), 1 / count), atol=0.015, rtol=0)
    for column in draws.T:
        assert stats.kstest(column.double().numpy(), stats.beta(1, count - 1).cdf).pvalue > 1e-3
    covariance = torch.cov(draws.T)
    expected = -1 / (count**2 * (count + 1))
    assert covariance[0, 1].item() == pytest.approx(expected, abs=0.2 * abs(expected))


def test_normalised_uniform_numbers_would_be_found_out():
    """The KS test above can fail: the usual mistake does."""
    draws = torch.rand(4000, 3, generator=torch.Generator().manual_seed(11), dtype=torch.float64)
    wrong = draws / draws.sum(dim=1, keepdim=True)
    assert stats.kstest(wrong[:, 0].numpy(), stats.beta(1, 2).cdf).pvalue < 1e-3


def test_one_mode_has_all_the_weight():
    assert simplex(1, torch.Generator().manual_seed(0)).tolist() == [1.0]


# ---- modes and their average -------------------------------------------------------------------------


def test_interpolate_is_the_weighted_sum_in_place():
    theta = torch.randn(3, 8)
    alpha, out = torch.tensor([0.2, 0.3, 0.5]), torch.empty(8)
    modes = Modes(theta, torch.zeros(3, 0))
    assert modes.interpolate(alpha, out=out) is out
    torch.testing.assert_close(out, 0.2 * theta[0] + 0.3 * theta[1] + 0.5 * theta[2])


def test_modes_are_copies_of_the_model():
    model = FlatModel(net(norm=True))
    modes = Modes.of(model, 3)
    assert (len(modes), modes.theta.shape, modes.buffers.shape) == (3, (3, model.theta.numel()), (3, 10))
    modes.theta[1].zero_()
    modes.buffers[2].zero_()
    assert torch.equal(modes.theta[0], model.theta.data)
    assert torch.equal(modes.theta[2], model.theta.data)
    assert model.buffers.sum() == 5
    assert not modes.theta.requires_grad


@given(st.integers(1, 5), st.integers(1, 6), st.integers(1, 5), st.integers(0, 2**31), st.floats(0.1, 30))
def test_joint_is_the_average_distribution(modes, samples, classes, seed, scale):
    logits = scale * torch.randn(modes, samples, classes, generator=torch.Generator().manual_seed(seed))
    log_probs = nn.functional.log_softmax(logits.double(), dim=2)
    torch.testing.assert_close(joint(log_probs).exp(), slow.joint(log_probs.exp()), rtol=1e-9, atol=1e-12)


def test_joint_stays_finite_where_probabilities_vanish():
    log_probs = nn.functional.log_softmax(torch.tensor([[[0.0, -1e4]], [[0.0, -2e4]]]), dim=2)
    assert joint(log_probs)[0, 1].item() == pytest.approx(-1e4 - 0.6931, abs=1e-2)


@given(st.integers(2, 6), st.integers(1, 5), st.integers(2, 6), st.floats(0, 1), st.integers(0, 2**31))
def test_the_joint_loss_and_its_gradient_are_autograds(modes, samples, classes, weight, seed):
    generator = torch.Generator().manual_seed(seed)
    logits = 5 * torch.randn(modes, samples, classes, generator=generator, dtype=torch.float64)
    targets = torch.randint(classes, (samples,), generator=generator)
    rest = logits[1:].softmax(2)[:, range(samples), targets].sum(0).log()
    own = logits[0].clone().requires_grad_(True)
    expected = slow.joint_loss([own, *logits[1:]], targets, weight)
    expected.backward()
    value, gradient = joint_loss(own.detach(), targets, rest, modes, weight)
    torch.testing.assert_close(value, expected.detach(), rtol=1e-9, atol=1e-11)
    torch.testing.assert_close(gradient, own.grad, rtol=1e-8, atol=1e-11)


def test_the_joint_loss_of_a_hopeless_sample_is_finite():
    logits = torch.tensor([[0.0, 200.0]])
    value, gradient = joint_loss(logits, torch.tensor([0]), torch.tensor([-300.0]), 2, 1.0)
    assert value.isfinite()
    assert gradient.tolist() == [[-1.0, 1.0]]  # it alone is responsible
