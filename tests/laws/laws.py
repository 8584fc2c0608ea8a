"""The laws that every strategy obeys, the registered ones and yours. Each is a function of a Lab."""

from __future__ import annotations

import copy
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils.data import TensorDataset

from manymodes import Finetune, load
from manymodes.errors import TrainingDiverged
from manymodes.strategies.base import Event, Strategy
from manymodes.task import Batch, Data, Task, TensorData
from tests.laws.cases import SETTINGS, Lab, augmented, bits, inputs_of, tasks

Law = Callable[[Lab], None]
LAWS: dict[str, Law] = {}
_APPLIES: dict[str, Callable[[Lab], bool]] = {}


def law(applies: Callable[[Lab], bool] = lambda lab: True) -> Callable[[Law], Law]:
    def register(function: Law) -> Law:
        LAWS[function.__name__] = function
        _APPLIES[function.__name__] = applies
        return function

    return register


def applicable(lab: Lab) -> list[str]:
    """The laws that say something about this case."""
    return [name for name in LAWS if _APPLIES[name](lab)]


# ---- predictions ------------------------------------------------------------------------------------


@law()
def works_before_any_task(lab: Lab) -> None:
    learner, task = lab.learner(), tasks()[0]
    inputs = inputs_of(task)
    everything, restricted = learner.predict(inputs), learner.predict(inputs, classes=task.classes)
    assert everything.shape == restricted.shape == (len(inputs), 10)
    assert (everything > 0).all()
    assert learner.storage()["parameters"] == learner.modes.theta.numel()
    learner.load_state_dict(copy.deepcopy(learner.state_dict()))
    assert torch.equal(learner.predict(inputs), everything)


@law()
def predictions_are_distributions_over_the_valid_outputs(lab: Lab) -> None:
    learner, (first, second, *_) = lab.learnt(2), tasks()
    inputs, known = inputs_of(first), sorted({*first.classes, *second.classes})
    for classes, valid in ((None, known), (first.classes, list(first.classes)), ([3, 1], [1, 3])):
        probabilities = learner.predict(inputs, classes=classes)
        assert torch.allclose(probabilities.sum(dim=1), torch.ones(len(inputs)), atol=1e-5)
        others = [c for c in range(10) if c not in valid]
        assert (probabilities[:, others] == 0).all()
        assert (probabilities[:, valid] > 0).all()


@law()
def predict_is_pure(lab: Lab) -> None:
    learner = lab.learnt(2)
    inputs, state = inputs_of(tasks()[0]), bits(learner.state_dict())
    training = [m.training for m in learner.model.module.modules()]
    random = torch.get_rng_state()
    first = learner.predict(inputs)
    assert torch.equal(first, learner.predict(inputs))
    assert bits(learner.state_dict()) == state
    assert torch.equal(torch.get_rng_state(), random)
    assert [m.training for m in learner.model.module.modules()] == training
    # one sample's prediction does not depend on its company
    assert torch.allclose(learner.predict(inputs[:3]), first[:3], atol=1e-6)


# ---- what is the caller's stays the caller's --------------------------------------------------------


@law()
def nothing_of_yours_is_changed(lab: Lab) -> None:
    module = lab.module()
    learner = lab.case.cls(module, **SETTINGS | lab.case.options)
    given = tasks()[:2]
    before = bits([module.state_dict(), [[t.train.inputs, t.train.targets, t.val.inputs] for t in given]])
    random = torch.get_rng_state()
    for task in given:
        learner.learn(task)
    inputs = inputs_of(given[0])
    untouched = inputs.clone()
    learner.predict(inputs)
    after = bits([module.state_dict(), [[t.train.inputs, t.train.targets, t.val.inputs] for t in given]])
    assert before == after
    assert torch.equal(inputs, untouched)
    assert torch.equal(torch.get_rng_state(), random)
    assert all(p.grad is None and p.requires_grad for p in module.parameters())
    assert all(m.training for m in module.modules())


@law()
def same_seed_same_bits(lab: Lab) -> None:
    with torch.random.fork_rng():
        torch.manual_seed(11)
        one = lab.taught(2)
        torch.manual_seed(22)
        two = lab.taught(2)
    assert bits(one.state_dict()) == bits(two.state_dict())
    other = lab.taught(1, seed=1)
    assert not torch.equal(lab.learnt(1).modes.theta, other.modes.theta)


@law()
def the_form_of_the_data_does_not_matter(lab: Lab) -> None:
    task = tasks()[0]
    inputs = next(iter(task.train.batches([torch.arange(len(task.train))]))).inputs
    pairs = list(zip(inputs, task.train.targets.tolist(), strict=True))
    forms = ((inputs, task.train.targets), (TensorDataset(inputs, task.train.targets),), (pairs,))
    states = [bits(lab.learner().learn(*form).state_dict()["theta"]) for form in forms]
    assert states[0] == states[1] == states[2]


