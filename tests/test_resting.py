"""Networks whose lower part rests: what it says of an input is computed once, and changes nothing."""

import numpy as np
import pytest
import torch
from torch import nn

import manymodes as mm
from manymodes import resting
from manymodes.errors import UserError
from manymodes.flat import FlatModel
from manymodes.models import topped
from manymodes.resting import Features, Resting, features_of
from manymodes.task import Task, TensorData


@pytest.fixture(autouse=True)
def another_process():
    """A store is opened once in a process; every test is a process of its own."""
    resting.opened.cache_clear()


SMALL = {"backbone": "resnet20", "until": "layer2.0", "hidden": 12}


def images(count, seed=0, labels=4):
    draw = torch.Generator().manual_seed(seed)
    inputs = torch.randint(0, 256, (count, 3, 16, 16), generator=draw, dtype=torch.uint8)
    targets = torch.arange(count) % labels
    inputs[torch.arange(count), 0, targets, targets] = 255
    return TensorData(inputs, targets, lambda x: x.float() / 255)


def tasks():
    return [
        Task(f"task {t}", images(24, seed=t), images(8, seed=10 + t), images(8, seed=20 + t), (0, 1, 2, 3))
        for t in range(2)
    ]


def net(**options):
    torch.manual_seed(0)
    return topped(outputs=4, **SMALL | options)


def test_folding_the_normalisation_changes_nothing():
    torch.manual_seed(0)
    whole = mm.models.small_resnet(outputs=4)
    x = torch.randn(5, 3, 32, 32)
    whole.train()(x)  # running statistics off their initial values
    whole.eval()
    for until, count in (("layer1.0", 40), ("layer3.0", 160)):
        torch.manual_seed(0)
        made = topped(outputs=4, backbone="small-resnet", until=until, grid=1)
        _copy_weights(made, whole, until)
        inner = torch.relu(whole.bn1(whole.conv1(x)))
        inner = torch.nn.functional.max_pool2d(inner, 3, 2, padding=1)
        for stage in whole.stages[: int(until[5])]:
            inner = whole.get_submodule(stage)(inner) if stage != "layer3" else whole.layer3[0](inner)
        assert made.rest(x).shape == (5, count)
        torch.testing.assert_close(made.rest(x), inner.mean((2, 3)), rtol=1e-4, atol=1e-5)


def _copy_weights(made, whole, until):
    """Through a file, as a person does it."""
    import tempfile

    from safetensors.torch import save_file

    with tempfile.TemporaryDirectory() as folder:
        save_file(whole.state_dict(), f"{folder}/w.safetensors")
        again = topped(
            outputs=4, backbone="small-resnet", until=until, grid=1, weights=f"{folder}/w.safetensors"
        )
    made.load_state_dict(again.state_dict())


def test_only_the_top_learns_and_the_rest_stays_in_eval_mode():
    made = net()
    assert sum(p.numel() for p in made.parameters() if p.requires_grad) == sum(
        p.numel() for p in made.top.parameters()
    )
    made.train()
    assert made.top.training
    assert not any(part.training for part in made.resting.modules())


def test_learning_on_features_is_learning_on_images(monkeypatch):
    """The cached features give what the whole network gives, for a learner and for its predictions."""
    fast, calls = {"epochs": 3, "batch_size": 8, "device": "cpu", "movers": 1, "weighting": "familiar"}, []
    real = Resting.rest
    monkeypatch.setattr(Resting, "rest", lambda self, x: calls.append(len(x)) or real(self, x))
    quick = mm.MOTA(net(), **fast)
    for task in tasks():
        quick.learn(task)
    assert sum(calls) < 2 * 3 * 32, "once a sample, and a few for checks; not once an epoch"
    x = next(images(9, seed=5).batches([torch.arange(9)])).inputs
    found = quick.predict(x)
    slow = mm.MOTA(net(), **fast)
    for task in tasks():
        slow.learn(_as_features(task, slow.model.module))
    torch.testing.assert_close(slow.predict(slow.model.module.rest(x)), found, rtol=1e-4, atol=1e-5)


def _as_features(task, made):
    def flat(data):
        with torch.no_grad():
            whole = next(data.batches([torch.arange(len(data))]))
            return TensorData(made.rest(whole.inputs), whole.targets)

    return Task(task.name, flat(task.train), flat(task.val), None, task.classes)


