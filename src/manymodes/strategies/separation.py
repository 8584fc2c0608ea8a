"""Many modes from one start: train them apart on the first task (the paper's initialize_task1)."""

from __future__ import annotations

import time
from typing import Any

import torch
from torch import Tensor, nn

from manymodes import distributed
from manymodes.feeding import on_device
from manymodes.modes import Modes, cosine, simplex
from manymodes.strategies.base import Strategy
from manymodes.strategies.checks import check_options
from manymodes.task import Task
from manymodes.train import (
    Mean,
    Optimiser,
    gradient,
    in_order,
    seed_of,
    shuffled,
    training_batches,
)


class Separated(Strategy):
    """Base of strategies whose modes start equal and are driven apart while they learn task 1.

    Each batch draws alpha on the simplex, takes the loss at theta_hat = sum_i alpha_i theta_i and adds
    separation * (mean pairwise cosine). By the chain rule mode i's gradient is alpha_i times the gradient
    at theta_hat: one forward and one backward, whatever N is.
    """

    def __init__(self, model: nn.Module, *, modes: int, separation: float, **training: Any) -> None:
        super().__init__(model, **training)
        check_options(modes=modes, separation=separation)
        self.separation = float(separation)
        self.modes = Modes.of(self.model, modes)
        self.use(0)
        # theta_hat and its buffers: what the module computes with on task 1
        self._hat = torch.empty_like(self.model.theta.data)

    @property
    def separating(self) -> bool:
        """Whether this is the first task, and there is anything to separate."""
        return self.tasks_learnt == 0 and len(self.modes) > 1

    def begin(self, task: Task) -> None:
        """On task 1, one optimiser on the whole matrix."""
        if self.separating:
            self.optimisers = [self.new_optimiser(self._matrix(), task)]
        else:
            super().begin(task)

    def separate(self, task: Task) -> None:
        """One epoch of task 1."""
        started, total, valid = time.perf_counter(), Mean(), self.valid(task.classes)
        layers, matrix = self.model.layers(), self.optimisers[0].parameter
        assert matrix.grad is not None
        self.model.bind(self._hat, self.modes.buffers[0])
        self.train_mode()
        alphas = torch.Generator().manual_seed(seed_of(self.seed, self.epochs_done, "alpha"))
        with self.randomness(0) as generator:
            order = shuffled(len(task.train), self.batch_size, generator)
            for batch in training_batches(task.train, order, generator, self.model.device):
                alpha = simplex(len(self.modes), alphas).to(self.modes.theta)
                self.modes.interpolate(alpha, out=self._hat)
                total.add(gradient(self.model, lambda b: self.loss(b, valid), batch))
                torch.outer(alpha, self.model.grad, out=matrix.grad)
                if self.separation > 0:
                    matrix.grad.add_(cosine(self.modes.theta, layers)[1], alpha=self.separation)
                self.optimisers[0].step()
        seconds = (time.perf_counter() - started) / len(self.modes)
        for mode in range(len(self.modes)):
            self.report(task, mode, total.value(), seconds)

    def settle(self, task: Task) -> None:
        """After task 1: BatchNorm statistics of each mode, as training saw interpolated weights only."""
        self.modes.buffers.copy_(self.modes.buffers[0].clone().expand_as(self.modes.buffers))
        for mode in range(len(self.modes)):
            self.use(mode)
            with self.randomness("batchnorm", mode):
                reestimate_batchnorm(self, task)

    def _matrix(self) -> Tensor:
        matrix = nn.Parameter(self.modes.theta)
        matrix.grad = torch.zeros_like(self.modes.theta)
        return matrix

    def _restored(self, state: dict[str, Any]) -> Optimiser:
        if not self.separating:
            return super()._restored(state)
        optimiser = self._optimiser(self._matrix(), state["total_steps"])
        optimiser.load_state_dict(state)
        return optimiser

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Keep the matrix's storage: the optimiser of task 1 works on it."""
        super().load_state_dict(state)
        if self.optimisers and self.separating:
            self.optimisers[0].parameter.data = self.modes.theta


@torch.no_grad()
def reestimate_batchnorm(learner: Strategy, task: Task) -> None:
    """Replace the running statistics of the bound mode by the plain average over the task's batches."""
    norms = [
        m
        for m in learner.model.module.modules()
        if isinstance(m, nn.modules.batchnorm._BatchNorm) and m.track_running_stats
    ]
    if not norms:
        return
    momenta = [norm.momentum for norm in norms]
    learner.model.module.eval()
    for norm in norms:
        norm.reset_running_stats()
        norm.momentum = None  # PyTorch's cumulative average
        norm.train()
    try:
        at_once = min(learner.batch_size, learner.model.room or learner.batch_size)
        order = in_order(len(task.train), max(2, at_once))
        if len(order) > 1 and len(order[-1]) == 1:
            order.pop()
        parts = [distributed.part(index) for index in order]
        for batch in on_device(task.train.batches(parts), learner.model.device):
            learner.forward(batch.inputs)
    finally:
        for norm, momentum in zip(norms, momenta, strict=True):
            norm.momentum = momentum
