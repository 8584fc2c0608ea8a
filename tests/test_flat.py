"""FlatModel: any module as one vector, without changing what it computes."""

import copy

import pytest
import torch
from torch import nn

from manymodes.errors import UserError
from manymodes.flat import FlatModel
from tests.toys import net


class Tied(nn.Module):
    """An encoder and a decoder that share their weight."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(4, 4, bias=False), nn.Linear(4, 4, bias=False)
        self.second.weight = self.first.weight

    def forward(self, x):
        return self.second(torch.tanh(self.first(x)))


class Counting(nn.Module):
    """Float, integer and boolean buffers beside a parameter."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(2, 2)
        self.register_buffer("mean", torch.tensor([1.0, 2.0]))
        self.register_buffer("steps", torch.tensor(3))
        self.register_buffer("mask", torch.tensor([True, False]))
        self.register_buffer("absent", None)
        self.register_buffer("scratch", torch.zeros(1, 2), persistent=False)

    def forward(self, x):
        self.mean.add_(1.0)
        self.steps.add_(1)
        return self.linear(x) + self.mean


ZOO = {
    "mlp": (lambda: net(3, 4, 2), torch.randn(5, 3)),
    "batch norm": (lambda: net(3, 4, 2, norm=True), torch.randn(5, 3)),
    "conv": (
        lambda: nn.Sequential(nn.Conv2d(1, 2, 2), nn.BatchNorm2d(2), nn.Flatten()),
        torch.randn(5, 1, 3, 3),
    ),
    "channels last": (
        lambda: nn.Sequential(nn.Conv2d(3, 4, 2).to(memory_format=torch.channels_last), nn.Flatten()),
        torch.randn(5, 3, 3, 3).to(memory_format=torch.channels_last),
    ),
    "tied": (Tied, torch.randn(5, 4)),
    "embedding": (lambda: nn.Sequential(nn.Embedding(6, 3), nn.Flatten()), torch.randint(6, (5, 2))),
    "sparse embedding": (lambda: nn.Embedding(6, 3, sparse=True), torch.randint(6, (5,))),
    "attention": (
        lambda: nn.TransformerEncoderLayer(4, 2, 8, dropout=0.0, batch_first=True),
        torch.randn(2, 3, 4),
    ),
    "spectral norm": (lambda: nn.utils.parametrizations.spectral_norm(nn.Linear(3, 2)), torch.randn(5, 3)),
    "double": (lambda: net(3, 4, 2, dtype=torch.float64), torch.randn(5, 3, dtype=torch.float64)),
}


@pytest.mark.parametrize("name", ZOO)
def test_outputs_and_gradients_are_the_modules_own(name):
    make, x = ZOO[name]
    plain = make()
    flat = FlatModel(copy.deepcopy(plain))
    expected, got = plain(x), flat.module(x)
    torch.testing.assert_close(got, expected, rtol=1e-6, atol=1e-7)
    expected.square().sum().backward()
    got.square().sum().backward()
    ours = dict(flat.module.named_parameters())
    for parameter_name, parameter in plain.named_parameters():
        gradient = parameter.grad.to_dense() if parameter.grad.is_sparse else parameter.grad
        torch.testing.assert_close(ours[parameter_name].grad, gradient, rtol=1e-5, atol=1e-6)
    for segment in flat.segments:
        assert torch.equal(flat.theta.data[segment.slice].view(segment.shape), ours[segment.name].data)
        assert torch.equal(flat.grad[segment.slice].view(segment.shape), ours[segment.name].grad)
    assert sum(p.numel() for p in plain.parameters()) == flat.theta.numel() == flat.segments[-1].slice.stop


def test_gradients_are_views_that_stay():
    flat = FlatModel(net())
    where = flat.grad.data_ptr()
    for _ in range(2):
        flat.grad.zero_()
        flat.module(torch.randn(3, 6)).sum().backward()
        assert flat.grad.data_ptr() == where
        assert flat.module[0].weight.grad.data_ptr() == where
        assert flat.grad.abs().sum() > 0


def test_writing_into_theta_changes_the_module():
    flat = FlatModel(nn.Linear(2, 1, bias=False))
    flat.theta.data.copy_(torch.tensor([2.0, 3.0]))
    assert flat.module(torch.tensor([[1.0, 10.0]])).item() == 32.0


def test_tied_weights_count_once():
    flat = FlatModel(Tied())
    assert flat.theta.numel() == 16
    assert [s.name for s in flat.segments] == ["first.weight"]
    assert flat.module.first.weight is flat.module.second.weight


def test_frozen_parameters_are_left_out_and_left_alone():
    module = net()
    module[0].weight.requires_grad_(False)
    frozen = module[0].weight.clone()
    flat = FlatModel(module)
    assert "0.weight" not in [s.name for s in flat.segments]
    flat.theta.data.fill_(0.5)
    assert torch.equal(module[0].weight, frozen)
    module(torch.randn(3, 6)).sum().backward()
    assert module[0].weight.grad is None


