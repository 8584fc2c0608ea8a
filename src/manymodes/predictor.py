"""The joint predictor as one module: raw samples in, probabilities out; what `export` writes."""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap

from manymodes.preparation import Preparation
from manymodes.resting import Resting
from manymodes.strategies.allocation import flattened
from manymodes.strategies.base import Strategy


class JointPredictor(nn.Module):
    """rho(x) = mean over modes of softmax(logits_i(scale x + shift)) over some outputs, as one graph.

    Returns (probabilities (S, K), agreement (S,)): K the `classes`, agreement the share of modes whose own
    best class is the joint one. The modes' parameters are stacked (N, ...): with `batched` all modes are
    computed at once by vmap, otherwise one after another within the graph.
    """

    def __init__(
        self, learner: Strategy, preparation: Preparation, classes: Sequence[int], *, batched: bool
    ) -> None:
        super().__init__()
        # In a list, so that its parameters are not registered: the stacked ones take their places.
        self._net = [copy.deepcopy(learner.model.module).cpu().eval().requires_grad_(False)]
        self.resting: nn.Module | None = None  # computed once for all modes
        if isinstance(self._net[0], Resting):
            self.resting, self._net = self._net[0].resting, [self._net[0].top]
        self.look = learner.look(classes)
        self.batched, self.modes, self.preparation = batched, len(learner.modes), preparation
        self._names: list[str] = []
        for vectors, segments in (
            (learner.modes.theta, learner.model.segments),
            (learner.modes.buffers, learner.model.buffer_segments),
        ):
            for name, where, shape in segments:
                name = name.removeprefix("top.") if self.resting is not None else name
                self.register_buffer(f"modes_{len(self._names)}", _stacked(vectors[:, where], shape))
                self._names.append(name)
        for name, tensor in [*self._net[0].named_parameters(), *self._net[0].named_buffers()]:
            if name not in self._names:  # frozen parameters, counters: the same in every mode
                self.register_buffer("shared_" + name.replace(".", "_"), tensor.detach().clone())
        self._shared = [n for n in self._all() if n not in self._names]
        scale, shift = preparation.coefficients()
        self.register_buffer("scale", scale)
        self.register_buffer("shift", shift)
        self.register_buffer("columns", torch.tensor(list(classes)))

    def _all(self) -> list[str]:
        net = self._net[0]
        return [name for name, _ in [*net.named_parameters(), *net.named_buffers()]]

    def forward(self, raw: Tensor) -> tuple[Tensor, Tensor]:
        """(probabilities (S, K), agreement (S,))."""
        x = raw
        if self.preparation.dtype != "int64":
            x = raw.to(torch.float32)
            if not self.preparation.plain:
                x = x * self.get_buffer("scale") + self.get_buffer("shift")
        if self.resting is not None:
            x = self.resting(x).flatten(1)
        stacked = {name: self.get_buffer(f"modes_{i}") for i, name in enumerate(self._names)}
        shared = {name: self.get_buffer("shared_" + name.replace(".", "_")) for name in self._shared}

        def logits(one: dict[str, Tensor]) -> Tensor:
            found: Tensor = functional_call(self._net[0], one | shared, (x,), tie_weights=True)
            return found

        if self.batched:
            logits_NSC = vmap(logits)(stacked)
        else:
            modes = ({name: rows[i] for name, rows in stacked.items()} for i in range(self.modes))
            logits_NSC = torch.stack([logits(one) for one in modes])
        log_probs_NSK = torch.log_softmax(logits_NSC[:, :, self.get_buffer("columns")], dim=2)
        if self.look is None:
            joint_SK = torch.logsumexp(log_probs_NSK, dim=0) - math.log(self.modes)
        else:
            joint_SK = torch.logsumexp(log_probs_NSK + self.look(flattened(x))[:, :, None], dim=0)
        agree_NS = log_probs_NSK.argmax(dim=2) == joint_SK.argmax(dim=1)
        return joint_SK.exp(), agree_NS.to(torch.float32).mean(dim=0)


def batchable(module: nn.Module) -> bool:
    """Whether vmap over modes can be exported with a free number of samples: not so with convolutions."""
    kinds = (nn.modules.conv._ConvNd, nn.modules.batchnorm._BatchNorm, nn.modules.rnn.RNNBase)
    return not any(isinstance(part, kinds) for part in module.modules())


def _stacked(rows_NK: Tensor, shape: torch.Size) -> Tensor:
    return rows_NK.detach().cpu().reshape(len(rows_NK), *shape).clone()