@law()
def renumbering_the_labels_renumbers_the_outputs(lab: Lab) -> None:
    # Output c of one learner is output permutation[c] of the other, weights of the head included. With SGD:
    # Adam turns rounding noise on a gradient of zero (a tie between modes) into whole steps.
    permutation = torch.tensor([4, 7, 1, 0, 9, 3, 8, 2, 6, 5])
    moved_module = lab.module()
    with torch.no_grad():
        for parameter in moved_module.fc.parameters():
            parameter[permutation] = parameter.clone()
    options = SETTINGS | lab.case.options | {"optimiser": "sgd", "lr": 0.05}
    plain, renumbered = lab.learner(**options), lab.case.cls(moved_module, **options)
    _move_outputs(plain, renumbered, permutation)
    for task in tasks()[:2]:
        plain.learn(task)
        moved = TensorData(task.train.inputs, permutation[task.train.targets], task.train.transform)
        held = TensorData(task.val.inputs, permutation[task.val.targets], task.val.transform)
        renumbered.learn(
            replace(task, train=moved, val=held, classes=tuple(permutation[list(task.classes)].tolist()))
        )
    inputs = inputs_of(tasks()[0])
    assert torch.allclose(renumbered.predict(inputs)[:, permutation], plain.predict(inputs), atol=1e-4)


def _move_outputs(plain: Strategy, renumbered: Strategy, permutation: Tensor) -> None:
    """For strategies that draw their own weights."""
    renumbered.modes.theta.copy_(plain.modes.theta)
    for theta in renumbered.modes.theta:
        for segment in plain.model.segments:
            if segment.name.startswith("fc."):
                rows = theta[segment.slice].view(segment.shape)
                rows[permutation] = rows.clone()


# ---- state --------------------------------------------------------------------------------------------


def _again(lab: Lab, learner: Strategy, path: Path) -> Strategy:
    """The learner after a round trip through a file."""
    learner.save(path)
    return load(path, model=lab.module(), strategy=lab.case.cls)


@law()
def a_saved_learner_is_the_same_learner(lab: Lab) -> None:
    first, second, third = tasks()
    learner = lab.taught(2)
    with tempfile.TemporaryDirectory() as folder:
        loaded = _again(lab, learner, Path(folder) / "learner.safetensors")
    loaded.recall([first, second])
    assert torch.equal(loaded.predict(inputs_of(first)), learner.predict(inputs_of(first)))
    assert bits(loaded.state_dict()) == bits(learner.state_dict())
    assert loaded.storage() == learner.storage()
    assert bits(loaded.learn(third).state_dict()) == bits(learner.learn(third).state_dict())


def _resumed_equals_uninterrupted(lab: Lab, given: Sequence[Task], number: int) -> None:
    whole = lab.learner()
    with tempfile.TemporaryDirectory() as folder:
        saved: list[Path] = []

        def save(learner: Strategy) -> None:
            saved.append(Path(folder) / f"{len(saved)}.safetensors")
            learner.save(saved[-1])

        for task in given[:number]:
            whole.learn(task)
        whole.learn(given[number], on_epoch=save)
        assert len(saved) == SETTINGS["epochs"]
        for path in saved:
            again = load(path, model=lab.module(), strategy=lab.case.cls)
            again.recall(given[:number])
            again.learn(given[number])
            assert bits(again.state_dict()) == bits(whole.state_dict()), path.name


@law()
def killed_and_resumed_equals_never_killed(lab: Lab) -> None:
    _resumed_equals_uninterrupted(lab, tasks()[:1], 0)
    _resumed_equals_uninterrupted(lab, tasks()[:2], 1)


@law(applies=lambda lab: lab.network == "mlp")
def the_same_with_augmented_data(lab: Lab) -> None:
    _resumed_equals_uninterrupted(lab, [augmented(t) for t in tasks("instance")[:2]], 1)


@law()
def a_loaded_learner_has_tensors_of_its_own(lab: Lab) -> None:
    """Learning on with one of two learners of the same state does not change the other."""
    whole, given = lab.learnt(1), tasks()
    other = lab.learner()

    def branch(learner: Strategy) -> None:
        if learner.epochs_done == 1:
            other.load_state_dict(learner.state_dict())
            other.recall(given[:1])
            other.learn(given[1])

    whole.learn(given[1], on_epoch=branch)
    assert bits(whole.state_dict()) == lab.state(2) == bits(other.state_dict())


@law()
def learning_is_all_or_nothing(lab: Lab) -> None:
    first, second, third = tasks()
    learner = lab.learnt(1)
    before = bits(learner.state_dict())

    def stop(learner: Strategy) -> None:
        if learner.epochs_done == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        learner.learn(third, on_epoch=stop)
    assert bits(learner.state_dict()) == before
    with _diverging(learner), pytest.raises(TrainingDiverged, match="lr"):
        learner.learn(third)
    assert bits(learner.state_dict()) == before
    if lab.network == "mlp":  # and within a task
        _fails_within_a_task(lab, first, second, stop)
    learner.learn(second)
    assert bits(learner.state_dict()) == lab.state(2)


