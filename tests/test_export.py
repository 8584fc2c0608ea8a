"""Exported files: equal to predict, usable by onnxruntime alone, one network only within a bound."""

import json
import sys

import numpy as np
import pytest
import torch
from torch import nn

import manymodes as mm
from manymodes.cli import main
from manymodes.condense import LossTooLarge, condense
from manymodes.errors import UserError
from manymodes.export import export
from manymodes.predictor import JointPredictor, batchable
from manymodes.preparation import Preparation
from manymodes.reading import samples_of
from manymodes.using import open_learner
from tests.finished import copy_of, finished_run, pixels, write

onnxruntime = pytest.importorskip("onnxruntime", reason="needs manymodes[export]")


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return finished_run(tmp_path_factory.mktemp("finished"))


def session(path):
    return onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])


def raw_digits():
    return torch.from_numpy(np.concatenate([pixels(d, 15, 140) for d in (0, 1, 2)]))[:, None]


def test_onnx_equals_predict_on_raw_images(run, tmp_path):
    learner, _ = open_learner(run, device="cpu")
    done = export(learner, tmp_path / "m.onnx")
    assert (done.batched, done.modes) == (True, 2)
    assert done.difference <= 1e-5
    assert done.megabytes == pytest.approx((tmp_path / "m.onnx").stat().st_size / 1e6)
    assert set(done.milliseconds) == {1, 32}
    raw = raw_digits()
    expected = learner.predict(Preparation.from_dict(learner.about["input"])(raw))
    found = session(tmp_path / "m.onnx")
    for count in (1, 2, 45):
        probabilities, agreement = found.run(None, {"input": raw[:count].numpy()})
        assert np.abs(probabilities - expected[:count].numpy()).max() < 1e-5
        assert agreement.shape == (count,)
    told = found.get_modelmeta().custom_metadata_map
    assert json.loads(told["class_names"]) == ["digit 0", "digit 1", "digit 2"]
    assert told["strategy"] == "mota"
    assert found.get_inputs()[0].type == "tensor(uint8)"


def test_pt2_equals_predict(run, tmp_path):
    learner, _ = open_learner(run, device="cpu")
    export(learner, tmp_path / "m.pt2")
    told = {"manymodes.json": ""}
    program = torch.export.load(tmp_path / "m.pt2", extra_files=told)
    raw = raw_digits()
    expected = learner.predict(Preparation.from_dict(learner.about["input"])(raw))
    for count in (1, 45):
        found = program.module()(raw[:count])[0]
        assert float((found - expected[:count]).abs().max()) < 1e-5
    names = json.loads(json.loads(told["manymodes.json"])["class_names"])
    assert names == ["digit 0", "digit 1", "digit 2"]


def test_a_subset_of_classes_is_renormalised(run, tmp_path):
    learner, _ = open_learner(run, device="cpu")
    done = export(learner, tmp_path / "two.onnx", classes=["digit 2", "digit 0"])
    assert done.classes == ["digit 0", "digit 2"]
    raw = raw_digits()
    (probabilities, _) = session(tmp_path / "two.onnx").run(None, {"input": raw.numpy()})
    assert probabilities.sum(axis=1) == pytest.approx(1.0, abs=1e-5)
    x = Preparation.from_dict(learner.about["input"])(raw)
    assert np.abs(probabilities - learner.predict(x, classes=(0, 2))[:, [0, 2]].numpy()).max() < 1e-5


@pytest.mark.parametrize("suffix", [".onnx", ".pt2"])
def test_convolutions_and_batchnorm(suffix, tmp_path):
    """Float inputs; statistics differ between modes; modes one after another within the graph."""
    net = nn.Sequential(
        nn.Conv2d(3, 6, 3, padding=1), nn.BatchNorm2d(6), nn.ReLU(), nn.MaxPool2d(2),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(6, 4),
    )  # fmt: skip
    x = torch.randn(24, 3, 8, 8, generator=torch.Generator().manual_seed(1))
    learner = mm.Ensemble(net, modes=2, epochs=2, init="seeds", device="cpu").learn(x, torch.arange(24) % 4)
    assert not torch.equal(*learner.modes.buffers)
    done = export(learner, tmp_path / f"m{suffix}")
    assert not done.batched
    assert done.difference <= 1e-5


