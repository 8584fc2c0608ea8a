"""Networks that are made by import path."""

import torch
from torch import nn


class Scattering(nn.Module):
    """Writes into a tensor at given places, which PyTorch cannot promise to do deterministically."""

    def __init__(self, outputs: int) -> None:
        super().__init__()
        self.linear = nn.Linear(64, outputs)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        flat = inputs.flatten(1)
        copy = flat.clone().put_(torch.zeros(1, dtype=torch.long), torch.zeros(1))
        return self.linear(copy)


def scattering(outputs: int) -> nn.Module:
    return Scattering(outputs)


class Wide(nn.Module):
    """Any images, one linear layer of some width before the head."""

    def __init__(self, inputs: int, outputs: int, width: int = 4) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Flatten(), nn.Linear(inputs, width), nn.ReLU(), nn.Linear(width, outputs)
        )

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.layers(inputs)
        return logits


def wide(inputs: int, outputs: int, width: int = 4) -> nn.Module:
    return Wide(inputs, outputs, width)
