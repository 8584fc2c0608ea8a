"""The networks that can be asked for by name; reading this list imports nothing heavy."""

from __future__ import annotations

from typing import NamedTuple


class Entry(NamedTuple):
    """One network: where its function lives, and what it is for."""

    where: str
    about: str

    @property
    def function(self) -> str:
        """The name of the function in `manymodes.models`."""
        return self.where.rpartition(":")[2]


_HERE = "manymodes.models"

REGISTRY: dict[str, Entry] = {
    "mlp": Entry(f"{_HERE}.perceptron:mlp", "two hidden layers of 100; tables and small grey images"),
    "small-cnn": Entry(f"{_HERE}.cnn:small_cnn", "three convolutions, 0.1 M parameters; images from 8x8 up"),
    "small-resnet": Entry(
        f"{_HERE}.resnet:small_resnet", "1 M parameters; images of about 32x32 on a laptop"
    ),
    "resnet18": Entry(
        f"{_HERE}.resnet:resnet18", "11.2 M parameters, torchvision's names; the paper's modes"
    ),
    "resnet20": Entry(f"{_HERE}.resnet:resnet20", "0.27 M parameters; the CIFAR network of the ResNet paper"),
    "resnet50": Entry(f"{_HERE}.resnet:resnet50", "23.5 M parameters, torchvision's names"),
    "resnet152": Entry(f"{_HERE}.resnet:resnet152", "58.2 M parameters, torchvision's names"),
}
