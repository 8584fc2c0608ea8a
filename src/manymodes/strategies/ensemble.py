"""Ensembles: several modes trained on every task, each on its own loss (the paper's two ablations)."""

from __future__ import annotations

import copy
from typing import Any, ClassVar, Unpack

import torch
from torch import nn

from manymodes.errors import unknown
from manymodes.flat import FlatModel
from manymodes.strategies.base import Strategy, Training
from manymodes.strategies.separation import Separated
from manymodes.task import Task

INITS = ("distance", "seeds")


class Ensemble(Separated):
    """N independent learners whose distributions are averaged; nothing is done about forgetting.

    Args:
        model: The network; it is copied once per mode.
        modes: How many learners.
        init: "distance" trains them apart on task 1 as MOTA does; "seeds" draws each initialisation anew
            (of a pretrained network, only the head) and lets each see the data in its own order.
        separation: beta_max, the weight of the cosine between modes (init="distance").
        **training: See Strategy.
    """

    paper: ClassVar[dict[str, Any]] = Strategy.paper | {"modes": 2, "separation": 100.0}

    def __init__(
        self,
        model: nn.Module,
        *,
        modes: int = 2,
        init: str = "distance",
        separation: float = 1.0,
        **training: Unpack[Training],
    ) -> None:
        super().__init__(model, modes=modes, separation=separation, **training)
        if init not in INITS:
            raise unknown("init", init, INITS)
        self.init = init
        if init == "seeds":
            self._draw_anew(model)

    @property
    def separating(self) -> bool:
        """Only init="distance" separates."""
        return self.init == "distance" and super().separating

    def epoch(self, task: Task) -> None:
        """Apart on task 1, independently ever after."""
        if self.separating:
            self.separate(task)
        else:
            super().epoch(task)

    def end(self, task: Task) -> None:
        """Give each mode its BatchNorm statistics after task 1."""
        if self.separating:
            self.settle(task)

    @torch.no_grad()
    def _draw_anew(self, model: nn.Module) -> None:
        from manymodes.models import reset_head, reset_parameters

        redraw = reset_head if getattr(model, "pretrained", False) else reset_parameters
        for mode in range(len(self.modes)):
            module = copy.deepcopy(model)
            redraw(module, 1 + mode + 1000 * self.seed)  # the paper's seeds: 1, 2, ...
            fresh = FlatModel(module.to(self.model.device))
            self.modes.theta[mode] = fresh.theta.data
            self.modes.buffers[mode] = fresh.buffers
