"""Networks: their sizes, names and outputs; capacity; building for a stream; drawing anew."""

import subprocess
import sys

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import manymodes.models as models
from manymodes import cli
from manymodes.errors import UserError
from manymodes.models.width import WIDEST
from manymodes.task import Stream
from tests.reference.residual import logits as reference_logits
from tests.reference.widths import widest


def stream(shape: tuple[int, ...], outputs: int = 10) -> Stream:
    return Stream("test", "task", outputs, shape, builders=(lambda: None,))  # type: ignore[arg-type,return-value]


def size(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


def on_meta(name: str, **options) -> nn.Module:
    with torch.device("meta"):
        return getattr(models, name)(**options)


# --- sizes and names


@pytest.mark.parametrize(
    ("name", "parameters"),
    [("resnet18", 11_181_642), ("resnet50", 23_528_522), ("resnet152", 58_164_298), ("resnet20", 269_722)],
)
def test_parameter_counts_are_the_published_ones(name, parameters):
    assert size(on_meta(name, outputs=10)) == parameters


def torchvision_names(depths: list[int], convolutions: int) -> set[str]:
    norm = ["weight", "bias", "running_mean", "running_var", "num_batches_tracked"]
    names = {"conv1.weight", "fc.weight", "fc.bias"} | {f"bn1.{part}" for part in norm}
    for stage, depth in enumerate(depths, start=1):
        for block in range(depth):
            at = f"layer{stage}.{block}"
            for number in range(1, convolutions + 1):
                names |= {f"{at}.conv{number}.weight"} | {f"{at}.bn{number}.{part}" for part in norm}
            if block == 0 and (stage > 1 or convolutions == 3):
                names |= {f"{at}.downsample.0.weight"} | {f"{at}.downsample.1.{part}" for part in norm}
    return names


@pytest.mark.parametrize(
    ("name", "depths", "convolutions"),
    [("resnet18", [2, 2, 2, 2], 2), ("resnet50", [3, 4, 6, 3], 3), ("resnet152", [3, 8, 36, 3], 3)],
)
def test_names_are_torchvisions(name, depths, convolutions):
    assert set(on_meta(name).state_dict()) == torchvision_names(depths, convolutions)


@pytest.mark.parametrize(
    ("stem", "before", "after"),
    [("imagenet", 64, 16), ("imagenet-stride1", 64, 32), ("cifar", 32, 32), ("cifar-pooled", 32, 16)],
)
def test_stem_shrinks_the_image_as_its_name_says(stem, before, after):
    net = models.resnet18(stem=stem, width=0.05)
    sizes = []
    net.layer1.register_forward_pre_hook(lambda _, inputs: sizes.append(inputs[0].shape[-1]))
    net(torch.zeros(2, 3, before, before))
    assert sizes == [after]


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("resnet18", {"width": 0.11}),
        ("resnet18", {"width": 0.11, "stem": "cifar", "channels": 1}),
        ("resnet50", {"width": 0.11}),
        ("resnet20", {"width": 0.7}),
    ],
)
def test_forward_equals_the_formulas(name, options):
    torch.manual_seed(0)
    net = getattr(models, name)(outputs=7, **options).double()
    x = torch.randn(6, options.get("channels", 3), 40, 40, dtype=torch.double)
    net.train()(x)  # move the running statistics off their initial values
    net.eval()
    with torch.no_grad():
        expected = reference_logits(net.state_dict(), x, head=net.head)
        assert torch.allclose(net(x), expected, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("outputs", [1, 7])
def test_every_registered_network_gives_logits_and_learns(outputs):
    for name in models.REGISTRY:
        net = models.build_model(name, stream((3, 16, 16), outputs), width=0.1)
        net(torch.randn(3, 3, 16, 16)).square().sum().backward()
        learning = [p for p in net.parameters() if p.requires_grad]
        assert all(p.grad is not None and bool(p.grad.isfinite().all()) for p in learning), name


def test_small_networks_work_from_8x8_up():
    assert models.small_cnn(outputs=3)(torch.zeros(2, 1, 8, 8)).shape == (2, 3)
    assert models.small_resnet(outputs=3)(torch.zeros(2, 3, 8, 8)).shape == (2, 3)


def test_mlp_flattens_and_takes_any_number_of_hidden_layers():
    assert models.mlp(64, outputs=3)(torch.zeros(2, 1, 8, 8)).shape == (2, 3)
    assert size(models.mlp(5, [], outputs=3)) == 18
    assert size(models.mlp(5, [4], outputs=3, width=0.5)) == 12 + 9


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: models.resnet18(stem="cifr"), "unknown stem 'cifr'; did you mean 'cifar'"),
        (lambda: models.resnet18(width=0), "width must be above 0"),
        (lambda: models.resnet18(width=float("nan")), "width must be above 0"),
        (lambda: models.small_cnn(width="wide"), "width must be above 0"),
        (lambda: models.resnet50(outputs=0), "outputs must be a whole number of at least 1, not 0"),
        (lambda: models.small_cnn(channels=1.5), "channels must be"),
        (lambda: models.mlp(0), "inputs must be"),
        (lambda: models.mlp(4, hidden=(3, -1)), "hidden layer's size must be"),
        (lambda: models.mlp(4, hidden=100), "hidden must be a list"),
    ],
)
def test_a_wrong_argument_is_one_clear_line(make, message):
    with pytest.raises(UserError) as caught:
        make()
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_names_are_listed_without_torch():
    code = "import sys; from manymodes.models import REGISTRY; print('torch' in sys.modules, *REGISTRY)"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert out.split() == ["False", *models.REGISTRY]
    assert all(entry.about for entry in models.REGISTRY.values())


