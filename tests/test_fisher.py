"""The fast Fisher against one sample, one label, one backward at a time."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn.utils import parametrizations

from manymodes import fisher, fisher_samples
from manymodes.errors import UserError
from manymodes.fisher_squares import SquareSums
from manymodes.flat import FlatModel
from manymodes.task import Batch, TensorData
from tests.reference import fisher as reference

OUTPUTS = 4


class Head(nn.Module):
    """Some layers, averaged over whatever is left of space, then logits."""

    def __init__(self, *body: nn.Module, width: int, channels_last: bool = False) -> None:
        super().__init__()
        self.body, self.head = nn.Sequential(*body), nn.Linear(width, OUTPUTS)
        self.channels_last = channels_last

    def forward(self, x: Tensor) -> Tensor:
        h = torch.tanh(self.body(x))
        if h.dim() > 2:
            h = h.flatten(1, -2).mean(1) if self.channels_last else h.flatten(2).mean(2)
        return self.head(h)


class Tied(nn.Module):
    """A table that is also the output layer."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.out = nn.Embedding(OUTPUTS, 3), nn.Linear(3, OUTPUTS)
        self.out.weight = self.table.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.out(torch.tanh(self.table(x).mean(1)))


class Twice(nn.Module):
    """One layer called two times."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.head = nn.Linear(5, 5), nn.Linear(5, OUTPUTS)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.tanh(self.layer(torch.tanh(self.layer(x)))))


class Functional(nn.Module):
    """A layer that is called, and whose weight is used once more behind its back."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.head = nn.Linear(5, 5), nn.Linear(5, OUTPUTS)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.tanh(self.layer(x)) @ self.layer.weight)


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(6, 2, batch_first=True)
        self.head = nn.Linear(6, OUTPUTS)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.attention(x, x, x)[0].mean(1))


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lstm, self.head = nn.LSTM(3, 4, batch_first=True), nn.Linear(4, OUTPUTS)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.lstm(x)[0][:, -1])


class Branching(nn.Module):
    """Control flow that depends on the data, and a parameter of its own: no vmap."""

    def __init__(self) -> None:
        super().__init__()
        self.scale, self.head = nn.Parameter(torch.ones(5)), nn.Linear(5, OUTPUTS)

    def forward(self, x: Tensor) -> Tensor:
        rows = [row * self.scale if row.sum() > 0 else row * self.scale.square() for row in x]
        return self.head(torch.stack(rows))


class Windows(nn.Module):
    """Windows folded into the batch, as in shifted-window transformers; or time in front of it."""

    def __init__(self, time_first: bool) -> None:
        super().__init__()
        self.norm, self.layer, self.head = nn.LayerNorm(3), nn.Linear(3, 5), nn.Linear(5, OUTPUTS)
        self.time_first = time_first

    def forward(self, x: Tensor) -> Tensor:
        folded = (x.transpose(0, 1) if self.time_first else x).flatten(0, 1)
        h = torch.tanh(self.layer(self.norm(folded)))
        h = h.unflatten(0, (-1, len(x))).mean(0) if self.time_first else h.unflatten(0, (len(x), -1)).mean(1)
        return self.head(h)


