"""Runs in groups: an experiment is one stream and scenario, a method the runs that differ by seed alone."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from manymodes.metrics import mean_interval
from manymodes.report.runs import Run

# The paper's order of rows: lower bound, regularisation, replay, ours and its ablations, upper bound.
ORDER = ("finetune", "ewc", "si", "lwf", "lwf-ewc", "er", "agem", "a-gem", "mota", "ensemble", "multitask")


@dataclass(frozen=True)
class Method:
    """Runs that differ by their seed alone, in order of the seed."""

    label: str
    runs: list[Run]

    @property
    def strategy(self) -> str:
        """The strategy's name."""
        return self.runs[0].strategy

    @property
    def is_reference(self) -> bool:
        """Whether it keeps all data: an upper bound, not a competitor."""
        return self.strategy == "multitask"

    @property
    def capacity(self) -> int:
        """Parameters of all modes together."""
        return int(self.runs[0].metrics.get("capacity") or 0)

    @property
    def command(self) -> str:
        """The shell command that repeats all its seeds."""
        command = str(self.runs[0].metrics.get("command", ""))
        head, found, _ = command.rpartition("--seeds ")
        return f"{head}{found}{','.join(str(run.seed) for run in self.runs)}" if found else command

    def values(self, key: str) -> list[float]:
        """A metric of every seed; empty if a seed lacks it."""
        found = [run.numbers.get(key) for run in self.runs]
        return [float(v) for v in found if isinstance(v, int | float)] if None not in found else []

    def by_seed(self, key: str) -> dict[int, float]:
        """A metric by seed."""
        return dict(zip((run.seed for run in self.runs), self.values(key), strict=False))

    def mean(self, key: str) -> tuple[float, float]:
        """Mean and half-width of the 95 % interval over seeds."""
        return mean_interval(self.values(key))


@dataclass(frozen=True)
class Experiment:
    """One stream in one scenario, and every method that learnt it."""

    stream: str
    scenario: str
    tasks: int
    methods: list[Method]

    @property
    def title(self) -> str:
        """For people."""
        names = {"task": "task-incremental", "class": "class-incremental", "instance": "instance-incremental"}
        return f"{self.stream}, {names.get(self.scenario, self.scenario)}" if self.scenario else self.stream

    @property
    def seeds(self) -> list[int]:
        """All seeds that occur."""
        return sorted({run.seed for method in self.methods for run in method.runs})

    def method(self, strategy: str) -> Method | None:
        """The first method of a strategy."""
        return next((m for m in self.methods if m.strategy == strategy), None)

    def relative_drift(self, method: Method) -> list[float]:
        """Drift as the paper gives it: relative to fine-tuning with the same seed."""
        finetune = self.method("finetune")
        base = finetune.by_seed("task_drift") if finetune else {}
        mine = method.by_seed("task_drift")
        return [mine[s] / base[s] for s in mine if base.get(s)] if mine.keys() <= base.keys() else []

    @property
    def best(self) -> Method | None:
        """The method with the highest mean average accuracy, the upper bound left out."""
        rivals = [m for m in self.methods if not m.is_reference]
        return max(rivals, key=lambda m: m.mean("average_accuracy")[0]) if rivals else None


def experiments(runs: Sequence[Run]) -> list[Experiment]:
    """The experiments in order of their names."""
    by_stream: dict[tuple[str, str, str, int], list[Run]] = {}
    for run in runs:
        stream = {k: v for k, v in run.config["stream"].items() if k != "seed"}
        scenario = str(stream.get("scenario") or run.metrics.get("scenario") or "")
        key = (str(stream["name"]), scenario, json.dumps(stream, sort_keys=True, default=str), run.tasks)
        by_stream.setdefault(key, []).append(run)
    ordered = sorted(by_stream.items(), key=lambda item: item[0])
    return [Experiment(key[0], key[1], key[3], _methods(members)) for key, members in ordered]


def _methods(runs: Sequence[Run]) -> list[Method]:
    groups: dict[str, list[Run]] = {}
    for run in runs:
        groups.setdefault(json.dumps(_identity(run), sort_keys=True, default=str), []).append(run)
    members = [sorted(group, key=lambda run: run.seed) for group in groups.values()]
    labels = _labels([group[0] for group in members])
    methods = [Method(label, group) for label, group in zip(labels, members, strict=True)]
    return sorted(methods, key=lambda m: (_rank(m.strategy), m.capacity, m.label))


def _identity(run: Run) -> dict[str, Any]:
    return {"strategy": run.config["strategy"], "model": run.config["model"]}


def _rank(strategy: str) -> int:
    # A method of somebody's own stands with MOTA, before the ensembles and the upper bound.
    return ORDER.index(strategy) if strategy in ORDER else ORDER.index("mota")


def _labels(firsts: Sequence[Run]) -> list[str]:
    """The runs' own labels; where two are equal, with the settings in which they differ."""
    labels = [str(run.metrics.get("label") or run.strategy) for run in firsts]
    found = []
    for run, label in zip(firsts, labels, strict=True):
        twins = [other for other, name in zip(firsts, labels, strict=True) if name == label]
        flat = [_flat(_identity(twin)) for twin in twins]
        mine = _flat(_identity(run))
        differing = [k for k in mine if any(other.get(k) != mine[k] for other in flat)]
        told = ", ".join(f"{key.partition('.')[2]} {mine[key]}" for key in differing[:3])
        found.append(f"{label} ({told})" if told else label)
    return [f"{name} [{n}]" if found.count(name) > 1 else name for n, name in enumerate(found)]


def _flat(value: dict[str, Any]) -> dict[str, Any]:
    return {f"{part}.{k}": v for part, options in value.items() for k, v in options.items()}