# --- capacity

SCALABLE = {
    "mlp": lambda width: on_meta("mlp", inputs=64, width=width),
    "small_cnn": lambda width: on_meta("small_cnn", width=width),
    "small_resnet": lambda width: on_meta("small_resnet", width=width),
    "resnet18": lambda width: on_meta("resnet18", width=width),
    "resnet20": lambda width: on_meta("resnet20", width=width),
}


@given(st.sampled_from(sorted(SCALABLE)), st.floats(0.001, 3), st.floats(0.001, 3))
@settings(max_examples=30, deadline=None)
def test_a_wider_network_is_never_smaller(name, one, other):
    narrow, wide = sorted([one, other])
    assert 0 < size(SCALABLE[name](narrow)) <= size(SCALABLE[name](wide))


@pytest.mark.parametrize("name", sorted(SCALABLE))
@pytest.mark.parametrize("modes", [1, 2, 6])
def test_modes_of_the_fitted_width_fit_and_are_the_widest(name, modes):
    whole = size(SCALABLE[name](1.0))
    width = models.fit_width(SCALABLE[name], whole // modes)
    assert modes * size(SCALABLE[name](width)) <= whole
    assert modes * size(SCALABLE[name](width + 1e-4)) > whole
    assert (width >= 1.0) == (modes == 1)


@given(st.integers(1, 60), st.integers(1, 40), st.floats(0, 1.9))
@settings(max_examples=10, deadline=None)
def test_fitted_width_is_that_of_trying_all(inputs, hidden, share):
    def parameters(width: float) -> int:
        units = max(1, round(hidden * width))
        return (inputs + 1) * units + (units + 1) * 2

    def make(width: float) -> nn.Module:
        return models.mlp(inputs, [hidden], outputs=2, width=width)

    budget = int(share * parameters(1.0))
    expected = widest(parameters, budget, highest=4)
    if expected == 0:
        with pytest.raises(UserError, match="no width fits"):
            models.fit_width(make, budget)
    elif expected < 4:
        assert models.fit_width(make, budget) == expected


def test_a_budget_no_width_meets_is_an_error():
    with pytest.raises(UserError, match=r"no width fits 10 parameters: the narrowest network has"):
        models.fit_width(SCALABLE["resnet18"], 10)
    with pytest.raises(UserError, match=f"fits 1,000 parameters at width {WIDEST} too"):
        models.fit_width(lambda width: nn.Linear(3, 2), 1_000)


def test_fitting_makes_networks_for_real_where_it_must_and_draws_nothing():
    def reads_a_value(width: float) -> nn.Module:
        assert torch.rand(()).item() <= 1
        return models.mlp(8, [10], width=width)

    before = torch.get_rng_state()
    width = models.fit_width(reads_a_value, 100)
    assert torch.equal(before, torch.get_rng_state())
    assert width == models.fit_width(lambda width: models.mlp(8, [10], width=width), 100)


def test_frozen_parameters_are_not_counted_and_tied_ones_once():
    net = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    net[1].weight = net[0].weight
    net[0].bias.requires_grad = False
    assert models.count_parameters(net) == 9 + 3


# --- building for a stream


@pytest.mark.parametrize(
    ("shape", "name"),
    [
        ((64,), "mlp"),
        ((5_000,), "mlp"),
        ((3, 100), "mlp"),
        ((1, 28, 28), "mlp"),
        ((1, 32, 32), "mlp"),
        ((1, 33, 33), "small-resnet"),
        ((3, 32, 32), "small-resnet"),
        ((3, 64, 64), "small-resnet"),
        ((3, 65, 64), "resnet18"),
    ],
)
def test_automatic_choice(shape, name):
    from manymodes.models.build import automatic

    assert automatic(stream(shape)) == name


def test_automatic_network_fits_the_stream():
    net = models.build_model("auto", stream((3, 8, 8), 4), width=0.2)
    assert isinstance(net, type(models.small_resnet(width=0.1)))
    assert net(torch.zeros(2, 3, 8, 8)).shape == (2, 4)
    assert net.training


def test_dashes_and_underscores_are_the_same():
    assert models.find_model("small-resnet") is models.find_model("small_resnet") is models.small_resnet


PERSONAL = """
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self, inputs, outputs=10, extra=0):
        super().__init__()
        self.fc, self.extra = nn.Linear(inputs, outputs), extra
    def forward(self, x):
        return self.fc(x.flatten(1))

class Words(nn.Module):
    def __init__(self, outputs):
        super().__init__()
        self.words, self.fc = nn.Embedding(50, 4), nn.Linear(4, outputs)
    def forward(self, x):
        return self.fc(self.words(x).mean(1))

def fixed():
    return nn.Sequential(nn.Flatten(), nn.LazyLinear(10))

def needy(depth, colour, outputs):
    return nn.Identity()

def other():
    return "a network"

def pair(outputs):
    class Pair(nn.Module):
        def forward(self, x):
            return x, x
    return Pair()

def loads(outputs, weights=None):
    net = nn.Linear(6, outputs)
    net.given = weights
    return nn.Sequential(nn.Flatten(), net)
number = 3
"""


@pytest.fixture
def personal(tmp_path, monkeypatch):
    (tmp_path / "personal_nets.py").write_text(PERSONAL)
    (tmp_path / "personal_broken.py").write_text("def make(:\n")
    monkeypatch.syspath_prepend(tmp_path)
    yield
    sys.modules.pop("personal_nets", None)


@pytest.mark.usefixtures("personal")
def test_a_persons_own_network_by_import_path():
    net = models.build_model("personal_nets:Net", stream((2, 3), 4), extra=5)
    assert (net.fc.in_features, net.fc.out_features, net.extra) == (6, 4, 5)
    assert models.build_model("personal_nets:Words", stream((7,), 3))(torch.zeros(1, 7).long()).shape == (
        1,
        3,
    )
    assert models.build_model("personal_nets:fixed", stream((2, 3), 10))[1].in_features == 6


@pytest.mark.usefixtures("personal")
def test_a_function_with_an_argument_for_weights_loads_them_itself():
    assert models.build_model("personal_nets:loads", stream((2, 3), 4), weights="mine")[1].given == "mine"
    assert models.build_model("personal_nets:loads", stream((2, 3), 4))[1].given is None


@pytest.mark.usefixtures("personal")
@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("resnet81", {}, "unknown model 'resnet81'; did you mean 'resnet18'"),
        ("resnet18", {"depth": 3}, "unknown option of model 'resnet18' 'depth'"),
        ("resnet18", {"stem": "x"}, "unknown stem 'x'. Valid: cifar, cifar-pooled, imagenet"),
        ("small-cnn", {}, "model 'small-cnn' does not fit: stream 'test' has inputs of shape (2, 3)"),
        ("personal_nets:fixed", {}, "so two samples must give logits of shape (2, 4), not (2, 10)"),
        ("personal_nets:pair", {}, "must give logits of shape (2, 4), not tuple"),
        ("personal_nets:needy", {}, "model 'personal_nets:needy' needs depth=... and colour=..."),
        ("personal_nets:other", {}, "must return an nn.Module, but returned str"),
        ("personal_nets:absent", {}, "module 'personal_nets' has no function 'absent'"),
        ("personal_nets:number", {}, "is not a function"),
        ("personal_absent:make", {}, "cannot import the model 'personal_absent:make': ModuleNotFoundError"),
        ("personal_broken:make", {}, "cannot import the model 'personal_broken:make': SyntaxError"),
    ],
)
def test_a_network_that_cannot_be_built_is_one_clear_line(name, options, message):
    with pytest.raises(UserError) as caught:
        models.build_model(name, stream((2, 3), 4), **options)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "package"), [("timm:x", "timm"), ("torchvision:x", "torchvision"), ("hf:a/b", "transformers")]
)
def test_a_missing_library_says_how_to_install_it(name, package, monkeypatch, tmp_path, capsys):
    monkeypatch.setitem(sys.modules, package, None)
    told = f"models {name.partition(':')[0]}:NAME need the package {package}: pip install {package}"
    with pytest.raises(UserError, match=told):
        models.build_model(name, stream((3, 8, 8)))
    options = [] if package == "torchvision" else ["--pretrained", "false"]
    assert cli.main(["run", "--stream", "digits", "--model", name, *options, "--out", str(tmp_path)]) == 2
    assert f"manymodes: error: {told}" in capsys.readouterr().err


