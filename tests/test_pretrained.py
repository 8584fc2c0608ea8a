"""Pretrained weights: what fits is copied, what does not is said, nothing in a file is run."""

import http.server
import io
import logging
import os
import pickle
import threading
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file
from torch import nn

import manymodes.models as models
from manymodes import cli
from manymodes.errors import UserError
from manymodes.task import Stream

DATA = Path(__file__).resolve().parents[2] / "shared" / "data"
TINY = DATA / "weights" / "resnet18-tinyimagenet200-f16.safetensors"
CIFAR = DATA / "weights" / "resnet20-cifar10.safetensors"
needs_data = pytest.mark.skipif(not TINY.exists(), reason="../shared/data with real weights is absent")


@pytest.fixture
def net() -> nn.Module:
    return models.small_cnn(outputs=3, width=0.1)


@pytest.fixture
def trained() -> dict[str, torch.Tensor]:
    torch.manual_seed(1)
    return models.small_cnn(outputs=3, width=0.1).state_dict()


def state(module: nn.Module) -> dict[str, torch.Tensor]:
    return {name: tensor.clone() for name, tensor in module.state_dict().items()}


def same(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def refused(module: nn.Module, source: object, *parts: str) -> None:
    """Loading is one clear line with these parts, and the module is as it was."""
    before = state(module)
    with pytest.raises(UserError) as caught:
        models.load_weights(module, source)  # type: ignore[arg-type]
    message = str(caught.value)
    assert "\n" not in message
    for part in parts:
        assert part in message
    assert same(before, state(module))
    assert not getattr(module, "pretrained", False)


# --- real weights


@needs_data
def test_real_tiny_imagenet_weights_load_all_but_the_head():
    net = models.resnet18(stem="imagenet-stride1", outputs=10)
    before = state(net)
    report = models.load_weights(net, TINY)
    given = load_file(TINY)
    assert report.reinitialised == ("fc.weight", "fc.bias")
    assert report.missing == report.unexpected == ()
    assert set(report.loaded) == set(given) - {"fc.weight", "fc.bias"}
    for name, tensor in net.state_dict().items():
        expected = given[name].float() if name in report.loaded else before[name]
        assert torch.equal(tensor, expected), name
        assert tensor.dtype == before[name].dtype
    assert net.pretrained is True
    assert str(report).splitlines() == [
        f"weights from {TINY}: {len(given) - 2} tensors loaded",
        "  new head, keeps its initial values: fc.weight, fc.bias",
    ]


@needs_data
def test_real_head_loads_where_it_fits(caplog):
    with caplog.at_level(logging.INFO):
        net = models.resnet18(stem="imagenet-stride1", outputs=200, weights=TINY)
    assert torch.equal(net.fc.bias, load_file(TINY)["fc.bias"].float())
    assert "122" not in caplog.text
    assert "102 tensors loaded" in caplog.text
    assert caplog.records[-1].levelno == logging.INFO


@needs_data
def test_real_resnet20_is_the_network_its_weights_were_made_with():
    """On real images every BatchNorm input has nearly the statistics that training recorded.

    The weights say nothing about strides or shortcuts without parameters; these statistics do: with the
    new channels' zeros on one side only, the mean divergence is six times as large.
    """
    net = models.resnet20(outputs=10)
    report = models.load_weights(net, CIFAR)
    assert report.missing == report.unexpected == report.reinitialised == ()
    divergence, confidence = statistics_divergence(net.eval(), real_images())
    assert divergence < 0.03
    assert confidence > 0.8


@needs_data
def test_real_tiny_imagenet_network_is_the_one_with_stride_1_and_pooling():
    confidence = {}
    images = torch.nn.functional.interpolate(real_images(mean=0.5, std=0.5)[:64], scale_factor=2.0)
    for stem in ("imagenet", "imagenet-stride1"):
        net = models.resnet18(stem=stem, outputs=200, weights=TINY).eval()
        with torch.no_grad():
            confidence[stem] = float(net(images).softmax(1).amax(1).mean())
    assert confidence["imagenet-stride1"] > confidence["imagenet"]


def real_images(mean: float = 0.45, std: float = 0.225) -> torch.Tensor:
    parquet = pytest.importorskip("pyarrow.parquet")
    image = pytest.importorskip("PIL.Image")
    np = pytest.importorskip("numpy")
    table = parquet.ParquetFile(DATA / "cifar100" / "test-00000-of-00001.parquet")
    rows = next(table.iter_batches(batch_size=256, columns=["img"])).to_pylist()
    pixels = [np.array(image.open(io.BytesIO(row["img"]["bytes"]))) for row in rows]
    return (torch.from_numpy(np.stack(pixels)).permute(0, 3, 1, 2).float() / 255 - mean) / std


def statistics_divergence(net: nn.Module, images: torch.Tensor) -> tuple[float, float]:
    """Mean KL divergence of normal distributions, seen against recorded; mean confidence."""
    found = []

    def compare(norm: nn.BatchNorm2d, inputs: tuple[torch.Tensor], _: torch.Tensor) -> None:
        var, mean = torch.var_mean(inputs[0], (0, 2, 3))
        ratio = var / norm.running_var
        shift = (mean - norm.running_mean).square() / norm.running_var
        found.append(0.5 * (ratio + shift - 1 - ratio.log()).mean())

    for module in net.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.register_forward_hook(compare)
    with torch.no_grad():
        confidence = net(images).softmax(1).amax(1).mean()
    return float(torch.stack(found).mean()), float(confidence)


# --- formats and names


def test_safetensors_and_pth_give_the_same(net, trained, tmp_path):
    save_file(trained, tmp_path / "w.safetensors")
    torch.save(trained, tmp_path / "w.pth")
    for file in ("w.safetensors", "w.pth"):
        report = models.load_weights(net, tmp_path / file)
        assert same(state(net), trained)
        assert set(report.loaded) == set(trained)
        models.reset_parameters(net, 0)


@pytest.mark.parametrize("prefix", ["module.", "_orig_mod.", "module._orig_mod."])
@pytest.mark.parametrize("key", ["state_dict", "model", None])
def test_wrappers_of_names_and_training_scripts_are_seen_through(net, trained, tmp_path, prefix, key):
    content = {prefix + name: tensor for name, tensor in trained.items()}
    torch.save({key: content, "epoch": 7} if key else content, tmp_path / "w.pt")
    report = models.load_weights(net, tmp_path / "w.pt")
    assert same(state(net), trained)
    assert report.unexpected == report.missing == ()


def test_half_precision_is_widened(net, trained, tmp_path):
    halves = {n: t.to(torch.bfloat16) if t.is_floating_point() else t for n, t in trained.items()}
    save_file(halves, tmp_path / "w.safetensors")
    models.load_weights(net, tmp_path / "w.safetensors")
    for name, tensor in net.state_dict().items():
        assert tensor.dtype == trained[name].dtype
        assert torch.equal(tensor, halves[name].to(tensor.dtype))


def test_missing_and_unexpected_are_named_and_printed(net, trained, tmp_path, caplog):
    before = state(net)
    del trained["conv2.weight"], trained["bn1.num_batches_tracked"]
    trained["extra.weight"] = torch.ones(1)
    save_file(trained, tmp_path / "w.safetensors")
    report = models.load_weights(net, tmp_path / "w.safetensors")
    assert (report.missing, report.unexpected) == (("conv2.weight",), ("extra.weight",))
    assert torch.equal(net.conv2.weight, before["conv2.weight"])
    assert "in the model but not in the file, keep their initial values: conv2.weight" in caplog.text
    assert "in the file but not in the model, left out: extra.weight" in caplog.text


def test_the_command_line_prints_the_report(tmp_path, capsys):
    weights, run = tmp_path / "w.safetensors", ["run", "--stream", "digits", "--tasks", "2", "--limit", "20"]
    save_file(models.mlp(64, (8,), outputs=10).state_dict(), weights)
    run += ["--strategy", "finetune", "--epochs", "1", "--model", "mlp", "--out", str(tmp_path)]
    assert cli.main([*run, "--hidden", "[8]", "--weights", str(weights)]) == 0
    assert f"weights from {weights}: 4 tensors loaded\n" in capsys.readouterr().err


def test_a_head_of_another_name_is_new(net, trained, tmp_path):
    for part in ("weight", "bias"):
        trained[f"classifier.{part}"] = trained.pop(f"fc.{part}")
    save_file(trained, tmp_path / "w.safetensors")
    report = models.load_weights(net, tmp_path / "w.safetensors")
    assert report.reinitialised == ("fc.weight", "fc.bias")
    assert report.missing == ()
    assert report.unexpected == ("classifier.bias", "classifier.weight")


def test_a_head_whose_bias_alone_fits_is_new_as_a_whole(net, trained, tmp_path):
    before = state(net)
    trained["fc.weight"] = torch.zeros(3, 99)
    save_file(trained, tmp_path / "w.safetensors")
    report = models.load_weights(net, tmp_path / "w.safetensors")
    assert report.reinitialised == ("fc.weight", "fc.bias")
    assert torch.equal(net.fc.bias, before["fc.bias"])


def test_head_by_name(tmp_path):
    make = lambda outputs: nn.Sequential(nn.Linear(4, 4), nn.Flatten(), nn.Conv1d(1, outputs, 1))  # noqa: E731
    save_file(make(5).state_dict(), tmp_path / "w.safetensors")
    refused(make(2), tmp_path / "w.safetensors", "tensor '2.", "head=NAME")
    report = models.load_weights(make(2), tmp_path / "w.safetensors", head="2")
    assert report.reinitialised == ("2.weight", "2.bias")


def test_tied_and_flat_models_stay_so(net, trained, tmp_path):
    from manymodes.flat import FlatModel

    save_file(trained, tmp_path / "w.safetensors")
    flat = FlatModel(net)
    models.load_weights(net, tmp_path / "w.safetensors")
    assert torch.equal(flat.theta[flat.segments[0].slice], trained["conv1.weight"].flatten())


def test_any_model_built_for_a_stream_takes_weights(trained, tmp_path):
    save_file(trained, tmp_path / "w.safetensors")
    stream = Stream("test", "task", 7, (1, 8, 8), builders=(lambda: None,))  # type: ignore[arg-type,return-value]
    net = models.build_model("small-cnn", stream, width=0.1, weights=tmp_path / "w.safetensors")
    assert torch.equal(net.conv3.weight, trained["conv3.weight"])
    assert net.fc.out_features == 7
    assert net.pretrained


# --- what does not fit


@needs_data
@pytest.mark.parametrize(
    ("options", "parts"),
    [
        ({"width": 0.5}, ["the model has width 0.5: use width=1"]),
        ({"stem": "cifar"}, ["'conv1.weight' has shape (64, 3, 7, 7)", "(64, 3, 3, 3)", "choose the stem"]),
        ({"channels": 1}, ["'conv1.weight'", "(64, 1, 7, 7)", "choose the number of channels"]),
    ],
)
def test_a_wrong_shape_names_the_tensor_both_shapes_and_the_way_out(options, parts):
    refused(models.resnet18(**options), TINY, str(TINY), *parts)


@needs_data
def test_another_depth_is_refused():
    with torch.device("meta"):
        net = models.resnet50()
    with pytest.raises(UserError, match=r"\(and \d+ more\); choose the network the weights were made for"):
        models.load_weights(net, TINY)


def test_no_common_name_is_an_error(net, tmp_path):
    save_file({"encoder.0.weight": torch.ones(2)}, tmp_path / "w.safetensors")
    refused(net, tmp_path / "w.safetensors", "no tensor fits", "encoder.0.weight", "conv1.weight")
    save_file({"fc.weight": torch.ones(2, 2)}, tmp_path / "w.safetensors")
    refused(net, tmp_path / "w.safetensors", "no tensor fits")
    save_file({}, tmp_path / "w.safetensors")
    refused(net, tmp_path / "w.safetensors", "the file has none at all")


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_numbers_that_are_none_are_refused(net, trained, tmp_path, value):
    trained["bn2.weight"][1] = value
    save_file(trained, tmp_path / "w.safetensors")
    refused(net, tmp_path / "w.safetensors", "tensor 'bn2.weight' holds NaN or infinite numbers")


@pytest.mark.parametrize(
    ("source", "part"),
    [
        ("absent.safetensors", "there is no file 'absent.safetensors'"),
        (
            "weights.h5",
            "must be a .safetensors, .pth, .pt, .bin file or hf:ORGANISATION/NAME, not 'weights.h5'",
        ),
        ("IMAGENET1K_V1", "must be a .safetensors"),
        ("", "must be a .safetensors"),
        ("hf:only-a-name", "must read hf:ORGANISATION/NAME"),
        ("hf:", "must read hf:ORGANISATION/NAME"),
        (
            "hf:org/name/pytorch_model.bin",
            "must read hf:ORGANISATION/NAME or hf:ORGANISATION/NAME/FILE.safetensors",
        ),
    ],
)
def test_a_source_that_is_none(net, source, part):
    refused(net, source, part)


def test_a_directory_is_no_file(net, tmp_path):
    (tmp_path / "w.pth").mkdir()
    refused(net, tmp_path / "w.pth", "there is no file")


@pytest.mark.parametrize("suffix", [".safetensors", ".pth"])
@given(data=st.data())
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_damaged_file_is_one_clear_line_or_loads(net, trained, tmp_path, suffix, data):
    path = tmp_path / f"w{suffix}"
    good = io.BytesIO()
    if suffix == ".pth":
        torch.save(trained, good)
        content = bytearray(good.getvalue())
    else:
        save_file(trained, path)
        content = bytearray(path.read_bytes())
    damage = data.draw(st.sampled_from(["cut", "flip", "noise"]))
    if damage == "cut":
        content = content[: data.draw(st.integers(0, len(content) - 1))]
    elif damage == "flip":
        for _ in range(3):
            content[data.draw(st.integers(0, len(content) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    else:
        content = bytearray(data.draw(st.binary(max_size=300)))
    path.write_bytes(bytes(content))
    before = state(net)
    error = ""
    try:
        models.load_weights(net, path)
    except UserError as caught:
        error = str(caught)
    if error:
        assert "\n" not in error
        assert same(before, state(net))
    else:
        assert damage == "flip"  # one wrong bit among the numbers cannot be seen


class Bomb:
    """Unpickled, it makes a directory."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self):
        return os.mkdir, (str(self.path),)


@pytest.mark.parametrize("writer", ["torch", "torch-legacy", "pickle"])
def test_code_in_a_file_is_never_run(net, trained, tmp_path, writer):
    mark, path = tmp_path / "executed", tmp_path / "w.pth"
    content = {**trained, "conv1.weight": Bomb(mark)}
    if writer == "pickle":
        path.write_bytes(pickle.dumps(content))
    else:
        torch.save(content, path, _use_new_zipfile_serialization=writer == "torch")
    refused(net, path, "code in a file is never run", "torch.save(model.state_dict(), ...)")
    assert not mark.exists()
    if writer == "pickle":  # the bomb is a real one
        pickle.loads(path.read_bytes())
        assert mark.exists()


def test_a_whole_pickled_module_is_refused(net, tmp_path):
    torch.save(net, tmp_path / "w.pth")
    refused(net, tmp_path / "w.pth", "code in a file is never run")
    torch.save([torch.ones(2)], tmp_path / "w.pth")
    refused(net, tmp_path / "w.pth", "holds no dictionary of tensors")


# --- the hub


@pytest.fixture
def hub(tmp_path, monkeypatch):
    """huggingface_hub with an empty cache."""
    constants = pytest.importorskip("huggingface_hub.constants")
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    return constants


def test_no_network_is_one_clear_line(net, hub, monkeypatch):
    monkeypatch.setattr(hub, "HF_HUB_OFFLINE", True)
    refused(net, "hf:org/name", "weights 'hf:org/name' cannot be fetched", "give its path")
    refused(net, "hf:bad name/!", "cannot be fetched")


def test_without_huggingface_hub_the_way_out_is_said(net, monkeypatch):
    import sys

    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    refused(net, "hf:org/name", "pip install 'manymodes[hub]'")


def test_cached_weights_load_without_network(net, trained, hub, monkeypatch):
    monkeypatch.setattr(hub, "HF_HUB_OFFLINE", True)
    commit = "0" * 40
    repository = Path(hub.HF_HUB_CACHE) / "models--org--name"
    (repository / "snapshots" / commit / "deep").mkdir(parents=True)
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text(commit)
    save_file(trained, repository / "snapshots" / commit / "model.safetensors")
    save_file(trained, repository / "snapshots" / commit / "deep" / "other.safetensors")
    for source in ("hf:org/name", "hf:org/name/deep/other.safetensors"):
        models.reset_parameters(net, 0)
        report = models.load_weights(net, source)
        assert same(state(net), trained)
        assert report.source == source


class Hub(http.server.BaseHTTPRequestHandler):
    """What the hub answers for one file."""

    content = b""

    def do_HEAD(self) -> None:
        found = self.path == "/org/name/resolve/main/model.safetensors"
        self.send_response(200 if found else 404)
        self.send_header("X-Repo-Commit", "0" * 40)
        self.send_header("ETag", '"1"')
        self.send_header("Content-Length", str(len(self.content)))
        if not found:
            self.send_header("X-Error-Code", "RepoNotFound")
        self.end_headers()

    def do_GET(self) -> None:
        self.do_HEAD()
        self.wfile.write(self.content)

    def log_message(self, format: str, *args: object) -> None:
        pass


def test_weights_are_fetched_by_name(net, trained, hub, tmp_path, monkeypatch):
    save_file(trained, tmp_path / "w.safetensors")
    monkeypatch.setattr(Hub, "content", (tmp_path / "w.safetensors").read_bytes())
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Hub) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        address = f"http://127.0.0.1:{server.server_port}"
        monkeypatch.setattr(hub, "ENDPOINT", address)
        template = address + "/{repo_id}/resolve/{revision}/{filename}"
        monkeypatch.setattr(hub, "HUGGINGFACE_CO_URL_TEMPLATE", template)
        refused(net, "hf:org/other", "cannot be fetched", "404")
        models.load_weights(net, "hf:org/name")
        server.shutdown()
    assert same(state(net), trained)