def _fails_within_a_task(lab: Lab, first: Task, second: Task, stop: Callable[[Strategy], None]) -> None:
    resumed = lab.learner()

    def branch(learner: Strategy) -> None:
        if learner.epochs_done == 1:
            resumed.load_state_dict(copy.deepcopy(learner.state_dict()))
            resumed.recall([first])

    whole = lab.learnt(1).learn(second, on_epoch=branch)
    before = bits(resumed.state_dict())
    with pytest.raises(KeyboardInterrupt):
        resumed.learn(second, on_epoch=stop)
    assert bits(resumed.state_dict()) == before
    assert bits(resumed.learn(second).state_dict()) == bits(whole.state_dict())


@contextmanager
def _diverging(learner: Strategy) -> Iterator[None]:
    learner.lr, lr = 1e30, learner.lr
    try:
        yield
    finally:
        learner.lr = lr


# ---- what makes it continual learning -----------------------------------------------------------------


class Watched:
    """Data that counts how often it is read."""

    def __init__(self, data: Data) -> None:
        self.data, self.targets, self.augments, self.reads = data, data.targets, data.augments, 0

    def __len__(self) -> int:
        return len(self.data)

    def batches(self, order: Sequence[Tensor], generator: torch.Generator | None = None) -> Iterator[Batch]:
        self.reads += 1
        return self.data.batches(order, generator)


@law(applies=lambda lab: not lab.case.cls.rehearses)
def without_rehearsal_old_data_is_never_read(lab: Lab) -> None:
    first, second, third = tasks()
    train, val = Watched(first.train), Watched(first.val)
    learner = lab.learner().learn(replace(first, train=train, val=val))
    assert train.reads > 0
    reads = train.reads, val.reads
    learner.learn(second).learn(third).predict(inputs_of(second))
    assert (train.reads, val.reads) == reads


_WEIGHTS = ("strength", "distillation", "budget")


def _is_a_penalty_method(lab: Lab) -> bool:
    return any(lab.case.has(w) for w in _WEIGHTS)


@law(
    applies=lambda lab: (
        _is_a_penalty_method(lab) and (not lab.case.has("modes") or lab.case.option("modes") == 1)
    )
)
def weight_zero_is_fine_tuning(lab: Lab) -> None:
    off: dict[str, Any] = {w: 0 for w in _WEIGHTS if lab.case.has(w)}
    if lab.case.has("backtracking"):
        off["backtracking"] = False
    training = {k: v for k, v in lab.case.options.items() if k in Strategy.__init__.__kwdefaults__}
    plain = Finetune(lab.module(), **SETTINGS | training)
    learner = lab.learner(**off)
    for task in tasks()[:2]:
        learner.learn(task)
        plain.learn(task)
    assert torch.equal(learner.modes.theta, plain.modes.theta)
    assert torch.equal(learner.modes.buffers, plain.modes.buffers)


@law(applies=lambda lab: any(lab.case.has(w) and lab.case.option(w) > 0 for w in _WEIGHTS[:2]))
def the_penalty_is_positive_once_the_weights_move(lab: Lab) -> None:
    learner, events = lab.learner(), list[Event]()
    first, second, _ = tasks()
    learner.learn(first, on_event=events.append)
    assert all(event.penalty == 0 for event in events)
    assert learner.penalty(0) == 0
    events.clear()
    learner.learn(second, on_event=events.append)
    moved = [event for event in events if event.drift > 0]
    assert moved
    if lab.case.has("start") and lab.case.option("start") == "latest":
        assert all(event.penalty == 0 for event in moved), "a new mode owes the old tasks nothing"
        return
    assert all(event.penalty > 0 for event in moved)


@law()
def consolidation_does_not_move_the_weights(lab: Lab) -> None:
    """The Fisher pass (and whatever else ends a task) leaves parameters and buffers bit-identical."""
    learner, last = lab.taught(1, **{"backtracking": False} if lab.case.has("backtracking") else {}), []
    learner.learn(tasks()[1], on_epoch=lambda it: last.append(bits([it.modes.theta, it.modes.buffers])))
    assert bits([learner.modes.theta, learner.modes.buffers]) == last[-1]


@law()
def the_ledger_counts_what_is_there(lab: Lab) -> None:
    learner, found = lab.learner(), list[dict[str, int]]()
    for task in tasks()[:2]:
        learner.learn(task, on_epoch=lambda it: found.append(it.storage()))
    kinds = {
        "parameters", "buffers", "importances", "anchors", "teachers", "path", "reference_gradient",
        "statistics", "replay_samples", "replay_bytes",
    }  # fmt: skip
    for storage in found:
        assert set(storage) <= kinds
        assert all(isinstance(count, int) and count >= 0 for count in storage.values())
        assert storage["parameters"] == learner.modes.theta.numel()
        assert bool(storage.get("replay_samples", 0)) <= learner.rehearses
