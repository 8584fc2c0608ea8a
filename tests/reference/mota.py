"""MOTA as printed: every model is evaluated whenever its distribution is needed, also inside the search.

An epoch costs N^2 forward passes, the search one forward pass per mode and combination of checkpoints.
Every mode is a module of its own with ordinary parameters. Batches are consumed in the order in which the
learner under test drew them: N lists of batches per epoch after task 1, one on task 1.
"""

from __future__ import annotations

import copy
import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn
from torch.func import functional_call

from tests.reference import modes as slow_modes

Pair = tuple[Tensor, Tensor]


@dataclass
class Settings:
    """The learner's options, with its names."""

    epochs: int
    lr: float
    weight_decay: float = 0.0
    strength: float = 0.0
    separation: float = 0.0
    fisher: str = "joint"
    merged: bool = False
    distillation: float = 0.0
    temperature: float = 2.0
    shared_teacher: bool = False
    joint_weight: float = 1.0
    backtracking: bool = True
    drift_weight: float = 0.1
    order: Sequence[int] | None = None
    at_once: bool = False  # modes learn on what the others were when the epoch began


@dataclass
class PrintedMOTA:
    """N modules, and for each the (anchor, importance) pairs of the past."""

    modules: list[nn.Module]
    settings: Settings
    springs: list[list[tuple[list[Tensor], list[Tensor]]]] = field(default_factory=list)
    heads: list[tuple[int, ...]] = field(default_factory=list)
    chosen: tuple[int, ...] | None = None

    # ---- Algorithm 2: initialize_task1 --------------------------------------------------------------

    def initialize_task1(
        self, data: Pair, classes: Sequence[int], batches: Sequence[Pair], alphas: Sequence[Tensor]
    ) -> None:
        """The loss at theta_hat = sum_i alpha_i theta_i, plus separation * cosine between the modes."""
        everything = [p for module in self.modules for p in module.parameters()]
        optimiser, schedule = self._optimiser(everything, len(batches))
        hat = copy.deepcopy(self.modules[0])
        names = [name for name, _ in hat.named_parameters()]
        for (x, y), alpha in zip(batches, alphas, strict=True):
            weighted = list(zip(alpha.double(), self.modules, strict=True))
            mixed = {name: sum(a * m.get_parameter(name) for a, m in weighted) for name in names}
            hat.train()
            loss = negative_log(softmax(functional_call(hat, mixed, (x,)), classes), y, classes)
            loss = loss + self.settings.separation * self._similarity()
            step(optimiser, schedule, loss)
        for module in self.modules:
            estimate_batch_norm(module, batches_in_order(data, len(batches[0][0])))
        self.heads.append(tuple(classes))
        self._measure(data, classes)

    def _similarity(self) -> Tensor:
        """Every layer's weights as one row per mode."""
        layers, rows = [], [[] for _ in self.modules]
        start = 0
        for weights in zip(*(m.parameters() for m in self.modules), strict=True):
            if weights[0].dim() < 2:
                continue
            layers.append(slice(start, start + weights[0].numel()))
            start += weights[0].numel()
            for row, weight in zip(rows, weights, strict=True):
                row.append(weight.flatten())
        return slow_modes.cosine(torch.stack([torch.cat(row) for row in rows]), layers)

    # ---- Algorithm 1: update_parameters --------------------------------------------------------------

    def update_parameters(
        self, data: Pair, search: Pair, classes: Sequence[int], batches: Sequence[Pair]
    ) -> None:
        """Modes in turn, epoch by epoch; then the best combination of checkpoints; then the Fisher."""
        count, settings = len(self.modules), self.settings
        teachers = copy.deepcopy(self.modules)
        steps = len(batches) // (settings.epochs * count)
        optimisers = [self._optimiser(m.parameters(), settings.epochs * steps) for m in self.modules]
        checkpoints = [[copy.deepcopy(m)] for m in self.modules]
        remaining: Iterator[Pair] = iter(batches)
        for _ in range(settings.epochs):
            rest = copy.deepcopy(self.modules) if settings.at_once else self.modules
            for i in settings.order or range(count):
                for _ in range(steps):
                    x, y = next(remaining)
                    loss = self._loss(i, rest, teachers, x, y, classes)
                    step(*optimisers[i], loss)
                checkpoints[i].append(copy.deepcopy(self.modules[i]))
        if settings.backtracking:
            self._backtrack(checkpoints, teachers, search, classes)
        self.heads.append(tuple(classes))
        self._measure(data, classes)

    def _loss(
        self,
        i: int,
        rest: list[nn.Module],
        teachers: list[nn.Module],
        x: Tensor,
        y: Tensor,
        classes: Sequence[int],
    ) -> Tensor:
        settings = self.settings
        self.modules[i].train()
        logits = self.modules[i](x)
        own = softmax(logits, classes)
        with torch.no_grad():
            others = [softmax(m.eval()(x), classes) for j, m in enumerate(rest) if j != i]
        joint = (own + sum(others)) / len(self.modules)
        loss = settings.joint_weight * negative_log(joint, y, classes)
        loss = loss + (1 - settings.joint_weight) * negative_log(own, y, classes)
        loss = loss + self._spring(i, self.modules[i])
        return loss + settings.distillation * self._distance(i, logits, teachers, x)

    def _spring(self, i: int, module: nn.Module) -> Tensor:
        """strength / 2 * sum F (theta - theta_prev)^2."""
        total = torch.zeros((), dtype=torch.float64)
        for anchor, importance in self.springs[i]:
            for p, a, f in zip(module.parameters(), anchor, importance, strict=True):
                total = total + self.settings.strength / 2 * (f * (p - a) ** 2).sum()
        return total

    def _distance(self, i: int, logits: Tensor, teachers: list[nn.Module], x: Tensor) -> Tensor:
        """T^2 * sum over old heads of KL(teacher || student), averaged over samples."""
        if self.settings.distillation == 0:
            return torch.zeros((), dtype=torch.float64)
        temperature, total = self.settings.temperature, torch.zeros((), dtype=torch.float64)
        asked = teachers if self.settings.shared_teacher else [teachers[i]]
        for head in dict.fromkeys(self.heads):
            with torch.no_grad():
                p = sum(softmax(t.eval()(x) / temperature, head) for t in asked) / len(asked)
            q = softmax(logits / temperature, head)
            total = total + (p * (torch.log(p) - torch.log(q))).sum() / len(x)
        return temperature**2 * total

    @torch.no_grad()
    def _backtrack(
        self,
        checkpoints: list[list[nn.Module]],
        teachers: list[nn.Module],
        search: Pair,
        classes: Sequence[int],
    ) -> None:
        """argmin over all combinations of the joint loss + drift_weight * sum of drifts."""
        x, y = search
        best = math.inf
        for epochs in itertools.product(*(range(len(row)) for row in checkpoints)):
            chosen = [row[e] for row, e in zip(checkpoints, epochs, strict=True)]
            value = float(negative_log(joint_inference(chosen, x, classes), y, classes))
            for i, module in enumerate(chosen):
                drift = self._spring(i, module)
                drift = drift + self.settings.distillation * self._distance(i, module.eval()(x), teachers, x)
                value += self.settings.drift_weight * float(drift)
            if value < best - 1e-12:
                best, self.chosen, self.modules = value, epochs, copy.deepcopy(chosen)

    def _measure(self, data: Pair, classes: Sequence[int]) -> None:
        """F_d = mean_s (d log p(y_s | x_s) / d theta_d)^2, p the joint distribution or the mode's own."""
        self.springs = self.springs or [[] for _ in self.modules]
        for i, module in enumerate(self.modules):
            parameters = list(module.parameters())
            importance = [torch.zeros_like(p) for p in parameters]
            for x, y in zip(*data, strict=True):
                own = softmax(module.eval()(x[None]), classes)
                if self.settings.fisher == "joint":
                    with torch.no_grad():
                        others = [
                            softmax(m.eval()(x[None]), classes) for m in self.modules if m is not module
                        ]
                    own = (own + sum(others)) / len(self.modules)
                gradients = torch.autograd.grad(-negative_log(own, y[None], classes), parameters)
                for total, g in zip(importance, gradients, strict=True):
                    total += g.detach() ** 2 / len(data[0])
            now = [p.detach().clone() for p in parameters]
            self.springs[i].append((now, importance))
            if not self.settings.merged:  # all importances pull to the parameters of the last task
                self.springs[i] = [(now, f) for _, f in self.springs[i]]

    def _optimiser(self, parameters, total):
        """AdamW with the 1cycle policy, as torch has them."""
        inner = torch.optim.AdamW(
            list(parameters), lr=self.settings.lr, weight_decay=self.settings.weight_decay, foreach=False
        )
        return inner, torch.optim.lr_scheduler.OneCycleLR(inner, self.settings.lr, total_steps=total)