def test_a_library_that_does_not_import_is_one_clear_line(monkeypatch, tmp_path):
    (tmp_path / "torchvision.py").write_text(
        "raise RuntimeError('operator torchvision::nms\\ndoes not exist')"
    )
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "torchvision", raising=False)
    with pytest.raises(
        UserError, match="operator torchvision::nms does not exist; reinstall it to match torch"
    ):
        models.build_model("torchvision:resnet18", stream((3, 8, 8)))


def test_a_network_of_timm():
    pytest.importorskip("timm", reason="timm is not installed", exc_type=(ImportError, RuntimeError))
    net = models.build_model("timm:resnet10t", stream((1, 32, 32), 4))
    assert net(torch.zeros(2, 1, 32, 32)).shape == (2, 4)
    with pytest.raises(UserError, match="model 'timm:nothing' cannot be made"):
        models.build_model("timm:nothing", stream((1, 32, 32), 4))


def test_a_network_of_torchvision_has_our_names():
    pytest.importorskip(
        "torchvision", reason="torchvision is not installed", exc_type=(ImportError, RuntimeError)
    )
    net = models.build_model("torchvision:resnet18", stream((3, 32, 32), 4))
    ours = models.resnet18(outputs=4)
    ours.load_state_dict(net.state_dict())
    x = torch.randn(2, 3, 64, 64)
    assert torch.allclose(net.eval()(x), ours.eval()(x), atol=1e-5)


