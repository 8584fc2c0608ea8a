"""Synaptic intelligence: importance is what a parameter did for the loss (Zenke, Poole, Ganguli 2017)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar, Unpack

import torch
from torch import Tensor, nn

from manymodes.errors import require
from manymodes.penalties import Quadratic
from manymodes.strategies.base import Strategy, Training
from manymodes.strategies.checks import check_options
from manymodes.task import Batch, Task
from manymodes.train import gradient


class SI(Strategy):
    """L(theta) + strength * sum_d Omega_d (theta_d - theta_prev_d)^2, Omega from the path of training.

    omega_d = - sum over steps of g_d * (change of theta_d), g the gradient of the task's loss alone, taken
    before the penalty is added. After each task Omega_d += max(0, omega_d / (delta_d^2 + damping)), delta
    the change over the task. A negative omega (the parameter's moves raised the loss) would make the
    penalty unbounded below, so that a task's share is never below zero.

    The formula has no one half: a strength c here is 2c in `Quadratic`, whose gradient is c * 2 Omega (...).

    Args:
        model: The network; it is copied.
        strength: c, the weight of the penalty; 0 is fine-tuning.
        damping: xi, keeps the importance of a parameter that hardly moved finite.
        **training: See Strategy.
    """

    paper: ClassVar[dict[str, Any]] = Strategy.paper | {"strength": 100.0, "damping": 0.1}

    def __init__(
        self,
        model: nn.Module,
        *,
        strength: float = 100.0,
        damping: float = 0.1,
        **training: Unpack[Training],
    ) -> None:
        super().__init__(model, **training)
        check_options(strength=strength, damping=damping)
        require(damping > 0, f"damping must be a number above 0, not {damping!r}")
        self.strength, self.damping = float(strength), float(damping)
        self.springs: Quadratic | None = None
        self.path: Tensor | None = None  # omega of the present task

    def begin(self, task: Task) -> None:
        """A new path."""
        super().begin(task)
        self.path = torch.zeros_like(self.model.theta.data)

    def step(self, mode: int, batch: Batch, loss: Callable[[Batch], Tensor]) -> Tensor:
        """The path sees the loss's gradient; the optimiser sees it with the penalty's."""
        value = gradient(self.model, loss, batch)
        assert self.path is not None
        theta, own = self.model.theta.data, self.model.grad.clone()
        if self.springs is not None and self.strength > 0:
            self.springs.add_gradient(theta, self.model.grad)
        before = theta.clone()
        self.optimisers[mode].step()
        self.path.addcmul_(own, before.sub_(theta))
        return value

    def end(self, task: Task) -> None:
        """Turn the path into importance, and hold the parameters where they are now."""
        super().end(task)
        assert self.path is not None
        assert self.before is not None
        theta = self.modes.theta[0]
        importance = consolidated(self.path, theta - self.before.theta[0], self.damping)
        if self.springs is None:
            self.springs = Quadratic(theta.clone(), importance, 2 * self.strength)
        else:
            self.springs.accumulate(theta, importance)
        self.path = None

    def penalty(self, mode: int) -> float:
        """The springs' energy."""
        return 0.0 if self.springs is None else float(self.springs.value(self.modes.theta[mode]))

    def state_dict(self) -> dict[str, Any]:
        """With the springs and, within a task, the path so far."""
        springs = None if self.springs is None else self.springs.state_dict()
        return super().state_dict() | {"springs": springs, "path": self.path}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """With the springs and the path."""
        super().load_state_dict(state)
        self.springs = Quadratic.from_state(state["springs"], 2 * self.strength, self.model.device)
        self.path = None if state["path"] is None else state["path"].to(self.model.device, copy=True)

    def storage(self) -> dict[str, int]:
        """Parameters, importances, anchor, and the path while training."""
        kept = 0 if self.springs is None else self.springs.importance.numel()
        path = 0 if self.path is None else self.path.numel()
        return super().storage() | {"importances": kept, "anchors": kept, "path": path}


def consolidated(path: Tensor, delta: Tensor, damping: float) -> Tensor:
    """max(0, path / (delta^2 + damping)): the importance that one task adds.

    >>> consolidated(torch.tensor([0.2, -0.2]), torch.tensor([0.3, 0.3]), 0.01).tolist()
    [2.0, 0.0]
    """
    return (path / (delta.square() + damping)).clamp_min(0.0)