class Views(nn.Module):
    """A view of what convolutions return: impossible with channels last."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.head = nn.Conv2d(3, 5, 3), nn.Linear(5 * 9, OUTPUTS)

    def forward(self, x: Tensor) -> Tensor:
        h = self.conv(x)
        return self.head(h.view(len(h), -1))


def _images(*shape: int) -> Callable[[], Tensor]:
    return lambda: torch.randn(7, *shape, dtype=torch.float64)


def _tokens(count: int, length: int = 5) -> Callable[[], Tensor]:
    return lambda: torch.randint(count, (7, length))


def _conv(*args: int, **options: object) -> Callable[[], nn.Module]:
    return lambda: Head(nn.Conv2d(*args, **options), width=args[1])  # type: ignore[arg-type]


# name -> (module, inputs): every parameter by a layer rule
RULED: dict[str, tuple[Callable[[], nn.Module], Callable[[], Tensor]]] = {
    "linear": (lambda: Head(nn.Linear(6, 5), width=5), _images(6)),
    "linear without bias": (lambda: Head(nn.Linear(6, 5, bias=False), width=5), _images(6)),
    "linear, few positions": (lambda: Head(nn.Linear(6, 5), width=5, channels_last=True), _images(3, 6)),
    "linear, many positions": (lambda: Head(nn.Linear(6, 5), width=5, channels_last=True), _images(3, 4, 6)),
    "conv1d": (lambda: Head(nn.Conv1d(3, 5, 3, 2, 1), width=5), _images(3, 9)),
    "conv1d, wide input": (lambda: Head(nn.Conv1d(17, 5, 3, 2, 1), width=5), _images(17, 9)),
    "conv2d": (_conv(3, 5, 3, padding=1), _images(3, 6, 6)),
    "conv2d, wide input": (_conv(18, 5, 3, padding=1), _images(18, 6, 5)),
    "conv2d, one position": (_conv(18, 5, 3, padding=1), _images(18, 1, 1)),
    "conv2d, two by two": (_conv(18, 5, 3, stride=2, padding=1), _images(18, 4, 4)),
    "conv2d depthwise": (_conv(5, 5, 3, padding=1, groups=5), _images(5, 6, 6)),
    "conv2d grouped": (_conv(4, 6, 3, groups=2, bias=False), _images(4, 6, 6)),
    "conv2d grouped, wide": (_conv(36, 6, 2, groups=2), _images(36, 3, 3)),
    "conv2d same, even kernel": (_conv(17, 3, (2, 4), padding="same", dilation=(2, 1)), _images(17, 5, 6)),  # type: ignore[arg-type]
    "conv2d reflect": (_conv(3, 5, 3, padding=2, padding_mode="reflect"), _images(3, 6, 6)),
    "conv2d circular": (_conv(17, 5, 3, padding=(2, 1), padding_mode="circular"), _images(17, 6, 6)),
    "conv3d": (lambda: Head(nn.Conv3d(2, 5, 2), width=5), _images(2, 4, 4, 4)),
    "batchnorm1d": (lambda: Head(nn.Linear(6, 5), nn.BatchNorm1d(5), width=5), _images(6)),
    "batchnorm2d": (lambda: Head(nn.Conv2d(3, 5, 3), nn.BatchNorm2d(5), width=5), _images(3, 6, 6)),
    "batchnorm, relu in place": (
        lambda: Head(nn.Conv2d(3, 5, 3, bias=False), nn.BatchNorm2d(5), nn.ReLU(inplace=True), width=5),
        _images(3, 6, 6),
    ),
    "layernorm": (lambda: Head(nn.LayerNorm(6), width=6, channels_last=True), _images(3, 6)),
    "layernorm, two axes": (lambda: Head(nn.LayerNorm((3, 6)), width=3), _images(3, 6)),
    "rmsnorm": (lambda: Head(nn.RMSNorm(6), width=6), _images(6)),
    "groupnorm": (lambda: Head(nn.GroupNorm(2, 6), width=6), _images(6, 3, 3)),
    "instancenorm": (
        lambda: Head(nn.InstanceNorm2d(6, affine=True), nn.Conv2d(6, 5, 2), width=5),
        _images(6, 3, 3),
    ),
    "embedding": (lambda: Head(nn.Embedding(6, 5), width=5, channels_last=True), _tokens(6)),
    "embedding, padding": (
        lambda: Head(nn.Embedding(6, 5, padding_idx=-2), width=5, channels_last=True),
        _tokens(6),
    ),
    "embedding, sparse and rescaled": (
        lambda: Head(nn.Embedding(6, 5, sparse=True, max_norm=1.0), width=5, channels_last=True),
        _tokens(6),
    ),
    "windows in the batch": (lambda: Windows(time_first=False), _images(4, 3)),
    "views": (Views, _images(3, 5, 5)),
}
# name -> (module, inputs, parameters without a rule)
OTHER: dict[str, tuple[Callable[[], nn.Module], Callable[[], Tensor], set[str]]] = {
    "tied": (Tied, _tokens(OUTPUTS), {"table.weight"}),
    "called twice": (Twice, _images(5), {"layer.weight", "layer.bias"}),
    "used functionally": (Functional, _images(5), {"layer.weight"}),
    "attention": (
        Attention,
        _images(3, 6),
        {f"attention.{n}" for n in ("in_proj_weight", "in_proj_bias", "out_proj.weight", "out_proj.bias")},
    ),
    "lstm": (
        Recurrent,
        _images(5, 3),
        {f"lstm.{n}_l0" for n in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")},
    ),
    "branching": (Branching, _images(5), {"scale"}),
    "parametrized": (
        lambda: Head(parametrizations.weight_norm(nn.Linear(6, 5)), width=5),
        _images(6),
        {f"body.0.parametrizations.weight.original{i}" for i in (0, 1)},
    ),
    "transposed": (
        lambda: Head(nn.ConvTranspose2d(3, 5, 3), width=5),
        _images(3, 2, 2),
        {"body.0.weight", "body.0.bias"},
    ),
    "time before batch": (
        lambda: Windows(time_first=True),
        _images(4, 3),
        {"layer.weight", "layer.bias", "norm.weight", "norm.bias"},
    ),
    "scaled by frequency": (
        lambda: Head(nn.Embedding(6, 5, scale_grad_by_freq=True), width=5, channels_last=True),
        _tokens(6),
        {"body.0.weight"},
    ),
}


def _seeded(module: Callable[[], nn.Module]) -> nn.Module:
    """A module with nothing left at 0 or 1 that could hide a mistake."""
    torch.manual_seed(1)
    made = module().double()
    for buffer in made.buffers():
        if buffer.is_floating_point():
            buffer.uniform_(0.5, 2.0)
    for parameter in made.parameters():
        if parameter.dim() == 1:
            parameter.data.uniform_(0.5, 1.5)
    return made


def _flat(flat: FlatModel, by_name: dict[str, Tensor]) -> Tensor:
    return torch.cat([by_name[segment.name].reshape(-1) for segment in flat.segments])


def _slow(
    flat: FlatModel, inputs: Tensor, targets: Tensor | None = None, kind: str = "empirical", **options: object
) -> Tensor:
    return _flat(flat, reference.diagonal(flat.module, inputs, targets, kind, **options))  # type: ignore[arg-type]


def _targets(inputs: Tensor) -> Tensor:
    return torch.arange(len(inputs)) % OUTPUTS


def _without_rule(flat: FlatModel, inputs: Tensor) -> set[str]:
    """The parameters that went sample by sample."""
    with fisher_samples.untouched(flat):
        sums = SquareSums(flat)
        sums.add(inputs, lambda logits: (1, lambda k: torch.ones_like(logits)))
    return set(sums.slow)


@pytest.mark.parametrize("name", RULED)
def test_every_layer_with_a_rule_equals_the_loop(name: str) -> None:
    module, inputs = RULED[name]
    flat = FlatModel(_seeded(module))
    x = inputs()
    found = fisher.diagonal(flat, x, _targets(x), batch_size=4)
    assert found.shape == flat.theta.shape
    torch.testing.assert_close(found, _slow(flat, x, _targets(x)), rtol=1e-8, atol=1e-14)
    assert _without_rule(flat, x) == set()


@pytest.mark.parametrize("name", OTHER)
def test_everything_else_equals_the_loop_too(name: str) -> None:
    module, inputs, without = OTHER[name]
    flat = FlatModel(_seeded(module))
    x = inputs()
    torch.testing.assert_close(
        fisher.diagonal(flat, x, _targets(x), batch_size=4),
        _slow(flat, x, _targets(x)),
        rtol=1e-8,
        atol=1e-14,
    )
    assert _without_rule(flat, x) == without


@pytest.mark.parametrize("kind", ["empirical", "exact"])
@pytest.mark.parametrize("joint", [False, True])
@pytest.mark.parametrize("classes", [None, [3, 0, 1]])
@pytest.mark.parametrize("name", ["batchnorm2d", "lstm"])
def test_kinds_likelihoods_and_classes(kind: str, joint: bool, classes: list[int] | None, name: str) -> None:
    module, inputs = (RULED | {n: o[:2] for n, o in OTHER.items()})[name]
    flat = FlatModel(_seeded(module))
    x = inputs()
    valid = classes or list(range(OUTPUTS))
    targets = torch.tensor(valid)[torch.arange(len(x)) % len(valid)]
    rest = None
    if joint:
        rest = torch.zeros(len(x), OUTPUTS, dtype=torch.float64)
        rest[:, valid] = 2 * torch.randn(len(x), len(valid), dtype=torch.float64).softmax(1)
    options = {"classes": classes, "rest": rest, "modes": 3 if joint else 1}
    found = fisher.diagonal(flat, x, targets, kind, **options, batch_size=4)
    torch.testing.assert_close(found, _slow(flat, x, targets, kind, **options), rtol=1e-6, atol=1e-12)


@pytest.mark.parametrize("name", ["batchnorm2d", "attention"])
def test_sampled_labels_follow_the_predictive_distribution(name: str) -> None:
    module, inputs = (RULED | {n: o[:2] for n, o in OTHER.items()})[name]
    flat = FlatModel(_seeded(module))
    x = inputs()[:1].expand(3000, *inputs().shape[1:])
    rest = torch.tensor([[0.1, 0.2, 0.7, 1.0]], dtype=torch.float64).expand(3000, OUTPUTS)
    for options in ({}, {"rest": rest, "modes": 3}, {"classes": [0, 2]}):
        if name == "attention" and options:
            continue
        found = fisher.diagonal(flat, x, kind="sampled", **options, batch_size=3000)
        once = {k: v[:1] if k == "rest" else v for k, v in options.items()}
        expected = fisher.diagonal(flat, x[:1], kind="exact", **once)
        assert (found - expected).norm() < 0.1 * expected.norm()


def test_sampled_draws_come_from_the_generator_alone() -> None:
    flat = FlatModel(_seeded(RULED["linear"][0]))
    x = RULED["linear"][1]()

    def draw(seed: int | None, batch_size: int = 128) -> Tensor:
        generator = None if seed is None else torch.Generator().manual_seed(seed)
        return fisher.diagonal(flat, x, kind="sampled", generator=generator, batch_size=batch_size)

    assert torch.equal(draw(1), draw(1))
    assert torch.equal(draw(None), draw(None))
    assert any(not torch.equal(draw(1), draw(seed)) for seed in range(2, 8))
    torch.testing.assert_close(draw(1), draw(1, batch_size=2))


@pytest.mark.parametrize("kind", ["empirical", "sampled", "exact"])
@pytest.mark.parametrize("name", ["batchnorm2d", "conv2d, two by two", "lstm", "tied"])
def test_the_batch_size_changes_nothing(kind: str, name: str) -> None:
    """Catches the square of the batch's mean gradient."""
    module, inputs = (RULED | {n: o[:2] for n, o in OTHER.items()})[name]
    flat = FlatModel(_seeded(module))
    x = inputs()
    whole = fisher.diagonal(flat, x, _targets(x), kind, batch_size=128)
    for batch_size in (1, 2, 3):
        torch.testing.assert_close(fisher.diagonal(flat, x, _targets(x), kind, batch_size=batch_size), whole)


