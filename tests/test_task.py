"""Data, tasks, guards, streams."""

import numpy as np
import pytest
import torch
from torch.utils.data import Dataset, TensorDataset

from manymodes.errors import PastDataError, UserError
from manymodes.task import GuardedData, Stream, Task, TensorData, as_data
from tests import toys


class Pairs(Dataset):
    """The smallest map-style Dataset."""

    def __len__(self):
        return 3

    def __getitem__(self, i):
        return torch.full((2,), float(i)), i % 2


def everything(data, generator=None):
    return next(iter(data.batches([torch.arange(len(data))], generator)))


# ---- TensorData --------------------------------------------------------------------------------------


def test_batches_hold_the_samples_that_were_asked_for():
    data = TensorData(torch.arange(10.0).view(5, 2), torch.tensor([4, 3, 2, 1, 0]))
    order = [torch.tensor([3, 0]), torch.tensor([1])]
    batches = list(data.batches(order))
    assert [b.index.tolist() for b in batches] == [[3, 0], [1]]
    assert batches[0].inputs.tolist() == [[6.0, 7.0], [0.0, 1.0]]
    assert batches[1].targets.tolist() == [3]


def test_numbers_may_come_as_any_sequence():
    data = TensorData(torch.arange(4.0), torch.zeros(4))
    assert next(data.batches([range(2)])).inputs.tolist() == [0.0, 1.0]


def test_augmentation_needs_a_generator_and_comes_before_the_transform():
    def augment(raw, generator):
        return raw + torch.randint(1, 100, raw.shape, generator=generator, dtype=raw.dtype)

    raw = torch.zeros(4, 1, dtype=torch.uint8)
    data = TensorData(raw, torch.zeros(4), transform=lambda r: r.float() / 10, augment=augment)
    assert data.augments
    assert everything(data).inputs.abs().sum() == 0
    one, same, other = (everything(data, torch.Generator().manual_seed(s)).inputs for s in (1, 1, 2))
    assert torch.equal(one, same)
    assert not torch.equal(one, other)
    assert one.dtype == torch.float32
    assert raw.sum() == 0


def test_to_keeps_transform_and_augmentation():
    data = TensorData(torch.zeros(2, 1), torch.zeros(2), transform=torch.exp, augment=lambda raw, g: raw)
    moved = data.to(torch.device("meta"))
    assert (moved.inputs.device.type, moved.transform, moved.augments) == ("meta", torch.exp, True)


# ---- as_data -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "data",
    [
        (torch.zeros(3, 2), torch.tensor([0, 1, 0])),
        [np.zeros((3, 2)), np.array([0, 1, 0])],
        (np.zeros((3, 2)), [0.0, 1.0, 0.0]),
        TensorDataset(torch.zeros(3, 2), torch.tensor([0, 1, 0])),
        TensorData(torch.zeros(3, 2), torch.tensor([0, 1, 0])),
        Pairs(),
        [(torch.zeros(2), 0), (torch.zeros(2), 1), (torch.zeros(2), 0)],
    ],
)
def test_everything_people_have_becomes_data(data):
    found = as_data(data)
    assert len(found) == 3
    assert found.targets.tolist() == [0, 1, 0]
    batch = next(iter(found.batches([torch.tensor([1, 2])])))
    assert batch.inputs.shape == (2, 2)
    assert batch.inputs.dtype == torch.float32
    assert batch.targets.tolist() == [1, 0]


def test_arrays_become_float32_and_tensors_stay():
    assert as_data(np.zeros((2, 1)), [0, 1]).inputs.dtype == torch.float32
    assert as_data(np.zeros((2, 1), np.uint8), [0, 1]).inputs.dtype == torch.uint8
    assert as_data(torch.zeros(2, 1, dtype=torch.float64), [0, 1]).inputs.dtype == torch.float64
    assert as_data([[1, 2], [3, 4]], [0, 1]).inputs.dtype == torch.int64


@pytest.mark.parametrize(
    ("data", "targets", "says"),
    [
        (torch.zeros(3, 2), torch.zeros(2), "3 inputs but 2 targets"),
        (torch.zeros(3, 2), [0.0, 0.5, 1.0], "sample 1 has 0.5"),
        (torch.zeros(2, 2), [0.0, float("nan")], "sample 1 has nan"),
        (torch.zeros(2, 2), torch.eye(2), r"shape \(samples,\), not \(2, 2\)"),
        (torch.zeros(2, 2), ["cat", "dog"], "targets cannot become a tensor"),
        ([[1.0], [1.0, 2.0]], [0, 1], "inputs cannot become a tensor"),
        (torch.tensor(1.0), torch.zeros(1), "single number"),
        (TensorDataset(torch.zeros(2)), None, "has 2 tensors"),
        (7, None, "cannot learn from int"),
        ("photos/", None, "cannot learn from str"),
        ({"x": 1}, None, "cannot learn from dict"),
        (torch.zeros(3, 2), None, "not a pair"),
    ],
)
def test_what_cannot_be_data_says_why(data, targets, says):
    with pytest.raises(UserError, match=says) as caught:
        as_data(data, targets)
    assert "\n" not in str(caught.value)


# ---- guards ------------------------------------------------------------------------------------------


def test_a_closed_guard_refuses_everything():
    task, close = toys.task((0, 1)).guarded()
    order = [torch.arange(3), torch.arange(3)]
    kept = task.train.batches(order)
    assert len(task.train) == 30
    assert next(kept).inputs.shape == (3, 6)
    close()
    for read in (
        lambda: len(task.train),
        lambda: task.train.targets,
        lambda: task.train.augments,
        lambda: next(task.train.batches(order)),
        lambda: next(kept),
        lambda: len(task.val),
    ):
        with pytest.raises(PastDataError, match="rehearses = False"):
            read()


def test_a_guarded_task_has_no_test_data():
    task, _ = toys.task((0, 1), val=0).guarded()
    assert task.test is None
    assert task.val is None


def test_a_closed_guard_lets_go_of_the_data():
    data = TensorData(*toys.blobs((0, 1)))
    guard = GuardedData(data, "first")
    guard.close()
    assert data not in [v for v in vars(guard).values() if isinstance(v, TensorData)]


# ---- streams -----------------------------------------------------------------------------------------


def test_a_stream_builds_a_task_when_it_is_asked_for():
    built = []

    def build(number):
        def make():
            built.append(number)
            return toys.task((2 * number, 2 * number + 1))

        return make

    stream = Stream("s", "task", 6, (6,), tuple(build(n) for n in range(3)))
    assert len(stream) == 3
    assert built == []
    assert stream[1].classes == (2, 3)
    assert built == [1]
    rest = stream[1:]
    assert (len(rest), rest.num_outputs, built) == (2, 6, [1])
    assert [task.classes for task in rest] == [(2, 3), (4, 5)]
    assert stream[-1].classes == (4, 5)
    with pytest.raises(IndexError):
        stream[3]


def test_a_stream_needs_a_known_scenario_and_a_task():
    with pytest.raises(UserError, match="did you mean 'class'"):
        Stream("s", "clas", 2, (6,), (lambda: toys.task((0, 1)),))
    with pytest.raises(UserError, match="no task"):
        Stream("s", "task", 2, (6,), ())


def test_a_task_is_frozen():
    with pytest.raises(AttributeError):
        toys.task((0, 1)).name = "other"
    assert isinstance(toys.task((0, 1)), Task)