@pytest.mark.parametrize("batched", [True, False])
def test_the_module_is_the_joint_distribution(batched):
    """Frozen layers and scaled inputs included; both ways of computing modes agree with predict."""
    net = nn.Sequential(nn.Linear(5, 6), nn.Tanh(), nn.LayerNorm(6), nn.Linear(6, 4))
    net[0].requires_grad_(False)
    learner = mm.Ensemble(net, modes=3, epochs=2, init="seeds", device="cpu")
    x = torch.randn(30, 5, generator=torch.Generator().manual_seed(2))
    learner.learn(x, torch.arange(30) % 4)
    assert batchable(net)
    preparation = Preparation((5,), "float32", scale=(2.0,), shift=(0.5,))
    module = JointPredictor(learner, preparation, (1, 3), batched=batched)
    with torch.no_grad():
        probabilities, agreement = module(x)
    expected = learner.predict(2 * x + 0.5, classes=(1, 3))[:, [1, 3]]
    assert torch.allclose(probabilities, expected, atol=1e-6)
    assert set((agreement * 3).round().tolist()) <= {0.0, 1.0, 2.0, 3.0}
    assert [name for name, _ in module.named_parameters()] == []


def test_a_graph_that_differs_is_not_written(run, tmp_path, monkeypatch):
    learner, _ = open_learner(run, device="cpu")
    monkeypatch.setattr(
        JointPredictor,
        "forward",
        lambda self, raw: (raw.float().flatten(1)[:, :3] * 0 + 0.3, raw[:, 0, 0, 0]),
    )
    with pytest.raises(UserError, match="differs from predict"):
        export(learner, tmp_path / "wrong.pt2")
    assert list(tmp_path.iterdir()) == []


def test_one_network_within_the_bound_or_not_at_all(run, tmp_path, capsys):
    data = write(tmp_path / "data", [0, 1, 2], 60, start=110)
    learner, _ = open_learner(run, device="cpu")
    samples = samples_of(data, Preparation.from_dict(learner.about["input"]), labelled=True)
    single = condense(learner, samples, "distil", 0.05)
    assert len(single.learner.modes) == 1
    assert single.before - single.after <= 0.05
    assert single.after > 0.85
    words = ["export", str(run), str(tmp_path / "one.onnx"), "--data", str(data)]
    assert main([*words, "--average", "distil", "--max-loss", "0.05"]) == 0
    said = capsys.readouterr().out
    assert "One network: held-out accuracy" in said
    assert "Latency: " in said
    assert main(["export", str(run), str(tmp_path / "all.onnx")]) == 0
    assert (tmp_path / "one.onnx").stat().st_size < 0.7 * (tmp_path / "all.onnx").stat().st_size


def test_mean_of_distant_modes_is_refused(tmp_path, capsys):
    """Two networks from different seeds: their weights' mean computes something else."""
    run = finished_run(tmp_path, strategy="ensemble", epochs=8)
    data = write(tmp_path / "test", [0, 1, 2], 50, start=120)
    learner, _ = open_learner(run, device="cpu")
    a, b = learner.modes.theta
    learner.modes.theta[1].copy_(-b)  # as far as can be
    learner.save(run / "learner.safetensors")
    samples = samples_of(data, Preparation.from_dict(learner.about["input"]), labelled=True)
    with pytest.raises(LossTooLarge, match="nothing was written"):
        condense(learner, samples, "mean", 0.0)
    assert a.shape == b.shape
    words = ["export", str(run), str(tmp_path / "m.onnx"), "--average", "mean", "--data", str(data)]
    assert main([*words, "--max-loss", "0.0"]) == 3
    assert "refused" in capsys.readouterr().err
    assert not (tmp_path / "m.onnx").exists()


def test_mistakes_are_one_line_each(run, tmp_path, capsys):
    out = tmp_path / "m.onnx"
    broken = copy_of(run, tmp_path) / "learner.safetensors"
    broken.write_bytes(broken.read_bytes()[:-100])
    cases = {
        "FILE.onnx or FILE.pt2": [run, tmp_path / "m.tflite"],
        "is not there": [tmp_path / "nowhere", out],
        "damaged": [broken, out],
        "unknown class in --classes": [run, out, "--classes", "cat"],
        "needs --data": [run, out, "--average", "mean"],
        "unknown --average": [run, out, "--average", "median", "--data", tmp_path / "d"],
        "from 0 to 1": [run, out, "--average", "mean", "--max-loss", "2", "--data", tmp_path / "d"],
        "cannot write": [run, "/proc/nowhere/m.onnx"],
    }
    write(tmp_path / "d", [0, 1, 2], 10)
    for expected, words in cases.items():
        assert main(["export", *map(str, words)]) == 2
        (line,) = capsys.readouterr().err.strip().splitlines()
        assert expected in line
    assert not out.exists()


def test_missing_packages_name_the_extra(run, tmp_path, monkeypatch):
    learner, _ = open_learner(run, device="cpu")
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(UserError, match=r"manymodes\[export\]"):
        export(learner, tmp_path / "m.onnx")
