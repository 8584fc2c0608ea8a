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
