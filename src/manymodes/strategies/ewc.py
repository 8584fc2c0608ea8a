"""Elastic weight consolidation: important parameters are held by springs (Kirkpatrick et al. 2017)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar, Unpack

from torch import Tensor, nn

from manymodes import fisher
from manymodes.errors import unknown
from manymodes.penalties import Quadratic
from manymodes.strategies.base import Strategy, Training
from manymodes.strategies.checks import check_options
from manymodes.task import Batch, Task
from manymodes.train import gradient

ANCHORS = ("previous", "merged")
KINDS = ("empirical", "sampled", "exact")


class EWC(Strategy):
    """L(theta) + strength / 2 * sum_d F_d (theta_d - anchor_d)^2, F the exact diagonal Fisher.

    Importances accumulate over tasks; the penalty over any number of tasks costs as much as over one.

    Args:
        model: The network; it is copied.
        strength: lambda, the stiffness of the springs; 0 is fine-tuning.
        fisher_kind: "empirical" (true labels), "sampled" (labels drawn from the model) or "exact".
        fisher_samples: Use at most this many samples of a task (0: all).
        anchor: "previous" (the paper's formula: springs pull to the last task's parameters) or "merged"
            (the exact sum of one quadratic per task).
        **training: See Strategy.
    """

    paper: ClassVar[dict[str, Any]] = Strategy.paper | {"strength": 1000.0}

    def __init__(
        self,
        model: nn.Module,
        *,
        strength: float = 1000.0,
        fisher_kind: str = "empirical",
        fisher_samples: int = 0,
        anchor: str = "previous",
        **training: Unpack[Training],
    ) -> None:
        super().__init__(model, **training)
        check_options(strength=strength, fisher_samples=fisher_samples)
        for option, value, choices in (("anchor", anchor, ANCHORS), ("fisher_kind", fisher_kind, KINDS)):
            if value not in choices:
                raise unknown(option, value, choices)
        self.strength, self.anchor = float(strength), anchor
        self.fisher_kind, self.fisher_samples = fisher_kind, fisher_samples
        self.springs: Quadratic | None = None

    def step(self, mode: int, batch: Batch, loss: Callable[[Batch], Tensor]) -> Tensor:
        """The penalty's gradient is one fused multiply-add on the flat gradient."""
        value = gradient(self.model, loss, batch)
        if self.springs is not None:
            self.springs.add_gradient(self.model.theta.data, self.model.grad)
        self.optimisers[mode].step()
        return value

    def end(self, task: Task) -> None:
        """Measure what this task needs, and hold it from now on."""
        super().end(task)
        self.use(0)
        with self.randomness("fisher", 0) as generator:
            importance = fisher.diagonal_over(
                self.model, task.train, self.fisher_kind, classes=task.classes,
                generator=generator, samples=self.fisher_samples or None,
            )  # fmt: skip
        theta = self.modes.theta[0]
        if self.springs is None:
            self.springs = Quadratic(theta.clone(), importance, self.strength)
        elif self.anchor == "merged":
            self.springs.merge(theta, importance)
        else:
            self.springs.accumulate(theta, importance)

    def penalty(self, mode: int) -> float:
        """The springs' energy."""
        return 0.0 if self.springs is None else float(self.springs.value(self.modes.theta[mode]))

    def state_dict(self) -> dict[str, Any]:
        """With the springs."""
        springs = None if self.springs is None else self.springs.state_dict()
        return super().state_dict() | {"springs": springs}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """With the springs."""
        super().load_state_dict(state)
        self.springs = Quadratic.from_state(state["springs"], self.strength, self.model.device)

    def storage(self) -> dict[str, int]:
        """Parameters, importances, anchor."""
        kept = 0 if self.springs is None else self.springs.importance.numel()
        return super().storage() | {"importances": kept, "anchors": kept}
