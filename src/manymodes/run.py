"""One learner on one stream: the only task loop."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import torch

from manymodes import metrics, observe
from manymodes.errors import UserError
from manymodes.modes import joint
from manymodes.outputs import of_targets
from manymodes.preparation import about
from manymodes.resting import features_of
from manymodes.robustness import robustness
from manymodes.strategies.base import Event, Strategy
from manymodes.strategies.registry import name_of
from manymodes.task import Data, Stream, Task


@dataclass
class Record:
    """What a run measured so far. Row 0 of the (T + 1, T) matrices is the initial model."""

    accuracy: list[list[float]] = field(default_factory=list)
    nll: list[list[float]] = field(default_factory=list)
    calibration: list[list[float]] = field(default_factory=list)
    shifted: list[float] = field(default_factory=list)  # in the end, a value a task: see robustness.py
    unseen: dict[str, list[float]] = field(default_factory=dict)
    responsibility: list[list[list[float]]] = field(default_factory=list)  # (T + 1, T, N)
    drift: list[list[float]] = field(default_factory=list)  # (T, N): mean squared change per parameter
    chosen: list[list[int] | None] = field(default_factory=list)  # the epochs that backtracking chose
    surfaces: list[dict[str, Any] | None] = field(default_factory=list)  # what it chose from
    layers: list[str] = field(default_factory=list)
    layer_drift: list[list[list[float]]] = field(default_factory=list)  # (T, L, N)
    cosine: list[list[list[float]]] = field(default_factory=list)  # (T, N, N): of the modes, after a task
    seconds: list[float] = field(default_factory=list)
    elapsed: float = 0.0  # seconds spent on the present task, as far as it is saved
    storage: dict[str, int] = field(default_factory=dict)  # the most of each kind at the end of an epoch
    capacity: int = 0

    @property
    def tasks_done(self) -> int:
        """How many tasks are learnt and evaluated."""
        return len(self.seconds)

    def _robustness(self) -> dict[str, float]:
        means = {"shifted_accuracy": self.shifted, "ood_auroc": self.unseen.get("confidence", []),
                 "ood_auroc_disagreement": self.unseen.get("disagreement", [])}  # fmt: skip
        return {key: metrics.mean_interval(values)[0] for key, values in means.items() if values}

    def metrics(self) -> dict[str, Any]:
        """metrics.json: all of this, and the paper's metrics."""
        last = metrics.mean_interval
        return (
            metrics.summary(self.accuracy)
            | {"task_drift": metrics.task_drift(self.drift)}
            | {"final_nll": last(self.nll[-1])[0], "final_calibration_error": last(self.calibration[-1])[0]}
            | self._robustness()
            | asdict(self)
            | {"seconds": sum(self.seconds), "seconds_per_task": self.seconds}
        )


def run(
    learner: Strategy,
    stream: Stream,
    *,
    record: Record | None = None,
    on_event: Callable[[Event], None] | None = None,
    on_epoch: Callable[[Strategy, Record], None] | None = None,
    on_task: Callable[[Strategy, Record], None] | None = None,
) -> Record:
    """Learn every task of the stream in turn, and evaluate on all of them after each.

    A learner and record that were saved together go on where they stopped. Test data is read for
    evaluation only and never reaches the learner.
    """
    tests = [_TestOf.task(task) for task in stream]
    seen = [replace(test, data=features_of(learner.model, test.data)) for test in tests]
    learner.about = about(stream, tests[0].data)
    record = record or Record(capacity=learner.modes.theta.numel())
    if not record.accuracy:
        _evaluate(learner, stream, seen, 0, record)
    if learner.rehearses and learner.tasks_learnt:
        learner.recall([learner.at_rest(stream[t]) for t in range(learner.tasks_learnt)])
    for number in range(record.tasks_done, len(stream)):
        if learner.tasks_learnt == number:
            _learn(learner, stream[number], record, on_event, on_epoch)
        _evaluate(learner, stream, seen, number + 1, record)
        if number + 1 == len(stream):
            _evaluate_robustness(learner, stream, tests, record)
        if on_task is not None:
            on_task(learner, record)
    return record