def test_it_is_not_the_squared_mean_gradient() -> None:
    """Two samples whose gradients cancel: the mean gradient is zero, the Fisher is not."""
    flat = FlatModel(nn.Linear(1, 2))
    flat.theta.data.zero_()
    x, y = torch.ones(2, 1), torch.tensor([0, 1])
    nn.functional.cross_entropy(flat.module(x), y).backward()
    assert flat.grad.abs().max() == 0
    torch.testing.assert_close(fisher.diagonal(flat, x, y), torch.full((4,), 0.25))


@settings(max_examples=15, deadline=None)
@given(st.integers(0, 2**20), st.integers(2, 5), st.integers(1, 6), st.integers(1, 6))
def test_softmax_regression_has_a_closed_form(seed: int, outputs: int, width: int, samples: int) -> None:
    torch.manual_seed(seed)
    flat = FlatModel(nn.Linear(width, outputs).double())
    x = torch.randn(samples, width, dtype=torch.float64)
    weight, bias = reference.softmax_regression(flat.module.weight, flat.module.bias, x)  # type: ignore[arg-type]
    expected = torch.cat([weight.reshape(-1), bias]).detach()
    torch.testing.assert_close(fisher.diagonal(flat, x, kind="exact"), expected, rtol=1e-6, atol=1e-9)


