"""Residual networks by name; weights that torchvision and others publish load into them."""

from __future__ import annotations

from pathlib import Path

from manymodes.models.pretrained import load_weights
from manymodes.models.recipe import recorded
from manymodes.models.residual import Basic, Bottleneck, ResNet

PAPER_SIZES = (64, 128, 256, 512)


@recorded("resnet18")
def resnet18(
    *,
    outputs: int = 10,
    channels: int = 3,
    stem: str = "imagenet",
    width: float = 1.0,
    weights: str | Path | None = None,
) -> ResNet:
    """ResNet-18: 2 + 2 + 2 + 2 basic blocks.

    Args:
        outputs: The number of logits.
        channels: The channels of the images.
        stem: "imagenet" for large images; "cifar" (3x3, no pooling) keeps small ones at full size,
            "cifar-pooled" halves them once; "imagenet-stride1" halves large ones once instead of twice.
        width: Scales the channels of every layer.
        weights: A file or hf:ORGANISATION/NAME, see `load_weights`.

    >>> sum(p.numel() for p in resnet18().parameters())
    11181642
    """
    net = ResNet(Basic, (2, 2, 2, 2), PAPER_SIZES, stem=stem, channels=channels, outputs=outputs, width=width)
    return _trained(net, weights)


@recorded("resnet50")
def resnet50(
    *,
    outputs: int = 10,
    channels: int = 3,
    stem: str = "imagenet",
    width: float = 1.0,
    weights: str | Path | None = None,
) -> ResNet:
    """ResNet-50: 3 + 4 + 6 + 3 bottleneck blocks; arguments as for `resnet18`."""
    net = ResNet(
        Bottleneck, (3, 4, 6, 3), PAPER_SIZES, stem=stem, channels=channels, outputs=outputs, width=width
    )
    return _trained(net, weights)


@recorded("resnet152")
def resnet152(
    *,
    outputs: int = 10,
    channels: int = 3,
    stem: str = "imagenet",
    width: float = 1.0,
    weights: str | Path | None = None,
) -> ResNet:
    """ResNet-152: 3 + 8 + 36 + 3 bottleneck blocks; arguments as for `resnet18`."""
    net = ResNet(
        Bottleneck, (3, 8, 36, 3), PAPER_SIZES, stem=stem, channels=channels, outputs=outputs, width=width
    )
    return _trained(net, weights)


@recorded("resnet20")
def resnet20(
    *, outputs: int = 10, channels: int = 3, width: float = 1.0, weights: str | Path | None = None
) -> ResNet:
    """The CIFAR ResNet-20: three stages of three basic blocks, shortcuts without parameters, head `linear`.

    >>> sum(p.numel() for p in resnet20().parameters())
    269722
    """
    sizes = (16, 32, 64)
    net = ResNet(
        Basic,
        (3, 3, 3),
        sizes,
        stem="cifar",
        channels=channels,
        outputs=outputs,
        width=width,
        padded=True,
        head="linear",
    )
    return _trained(net, weights)


@recorded("small-resnet")
def small_resnet(
    *, outputs: int = 10, channels: int = 3, width: float = 1.0, weights: str | Path | None = None
) -> ResNet:
    """A residual network of a million parameters that trains fast on a processor, for images near 32x32.

    Its blocks start at half the image's size, which halves the time of a step; in a short trial on
    CIFAR-100 it learnt no less than networks of as many parameters that start at the full size.

    >>> sum(p.numel() for p in small_resnet().parameters())
    942610
    """
    sizes = (40, 80, 160)
    net = ResNet(
        Basic, (1, 1, 2), sizes, stem="cifar-pooled", channels=channels, outputs=outputs, width=width
    )
    return _trained(net, weights)


def _trained(net: ResNet, weights: str | Path | None) -> ResNet:
    if weights is not None:
        load_weights(net, weights)
    return net
