"""Multi-task learning: one loop over everything seen, each sample over its own task's outputs."""

import pytest
import torch

from manymodes import Finetune, Multitask
from manymodes.errors import UserError
from tests import toys
from tests.strategies.recording import GROUPS, PLAIN, network

GROWING = [(0, 1), (0, 1, 2, 3), (0, 1, 2, 3, 4, 5)]


def recorded_union(learner):
    """The batches that the learner draws from its union of tasks."""
    drawn, original = [], learner.pass_over

    def pass_over(union, mode, loss):
        def noted(batch):
            drawn.append((batch.inputs, batch.targets))
            return loss(batch)

        original(union, mode, noted)

    learner.pass_over = pass_over
    return drawn


@pytest.mark.parametrize("valid", [None, GROWING], ids=["task", "class"])
@pytest.mark.parametrize("restart", [False, True])
def test_three_tasks_equal_a_plain_loop(valid, restart):
    from tests.reference import loops
    from tests.strategies.recording import assert_same_weights, recorded_tasks

    module, learner = network(), Multitask(network(), restart=restart, **PLAIN)
    drawn, given = recorded_union(learner), recorded_tasks(valid=valid)
    for number, task in enumerate(given):
        drawn.clear()
        learner.learn(task)
        assert len(drawn) == PLAIN["epochs"] * -(-20 * (number + 1) // 8)
        seen = task.classes

        def step(m, x, y, seen=seen):
            outputs = (lambda label: seen) if valid else (lambda label: GROUPS[label // 2])
            return loops.gradients_of(m, loops.memory_loss(m(x), y, outputs))

        if restart:
            module = network()
        loops.train(module, list(drawn), PLAIN["lr"], step)
        assert_same_weights(learner, module)


def test_every_sample_of_every_task_is_seen_in_every_epoch():
    learner = Multitask(toys.net(outputs=6), epochs=1)
    given = [toys.task(classes, samples=20) for classes in GROUPS]
    drawn = recorded_union(learner)
    for task in given:
        drawn.clear()
        learner.learn(task)
    rows = torch.cat([x for x, _ in drawn])
    everything = torch.cat([task.train.inputs for task in given])
    assert torch.equal(rows.sort(dim=0).values, everything.sort(dim=0).values)


def test_one_task_is_fine_tuning():
    task = toys.task((0, 1))
    one, two = Multitask(toys.net(), epochs=2).learn(task), Finetune(toys.net(), epochs=2).learn(task)
    assert torch.equal(one.modes.theta, two.modes.theta)


def test_a_loaded_learner_asks_for_its_tasks():
    learner = Multitask(toys.net(), epochs=1).learn(toys.task((0, 1)))
    again = Multitask(toys.net(), epochs=1)
    again.load_state_dict(learner.state_dict())
    with pytest.raises(UserError, match=r"recall\(tasks\)"):
        again.learn(toys.task((2, 3)))
    again.recall([toys.task((0, 1))])
    assert again.learn(toys.task((2, 3))).tasks_learnt == 2
