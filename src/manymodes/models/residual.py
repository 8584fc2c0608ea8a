"""What residual networks (He et al. 2015) are made of, with the parameter names of torchvision's weights."""

from __future__ import annotations

from collections.abc import Sequence

import torch.nn.functional as F
from torch import Tensor, nn

from manymodes.errors import unknown
from manymodes.models.width import positive, scaled

# name -> (kernel, stride, whether 3x3 max-pooling by 2 follows)
STEMS = {
    "imagenet": (7, 2, True),
    "imagenet-stride1": (7, 1, True),
    "cifar": (3, 1, False),
    "cifar-pooled": (3, 1, True),
}


def _conv(inputs: int, outputs: int, kernel: int, stride: int = 1) -> nn.Conv2d:
    return nn.Conv2d(inputs, outputs, kernel, stride, padding=kernel // 2, bias=False)


class Padding(nn.Module):
    """A shortcut without parameters: every second pixel, zeros for the new channels on both sides."""

    def __init__(self, new_channels: int, stride: int) -> None:
        super().__init__()
        self.before, self.after, self.stride = new_channels // 2, new_channels - new_channels // 2, stride

    def forward(self, x: Tensor) -> Tensor:
        """Subsample, then pad the channels."""
        return F.pad(x[:, :, :: self.stride, :: self.stride], (0, 0, 0, 0, self.before, self.after))


def _shortcut(inputs: int, outputs: int, stride: int, padded: bool) -> nn.Module | None:
    if stride == 1 and inputs == outputs:
        return None
    if padded:
        return Padding(outputs - inputs, stride)
    return nn.Sequential(_conv(inputs, outputs, 1, stride), nn.BatchNorm2d(outputs))


class Basic(nn.Module):
    """Two 3x3 convolutions beside a shortcut."""

    expansion = 1

    def __init__(self, inputs: int, channels: int, stride: int, padded: bool) -> None:
        super().__init__()
        self.conv1 = _conv(inputs, channels, 3, stride)
        self.bn1 = nn.BatchNorm2d(channels)
        self.conv2 = _conv(channels, channels, 3)
        self.bn2 = nn.BatchNorm2d(channels)
        self.downsample = _shortcut(inputs, channels, stride, padded)

    def forward(self, x: Tensor) -> Tensor:
        """ReLU(shortcut(x) + residual(x))."""
        residual = self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x)))))
        return F.relu(residual + (x if self.downsample is None else self.downsample(x)))


class Bottleneck(nn.Module):
    """1x1, 3x3 (which carries the stride) and 1x1 convolutions beside a shortcut."""

    expansion = 4

    def __init__(self, inputs: int, channels: int, stride: int, padded: bool) -> None:
        super().__init__()
        outputs = self.expansion * channels
        self.conv1 = _conv(inputs, channels, 1)
        self.bn1 = nn.BatchNorm2d(channels)
        self.conv2 = _conv(channels, channels, 3, stride)
        self.bn2 = nn.BatchNorm2d(channels)
        self.conv3 = _conv(channels, outputs, 1)
        self.bn3 = nn.BatchNorm2d(outputs)
        self.downsample = _shortcut(inputs, outputs, stride, padded)

    def forward(self, x: Tensor) -> Tensor:
        """ReLU(shortcut(x) + residual(x))."""
        residual = F.relu(self.bn1(self.conv1(x)))
        residual = self.bn3(self.conv3(F.relu(self.bn2(self.conv2(residual)))))
        return F.relu(residual + (x if self.downsample is None else self.downsample(x)))


class ResNet(nn.Module):
    """Stem, stages of residual blocks, global average, linear head.

    Args:
        block: Basic or Bottleneck.
        depths: The number of blocks in each stage.
        sizes: The channels of each stage (before a bottleneck's expansion); the stem has the first's.
        stem: A name in STEMS.
        channels: The channels of the images.
        outputs: The number of logits.
        width: Scales the sizes.
        padded: Shortcuts that change shape have no parameters.
        head: The name of the last layer, as weights made elsewhere have it.
    """

    def __init__(
        self,
        block: type[Basic] | type[Bottleneck],
        depths: Sequence[int],
        sizes: Sequence[int],
        *,
        stem: str,
        channels: int,
        outputs: int,
        width: float,
        padded: bool = False,
        head: str = "fc",
    ) -> None:
        super().__init__()
        if stem not in STEMS:
            raise unknown("stem", stem, STEMS)
        kernel, stride, self.pooled = STEMS[stem]
        self.width = width
        sizes = [scaled(size, width) for size in sizes]
        now = sizes[0]
        self.conv1 = _conv(positive("channels", channels), now, kernel, stride)
        self.bn1 = nn.BatchNorm2d(now)
        self.stages = [f"layer{number}" for number in range(1, len(depths) + 1)]
        for name, depth, size in zip(self.stages, depths, sizes, strict=True):
            first = block(now, size, 1 if name == "layer1" else 2, padded)
            now = block.expansion * size
            self.add_module(
                name, nn.Sequential(first, *(block(now, size, 1, padded) for _ in range(1, depth)))
            )
        self.head = head
        self.add_module(head, nn.Linear(now, positive("outputs", outputs)))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Convolutions normal with variance 2 / (outputs x kernel area), the rest as PyTorch has it."""
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
            elif isinstance(module, nn.BatchNorm2d | nn.Linear):
                module.reset_parameters()

    def forward(self, x: Tensor) -> Tensor:
        """Logits (S, C) of images (S, channels, height, width)."""
        x = F.relu(self.bn1(self.conv1(x)))
        if self.pooled:
            x = F.max_pool2d(x, 3, 2, padding=1)
        for name in self.stages:
            x = self.get_submodule(name)(x)
        logits: Tensor = self.get_submodule(self.head)(x.mean((2, 3)))
        return logits
