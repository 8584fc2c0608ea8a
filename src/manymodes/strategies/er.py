"""Experience replay: rehearse a small memory in every step (Chaudhry et al. 2019, Tiny Episodic Memories)."""

from __future__ import annotations

from typing import Any, ClassVar, Unpack

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from manymodes import distributed
from manymodes.outputs import Valid
from manymodes.strategies.base import Strategy, Training
from manymodes.strategies.rehearsal import Rehearsal
from manymodes.task import Batch


class ER(Rehearsal):
    """1/2 L(theta; task) + 1/2 L(theta; memory): half of what each step sees is from the memory.

    A step takes `batch_size` samples of the task and as many of the memory (all, if it holds fewer), in
    one forward pass. The memory keeps a uniform draw of `budget` samples of every class, as uint8 where
    the data is.

    Args:
        model: The network; it is copied.
        budget: Samples kept of each class; 0 is fine-tuning.
        **training: See Strategy.
    """

    paper: ClassVar[dict[str, Any]] = Strategy.paper | {"budget": 100}

    def __init__(self, model: nn.Module, *, budget: int = 100, **training: Unpack[Training]) -> None:
        super().__init__(model, budget=budget, **training)

    def loss(self, batch: Batch, valid: Valid) -> Tensor:
        """The task's loss and the memory's, with equal weight whatever their numbers of samples."""
        if self.replayed is None:
            return super().loss(batch, valid)
        logits = self.forward(torch.cat([batch.inputs, self.replayed.inputs]))
        fresh, replayed = logits[: len(batch.index)], logits[len(batch.index) :]
        task = cross_entropy(valid.logits(fresh), valid.targets(batch.targets))
        weight = distributed.balance(len(fresh), len(replayed), logits.device)
        return (task + weight * self.memory_loss(replayed, self.replayed)) / 2
