"""Splitting: parts that never overlap, fair shares, tasks that hold what they should."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from manymodes.errors import UserError
from manymodes.streams.split import (
    Pool,
    Splits,
    balanced,
    class_order,
    make_tasks,
    stratified,
    tasks_by_class,
)
from manymodes.task import TensorData

labels_lists = st.lists(st.integers(0, 5), min_size=1, max_size=80)


@given(labels_lists, st.integers(0, 1000))
@settings(max_examples=60, deadline=None)
def test_stratified_is_a_partition_with_fair_shares(values, seed):
    labels = torch.tensor(values)
    splits = stratified(labels, seed)
    assert sorted(torch.cat(splits).tolist()) == list(range(len(values)))
    for label in set(values):
        count = values.count(label)
        _, val, test = (int((labels[part] == label).sum()) for part in splits)
        assert (val, test) == (round(0.1 * count), round(0.2 * count))
    assert all(torch.equal(a, b) for a, b in zip(splits, stratified(labels, seed), strict=True))


@given(labels_lists, st.integers(1, 80), st.integers(0, 9))
@settings(max_examples=60, deadline=None)
def test_balanced_takes_turns(values, limit, seed):
    labels = torch.tensor(values)
    chosen = balanced(torch.arange(len(values)), labels, limit, seed)
    assert len(chosen) == min(limit, len(values)) == len(set(chosen.tolist()))
    got = [int((labels[chosen] == label).sum()) for label in sorted(set(values))]
    have = [values.count(label) for label in sorted(set(values))]
    for mine, available in zip(got, have, strict=True):
        assert mine == available or mine >= max(got) - 1
    larger = balanced(torch.arange(len(values)), labels, limit + 3, seed)
    assert set(chosen.tolist()) <= set(larger.tolist())


@given(st.integers(1, 30), st.integers(1, 30), st.integers(0, 99))
@settings(max_examples=60, deadline=None)
def test_classes_are_shared_out_evenly(classes, tasks, seed):
    order = class_order(classes, seed)
    labels = torch.arange(classes)
    if tasks > classes:
        with pytest.raises(UserError, match="tasks="):
            tasks_by_class(labels, order, tasks)
        return
    counts = torch.bincount(tasks_by_class(labels, order, tasks), minlength=tasks)
    assert counts.max() - counts.min() <= 1
    assert counts.sum() == classes


def pool(train, val, test, names=("a", "b", "c")):
    """A pool whose parts have these (task, label) pairs."""
    rows = [*train, *val, *test]
    inputs = torch.arange(len(rows)).float()[:, None]
    cuts = [
        torch.arange(len(rows))[s] for s in (slice(0, len(train)), slice(len(train), len(train) + len(val)))
    ]
    splits = Splits(*cuts, torch.arange(len(train) + len(val), len(rows)))
    made = Pool(
        "test",
        torch.tensor([label for _, label in rows]),
        names,
        splits,
        lambda index, targets, _: TensorData(inputs[index], targets),
        (1,),
    )
    return made, torch.tensor([task for task, _ in rows])


BOTH = [(0, 0), (0, 1), (1, 1), (1, 2)]


def test_every_scenario_s_valid_outputs():
    made, task_of = pool(BOTH, [], BOTH)

    def classes(scenario, head="multi"):
        return [task.classes for task in make_tasks(made, task_of, ["x", "y"], scenario=scenario, head=head)]

    assert classes("task") == [(0, 1), (1, 2)]
    assert classes("class") == [(0, 1), (0, 1, 2)]
    assert classes("instance") == [(0, 1, 2), (0, 1, 2)]
    assert classes("task", "shared") == [(0, 1), (0, 1)]


def test_shared_head_of_unequal_tasks():
    made, task_of = pool([(0, 0), (0, 1), (1, 0), (1, 1), (1, 2)], [], [])
    stream = make_tasks(made, task_of, ["x", "y"], scenario="task", head="shared")
    assert stream.num_outputs == 3
    assert [task.classes for task in stream] == [(0, 1), (0, 1, 2)]
    assert len(stream.class_names) == 3


def test_parts_that_are_empty_are_none():
    made, task_of = pool(BOTH, [], [])
    task = make_tasks(made, task_of, ["x", "y"], scenario="task")[0]
    assert task.val is None
    assert task.test is None


@pytest.mark.parametrize(
    ("train", "test", "scenario", "message"),
    [
        (
            [(0, 0), (0, 1)],
            [(0, 2)],
            "task",
            "test part of task 'x' has classes that were never trained: 'c'",
        ),
        ([(0, 0), (0, 1)], [(0, 2)], "class", "never trained"),
        ([(0, 0), (0, 1)], [(1, 1)], "task", "task 'y' has no training sample"),
        ([(0, 0), (0, 1), (1, 2)], [], "task", "task 'y' has one class only"),
    ],
)
def test_data_that_cannot_be_learnt(train, test, scenario, message):
    made, task_of = pool(train, [], test)
    count = 1 + max(task for task, _ in [*train, *test])
    with pytest.raises(UserError, match=message):
        make_tasks(made, task_of, ["x", "y"][:count], scenario=scenario)


def test_class_that_an_earlier_task_trained_may_be_tested():
    made, task_of = pool([(0, 0), (0, 1), (1, 2)], [], [(1, 0), (1, 2)])
    assert len(make_tasks(made, task_of, ["x", "y"], scenario="class")) == 2


def test_slices_keep_their_tasks():
    made, task_of = pool(BOTH, [], [])
    stream = make_tasks(made, task_of, ["x", "y"], scenario="class")
    assert stream[1:][0].name == "y"
    assert stream[1:][0].classes == (0, 1, 2)