def test_exact_leaves_out_only_what_is_negligible() -> None:
    """Very sure predictions of many classes: few backward passes, the same numbers."""
    torch.manual_seed(0)
    flat = FlatModel(nn.Linear(8, 50).double())
    flat.theta.data.mul_(60)
    x = torch.randn(9, 8, dtype=torch.float64)
    weight, bias = reference.softmax_regression(flat.module.weight, flat.module.bias, x)  # type: ignore[arg-type]
    expected = torch.cat([weight.reshape(-1), bias]).detach()
    found = fisher.diagonal(flat, x, kind="exact")
    assert (found - expected).abs().max() <= 1e-6 * expected.max()


@st.composite
def _convolutions(draw: st.DrawFn) -> tuple[nn.Module, Tensor]:
    axes, groups = draw(st.integers(1, 2)), draw(st.sampled_from([1, 1, 2, 3]))
    inputs = groups * draw(st.sampled_from([1, 2, 16]))
    outputs = groups * draw(st.integers(1, 3))
    small = st.tuples(*[st.integers(1, 3)] * axes)
    kernel, stride, dilation = draw(small), draw(small), draw(small)
    mode = draw(st.sampled_from(["zeros", "zeros", "replicate", "circular"]))
    padding = draw(st.tuples(*[st.integers(0, 2)] * axes))
    size = [max(2, d * (k - 1) + 1) + draw(st.integers(0, 4)) for d, k in zip(dilation, kernel, strict=True)]
    torch.manual_seed(draw(st.integers(0, 1000)))
    convolution = (nn.Conv1d, nn.Conv2d)[axes - 1]
    layer = convolution(inputs, outputs, kernel, stride, padding, dilation, groups, True, mode)  # type: ignore[arg-type]
    return Head(layer, width=outputs).double(), torch.randn(3, inputs, *size, dtype=torch.float64)


