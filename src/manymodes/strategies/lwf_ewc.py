"""LwF and EWC together: the penalties compose, one on outputs and one on parameters."""

from __future__ import annotations

from typing import Any, ClassVar, Unpack

from torch import nn

from manymodes.strategies.base import Training
from manymodes.strategies.ewc import EWC
from manymodes.strategies.lwf import LwF


class LwFEWC(LwF, EWC):
    """L(theta) + LwF's distance to the old outputs + EWC's distance to the old parameters.

    Args:
        model: The network; it is copied.
        strength: EWC's lambda; 0 is LwF.
        distillation: LwF's weight; 0 is EWC.
        temperature: Softens the distributions that are compared.
        fisher_kind: "empirical", "sampled" or "exact".
        fisher_samples: Use at most this many samples of a task for the Fisher (0: all).
        anchor: "previous" or "merged".
        **training: See Strategy.
    """

    paper: ClassVar[dict[str, Any]] = EWC.paper | LwF.paper

    def __init__(
        self,
        model: nn.Module,
        *,
        strength: float = 100.0,
        distillation: float = 1.0,
        temperature: float = 2.0,
        fisher_kind: str = "empirical",
        fisher_samples: int = 0,
        anchor: str = "previous",
        **training: Unpack[Training],
    ) -> None:
        ewc: dict[str, Any] = {"strength": strength, "anchor": anchor}
        ewc |= {"fisher_kind": fisher_kind, "fisher_samples": fisher_samples}
        super().__init__(model, distillation=distillation, temperature=temperature, **ewc, **training)