def test_a_network_of_transformers(tmp_path):
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    config = transformers.ResNetConfig(embedding_size=4, hidden_sizes=[4, 8], depths=[1, 1], num_labels=9)
    transformers.ResNetForImageClassification(config).save_pretrained(tmp_path)
    net = models.build_model(f"hf:{tmp_path}", stream((3, 32, 32), 4))
    assert net(torch.zeros(2, 3, 32, 32)).shape == (2, 4)
    assert net.pretrained
    with pytest.raises(UserError, match="cannot be made"):
        models.build_model(f"hf:{tmp_path}/absent", stream((3, 32, 32), 4))


# --- drawing anew


@pytest.mark.parametrize("name", ["mlp", "small-cnn", "resnet20"])
def test_drawing_anew_is_fixed_by_the_seed_and_disturbs_nothing(name):
    net = models.build_model(name, stream((3, 8, 8)), width=0.5)
    before, old = torch.get_rng_state(), [p.clone() for p in net.parameters()]
    models.reset_parameters(net, 1)
    first = [p.clone() for p in net.parameters()]
    models.reset_parameters(net, 2)
    second = [p.clone() for p in net.parameters()]
    models.reset_parameters(net, 1)
    assert torch.equal(before, torch.get_rng_state())
    assert all(torch.equal(a, b) for a, b in zip(first, net.parameters(), strict=True))
    for start, one, two in zip(old, first, second, strict=True):
        if start.dim() > 1:
            assert not torch.equal(start, one)
            assert not torch.equal(one, two)


