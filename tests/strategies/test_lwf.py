"""Learning without forgetting: its gradient, its teacher, and what it distils."""

import pytest
import torch
from torch import nn

from manymodes import LwF, LwFEWC
from manymodes.task import Task, TensorData
from tests import toys
from tests.reference import fisher as slow_fisher
from tests.reference import loops
from tests.strategies.recording import PLAIN, assert_same_weights, network, recorded_tasks

GROWING = [(0, 1), (0, 1, 2, 3), (0, 1, 2, 3, 4, 5)]
ALL = [tuple(range(6))] * 3


@pytest.mark.parametrize(
    ("valid", "old"),
    [
        (None, [[], [(0, 1)], [(0, 1), (2, 3)]]),  # task-IL: every old head on its own
        (GROWING, [[], [(0, 1)], [(0, 1, 2, 3)]]),  # class-IL: one head over what was seen
        (ALL, [[], [range(6)], [range(6)]]),  # instance-IL: all outputs
    ],
    ids=["task", "class", "instance"],
)
def test_three_tasks_equal_a_plain_loop(valid, old):
    module, learner = network(norm=True), LwF(network(norm=True), distillation=1.5, temperature=2.0, **PLAIN)
    for task, heads in zip(recorded_tasks(valid=valid), old, strict=True):
        learner.learn(task)
        step = loops.lwf(module, task.classes, heads, 1.5, 2.0)
        loops.train(module, task.train.drawn, PLAIN["lr"], step)
        assert_same_weights(learner, module)


def test_together_with_ewc_both_gradients_are_there():
    module, learner = network(), LwFEWC(network(), distillation=0.5, strength=20.0, anchor="merged", **PLAIN)
    past, heads = [], []
    for task in recorded_tasks():
        learner.learn(task)
        teach = loops.lwf(module, task.classes, list(heads), 0.5, 2.0)
        hold = loops.ewc(task.classes, 20.0, list(past))
        plain = loops.finetune(task.classes)

        def both(m, x, y, teach=teach, hold=hold, plain=plain):
            a, b, c = teach(m, x, y), hold(m, x, y), plain(m, x, y)
            return {n: a[n] + b[n] - c[n] for n in a}

        loops.train(module, task.train.drawn, PLAIN["lr"], both)
        assert_same_weights(learner, module)
        importance = slow_fisher.diagonal(module, task.train.inputs, task.train.targets, classes=task.classes)
        past.append((loops.values(module), importance))
        heads.append(task.classes)


def test_the_report_adds_both_penalties():
    learner, events = LwFEWC(network(), **PLAIN), []
    first, second = recorded_tasks(2)
    learner.learn(first).learn(second, on_event=events.append)
    assert all(event.penalty > 0 for event in events)
    assert learner.penalty(0) == pytest.approx(0.0, abs=1e-12)  # at its anchor, without a teacher


class Spy(nn.Module):
    """A network that notes, for every forward without gradients, its mode and its inputs."""

    def __init__(self):
        super().__init__()
        self.net = toys.net(outputs=6, norm=True)
        self.drop = nn.Dropout(0.5)
        self.quiet, self.learning = [], []

    def forward(self, x):
        (self.learning if torch.is_grad_enabled() else self.quiet).append((self.training, x.clone()))
        return self.net(self.drop(x))

    def __deepcopy__(self, memo):
        return self  # the learner works on this very module, so that it can be watched


def _spied(augment):
    spy = Spy()
    learner = LwF(spy, **PLAIN | {"epochs": 3})
    learner.learn(toys.task((0, 1), val=0))
    spy.quiet.clear()
    spy.learning.clear()
    learner.learn(toys.task((2, 3), val=0, augment=augment))
    return spy


def test_teacher_is_in_eval_mode_and_asked_once():
    spy = _spied(None)
    assert len(spy.quiet) == 3  # the check of the data, the teacher's table, the check of what was learnt
    assert not any(training for training, _ in spy.quiet)
    assert all(training for training, _ in spy.learning)
    assert len(spy.quiet[1][1]) == 30


def test_teacher_sees_the_student_s_augmented_inputs():
    def noise(x, generator):
        return x + torch.rand(x.shape, generator=generator)

    spy = _spied(noise)
    asked = spy.quiet[1:-1]  # without the checks of the data and of what was learnt
    assert len(asked) == len(spy.learning) == 3 * 4
    assert not any(training for training, _ in asked)
    for (_, teacher), (_, student) in zip(asked, spy.learning, strict=True):
        assert torch.equal(teacher, student)


def test_teacher_does_not_move_while_the_student_learns():
    learner, first, second = LwF(network(norm=True), **PLAIN), *recorded_tasks(2)
    learner.learn(first)
    before, rows = learner.modes.theta.clone(), []

    def look(learner):
        rows.append((learner._teacher.frozen.theta.clone(), learner.drift(0)))

    learner.learn(second, on_epoch=look)
    assert all(torch.equal(theta, before) and drift > 0 for theta, drift in rows)


def test_old_outputs_are_kept_better_than_by_fine_tuning():
    """On inputs of the second task, the first head's outputs move less with distillation than without."""
    first, second = recorded_tasks(2)
    moved = {}
    for weight in (0.0, 2.0):
        learner = LwF(network(), distillation=weight, **PLAIN | {"epochs": 20})
        learner.learn(first)
        before = learner.predict(second.train.inputs, classes=first.classes)
        learner.learn(second)
        moved[weight] = float(
            (learner.predict(second.train.inputs, classes=first.classes) - before).abs().mean()
        )
    assert moved[2.0] < 0.3 * moved[0.0]


def test_raw_inputs_are_transformed_for_the_teacher_too():
    def scaled(raw):
        return raw.float() / 100

    def given(classes):
        x, y = toys.blobs(classes)
        raw = (x * 10 + 100).clamp(0, 255).to(torch.uint8)
        return Task("raw", TensorData(raw, y, scaled), None, None, classes)

    plain = LwF(toys.net(outputs=6), **PLAIN)
    cooked = LwF(toys.net(outputs=6), **PLAIN)
    for classes in ((0, 1), (2, 3)):
        plain.learn(given(classes))
        data = given(classes).train
        cooked.learn(scaled(data.inputs), data.targets)
    assert torch.equal(plain.modes.theta, cooked.modes.theta)
