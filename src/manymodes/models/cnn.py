"""A small convolutional network."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

from manymodes.models.recipe import recorded
from manymodes.models.width import positive, scaled


class CNN(nn.Module):
    """3x3 convolutions with BatchNorm and ReLU, halving in between, global average, linear head."""

    def __init__(self, channels: int, sizes: tuple[int, int, int], outputs: int) -> None:
        super().__init__()
        first, second, third = sizes
        self.conv1 = nn.Conv2d(channels, first, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(first)
        self.conv2 = nn.Conv2d(first, second, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(second)
        self.conv3 = nn.Conv2d(second, third, 3, padding=1, bias=False)
        self.bn3 = nn.BatchNorm2d(third)
        self.fc = nn.Linear(third, outputs)

    def forward(self, x: Tensor) -> Tensor:
        """Logits (S, C) of images (S, channels, height, width), both at least 4."""
        x = F.max_pool2d(F.relu(self.bn1(self.conv1(x))), 2)
        x = F.max_pool2d(F.relu(self.bn2(self.conv2(x))), 2)
        x = F.relu(self.bn3(self.conv3(x)))
        logits: Tensor = self.fc(x.mean((2, 3)))
        return logits


@recorded("small-cnn")
def small_cnn(*, outputs: int = 10, channels: int = 1, width: float = 1.0) -> CNN:
    """A network for small images, from 8x8 up.

    Args:
        outputs: The number of logits.
        channels: The channels of the images.
        width: Scales the number of filters.

    >>> sum(p.numel() for p in small_cnn().parameters())
    94186
    """
    sizes = scaled(32, width), scaled(64, width), scaled(128, width)
    return CNN(positive("channels", channels), sizes, positive("outputs", outputs))
