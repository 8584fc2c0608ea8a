"""A multi-layer perceptron."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from torch import Tensor, nn

from manymodes.errors import require
from manymodes.models.recipe import recorded
from manymodes.models.width import positive, scaled


class MLP(nn.Module):
    """Linear layers with ReLU between them, on the flattened input; `fc` is the head."""

    def __init__(self, inputs: int, hidden: Sequence[int], outputs: int) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for before, after in pairwise([inputs, *hidden]):
            layers += [nn.Linear(before, after), nn.ReLU()]
        self.hidden = nn.Sequential(*layers)
        self.fc = nn.Linear([inputs, *hidden][-1], outputs)

    def forward(self, x: Tensor) -> Tensor:
        """Logits (S, C)."""
        logits: Tensor = self.fc(self.hidden(x.flatten(1)))
        return logits


@recorded("mlp")
def mlp(inputs: int, hidden: Sequence[int] = (100, 100), *, outputs: int = 10, width: float = 1.0) -> MLP:
    """A perceptron for flat or flattened inputs.

    Args:
        inputs: The number of input features.
        hidden: The hidden layers' sizes at width 1.
        outputs: The number of logits.
        width: Scales the hidden layers.

    >>> sum(p.numel() for p in mlp(784, outputs=2).parameters())
    88802
    """
    require(
        isinstance(hidden, Sequence) and not isinstance(hidden, str),
        f"hidden must be a list of layer sizes such as [100, 100], not {hidden!r}",
    )
    sizes = [scaled(positive("a hidden layer's size", size), width) for size in hidden]
    return MLP(positive("inputs", inputs), sizes, positive("outputs", outputs))
