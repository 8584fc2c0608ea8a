"""The command line on the real CIFAR-100 in every scenario, with a network trained on other images."""

import json

import numpy as np
import pytest

from manymodes import cli
from manymodes.streams import cifar100


@pytest.fixture
def few(monkeypatch):
    """A thirtieth of the real images, so that evaluating on all test images takes a moment only."""
    whole = cifar100.read_cifar

    def read(root):
        cifar = whole(root)
        order = np.argsort(cifar.fine, kind="stable")[::30]
        return cifar._replace(images=cifar.images[order], fine=cifar.fine[order], coarse=cifar.coarse[order])

    monkeypatch.setattr(cifar100, "read_cifar", read)


@pytest.mark.parametrize("scenario", ["task", "class", "instance"])
@pytest.mark.usefixtures("few")
def test_the_real_stream_with_a_pretrained_network(scenario, cifar_dir, tmp_path, capsys):
    weights = cifar_dir / "weights" / "resnet20-cifar10.safetensors"
    if not weights.exists():
        pytest.skip(f"real data absent: {weights}")
    typed = f"run --strategy mota --epochs 1 --fisher-samples 16 --threads 1 --out {tmp_path}"
    typed += f" --stream split-cifar100 --data-dir {cifar_dir} --scenario {scenario} --tasks 2 --limit 40"
    words = [*typed.split(), *([] if scenario == "instance" else ["--stream.classes", "8"])]
    assert cli.main([*words, "--model", "resnet20", "--weights", str(weights)]) == 0
    told = capsys.readouterr()
    assert f"weights from {weights}: 95 tensors loaded" in told.err
    assert "new head, keeps its initial values: linear.weight, linear.bias" in told.err
    (run,) = tmp_path.iterdir()
    found = json.loads((run / "metrics.json").read_text())
    assert np.shape(found["accuracy"]) == (3, 2)
    kept = json.loads((run / "stream.json").read_text())
    assert [len(classes) for classes in kept["info"]["tasks"].values()] == {
        "task": [4, 4], "class": [4, 4], "instance": [20, 20]
    }[scenario]  # fmt: skip
    if scenario == "task":  # what the network knows of other images helps at once
        assert found["accuracy"][1][0] > found["accuracy"][0][0]
