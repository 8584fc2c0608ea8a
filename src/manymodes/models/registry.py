"""The networks that can be asked for by name; reading this list imports nothing heavy."""

from __future__ import annotations

from typing import NamedTuple


class Entry(NamedTuple):
    """One network: where its function lives, what it is for, its parameters at ten outputs."""

    where: str
    about: str
    size: str

    @property
    def function(self) -> str:
        """The name of the function in `manymodes.models`."""
        return self.where.rpartition(":")[2]


class Library(NamedTuple):
    """The networks of another library: what they are, and what one should know before asking for them."""

    about: str
    licence: str
    download: str


_HERE = "manymodes.models"

REGISTRY: dict[str, Entry] = {
    "mlp": Entry(
        f"{_HERE}.perceptron:mlp",
        "two hidden layers of 100; tables and small grey images",
        "89,610 parameters at 784 inputs",
    ),
    "small-cnn": Entry(
        f"{_HERE}.cnn:small_cnn", "three convolutions; images from 8x8 up", "94,186 parameters"
    ),
    "small-resnet": Entry(
        f"{_HERE}.resnet:small_resnet", "images of about 32x32 on a laptop", "942,610 parameters"
    ),
    "resnet18": Entry(
        f"{_HERE}.resnet:resnet18", "torchvision's names; the paper's modes", "11,181,642 parameters"
    ),
    "resnet20": Entry(
        f"{_HERE}.resnet:resnet20", "the CIFAR network of the ResNet paper", "269,722 parameters"
    ),
    "resnet50": Entry(f"{_HERE}.resnet:resnet50", "torchvision's names", "23,528,522 parameters"),
    "resnet152": Entry(f"{_HERE}.resnet:resnet152", "torchvision's names", "58,164,298 parameters"),
    "topped": Entry(
        f"{_HERE}.frozen:topped",
        "a frozen pretrained ResNet, and a perceptron on top that learns",
        "592,906 parameters that learn",
    ),
}

LIBRARIES: dict[str, Library] = {
    "timm:NAME": Library(
        "a network of timm (pip install timm)",
        "its own",
        "nothing, or its weights from the hub with --pretrained true",
    ),
    "torchvision:NAME": Library(
        "a network of torchvision, untrained (pip install torchvision)",
        "BSD-3-Clause",
        "nothing",
    ),
    "hf:NAME": Library(
        "an image classifier of the Hugging Face hub, or a folder of one (pip install transformers)",
        "its own",
        "its weights, safetensors only; nothing but its configuration with --pretrained false",
    ),
}