@settings(max_examples=60, deadline=None)
@given(_convolutions())
def test_any_convolution_equals_the_loop(case: tuple[nn.Module, Tensor]) -> None:
    module, x = case
    flat = FlatModel(module)
    found, expected = fisher.diagonal(flat, x, _targets(x)), _slow(flat, x, _targets(x))
    torch.testing.assert_close(found, expected, rtol=1e-8, atol=1e-14)
    assert _without_rule(flat, x) == set()


def test_blocks_do_not_change_the_sum(monkeypatch: pytest.MonkeyPatch) -> None:
    x = RULED["conv2d"][1]()
    for name in ("conv2d", "conv2d, wide input"):
        flat, x = FlatModel(_seeded(RULED[name][0])), RULED[name][1]()
        whole = fisher.diagonal(flat, x, _targets(x))
        for module in ("fisher_rules", "fisher_conv"):
            monkeypatch.setattr(f"manymodes.{module}.BLOCK", 700)
        torch.testing.assert_close(fisher.diagonal(flat, x, _targets(x)), whole)
    monkeypatch.setattr("manymodes.fisher_samples.CHUNK", 100)
    flat, x = FlatModel(_seeded(OTHER["attention"][0])), OTHER["attention"][1]()
    torch.testing.assert_close(fisher.diagonal(flat, x, _targets(x)), _slow(flat, x, _targets(x)))


def test_float32_is_close_to_the_double_loop() -> None:
    flat = FlatModel(_seeded(RULED["batchnorm2d"][0]).float())
    x = RULED["batchnorm2d"][1]().float()
    found = fisher.diagonal(flat, x, _targets(x))
    double = FlatModel(_seeded(RULED["batchnorm2d"][0]))
    expected = _slow(double, x.double(), _targets(x))
    assert found.dtype == torch.float32
    assert (found - expected).abs().max() < 1e-4 * expected.max()


def test_half_precision_is_summed_in_single() -> None:
    flat = FlatModel(_seeded(RULED["linear"][0]).bfloat16())
    x = RULED["linear"][1]().bfloat16()
    found = fisher.diagonal(flat, x, _targets(x))
    assert found.dtype == torch.float32
    assert (found - _slow(flat, x, _targets(x))).abs().max() < 0.1 * found.max()


def _training_flags(module: nn.Module) -> list[bool]:
    return [m.training for m in module.modules()]


class Counting(nn.Module):
    """Writes to its buffers even in eval mode, in place and by assignment, and draws numbers."""

    count: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("count", torch.zeros(()))
        self.register_buffer("last", torch.zeros(2))
        self.layer = nn.Linear(5, OUTPUTS)

    def forward(self, x: Tensor) -> Tensor:
        self.count += 1
        self.last = torch.rand(2)
        return self.layer(x)


