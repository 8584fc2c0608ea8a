"""Products by the other library: the numbers and gradients of nn.Linear, and only where it is worth it."""

import pytest
import torch
from torch import nn

from manymodes import products
from manymodes.flat import FlatModel
from manymodes.models import mlp
from manymodes.products import dense_layers, product, quick


@pytest.fixture
def always(monkeypatch):
    """However small."""
    monkeypatch.setattr(products, "WORTH", 0)


def close(a, b):
    torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-5)


def test_the_product_is_one(always):
    x, w, b = torch.randn(70, 30), torch.randn(20, 30), torch.randn(20)
    close(product(x, w, b), x @ w.T + b)
    close(product(w.t(), x.t()[:, :20].contiguous()), w.t() @ x[:20])
    assert product(x.double(), w.double()).dtype == torch.float64


@pytest.mark.parametrize("bias", [True, False])
def test_a_layers_output_and_gradients_are_its_own(always, bias):
    layer, x = nn.Linear(30, 20, bias=bias), torch.randn(70, 30, requires_grad=True)
    inputs, g = [x, *layer.parameters()], torch.randn(70, 20)
    expected = [layer(x), *torch.autograd.grad(layer(x), inputs, g)]
    with quick(dense_layers(layer)):
        y = layer(x)
    assert type(y.grad_fn).__name__ == "_LinearBackward"
    for found, wanted in zip([y, *torch.autograd.grad(y, inputs, g)], expected, strict=True):
        close(found, wanted)
    with quick(dense_layers(layer), weights=False):
        y = layer(x)
    found = torch.autograd.grad(y, inputs, g, allow_unused=True)
    close(found[0], expected[1])
    assert all(gradient is None for gradient in found[1:])


def test_flat_gradients_are_filled_as_ever(always):
    torch.manual_seed(0)
    model, x = FlatModel(mlp(12, (9,), outputs=3)), torch.randn(8, 12)
    model.module(x).square().sum().backward()
    expected = model.grad.clone()
    model.grad.zero_()
    with quick(dense_layers(model.module)):
        loss = model.module(x).square().sum()
    loss.backward()
    close(model.grad, expected)


def test_small_products_and_other_kinds_of_numbers_are_left_alone(monkeypatch):
    layer, x = nn.Linear(30, 20), torch.randn(70, 30)
    with quick(dense_layers(layer)):
        assert torch.equal(layer(x), nn.functional.linear(x, layer.weight, layer.bias))
        monkeypatch.setattr(products, "WORTH", 0)
        with torch.autocast("cpu", torch.bfloat16):
            assert layer(x).dtype == torch.bfloat16
        assert layer(x[:, None]).shape == (70, 1, 20)


class Doubled(nn.Linear):
    def forward(self, x):
        return 2 * super().forward(x)


def test_only_plain_layers_are_changed_and_only_inside():
    module = nn.Sequential(nn.Linear(3, 2), Doubled(2, 2), nn.Linear(2, 2).double())
    assert dense_layers(module) == [module[0]]
    with quick(dense_layers(module)):
        assert "forward" in vars(module[0])
    with pytest.raises(ZeroDivisionError), quick(dense_layers(module)):
        1 / 0  # noqa: B018
    assert "forward" not in vars(module[0])


def test_a_pytorch_without_the_operator_is_served_by_the_ordinary_product(monkeypatch):
    def gone(*args):
        raise AttributeError("'_OpNamespace' 'mkldnn' object has no attribute '_linear_pointwise'")

    x, weight = torch.randn(64, 512), torch.randn(256, 512)
    monkeypatch.setattr(products, "_by_onednn", gone)
    products._there.cache_clear()
    try:
        assert torch.equal(products.product(x, weight), torch.nn.functional.linear(x, weight))
    finally:
        products._there.cache_clear()