def joint_inference(modules: Sequence[nn.Module], x: Tensor, classes: Sequence[int]) -> Tensor:
    """Algorithm 3: the average of the modes' distributions."""
    return sum(softmax(m.eval()(x), classes) for m in modules) / len(modules)


def softmax(logits: Tensor, classes: Sequence[int]) -> Tensor:
    return torch.softmax(logits[:, list(classes)], dim=1)


def negative_log(probabilities_SK: Tensor, y: Tensor, classes: Sequence[int]) -> Tensor:
    positions = [list(classes).index(label) for label in y.tolist()]
    return -torch.stack(
        [torch.log(row[k]) for row, k in zip(probabilities_SK, positions, strict=True)]
    ).mean()


def step(optimiser, schedule, loss: Tensor) -> None:
    optimiser.zero_grad()
    loss.backward()
    optimiser.step()
    if schedule.last_epoch < schedule.total_steps - 1:
        schedule.step()


def batches_in_order(data: Pair, size: int) -> list[Tensor]:
    pieces = list(data[0].split(size))
    return pieces[:-1] if len(pieces) > 1 and len(pieces[-1]) == 1 else pieces


@torch.no_grad()
def estimate_batch_norm(module: nn.Module, batches: Sequence[Tensor]) -> None:
    """Statistics of a layer = average over batches of the batches' mean and unbiased variance.

    Layer by layer: what reaches a layer has been normalised by the batch's own statistics before.
    """
    for norm in [m for m in module.modules() if isinstance(m, nn.BatchNorm1d)]:
        seen: list[Tensor] = []
        hook = norm.register_forward_pre_hook(lambda _, inputs, seen=seen: seen.append(inputs[0]))
        kept = copy.deepcopy(module.state_dict())
        module.train()
        for x in batches:
            module(x)
        hook.remove()
        module.load_state_dict(kept)
        norm.running_mean.copy_(torch.stack([x.mean(dim=0) for x in seen]).mean(dim=0))
        norm.running_var.copy_(torch.stack([x.var(dim=0, unbiased=True) for x in seen]).mean(dim=0))
