"""A pretrained residual network whose lower part rests, and a perceptron on top of it that learns."""

from __future__ import annotations

from pathlib import Path

from torch import nn
from torch.nn.utils.fusion import fuse_conv_bn_eval

from manymodes.errors import require, unknown
from manymodes.models.pretrained import load_weights
from manymodes.models.recipe import recorded
from manymodes.models.residual import ResNet
from manymodes.models.resnet import resnet18, resnet20, resnet50, resnet152, small_resnet
from manymodes.models.width import positive, scaled
from manymodes.resting import Resting

BACKBONES = {
    "resnet18": resnet18,
    "resnet50": resnet50,
    "resnet152": resnet152,
    "resnet20": resnet20,
    "small-resnet": small_resnet,
}
STEMMED = ("resnet18", "resnet50", "resnet152")  # those with a choice of stem


@recorded("topped")
def topped(
    *,
    outputs: int = 10,
    channels: int = 3,
    backbone: str = "resnet18",
    stem: str = "imagenet",
    until: str = "layer4.0",
    grid: int = 2,
    hidden: int = 256,
    depth: int = 2,
    width: float = 1.0,
    weights: str | Path | None = None,
    cache: str | Path | None = None,
) -> Resting:
    """A frozen residual network up to one of its blocks; its features feed a perceptron that learns.

    The protocol of van de Ven et al. (2022): convolutions pretrained elsewhere and frozen, fully connected
    layers on top. Several modes then share everything that rests, and what they see of an input is
    computed once.

    Args:
        outputs: The number of logits.
        channels: The channels of the images.
        backbone: "resnet18", "resnet50", "resnet152", "resnet20" or "small-resnet".
        stem: See `resnet18`; weights made for small images may need "imagenet-stride1".
        until: The last block that rests, e.g. "layer3.1".
        grid: The block's output is averaged to grid x grid places.
        hidden: The size of the layers that learn.
        depth: How many of them there are before the head.
        width: Scales `hidden`.
        weights: A file or hf:ORGANISATION/NAME for the backbone, see `load_weights`.
        cache: A folder that keeps features from run to run.

    >>> net = topped(backbone="resnet20", until="layer3.2", hidden=8)
    >>> sum(p.numel() for p in net.parameters() if p.requires_grad)
    2218
    """
    if backbone not in BACKBONES:
        raise unknown("backbone", backbone, BACKBONES)
    stems = {"stem": stem} if backbone in STEMMED else {}
    net = BACKBONES[backbone](outputs=1, channels=channels, **stems)  # type: ignore[arg-type]
    if weights is not None:
        load_weights(net, weights)
    resting, size = _lower_part(net, until)
    resting.append(nn.AdaptiveAvgPool2d(positive("grid", grid)))
    wide = scaled(positive("hidden", hidden), width)
    require(isinstance(depth, int) and depth >= 0, f"depth must be a whole number, 0 or more, not {depth!r}")
    layers, now = [], size * grid * grid
    for _ in range(depth):
        layers += [nn.Linear(now, wide), nn.ReLU()]
        now = wide
    layers.append(nn.Linear(now, positive("outputs", outputs)))
    return Resting(resting, nn.Sequential(*layers), cache)


def _lower_part(net: ResNet, until: str) -> tuple[nn.Sequential, int]:
    """The stem and all blocks up to `until`, each normalisation folded into its convolution."""
    blocks = {
        f"{stage}.{number}": block
        for stage in net.stages
        for number, block in net.get_submodule(stage).named_children()
    }
    if until not in blocks:
        raise unknown("until", until, blocks)
    parts: list[nn.Module] = [_folded(net.conv1, net.bn1), nn.ReLU()]
    if net.pooled:
        parts.append(nn.MaxPool2d(3, 2, padding=1))
    for name, block in blocks.items():
        parts.append(_folded_block(block))
        if name == until:
            break
    last = getattr(parts[-1], "conv3", None) or parts[-1].conv2
    assert isinstance(last, nn.Conv2d)
    return nn.Sequential(*parts), last.out_channels


def _folded_block(block: nn.Module) -> nn.Module:
    for number in (1, 2, 3):
        if hasattr(block, f"conv{number}"):
            folded = _folded(getattr(block, f"conv{number}"), getattr(block, f"bn{number}"))
            setattr(block, f"conv{number}", folded)
            setattr(block, f"bn{number}", nn.Identity())
    if isinstance(block.downsample, nn.Sequential):
        block.downsample = nn.Sequential(_folded(*block.downsample))
    return block


def _folded(convolution: nn.Module, norm: nn.Module) -> nn.Conv2d:
    assert isinstance(convolution, nn.Conv2d)
    assert isinstance(norm, nn.BatchNorm2d)
    return fuse_conv_bn_eval(convolution.eval(), norm.eval())