def test_float_buffers_are_flat_and_integer_ones_untouched():
    module = Counting()
    steps, mask = module.steps, module.mask
    flat = FlatModel(module)
    assert [s.name for s in flat.buffer_segments] == ["mean", "scratch"]
    assert flat.buffers.tolist() == [1.0, 2.0, 0.0, 0.0]
    module(torch.randn(1, 2))
    assert flat.buffers.tolist() == [2.0, 3.0, 0.0, 0.0]
    assert module.steps is steps
    assert module.steps.item() == 4
    assert module.mask is mask


def test_batch_norm_writes_its_statistics_into_the_bound_buffers():
    flat = FlatModel(net(norm=True))
    mine = flat.buffers.clone()
    flat.module.train()
    with flat.bound(flat.theta.data, mine):
        flat.module(3 + torch.randn(8, 6))
    assert not torch.equal(mine, flat.buffers)
    assert flat.buffers.tolist() == [0.0] * 5 + [1.0] * 5
    flat.module(3 + torch.randn(8, 6))
    assert flat.buffers[:5].abs().sum() > 0


def test_bind_points_at_another_vector_without_copying():
    flat = FlatModel(net(norm=True))
    first, other = flat.theta.data, flat.theta.data + 1
    x = torch.randn(2, 6)
    flat.module.eval()
    before = flat.module(x)
    with flat.bound(other, flat.buffers + 0.5):
        assert flat.module[0].weight.data_ptr() == other.data_ptr()
        assert not torch.equal(flat.module(x), before)
        flat.module[0].weight.data.zero_()
    assert other[:30].tolist() == [0.0] * 30
    assert flat.theta.data is first or flat.theta.data.data_ptr() == first.data_ptr()
    assert torch.equal(flat.module(x), before)


def test_bound_returns_after_an_exception():
    flat = FlatModel(net())
    where = flat.theta.data_ptr()
    with pytest.raises(KeyError), flat.bound(flat.theta.data.clone()):
        raise KeyError
    assert flat.theta.data_ptr() == where


def test_binding_the_wrong_size_is_refused():
    flat = FlatModel(net())
    with pytest.raises(AssertionError):
        flat.bind(torch.zeros(3))


def test_gradient_goes_to_the_bound_vector():
    """The optimiser's parameter stays one object; its data is what is bound."""
    flat = FlatModel(nn.Linear(1, 1, bias=False))
    rows = torch.tensor([[1.0], [5.0]])
    optimiser = torch.optim.SGD([flat.theta], lr=1.0)
    for row in rows:
        flat.bind(row)
        flat.grad.zero_()
        flat.module(torch.ones(1, 1)).square().sum().backward()
        optimiser.step()
    assert rows.tolist() == [[-1.0], [-5.0]]


def test_evaluating_restores_every_submodules_own_mode():
    flat = FlatModel(net(norm=True))
    flat.module.train()
    flat.module[1].eval()
    with flat.evaluating():
        assert not any(m.training for m in flat.module.modules())
    assert [m.training for m in flat.module] == [True, False, True, True]
    assert flat.module.training


def test_layers_are_weights_with_two_or_more_dimensions():
    flat = FlatModel(nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.Flatten(), nn.Linear(2, 3)))
    sizes = [layer.stop - layer.start for layer in flat.layers()]
    assert sizes == [18, 6]


def test_a_deep_copy_is_independent():
    flat = FlatModel(net(norm=True))
    other = FlatModel(copy.deepcopy(flat.module))
    other.theta.data.zero_()
    assert flat.theta.abs().sum() > 0


@pytest.mark.parametrize(
    ("module", "says"),
    [
        (lambda: nn.LazyLinear(3), "lazy"),
        (lambda: nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2).double()), "mixed types"),
        (lambda: nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2, device="meta")), "mixed types or devices"),
        (lambda: nn.ReLU(), "no trainable parameter"),
        (lambda: nn.Linear(2, 2).requires_grad_(False), "no trainable parameter"),
        (lambda: nn.Linear(2, 2, dtype=torch.complex64), "not floating point"),
        (lambda: "mlp", "nn.Module"),
        (lambda: nn.Linear, "nn.Module"),
    ],
)
def test_what_cannot_be_flattened_says_why(module, says):
    with pytest.raises(UserError, match=says) as caught:
        FlatModel(module())
    assert "\n" not in str(caught.value)


def test_frozen_parameters_may_be_of_another_type():
    module = nn.Sequential(nn.Linear(2, 2).double().requires_grad_(False), nn.Linear(2, 2))
    assert FlatModel(module).theta.numel() == 6


def test_buffers_keep_their_type():
    """A module that counts in float64 must not lose digits to its float32 weights."""
    module = nn.BatchNorm1d(1)
    module.register_buffer("total", torch.tensor([2.0**53], dtype=torch.float64))
    flat = FlatModel(module)
    assert [s.name for s in flat.buffer_segments] == ["running_mean", "running_var"]
    assert (module.total.dtype, module.total.item()) == (torch.float64, 2.0**53)


def test_statistics_finer_than_the_weights_keep_their_type():
    module = nn.Sequential(nn.Linear(2, 2).bfloat16(), nn.BatchNorm1d(2, affine=False))
    flat = FlatModel(module)
    assert (flat.theta.dtype, flat.buffers.dtype) == (torch.bfloat16, torch.float32)
    assert flat.buffers.tolist() == [0.0, 0.0, 1.0, 1.0]