@pytest.mark.parametrize(
    "name", ["batchnorm2d", "attention", "lstm", "counting", "embedding, sparse and rescaled"]
)
@pytest.mark.parametrize("fails", [False, True])
def test_the_model_is_untouched(name: str, fails: bool) -> None:
    """Catches BatchNorm statistics that move during the Fisher pass, and much else."""
    cases = RULED | {n: o[:2] for n, o in OTHER.items()} | {"counting": (Counting, _images(5))}
    flat = FlatModel(_seeded(cases[name][0]))
    x = cases[name][1]()
    flat.module.train()
    next(iter(flat.module.children())).eval()
    flat.grad.normal_()
    before = {k: v.clone() for k, v in flat.module.state_dict(keep_vars=False).items()}
    grad, flags, random = flat.grad.clone(), _training_flags(flat.module), torch.random.get_rng_state()
    theta, buffers = flat.theta.data_ptr(), flat.buffers.data_ptr()
    if fails:
        with pytest.raises(UserError):
            fisher.diagonal(flat, x, _targets(x) + 99)
    else:
        fisher.diagonal(flat, x, _targets(x), "sampled")
    after = flat.module.state_dict()
    assert before.keys() == after.keys()
    assert all(torch.equal(before[k], after[k]) for k in before)
    assert torch.equal(flat.grad, grad)
    assert _training_flags(flat.module) == flags
    assert torch.equal(torch.random.get_rng_state(), random)
    assert all(p.requires_grad for p in flat.module.parameters())
    assert (flat.theta.data_ptr(), flat.buffers.data_ptr()) == (theta, buffers)
    assert not any(m._forward_hooks for m in flat.module.modules())
    flat.theta.data.zero_()  # the module still reads the flat vectors
    assert all(p.abs().max() == 0 for p in flat.module.parameters())
    if flat.buffers.numel():
        flat.buffers.fill_(3)
        assert all((b == 3).all() for b in flat.module.buffers() if b.is_floating_point())


def test_it_is_taken_in_eval_mode() -> None:
    torch.manual_seed(0)
    flat = FlatModel(
        nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5), nn.Dropout(0.5), nn.Linear(5, OUTPUTS))
    )
    x = torch.randn(7, 6)
    flat.module.train()
    training = fisher.diagonal(flat, x, _targets(x))
    flat.module.eval()
    assert torch.equal(training, fisher.diagonal(flat, x, _targets(x)))


def test_frozen_parameters_are_not_part_of_it() -> None:
    module = _seeded(RULED["batchnorm2d"][0])
    module.body[0].weight.requires_grad_(False)  # type: ignore[union-attr, index]
    flat = FlatModel(module)
    x = RULED["batchnorm2d"][1]()
    found = fisher.diagonal(flat, x, _targets(x))
    assert len(found) == sum(p.numel() for p in module.parameters() if p.requires_grad)
    torch.testing.assert_close(found, _slow(flat, x, _targets(x)))
    module.head.weight.requires_grad_(False)  # type: ignore[union-attr]
    segment = next(s for s in flat.segments if s.name == "head.weight")
    later = fisher.diagonal(flat, x, _targets(x))
    assert (later[segment.slice] == 0).all()
    assert not module.head.weight.requires_grad  # type: ignore[union-attr]


def test_a_wrong_rule_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """A rule that is off is replaced by the slow way, whatever is wrong with it."""
    flat = FlatModel(_seeded(RULED["linear"][0]))
    x = RULED["linear"][1]()

    def twice(out: Tensor, a: Tensor, g: Tensor) -> None:
        out.add_(2 * torch.einsum("slki,slko->koi", a.square(), g.square()))

    monkeypatch.setattr("manymodes.fisher_rules.add_squares", twice)
    torch.testing.assert_close(fisher.diagonal(flat, x, _targets(x)), _slow(flat, x, _targets(x)))


