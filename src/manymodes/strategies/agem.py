"""A-GEM: never step against the memory's gradient (Chaudhry et al. 2019, "Efficient Lifelong Learning")."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar, Unpack

import torch
from torch import Tensor, nn

from manymodes.strategies.base import Strategy, Training
from manymodes.strategies.checks import check_options
from manymodes.strategies.rehearsal import Rehearsal
from manymodes.task import Batch, Task
from manymodes.train import gradient


class AGEM(Rehearsal):
    """g <- g if g . r >= 0, else g - (g . r) / (r . r + epsilon) r, with r the memory's gradient.

    The projected gradient is the closest one to g that does not increase the memory's loss. r is taken on
    `batch_size` samples of the memory (all, if it holds fewer), drawn anew for each step.

    Args:
        model: The network; it is copied.
        budget: Samples kept of each class; 0 is fine-tuning.
        epsilon: In the denominator: a zero reference gradient changes nothing.
        **training: See Strategy.
    """

    paper: ClassVar[dict[str, Any]] = Strategy.paper | {"budget": 100, "epsilon": 1e-7}

    def __init__(
        self, model: nn.Module, *, budget: int = 100, epsilon: float = 1e-7, **training: Unpack[Training]
    ) -> None:
        super().__init__(model, budget=budget, **training)
        check_options(epsilon=epsilon)
        self.epsilon = float(epsilon)
        self._reference: Tensor | None = None

    def prepare(self, task: Task) -> None:
        """A place for the reference gradient."""
        super().prepare(task)
        self._reference = torch.empty_like(self.model.grad) if len(self.memory) > 0 else None

    def step(self, mode: int, batch: Batch, loss: Callable[[Batch], Tensor]) -> Tensor:
        """Two gradients, one dot product and at most one fused multiply-add between them."""
        if self._reference is None:
            return super().step(mode, batch, loss)
        gradient(self.model, self._rehearse, next(self._batches))
        self._reference.copy_(self.model.grad)
        value = gradient(self.model, loss, batch)
        project(self.model.grad, self._reference, self.epsilon)
        self.optimisers[mode].step()
        return value

    def _rehearse(self, replayed: Batch) -> Tensor:
        return self.memory_loss(self.forward(replayed.inputs), replayed)

    def end(self, task: Task) -> None:
        """The reference gradient is needed only while training."""
        super().end(task)
        self._reference = None

    def storage(self) -> dict[str, int]:
        """Parameters, memory, and the reference gradient while training."""
        return super().storage() | {
            "reference_gradient": 0 if self._reference is None else self._reference.numel()
        }


def project(gradient: Tensor, reference: Tensor, epsilon: float) -> None:
    """Remove from the gradient, in place, what points against the reference.

    >>> g = torch.tensor([1.0, -1.0])
    >>> project(g, torch.tensor([0.0, 2.0]), 0.0)
    >>> g.tolist()
    [1.0, 0.0]
    """
    along = torch.dot(gradient, reference)
    # Without a branch, so that a GPU need not be waited for.
    share = along.clamp_max(0.0) / (torch.dot(reference, reference) + epsilon)
    gradient.addcmul_(share, reference, value=-1.0)