def test_features_are_found_again_by_the_next_run(tmp_path, monkeypatch):
    first = features_of(FlatModel(net(cache=tmp_path)), images(20))
    resting.opened.cache_clear()
    monkeypatch.setattr(Resting, "rest", lambda self, x: pytest.fail("they are known"))
    again = features_of(FlatModel(net(cache=tmp_path)), images(20))
    assert isinstance(again, Features)
    assert torch.equal(first.inputs, again.inputs)
    assert torch.equal(first.targets, again.targets)


def test_another_network_has_features_of_its_own(tmp_path):
    features_of(FlatModel(net(cache=tmp_path)), images(20))
    torch.manual_seed(1)
    other = topped(outputs=4, **SMALL, cache=tmp_path)
    found = features_of(FlatModel(other), images(20))
    with torch.no_grad():
        expected = other.rest(next(images(20).batches([torch.arange(20)])).inputs)
    torch.testing.assert_close(found.inputs, expected, rtol=1e-2, atol=1e-3)
    assert len(list(tmp_path.iterdir())) == 2


def test_a_damaged_file_of_features_counts_as_not_there(tmp_path):
    first = features_of(FlatModel(net(cache=tmp_path)), images(20))
    (file,) = tmp_path.glob("*/*.safetensors")
    file.write_bytes(file.read_bytes()[:100])
    resting.opened.cache_clear()
    again = features_of(FlatModel(net(cache=tmp_path)), images(20))
    assert torch.equal(first.inputs, again.inputs)


def test_augmented_images_are_never_looked_up(tmp_path):
    data = images(8)
    moving = TensorData(data.inputs, data.targets, data.transform, lambda x, generator: x.flip(3))
    assert features_of(FlatModel(net(cache=tmp_path)), moving) is moving
    mm.LwF(net(cache=tmp_path), epochs=1, batch_size=4, device="cpu").learn(
        Task("flipped", moving, None, None, (0, 1, 2, 3))
    )
    assert not list(tmp_path.iterdir())


def test_a_saved_learner_brings_its_backbone(tmp_path):
    learner = mm.MOTA(
        net(cache=tmp_path / "cache"), epochs=1, batch_size=8, device="cpu", weighting="familiar"
    )
    for task in tasks():
        learner.learn(task)
    learner.save(tmp_path / "learner.safetensors")
    x = next(images(9, seed=5).batches([torch.arange(9)])).inputs
    again = mm.load(tmp_path / "learner.safetensors")
    assert again.model.module.cache is None, "a learner from elsewhere writes nothing here"
    torch.testing.assert_close(again.predict(x), learner.predict(x), rtol=1e-2, atol=1e-3)


def test_exported_with_weights_and_backbone_it_is_the_same(tmp_path):
    onnxruntime = pytest.importorskip("onnxruntime", reason="needs manymodes[export]")
    from manymodes.export import export

    learner = mm.MOTA(net(), modes=2, movers=1, weighting="familiar", epochs=2, batch_size=8, device="cpu")
    for task in tasks():
        learner.learn(task)
    done = export(learner, tmp_path / "m.onnx")
    assert done.difference <= 1e-5
    raw = images(6, seed=7)
    x = next(raw.batches([torch.arange(6)])).inputs
    session = onnxruntime.InferenceSession(str(tmp_path / "m.onnx"), providers=["CPUExecutionProvider"])
    kind = session.get_inputs()[0].type
    given = x.numpy() if kind == "tensor(float)" else raw.inputs.numpy()
    found = session.run(None, {"input": given})[0]
    assert np.abs(found - learner.predict(x).numpy()).max() < 1e-4


@pytest.mark.parametrize(
    ("options", "said"),
    [({"until": "layer9.0"}, "layer1.0"), ({"backbone": "vgg"}, "resnet18"), ({"depth": -1}, "depth"),
     ({"grid": 0}, "grid")],
)  # fmt: skip
def test_what_cannot_be_is_said(options, said):
    with pytest.raises(UserError, match=said):
        net(**options)


def test_other_networks_are_left_alone():
    data = images(4)
    assert features_of(FlatModel(nn.Sequential(nn.Flatten(), nn.Linear(768, 2))), data) is data