def test_a_rule_that_could_not_be_checked_is_not_trusted() -> None:
    """The first samples look up nothing but padding; the table's gradient is zero until later."""

    class Padded(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table, self.head = nn.Embedding(4, 3, padding_idx=0), nn.Linear(3, OUTPUTS)

        def forward(self, x: Tensor) -> Tensor:
            return self.head(torch.tanh(self.table(x).sum(1)))

    flat = FlatModel(_seeded(Padded))
    flat.theta.data.uniform_(0.5, 1.5)  # the padding's row too: only the table shall lack a gradient
    x = torch.tensor([[0, 0], [0, 0], [1, 2], [3, 3], [0, 2]])
    torch.testing.assert_close(
        fisher.diagonal(flat, x, _targets(x), batch_size=2),
        _slow(flat, x, _targets(x)),
        rtol=1e-8,
        atol=1e-14,
    )
    assert _without_rule(flat, x) == {"table.weight"}


def test_a_layer_may_lose_its_rule_in_the_middle() -> None:
    """Already summed by the rule: kept. Already summed sample by sample (the weight): kept too."""

    class Changing(Functional):
        def forward(self, x: Tensor) -> Tensor:
            again = 0.0 if len(x) > 1 else 0 * self.layer(x)
            return super().forward(x) + self.head(again + torch.zeros(len(x), 5, dtype=x.dtype))

    flat = FlatModel(_seeded(Changing))
    x = torch.randn(7, 5, dtype=torch.float64)
    found = fisher.diagonal(flat, x, _targets(x), batch_size=3)
    torch.testing.assert_close(found, _slow(flat, x, _targets(x)), rtol=1e-8, atol=1e-14)


def test_a_hook_that_changes_the_output_is_part_of_the_model() -> None:
    module = _seeded(RULED["linear"][0])
    module.body[0].register_forward_hook(lambda layer, inputs, output: output * 3)  # type: ignore[union-attr, index]
    flat = FlatModel(module)
    x = RULED["linear"][1]()
    torch.testing.assert_close(fisher.diagonal(flat, x, _targets(x)), _slow(flat, x, _targets(x)))
    assert _without_rule(flat, x) == set()


def test_rounding_never_makes_it_negative() -> None:
    """Two positions that cancel exactly: an expanded square is zero up to rounding of either sign."""

    class Difference(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer, self.head = nn.Linear(50, 40), nn.Linear(40, OUTPUTS)

        def forward(self, x: Tensor) -> Tensor:
            h = self.layer(x)
            return self.head(h[:, 0] - h[:, 1] + x[:, 0, :40])

    torch.manual_seed(0)
    x = torch.randn(50, 1, 50).repeat(1, 2, 1)
    x[0] = 0
    x[0, 0, 0] = 1  # the sample that is compared with autograd shows a gradient, in one column
    found = fisher.diagonal(FlatModel(Difference()), x, _targets(x))
    assert found.min() >= 0
    assert found[:2000].view(40, 50)[:, 1:].max() < 1e-6 * found.max()


def test_layers_that_are_never_called_get_zero() -> None:
    module = _seeded(RULED["linear"][0])
    module.spare = nn.Linear(3, 3).double()
    flat = FlatModel(module)
    x = RULED["linear"][1]()
    found = fisher.diagonal(flat, x, _targets(x))
    assert (found[-12:] == 0).all()
    torch.testing.assert_close(found, _slow(flat, x, _targets(x)))


def test_under_no_grad_inference_and_autocast() -> None:
    flat = FlatModel(_seeded(RULED["batchnorm2d"][0]).float())
    x = RULED["batchnorm2d"][1]().float()
    plain = fisher.diagonal(flat, x, _targets(x))
    with torch.no_grad():
        assert torch.equal(fisher.diagonal(flat, x, _targets(x)), plain)
    with torch.inference_mode():
        assert torch.equal(fisher.diagonal(flat, x + 0, _targets(x)), plain)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(fisher.diagonal(flat, x, _targets(x)), plain)


def test_over_data_with_a_cap_on_samples() -> None:
    flat = FlatModel(_seeded(RULED["linear"][0]))
    x = RULED["linear"][1]()
    rest = torch.randn(len(x), OUTPUTS, dtype=torch.float64).softmax(1)

    def some(seed: int, batch_size: int = 128) -> Tensor:
        generator = torch.Generator().manual_seed(seed)
        data = TensorData(x, _targets(x))
        return fisher.diagonal_over(
            flat, data, rest=rest, modes=2, samples=3, generator=generator, batch_size=batch_size
        )

    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(5))[:3]
    expected = _slow(flat, x[order], _targets(x)[order], rest=rest[order], modes=2)
    torch.testing.assert_close(some(5), expected)
    torch.testing.assert_close(some(5, batch_size=2), expected)
    everything = fisher.diagonal(flat, x, _targets(x), rest=rest, modes=2, samples=10**9)
    torch.testing.assert_close(everything, _slow(flat, x, _targets(x), rest=rest, modes=2))


def test_a_mode_that_is_not_responsible_is_not_held() -> None:
    """Where the others are sure of the label and this mode excludes it, its share is nothing at all."""
    flat = FlatModel(nn.Linear(1, 2, bias=False).double())
    flat.theta.data.copy_(torch.tensor([-400.0, 400.0]))
    x, rest = torch.ones(1, 1, dtype=torch.float64), torch.tensor([[1.0, 0.0]], dtype=torch.float64)
    assert fisher.diagonal(flat, x, torch.tensor([0]), rest=rest, modes=2).tolist() == [0.0, 0.0]
    alone = fisher.diagonal(flat, x, torch.tensor([0]), rest=torch.zeros_like(rest), modes=1)
    torch.testing.assert_close(alone, fisher.diagonal(flat, x, torch.tensor([0])))
    assert alone.min() > 0.99


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"kind": "emprical"}, ["emprical", "did you mean 'empirical'", "exact", "sampled"]),
        ({"targets": None}, ["needs targets", "sampled", "exact"]),
        ({"targets": torch.tensor([0, 1, 9])}, ["target 9", "sample 2", "0 to 3"]),
        ({"targets": torch.tensor([0, -1, 1])}, ["target -1", "sample 1"]),
        ({"targets": torch.tensor([0, 3, 1]), "classes": [0, 1]}, ["target 3", "sample 1", "classes=[0, 1]"]),
        ({"classes": [0, 4]}, ["classes=[0, 4]", "0 to 3"]),
        ({"classes": [1, 1]}, ["classes=[1, 1]", "different"]),
        ({"classes": []}, ["classes=[]"]),
        ({"targets": torch.tensor([0, 1])}, ["3 inputs but 2 targets"]),
        ({"inputs": torch.zeros(0, 6), "targets": torch.zeros(0)}, ["empty"]),
        ({"batch_size": 0}, ["batch_size=0"]),
        ({"samples": 0}, ["samples=0"]),
        ({"rest": torch.ones(2, 4) / 4, "modes": 2}, ["2 rows for 3 samples"]),
        ({"rest": torch.ones(3, 2) / 2, "modes": 2}, ["(3, 2)", "(samples, 4)"]),
        ({"rest": torch.ones(3, 4) / 4}, ["modes=1", "sample 0"]),
        ({"rest": torch.full((3, 4), math.nan), "modes": 2}, ["modes=2", "sample 0"]),
    ],
)
def test_mistakes_are_named(options: dict[str, object], words: list[str]) -> None:
    torch.manual_seed(0)
    flat = FlatModel(nn.Linear(6, OUTPUTS))
    given = {"inputs": torch.randn(3, 6), "targets": torch.tensor([0, 1, 0])} | options
    with pytest.raises(UserError) as caught:
        fisher.diagonal(flat, **given)  # type: ignore[arg-type]
    assert all(word in str(caught.value) for word in words), caught.value
    assert "\n" not in str(caught.value)


