"""The bundled digits, in all three scenarios."""

import pytest
import torch

import manymodes.streams as streams
from manymodes.errors import UserError
from manymodes.task import TensorData

SCENARIOS = ("task", "class", "instance")


def rows(data):
    """The raw images of a part, as a set of bytes."""
    return {row.numpy().tobytes() for row in data.inputs}


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_split_is_70_10_20_and_disjoint(scenario):
    stream = streams.digits(scenario)
    assert len(stream) == 5
    for task in stream:
        sizes = [len(part) for part in (task.train, task.val, task.test)]
        total = sum(sizes)
        assert [size / total for size in sizes] == pytest.approx([0.7, 0.1, 0.2], abs=0.01)
        parts = [rows(part) for part in (task.train, task.val, task.test)]
        assert not parts[0] & parts[1]
        assert not parts[0] & parts[2]
        assert not parts[1] & parts[2]


def test_task_scenario_covers_everything_once():
    stream = streams.digits("task")
    assert sum(len(p) for task in stream for p in (task.train, task.val, task.test)) == 1797
    assert sorted(c for task in stream for c in task.classes) == list(range(10))
    for task in stream:
        assert set(task.train.targets.tolist()) == set(task.classes)
        assert set(task.test.targets.tolist()) == set(task.classes)


def test_class_scenario_grows():
    stream = streams.digits("class")
    assert [len(task.classes) for task in stream] == [2, 4, 6, 8, 10]
    for early, late in zip(stream, list(stream)[1:], strict=False):
        assert set(early.classes) < set(late.classes)


def test_instance_tasks_render_the_same_originals_in_the_same_part():
    """Undoing the rendition gives the same originals: no original trained here and tested there."""
    stream = streams.digits("instance")
    assert [task.name for task in stream] == ["as written", "rotated", "shifted", "inverted", "thickened"]
    undo = [
        lambda x: x,
        lambda x: x.rot90(-1, (-2, -1)),
        lambda x: x.roll((-2, -2), (-2, -1)),
        lambda x: 16 - x,
    ]
    first = stream[0]
    for task, back in zip(stream, undo, strict=False):
        assert task.classes == tuple(range(10))
        assert torch.equal(back(task.train.inputs), first.train.inputs)
        assert torch.equal(back(task.test.inputs), first.test.inputs)
    thick = stream[4].train.inputs
    assert (thick >= first.train.inputs).all()
    assert thick.float().mean() > 1.2 * first.train.inputs.float().mean()


def test_labels_are_the_real_ones():
    from sklearn.datasets import load_digits

    bundle = load_digits()
    truth = {
        image.astype("uint8").tobytes(): int(y) for image, y in zip(bundle.images, bundle.target, strict=True)
    }
    for task in streams.digits("class"):
        for raw, target in zip(task.test.inputs, task.test.targets.tolist(), strict=True):
            assert truth[raw.numpy().tobytes()] == target


def test_inputs_are_unit_floats():
    data = streams.digits()[0].train
    assert isinstance(data, TensorData)
    assert data.inputs.dtype == torch.uint8
    batch = next(data.batches([torch.arange(32)]))
    assert batch.inputs.shape == (32, 1, 8, 8)
    assert batch.inputs.dtype == torch.float32
    assert batch.inputs.min() == 0
    assert batch.inputs.max() == 1


def test_shared_head_renumbers():
    stream = streams.digits("task", head="shared")
    assert stream.num_outputs == 2
    assert len(stream.class_names) == 2
    for task in stream:
        assert task.classes == (0, 1)
        assert set(task.train.targets.tolist()) == {0, 1}


def test_seed_fixes_order_and_split():
    assert streams.digits(seed=3).info == streams.digits(seed=3).info
    assert torch.equal(streams.digits(seed=3)[0].train.inputs, streams.digits(seed=3)[0].train.inputs)
    assert streams.digits(seed=3).info["class_order"] != streams.digits(seed=4).info["class_order"]


def test_limit_is_balanced_and_touches_only_training():
    whole, small = streams.digits("instance"), streams.digits("instance", limit=50)
    assert torch.bincount(small[1].train.targets).tolist() == [5] * 10
    assert rows(small[1].train) < rows(whole[1].train)
    assert torch.equal(small[1].test.inputs, whole[1].test.inputs)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"scenario": "tusk"}, "did you mean 'task'"),
        ({"tasks": 0}, "1 to 10"),
        ({"tasks": 10}, "one class only"),
        ({"scenario": "instance", "tasks": 99}, "1 to 6 renditions"),
        ({"head": "single"}, "Valid: multi, shared"),
        ({"scenario": "class", "head": "shared"}, "scenario='task'"),
        ({"limit": 1}, "limit=1"),
    ],
)
def test_mistakes_get_one_line(options, message):
    with pytest.raises(UserError, match=message) as error:
        streams.digits(**options)
    assert "\n" not in str(error.value)
