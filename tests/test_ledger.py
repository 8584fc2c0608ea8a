"""The ledger, measured on live learners in the middle of a task, against the paper's accounting."""

import pytest

from manymodes.ledger import paper_multiple
from manymodes.strategies.registry import REGISTRY, strategy_class
from tests import toys

PAPER = {
    "finetune": 1, "multitask": 1, "ewc": 2, "si": 3, "lwf": 1, "lwf-ewc": 2, "er": 1, "agem": 2,
    "ensemble": 1, "mota": 2,
}  # fmt: skip


def midway(name, task=1, **options):
    """What a learner keeps at the end of each epoch of a task."""
    learner = strategy_class(name)(toys.net(), epochs=2, device="cpu", **options)
    groups, found = ((0, 1), (2, 3)), []
    for number in range(task + 1):
        found.clear()
        learner.learn(toys.task(groups[number]), on_epoch=lambda it: found.append(it.storage()))
    return learner, found


def test_every_strategy_is_in_the_table():
    assert set(PAPER) == set(REGISTRY)


@pytest.mark.parametrize("name", PAPER)
def test_multiples_while_learning_the_second_task(name):
    _, found = midway(name)
    assert [paper_multiple(storage) for storage in found] == [PAPER[name]] * 2


@pytest.mark.parametrize(
    ("name", "kinds"),
    [
        ("finetune", {}),
        ("ewc", {"importances": 1, "anchors": 1}),
        ("si", {"importances": 1, "anchors": 1, "path": 1}),
        ("lwf", {"teachers": 1}),
        ("lwf-ewc", {"importances": 1, "anchors": 1, "teachers": 1}),
        ("agem", {"reference_gradient": 1}),
        ("mota", {"importances": 1, "anchors": 1, "teachers": 1}),
        ("mota:drift=fisher", {"importances": 1, "anchors": 1}),
        ("mota:drift=function", {"teachers": 1}),
    ],
)
def test_copies_of_old_parameters_are_listed_apart(name, kinds):
    name, *given = name.split(":")
    learner, found = midway(name, **dict(option.split("=") for option in given))
    parameters = learner.modes.theta.numel()
    for storage in found:
        vectors = {k: v for k, v in storage.items() if k not in ("buffers", "replay_samples", "replay_bytes")}
        assert {k: v for k, v in vectors.items() if v} == {
            "parameters": parameters, **{k: n * parameters for k, n in kinds.items()}
        }  # fmt: skip


def test_what_only_training_needs_is_gone_afterwards():
    for name in ("si", "lwf", "agem"):
        storage = midway(name)[0].storage()
        assert not any(storage.get(kind, 0) for kind in ("path", "teachers", "reference_gradient"))


def test_samples_are_counted_as_samples_and_bytes():
    _, found = midway("er", budget=4)
    assert found[-1]["replay_samples"] == 8
    assert found[-1]["replay_bytes"] == 8 * (6 * 4) + 3 * 8 * 8
    _, found = midway("multitask")
    assert found[-1]["replay_samples"] == 30


def test_in_the_first_task_nothing_is_kept_yet():
    assert paper_multiple(midway("ewc", task=0)[1][0]) == 1
    assert paper_multiple(midway("si", task=0)[1][0]) == 2  # its path