def test_numbers_that_are_not_finite_are_refused() -> None:
    flat = FlatModel(nn.Linear(6, OUTPUTS))
    x = torch.randn(9, 6)
    x[7, 2] = math.nan
    with pytest.raises(UserError, match=r"sample 7 is not finite, and neither is its input"):
        fisher.diagonal(flat, x, _targets(x), batch_size=4)
    flat.theta.data[0] = math.inf
    with pytest.raises(UserError, match=r"sample 0 is not finite, and a Fisher"):
        fisher.diagonal(flat, x, _targets(x))

    class Root(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x).square().sqrt()

    flat = FlatModel(Root(6, OUTPUTS))
    flat.theta.data.zero_()
    with pytest.raises(UserError, match="the Fisher is not finite"):
        fisher.diagonal(flat, torch.randn(2, 6), torch.tensor([0, 1]))


class AlwaysDropout(nn.Module):
    """Random in eval mode too."""

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.dropout(x, 0.5)


@pytest.mark.parametrize(
    ("module", "words"),
    [
        (
            nn.Sequential(nn.Linear(6, 4), nn.BatchNorm1d(4, track_running_stats=False)),
            "changes? with its batch",
        ),
        (nn.Sequential(nn.Linear(6, 4), nn.Unflatten(1, (2, 2))), r"shape \(2, 2, 2\)"),
    ],
)
def test_modules_without_a_fisher_per_sample(module: nn.Module, words: str) -> None:
    with pytest.raises(UserError, match=words):
        fisher.diagonal(FlatModel(module), torch.randn(3, 6), torch.tensor([0, 1, 2]))


def test_batches_arrive_in_bounded_memory() -> None:
    seen: list[int] = []

    class Watched(TensorData):
        def batches(self, order, generator=None):  # type: ignore[no-untyped-def]
            for batch in super().batches(order, generator):
                seen.append(len(batch.index))
                assert generator is None
                yield Batch(*batch)

    flat = FlatModel(nn.Linear(6, OUTPUTS))
    x = torch.randn(7, 6)
    fisher.diagonal_over(flat, Watched(x, _targets(x)), batch_size=3)
    assert seen == [3, 3, 1]
