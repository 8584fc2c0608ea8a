"""Learning without forgetting: keep the old outputs on the new inputs (Li and Hoiem 2017)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar, Unpack

import torch
from torch import Tensor, nn

from manymodes.errors import require
from manymodes.outputs import Valid
from manymodes.penalties import distillation
from manymodes.strategies.base import Strategy, Training
from manymodes.strategies.checks import check_options
from manymodes.strategies.teachers import Teacher
from manymodes.task import Batch, Task
from manymodes.train import Mean


class LwF(Strategy):
    """L(theta) + distillation * T^2 * sum_g KL(teacher_g(x) || student_g(x)), both softened by T.

    The teacher is the network as the task found it, in eval mode, on the inputs that the student sees. g
    runs over the old heads (in class-IL and instance-IL over one: all outputs seen). Where inputs are
    not augmented the teacher's outputs are computed once for the task.

    Args:
        model: The network; it is copied.
        distillation: Weight of the distance to the teacher; 0 is fine-tuning.
        temperature: T, softens both distributions.
        **training: See Strategy.
    """

    paper: ClassVar[dict[str, Any]] = Strategy.paper | {"distillation": 1.0, "temperature": 2.0}

    def __init__(
        self,
        model: nn.Module,
        *,
        distillation: float = 1.0,
        temperature: float = 2.0,
        **training: Unpack[Training],
    ) -> None:
        super().__init__(model, **training)
        check_options(distillation=distillation, temperature=temperature)
        require(temperature > 0, f"temperature must be a number above 0, not {temperature!r}")
        self.distillation, self.temperature = float(distillation), float(temperature)
        self._groups: list[Tensor] = []
        self._teacher: Teacher | None = None
        self._distance = Mean()  # over the present pass, for the report

    def prepare(self, task: Task) -> None:
        """Ask the teacher."""
        super().prepare(task)
        self._teacher = None
        if self.tasks_learnt > 0 and self.distillation > 0:
            assert self.before is not None
            self._groups = self.old_groups()
            self._teacher = Teacher(
                self.model, self.forward, self.before, self._groups, self.temperature, task.train
            )

    def pass_over(self, task: Task, mode: int, loss: Callable[[Batch], Tensor]) -> None:
        """With the mean distance over the pass for the report."""
        self._distance = Mean()
        super().pass_over(task, mode, loss)

    def loss(self, batch: Batch, valid: Valid) -> Tensor:
        """The task's loss and the distance to the teacher, from one forward pass."""
        if self._teacher is None:
            return super().loss(batch, valid)
        soft = self._teacher(batch)  # before the student's forward: it may borrow the module
        logits = self.forward(batch.inputs)
        distance = distillation(logits, soft, self._groups, self.temperature)
        self._distance.add(distance.detach())
        return torch.add(self.loss_of(logits, batch, valid), distance, alpha=self.distillation)

    def end(self, task: Task) -> None:
        """The teacher has done its work."""
        self._teacher, self._distance = None, Mean()
        super().end(task)

    def penalty(self, mode: int) -> float:
        """The mean distance over the present pass, weighted."""
        distance = self._distance.value() if self._distance.count else 0.0
        return super().penalty(mode) + self.distillation * distance

    def storage(self) -> dict[str, int]:
        """Parameters, and the teacher while it is needed."""
        teacher = 0 if self._teacher is None else self._teacher.frozen.theta.numel()
        return super().storage() | {"teachers": teacher}
