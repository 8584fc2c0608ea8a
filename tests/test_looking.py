"""Looking: the same numbers as the plain forward pass, and nothing left behind."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from manymodes.flat import FlatModel
from manymodes.looking import FEW, as_matrix, looking, sample_count
from manymodes.models import mlp, resnet18


def both(module, inputs):
    """The outputs as ever, and while looking."""
    model = FlatModel(module.eval())
    with torch.no_grad():
        plain = module(inputs)
    with looking(model):
        looked = module(inputs)
    return plain, looked


@given(
    st.tuples(st.integers(1, 5), st.integers(1, 5)), st.tuples(st.integers(1, 5), st.integers(1, 5)),
    st.tuples(st.integers(1, 3), st.integers(1, 3)), st.tuples(st.integers(0, 2), st.integers(0, 2)),
    st.booleans(), st.integers(0, 2**31),
)  # fmt: skip
def test_a_convolution_is_its_matrix(size, kernel, stride, padding, bias, seed):
    if any(s + 2 * p < k for s, p, k in zip(size, padding, kernel, strict=True)):
        return
    torch.manual_seed(seed)
    layer = nn.Conv2d(3, 2, kernel, stride, padding, bias=bias).double()
    x = torch.randn(4, 3, *size, dtype=torch.float64)
    expected = nn.functional.conv2d(x, layer.weight, None, stride, padding)
    matrix, shape = as_matrix(layer, *size)
    found = (x.permute(0, 2, 3, 1).reshape(4, -1) @ matrix.T).view(4, *shape, 2).permute(0, 3, 1, 2)
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)


@given(st.sampled_from([1, 2, 3]), st.sampled_from([1, 2]), st.sampled_from([0, 1]), st.booleans())
def test_layers_give_the_same_numbers(side, stride, padding, bias):
    torch.manual_seed(0)
    for few in (FEW - 1, FEW, 3 * FEW):
        if side + 2 * padding >= 3:
            layer = nn.Conv2d(5, 4, 3, stride, padding, bias=bias)
            for format in (torch.contiguous_format, torch.channels_last):
                x = torch.randn(few, 5, side, side).contiguous(memory_format=format)
                torch.testing.assert_close(*both(layer, x), rtol=1e-5, atol=1e-6)
        torch.testing.assert_close(
            *both(nn.Linear(7, 3, bias=bias), torch.randn(few, 7)), rtol=1e-5, atol=1e-6
        )


@pytest.mark.parametrize(
    ("module", "shape"), [(resnet18(outputs=4, width=0.25), (3, 32, 32)), (mlp(20, outputs=3), (20,))]
)
def test_networks_give_the_same_numbers(module, shape):
    plain, looked = both(module, torch.randn(FEW, *shape))
    torch.testing.assert_close(looked, plain, rtol=1e-4, atol=1e-5)
    assert not looked.requires_grad


def test_nothing_is_left_behind_even_after_an_error():
    module = mlp(4, outputs=2).train()
    model = FlatModel(module)
    with pytest.raises(ZeroDivisionError), looking(model):
        1 / 0  # noqa: B018
    assert not any("forward" in vars(layer) for layer in module.modules())
    assert all(layer.training for layer in module.modules())
    assert module(torch.randn(2, 4)).requires_grad


class Doubled(nn.Linear):
    def forward(self, x):
        return 2 * super().forward(x)


def test_layers_that_compute_something_else_are_left_alone():
    grouped = nn.Conv2d(4, 4, 3, padding=1, groups=2)
    circular = nn.Conv2d(4, 4, 3, padding=1, padding_mode="circular")
    same = nn.Conv2d(4, 4, 3, padding="same")
    for layer, shape in (
        (Doubled(4, 2), (4,)),
        (grouped, (4, 2, 2)),
        (circular, (4, 2, 2)),
        (same, (4, 2, 2)),
    ):
        plain, looked = both(layer, torch.randn(FEW, *shape))
        assert torch.equal(plain, looked)
    with torch.autocast("cpu", torch.bfloat16):
        plain, looked = both(nn.Linear(4, 2), torch.randn(FEW, 4))
    assert torch.equal(plain, looked)


def test_images_are_looked_at_in_smaller_numbers():
    assert sample_count(FlatModel(nn.Conv2d(1, 1, 1))) < sample_count(FlatModel(nn.Linear(1, 1)))