def test_a_resnet_is_drawn_anew_from_the_distribution_it_is_made_with():
    net = models.resnet18(width=0.5)
    made = {
        name: parameter.std().item() for name, parameter in net.named_parameters() if parameter.dim() == 4
    }
    net.train()(torch.randn(4, 3, 32, 32))
    models.reset_parameters(net, 0)
    for name, std in made.items():
        assert net.get_parameter(name).std().item() == pytest.approx(std, rel=0.15), name
    fan_out = net.layer4[1].conv2.weight
    assert fan_out.std().item() == pytest.approx((2 / (9 * fan_out.shape[0])) ** 0.5, rel=0.02)
    assert float(net.bn1.running_mean.abs().max()) == 0.0


def test_attention_is_drawn_anew_whole():
    net = nn.TransformerEncoderLayer(8, 2, 16)
    old = {name: parameter.clone() for name, parameter in net.named_parameters()}
    models.reset_parameters(net, 3)
    changed = [n for n, p in net.named_parameters() if p.dim() > 1 and torch.equal(p, old[n])]
    assert changed == []


class Raw(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc, self.scale = nn.Linear(2, 2), nn.Parameter(torch.ones(3))


def test_a_parameter_no_reset_reaches_is_an_error_and_nothing_changes():
    net = nn.Sequential(Raw(), nn.BatchNorm1d(2))
    net[1].running_mean.fill_(7.0)
    before = {name: tensor.clone() for name, tensor in net.state_dict().items()}
    with pytest.raises(UserError, match=r"parameter 0\.scale cannot be drawn anew"):
        models.reset_parameters(net, 0)
    assert all(torch.equal(before[name], tensor) for name, tensor in net.state_dict().items())


def test_frozen_parts_keep_their_values():
    net = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3), nn.Linear(3, 2))
    net[:2].requires_grad_(False)
    net[2].bias.requires_grad_(False)
    net[1].running_mean.fill_(7.0)
    before = {name: tensor.clone() for name, tensor in net.state_dict().items()}
    models.reset_parameters(net, 0)
    changed = [name for name, tensor in net.state_dict().items() if not torch.equal(before[name], tensor)]
    assert changed == ["2.weight"]


def test_only_the_head_is_drawn_anew():
    net = models.resnet20(width=0.5)
    before = {name: tensor.clone() for name, tensor in net.state_dict().items()}
    models.reset_head(net, 5)
    changed = {name for name, tensor in net.state_dict().items() if not torch.equal(before[name], tensor)}
    assert changed == {"linear.weight", "linear.bias"}


def test_head_by_name_and_its_errors():
    net = nn.Sequential(nn.Conv2d(1, 2, 1), nn.Flatten())
    assert models.find_head(net, "0")[1] is net[0]
    with pytest.raises(UserError, match="no Linear layer that could be its head"):
        models.reset_head(net, 0)
    with pytest.raises(UserError, match="no layer 'fc' with parameters"):
        models.reset_head(net, 0, head="fc")


def test_drawing_anew_works_on_flat_models():
    from manymodes.flat import FlatModel

    flat = FlatModel(models.small_cnn(width=0.1))
    theta = flat.theta.detach().clone()
    models.reset_parameters(flat.module, 1)
    assert not torch.equal(theta, flat.theta)
    assert torch.equal(flat.theta[flat.segments[0].slice], flat.module.conv1.weight.flatten())
