"""Experience replay against a plain loop over task and memory."""

import pytest
import torch

from manymodes import ER
from manymodes.errors import UserError
from tests import toys
from tests.reference import loops
from tests.strategies.recording import (
    GROUPS,
    PLAIN,
    Recorded,
    assert_same_weights,
    network,
    recorded_replay,
    recorded_tasks,
)

GROWING = [(0, 1), (0, 1, 2, 3), (0, 1, 2, 3, 4, 5)]


@pytest.mark.parametrize("norm", [False, True])
@pytest.mark.parametrize("valid", [None, GROWING], ids=["task", "class"])
def test_three_tasks_equal_a_plain_loop(valid, norm):
    module, learner = network(norm=norm), ER(network(norm=norm), budget=7, **PLAIN)
    for number, task in enumerate(recorded_tasks(valid=valid)):
        replays = recorded_replay(learner)
        learner.learn(task)

        def outputs_of(label, seen=task.classes):
            return seen if valid else GROUPS[label // 2]

        step = loops.finetune(task.classes)
        if number > 0:
            step = loops.er(task.classes, replays, outputs_of)
        loops.train(module, task.train.drawn, PLAIN["lr"], step)
        assert_same_weights(learner, module)
        assert torch.bincount(learner.memory.targets, minlength=6).tolist() == [7] * (2 * number + 2) + [
            0
        ] * (4 - 2 * number)


def test_half_of_every_step_is_from_the_memory():
    first, second = recorded_tasks(2)
    learner = ER(network(), budget=20, **PLAIN)
    learner.learn(first)
    replays = recorded_replay(learner)
    learner.learn(second)
    assert [len(x) for x, _ in replays] == [8] * len(second.train.drawn)
    kept = {tuple(row.tolist()) for row in first.train.inputs}
    assert all(tuple(row.tolist()) in kept for x, _ in replays for row in x)
    small = ER(network(), budget=1, **PLAIN)
    small.learn(first)
    replays = recorded_replay(small)
    small.learn(second)
    assert {len(x) for x, _ in replays} == {2}  # all there is


def test_instances_share_the_quota_of_their_class():
    learner = ER(toys.net(), budget=5, **PLAIN)
    for seed in range(3):
        learner.learn(toys.task((0, 1, 2, 3), samples=40, seed=seed))
        assert torch.bincount(learner.memory.targets).tolist() == [5] * 4
    assert set(learner.memory.owners.tolist()) == {0, 1, 2}


def test_memory_does_not_change_while_a_task_is_learnt():
    first, second = recorded_tasks(2)
    learner, sizes = ER(network(), budget=3, **PLAIN).learn(first), []
    learner.learn(second, on_epoch=lambda it: sizes.append((len(it.memory), it.storage()["replay_samples"])))
    assert sizes == [(6, 6)] * 2
    assert learner.storage()["replay_samples"] == 12
    assert learner.storage()["replay_bytes"] == 12 * (6 * 8 + 3 * 8)


@pytest.mark.parametrize("budget", [-1, 1.5, True, "ten"])
def test_a_budget_is_a_whole_number(budget):
    with pytest.raises(UserError, match="budget must be a whole number"):
        ER(network(), budget=budget)


def test_it_remembers_what_fine_tuning_forgets():
    given = [toys.task((0, 1), 60, valid=(0, 1)), toys.task((2, 3), 60, valid=(0, 1, 2, 3))]
    found = {}
    for budget in (0, 20):
        learner = ER(toys.net(), budget=budget, **PLAIN | {"epochs": 10})
        for task in given:
            learner.learn(task)
        guess = learner.predict(given[0].test.inputs, classes=(0, 1, 2, 3)).argmax(1)
        found[budget] = (guess == given[0].test.targets).float().mean().item()
    assert found[0] < 0.5
    assert found[20] > 0.8


def test_recorded_is_what_the_learner_got():
    """The recorder itself: evaluation does not count, training does."""
    data = Recorded(torch.zeros(4, 6), torch.tensor([0, 1, 0, 1]))
    list(data.batches([torch.arange(4)]))
    assert data.drawn == []
    list(data.batches([torch.arange(4)], torch.Generator()))
    assert len(data.drawn) == 1
