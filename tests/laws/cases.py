"""What the laws run on: every registered strategy and its variants, two small networks, three tasks."""

from __future__ import annotations

import copy
from dataclasses import dataclass, field
from functools import cache, lru_cache
from typing import Any

import torch
from torch import Tensor, nn

from manymodes import streams
from manymodes.signature import options_of
from manymodes.strategies.base import Strategy
from manymodes.strategies.registry import REGISTRY, strategy_class
from manymodes.task import Task, TensorData

SETTINGS: dict[str, Any] = {"epochs": 3, "batch_size": 16, "lr": 5e-3, "device": "cpu"}

# Beside the defaults of everything that is registered.
VARIANTS: list[tuple[str, dict[str, Any]]] = [
    ("multitask", {"restart": True}),
    ("ewc", {"anchor": "merged", "fisher_kind": "sampled"}),
    ("ewc", {"fisher_kind": "exact", "fisher_samples": 10, "optimiser": "sgd", "batchnorm": "frozen"}),
    ("lwf-ewc", {"schedule": "constant", "weight_decay": 0.01}),
    ("er", {"budget": 3}),
    ("ensemble", {"init": "seeds"}),
    ("ensemble", {"modes": 3}),
    ("mota", {"modes": 1}),
    ("mota", {"modes": 3, "fisher": "mode", "backtracking": False, "order": "rigidity"}),
    ("mota", {"drift": "function", "joint_weight": 0.5, "search": "train"}),
    ("mota", {"modes": 2, "movers": 1, "weighting": "familiar"}),
    ("mota", {"modes": 3, "movers": 1, "start": "latest", "weighting": "familiar"}),
    ("mota", {"modes": 3, "movers": 1, "start": "heir"}),
    ("mota", {"mode_parallel": True}),
    ("mota", {"mode_parallel": True, "modes": 3, "search": "train"}),
    ("mota", {"drift": "both", "teacher": "joint", "anchor": "merged"}),
]


@dataclass(frozen=True)
class Case:
    """A strategy by name or import path, with options."""

    strategy: str
    options: dict[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        return ",".join([self.strategy, *(f"{k}={v}" for k, v in self.options.items())])

    @property
    def cls(self) -> type[Strategy]:
        return strategy_class(self.strategy)

    def has(self, option: str) -> bool:
        return option in options_of(self.cls, skip=("model",))

    def option(self, name: str) -> Any:
        """The value in force."""
        return self.options.get(name, options_of(self.cls, skip=("model",))[name].default)


def all_cases() -> list[Case]:
    return [Case(name) for name in REGISTRY] + [Case(name, options) for name, options in VARIANTS]


class WithNorm(nn.Module):
    """BatchNorm, dropout and a convolution: everything that keeps state or draws at random."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(1, 4, 3, stride=2, bias=False)
        self.norm = nn.BatchNorm2d(4)
        self.drop = nn.Dropout(0.2)
        self.fc = nn.Linear(36, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.drop(torch.relu(self.norm(self.conv(x))).flatten(1)))


def plain() -> nn.Module:
    from manymodes.models import mlp

    return mlp(64, hidden=(12,), outputs=10)


NETWORKS = {"mlp": plain, "norm": WithNorm}


@dataclass(frozen=True)
class Lab:
    """A case on a network: makes equal learners as often as a law asks."""

    case: Case
    network: str = "mlp"

    def __str__(self) -> str:
        return f"{self.case}-{self.network}"

    def module(self) -> nn.Module:
        with torch.random.fork_rng():
            torch.manual_seed(1)
            return NETWORKS[self.network]()

    def learner(self, **options: Any) -> Strategy:
        return self.case.cls(self.module(), **SETTINGS | self.case.options | options)

    def taught(self, count: int, **options: Any) -> Strategy:
        """A learner that has learnt `count` tasks."""
        learner = self.learner(**options)
        for task in tasks()[:count]:
            learner.learn(task)
        return learner

    def learnt(self, count: int) -> Strategy:
        """The same from a saved state, which is quicker; that it is the same is a law of its own."""
        learner = self.learner()
        learner.load_state_dict(copy.deepcopy(_state(self, count)))
        learner.recall(tasks()[:count])
        return learner

    def state(self, count: int) -> Any:
        """The bits of the state after `count` tasks."""
        return bits(_state(self, count))

    def __hash__(self) -> int:
        return hash(str(self))


@lru_cache(maxsize=4)
def _state(lab: Lab, count: int) -> Any:
    return copy.deepcopy(lab.taught(count).state_dict())


@cache
def _tasks(scenario: str) -> list[Task]:
    return list(streams.digits(scenario, tasks=3 if scenario == "instance" else 5, limit=40)[:3])


def tasks(scenario: str = "task") -> list[Task]:
    """Three small tasks of real digits."""
    return [copy.copy(task) for task in _tasks(scenario)]


def augmented(task: Task) -> Task:
    """The same task with noise on every training batch."""
    data = task.train
    assert isinstance(data, TensorData)

    def noise(raw: Tensor, generator: torch.Generator) -> Tensor:
        return torch.where(torch.rand(raw.shape, generator=generator) < 0.1, torch.zeros_like(raw), raw)

    train = TensorData(data.inputs, data.targets, data.transform, noise)
    return Task(task.name, train, task.val, task.test, task.classes)


def inputs_of(task: Task) -> Tensor:
    """The test inputs as the network sees them."""
    assert task.test is not None
    return next(iter(task.test.batches([torch.arange(len(task.test))]))).inputs


def bits(state: Any) -> Any:
    """A nested state without references to live tensors, for comparison bit by bit."""
    if isinstance(state, Tensor):
        return state.dtype, tuple(state.shape), state.detach().clone().numpy().tobytes()
    if isinstance(state, dict):
        return {k: bits(v) for k, v in state.items()}
    if isinstance(state, list | tuple):
        return [bits(v) for v in state]
    return state
