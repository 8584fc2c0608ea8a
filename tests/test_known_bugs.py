"""A table of bugs of other libraries: a check that ours passes and that catches the bug."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from manymodes import AGEM, ER, EWC, MOTA, SI, Finetune, LwF
from manymodes.config import Config, build_learner, build_stream
from manymodes.metrics import average_accuracy, forgetting, summary
from manymodes.run import evaluate, run
from manymodes.streams import digits
from manymodes.task import Stream, TensorData
from tests import bugs, toys
from tests.reference import fisher as slow_fisher
from tests.reference import loops
from tests.strategies.recording import (
    GROUPS,
    PLAIN,
    assert_same_weights,
    network,
    recorded_replay,
    recorded_tasks,
)

# ---- checks on strategies ------------------------------------------------------------------------------


def learnt(cls, count=2, **options):
    learner = cls(network(norm=True), **PLAIN | options)
    for task in recorded_tasks(count):
        learner.learn(task)
    return learner


def reports_a_penalty(cls):
    events = []
    learner = learnt(cls, 1)
    learner.learn(recorded_tasks(2)[1], on_event=events.append)
    assert all(event.penalty > 0 for event in events)


def leaves_running_statistics_alone(cls):
    last = []
    learner = cls(network(norm=True), **PLAIN)
    learner.learn(recorded_tasks(1)[0], on_epoch=lambda it: last.append(it.modes.buffers.clone()))
    assert torch.equal(learner.modes.buffers, last[-1])


def importance_is_the_mean_of_squares(cls):
    learner, task = learnt(cls, 1), recorded_tasks(1)[0]
    module = network(norm=True)
    for (name, parameter), segment in zip(module.named_parameters(), learner.model.segments, strict=True):
        assert name == segment.name
        parameter.data.copy_(learner.modes.theta[0][segment.slice].view(segment.shape))
    where = {s.name: s for s in learner.model.buffer_segments}
    for name, buffer in module.named_buffers():
        if name in where:
            buffer.copy_(learner.modes.buffers[0][where[name].slice].view(where[name].shape))
    found = slow_fisher.diagonal(module, task.train.inputs, task.train.targets, classes=task.classes)
    expected = torch.cat([found[s.name].flatten() for s in learner.model.segments])
    torch.testing.assert_close(learner.springs.importance, expected)


def strength_has_its_half(cls):
    learner = learnt(cls, 1, strength=4.0)
    learner.modes.theta += 0.5
    expected = 4.0 / 2 * (learner.springs.importance * 0.25).sum()
    assert learner.penalty(0) == pytest.approx(float(expected))


def holds_every_head(cls):
    learner = learnt(cls, 2)
    head = learner.model.segments[-2]
    rows = learner.springs.importance[head.slice].view(head.shape)
    assert (rows[:4].sum(dim=1) > 0).all()  # the heads of both tasks
    assert (rows[4:] == 0).all()  # and not the one still to come


def penalty_survives_a_resume(cls):
    learner, again = learnt(cls, 1), cls(network(norm=True), **PLAIN)
    again.load_state_dict(learner.state_dict())
    for it in (learner, again):
        it.modes.theta += 0.1
    assert again.penalty(0) == learner.penalty(0) > 0


def is_not_fine_tuning(cls):
    assert not torch.allclose(learnt(cls).modes.theta, learnt(Finetune).modes.theta, atol=1e-6)


def is_synaptic_intelligence(cls):
    module, reference = network(norm=True), loops.SynapticIntelligence(40.0, 0.01)
    learner = cls(network(norm=True), strength=40.0, damping=0.01, **PLAIN)
    for task in recorded_tasks(2):
        learner.learn(task)
        reference.learn(module, task.train.drawn, PLAIN["lr"], task.classes)
    expected = torch.cat([reference.omega[s.name].flatten() for s in learner.model.segments])
    torch.testing.assert_close(learner.springs.importance, expected, rtol=1e-6, atol=1e-10)


def holds_batchnorm(cls):
    learner = learnt(cls)
    for segment in learner.model.segments:
        if segment.name.startswith("1."):
            assert learner.springs.importance[segment.slice].sum() > 0, segment.name


def is_distillation(cls):
    module, learner, heads = network(norm=True), cls(network(norm=True), **PLAIN), []
    for task in recorded_tasks():
        learner.learn(task)
        step = loops.lwf(module, task.classes, list(heads), 1.0, 2.0)
        loops.train(module, task.train.drawn, PLAIN["lr"], step)
        heads.append(task.classes)
    assert_same_weights(learner, module)


def is_agem(cls):
    module, learner = network(), cls(network(), budget=7, **PLAIN)
    for number, task in enumerate(recorded_tasks()):
        replays = recorded_replay(learner)
        learner.learn(task)
        step = loops.finetune(task.classes)
        if number > 0:
            step = loops.agem(task.classes, replays, lambda label: GROUPS[label // 2], 1e-7, [])
        loops.train(module, task.train.drawn, PLAIN["lr"], step)
    assert_same_weights(learner, module)


def stays_finite(cls):
    learner = cls(toys.net(outputs=6), **PLAIN)
    events = []
    try:
        for classes in GROUPS:
            learner.learn(toys.task(classes), on_event=events.append)
    except ValueError as error:
        raise AssertionError(error) from error
    assert torch.isfinite(learner.modes.theta).all()


def fills_the_quota_of_every_class(cls):
    learner = cls(network(), budget=6, **PLAIN)
    for number, task in enumerate(recorded_tasks()):
        learner.learn(task)
        assert torch.bincount(learner.memory.targets).tolist() == [6] * (2 * number + 2)


# ---- checks on metrics and protocol --------------------------------------------------------------------

MATRIX = [[0.1, 0.2, 0.3], [0.6, 0.2, 0.3], [0.9, 0.8, 0.4], [0.5, 0.7, 1.0]]


def forgets_from_the_peak(function):
    assert function(MATRIX) == pytest.approx(((0.9 - 0.5) + (0.8 - 0.7)) / 2)


def averages_the_latest_row(function):
    assert function(MATRIX) == pytest.approx((0.5 + 0.7 + 1.0) / 3)


def averages_what_was_seen(function):
    assert function(MATRIX, 2) == pytest.approx((0.9 + 0.8) / 2)


def writes_nothing(function):
    matrix = np.array(MATRIX)
    function(matrix)
    assert (matrix == np.array(MATRIX)).all()


def lopsided():
    """Two tasks, the second with ten times as much to test."""
    first, second = toys.task((0, 1)), toys.task((2, 3))
    crowd = TensorData(*toys.blobs((2, 3), 200, seed=3, spread=3.0))
    second = replace(second, test=crowd)
    return Stream("lopsided", "task", 4, (6,), (lambda: first, lambda: second))


def mean_over_tasks(stream):
    return average_accuracy(run(Finetune(toys.net(), epochs=2), stream).accuracy)


def pooled_over_samples(stream):
    row, sizes = run(Finetune(toys.net(), epochs=2), stream).accuracy[-1], [len(t.test) for t in stream]
    return sum(a * n for a, n in zip(row, sizes, strict=True)) / sum(sizes)


def counts_tasks_equally(function):
    row = run(Finetune(toys.net(), epochs=2), lopsided()).accuracy[-1]
    assert row[0] != row[1]
    assert function(lopsided()) == pytest.approx(sum(row) / 2)


def accuracy_of(learner, data, classes):
    return evaluate(learner, data, classes)[0]


def accuracy_off_by_one(learner, data, classes):
    following = dict(zip(classes, [*classes[1:], classes[0]], strict=True))
    moved = torch.tensor([following[label] for label in data.targets.tolist()])
    return evaluate(learner, TensorData(data.inputs, moved), classes)[0]


def an_oracle_is_always_right(function):
    oracle = torch.nn.Linear(4, 4)
    with torch.no_grad():
        oracle.weight.copy_(50 * torch.eye(4))
        oracle.bias.zero_()
    for classes in ((0, 1), (1, 3), (0, 1, 2, 3)):
        targets = torch.tensor(classes).repeat(3)
        data = TensorData(torch.eye(4)[targets], targets)
        assert function(Finetune(oracle), data, classes) == 1.0


def choosing_on_validation(stream):
    return run_mota(stream)


def choosing_on_test(stream):
    builders = tuple(lambda t=t: replace(t, val=t.test) for t in stream)
    return run_mota(replace(stream, builders=builders))


def run_mota(stream):
    learner = MOTA(toys.net(), modes=2, epochs=4, lr=0.05, drift_weight=0.0)
    run(learner, stream)
    return learner.modes.theta


def labels_of_the_test_part_change_nothing(function):
    scrambled = []
    for task in toys.stream(2):
        held = TensorData(task.test.inputs, task.test.targets.flip(0))
        scrambled.append(replace(task, test=held))
    stream = toys.stream(2)
    other = replace(stream, builders=tuple(lambda t=t: t for t in scrambled))
    assert torch.equal(function(stream), function(other))


def validates_on_test(scenario):
    stream = digits(scenario)
    return replace(stream, builders=tuple(lambda t=t: replace(t, val=t.test) for t in stream))


def keeps_validation_and_test_apart(make):
    for scenario in ("task", "class", "instance"):
        for task in make(scenario):
            val, test = ({row.numpy().tobytes() for row in part.inputs} for part in (task.val, task.test))
            assert val
            assert test
            assert not val & test


def seeded(seed):
    config = Config(strategy={"name": "finetune"}, stream={"name": "digits"}, seed=seed)
    return build_learner(config, build_stream(config)).modes.theta


def seed_stops_short(seed):
    return seeded(1)


def seed_reaches_the_initialisation(function):
    assert torch.equal(function(3), function(3))
    assert not torch.equal(function(3), function(4))


# ---- the table -----------------------------------------------------------------------------------------

TABLE = {
    "EWC: penalty always zero": (reports_a_penalty, EWC, bugs.PenaltyAlwaysZero),
    "EWC: Fisher pass in train mode": (leaves_running_statistics_alone, EWC, bugs.FisherInTrainMode),
    "EWC: squared batch mean": (importance_is_the_mean_of_squares, EWC, bugs.SquaredBatchMean),
    "EWC: no one half": (strength_has_its_half, EWC, bugs.NoOneHalf),
    "EWC: heads of unequal size left out": (holds_every_head, EWC, bugs.SkipsHeads),
    "EWC: penalty lost on resume": (penalty_survives_a_resume, EWC, bugs.ForgetsSpringsOnResume),
    "SI: penalty after backward": (is_not_fine_tuning, SI, bugs.PenaltyAfterBackward),
    "SI: path includes the penalty": (is_synaptic_intelligence, SI, bugs.PathWithPenalty),
    "SI: importance clipped": (is_synaptic_intelligence, SI, bugs.ImportanceClipped),
    "SI: BatchNorm left out": (holds_batchnorm, SI, bugs.BatchNormLeftOut),
    "LwF: no gradient flows": (is_not_fine_tuning, LwF, bugs.NoGradientFlows),
    "LwF: mismatched keys": (reports_a_penalty, LwF, bugs.MismatchedKeys),
    "LwF: teacher in train mode": (is_distillation, LwF, bugs.TeacherInTrainMode),
    "LwF: teacher sees other inputs": (is_distillation, LwF, bugs.TeacherSeesOtherInputs),
    "A-GEM: head gradients left out": (is_agem, AGEM, bugs.HeadGradientsLeftOut),
    "A-GEM: zero reference gradient": (stays_finite, bugs.ZeroReference, bugs.NoEpsilon),
    "A-GEM: one batch stored": (fills_the_quota_of_every_class, AGEM, bugs.OneBatchStored),
    "ER: wrong quotas": (fills_the_quota_of_every_class, ER, bugs.QuotaOfTheWhole),
    "metrics: first minus last": (forgets_from_the_peak, forgetting, bugs.forgetting_first_minus_last),
    "metrics: one row early": (averages_the_latest_row, average_accuracy, bugs.accuracy_one_row_early),
    "metrics: unseen tasks counted": (averages_what_was_seen, average_accuracy, bugs.accuracy_of_the_unseen),
    "metrics: input mutated": (writes_nothing, summary, bugs.accuracy_that_writes),
    "metrics: samples instead of tasks": (counts_tasks_equally, mean_over_tasks, pooled_over_samples),
    "metrics: labels off by one": (an_oracle_is_always_right, accuracy_of, accuracy_off_by_one),
    "protocol: best epoch picked on test": (
        labels_of_the_test_part_change_nothing, choosing_on_validation, choosing_on_test,
    ),
    "protocol: validation on test": (keeps_validation_and_test_apart, digits, validates_on_test),
    "protocol: seed does not reach the initialisation": (
        seed_reaches_the_initialisation, seeded, seed_stops_short,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", TABLE)
def test_ours_is_right(name):
    check, ours, _ = TABLE[name]
    check(ours)


@pytest.mark.parametrize("name", TABLE)
def test_the_bug_would_be_caught(name):
    check, _, buggy = TABLE[name]
    with pytest.raises(AssertionError):
        check(buggy)