def _learn(
    learner: Strategy,
    task: Task,
    record: Record,
    on_event: Callable[[Event], None] | None,
    on_epoch: Callable[[Strategy, Record], None] | None,
) -> None:
    started = time.perf_counter() - record.elapsed
    before = learner.modes.theta.clone() if learner.before is None else learner.before.theta.clone()

    def after_epoch(learner: Strategy) -> None:
        for kind, count in learner.storage().items():
            record.storage[kind] = max(count, record.storage.get(kind, 0))
        record.elapsed = time.perf_counter() - started
        if on_epoch is not None:
            on_epoch(learner, record)

    learner.learn(task, on_event=on_event, on_epoch=after_epoch)
    record.drift.append((learner.modes.theta - before).square().mean(dim=1).tolist())
    choice = getattr(learner, "choice", None)
    record.chosen.append(None if choice is None else list(choice.epochs))
    record.surfaces.append(getattr(learner, "surface", None))
    record.layers = list(observe.layers_of(learner.model))
    record.layer_drift.append(observe.layer_drift(learner.model, learner.modes.theta, before))
    record.cosine.append(observe.cosines(learner.model, learner.modes.theta))
    record.seconds.append(time.perf_counter() - started)
    record.elapsed = 0.0


@dataclass(frozen=True)
class _TestOf:
    """A task's test data and valid outputs, without its training data."""

    data: Data
    classes: tuple[int, ...]

    @staticmethod
    def task(task: Task) -> _TestOf:
        assert task.test is not None
        return _TestOf(task.test, task.classes)


def _evaluate(learner: Strategy, stream: Stream, tests: list[_TestOf], row: int, record: Record) -> None:
    """Add a row to the record's matrices: the learner after `row` tasks, on every task."""
    valid = _valid(stream, tests, row)
    columns = [evaluate(learner, test.data, own) for test, own in zip(tests, valid, strict=True)]
    record.accuracy.append([c[0] for c in columns])
    record.nll.append([c[1] for c in columns])
    record.calibration.append([c[2] for c in columns])
    record.responsibility.append([c[3] for c in columns])


def _valid(stream: Stream, tests: list[_TestOf], row: int) -> list[tuple[int, ...]]:
    """The valid outputs of every task after `row` tasks."""
    if stream.scenario != "class":
        return [test.classes for test in tests]
    # Class-IL: the outputs seen up to now (or up to that task, if it is still to come).
    return [tests[max(row - 1, number)].classes for number in range(len(tests))]


def _evaluate_robustness(learner: Strategy, stream: Stream, tests: list[_TestOf], record: Record) -> None:
    unseen = None if stream.unseen is None else stream.unseen()
    found = robustness(learner, tests, _valid(stream, tests, len(tests)), unseen)
    record.shifted = found.shifted
    record.unseen = {"confidence": found.confidence, "disagreement": found.disagreement}


@torch.no_grad()
def evaluate(
    learner: Strategy, data: Data, classes: tuple[int, ...]
) -> tuple[float, float, float, list[float]]:
    """Accuracy, NLL, calibration error, and each mode's share of the true class's probability."""
    valid = learner.valid_for(data, classes)
    data = features_of(learner.model, data)
    log_probs_NSK, log_weights_NS = learner.mode_log_probs(data, valid), learner.log_weights(data, valid)
    odd_S = log_probs_NSK.isnan().any(dim=2).any(dim=0)
    if bool(odd_S.any()):
        first = int(odd_S.float().argmax())
        raise UserError(f"the prediction for test sample {first} is not a number: look at that input")
    targets = valid.targets(data.targets.to(log_probs_NSK.device))
    probabilities = joint(log_probs_NSK, log_weights_NS).exp()
    true = torch.stack([of_targets(rows, targets) for rows in log_probs_NSK])
    true = true if log_weights_NS is None else true + log_weights_NS
    share = torch.softmax(true, dim=0).mean(dim=1)
    probs, labels = probabilities.cpu().numpy(), targets.cpu().numpy()
    return (
        float((probabilities.argmax(dim=1) == targets).float().mean()),
        metrics.negative_log_likelihood(probs, labels),
        metrics.calibration_error(probs, labels),
        share.tolist(),
    )


def describe(learner: Strategy, stream: Stream) -> dict[str, Any]:
    """What metrics.json says about where its numbers come from."""
    return {"strategy": name_of(type(learner)), "stream": stream.name, "scenario": stream.scenario}
