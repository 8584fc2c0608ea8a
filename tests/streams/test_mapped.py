"""Data read when needed: order, determinism, targets, bounded read-ahead, processes that die."""

import multiprocessing
import os
import signal
import time

import numpy as np
import pytest
import torch
from torch.utils.data import ConcatDataset, Dataset, Subset

from manymodes.errors import UserError
from manymodes.streams.mapped import MappedData
from manymodes.streams.targets import gather_targets
from manymodes.task import as_data


class Squares(Dataset):
    """Input i*i, target i % 3; counts how often it is read."""

    def __init__(self, count=20):
        self.count, self.reads = count, 0

    def __len__(self):
        return self.count

    def __getitem__(self, i):
        self.reads += 1
        return torch.tensor([float(i * i)]), i % 3


class Noisy(Squares):
    """A dataset with a random transform, as torchvision's are."""

    def __getitem__(self, i):
        return torch.rand(2) + np.random.rand() + i, i % 3


ORDER = [torch.tensor([3, 1]), torch.tensor([7]), torch.tensor([0, 19, 5])]


def draws(data, seed=None, order=ORDER):
    generator = None if seed is None else torch.Generator().manual_seed(seed)
    return [batch.inputs for batch in data.batches(order, generator)]


@pytest.mark.parametrize("workers", [0, 1, 3])
def test_batches_come_in_the_order_asked(workers):
    batches = list(MappedData(Squares(), workers=workers).batches(ORDER))
    assert [b.index.tolist() for b in batches] == [[3, 1], [7], [0, 19, 5]]
    assert [b.inputs.flatten().tolist() for b in batches] == [[9, 1], [49], [0, 361, 25]]
    assert [b.targets.tolist() for b in batches] == [[0, 1], [1], [0, 1, 2]]


def test_random_datasets_depend_on_the_generator_alone():
    alone, helped = MappedData(Noisy()), MappedData(Noisy(), workers=2)
    assert alone.augments
    torch.manual_seed(5)
    first = draws(alone, seed=1)
    torch.manual_seed(6)
    assert all(torch.equal(a, b) for a, b in zip(first, draws(helped, seed=1), strict=True))
    assert not torch.equal(first[0], draws(alone, seed=2)[0])
    assert all(torch.equal(a, b) for a, b in zip(draws(alone), draws(helped), strict=True))


def test_global_random_states_stay():
    data = MappedData(Noisy())
    torch.manual_seed(0)
    np.random.seed(0)
    expected = torch.rand(1), np.random.rand()
    torch.manual_seed(0)
    np.random.seed(0)
    draws(data, seed=3)
    assert torch.equal(torch.rand(1), expected[0])
    assert np.random.rand() == expected[1]


def test_plain_datasets_do_not_augment():
    assert not MappedData(Squares()).augments


def test_augment_only_with_a_generator_then_transform():
    data = MappedData(Squares(), transform=lambda x: x * 10, augment=lambda x, g: x + 1)
    assert data.augments
    assert draws(data)[1].item() == 490
    assert draws(data, seed=0)[1].item() == 500


class WithTargets(Squares):
    def __init__(self, count=20, **attributes):
        super().__init__(count)
        for name, value in attributes.items():
            setattr(self, name, value)


def test_targets_from_an_attribute_are_not_read():
    data = WithTargets(1000, targets=[i % 3 for i in range(1000)])
    assert gather_targets(data).tolist() == [i % 3 for i in range(1000)]
    assert data.reads < 10
    through = Subset(ConcatDataset([data, data]), [999, 1001, 5])
    assert gather_targets(through).tolist() == [0, 1, 2]
    assert data.reads < 20


@pytest.mark.parametrize(
    "attributes",
    [
        {"targets": [9] * 20},  # wrong: sees other labels than the samples carry
        {"targets": [0, 1, 2]},  # of another length
        {"labels": ["cat"] * 20},
        {"targets": [i % 3 for i in range(20)], "target_transform": str},
        {},
    ],
)
def test_untrustworthy_attributes_are_not_believed(attributes):
    assert gather_targets(WithTargets(**attributes)).tolist() == [i % 3 for i in range(20)]


def test_order_may_be_lists():
    assert next(MappedData(Squares()).batches([[4, 2]])).inputs.flatten().tolist() == [16, 4]


def test_a_dataset_s_arrays_and_numpy_labels():
    data = MappedData([(np.full((2, 2), i), np.int64(i)) for i in range(5)])
    assert data.targets.tolist() == [0, 1, 2, 3, 4]
    assert draws(data, order=[torch.tensor([2])])[0].shape == (1, 2, 2)


def test_as_data_takes_a_dataset():
    data = as_data(Squares())
    assert isinstance(data, MappedData)
    assert len(data) == 20


class Dies(Squares):
    def __getitem__(self, i):
        if i == 19 and multiprocessing.parent_process() is not None:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().__getitem__(i)


def test_a_worker_that_dies_is_one_line():
    data = MappedData(Dies(), workers=2)
    with pytest.raises(UserError, match="workers=0") as error:
        draws(data)
    assert "\n" not in str(error.value)
    assert len(draws(MappedData(Dies(), workers=0))) == 3


class Complains(Squares):
    def __getitem__(self, i):
        if i == 19 and multiprocessing.parent_process() is not None:
            raise UserError("image 19 is broken")
        return super().__getitem__(i)


def test_a_user_error_in_a_worker_stays_one_line():
    with pytest.raises(UserError) as error:
        draws(MappedData(Complains(), workers=2))
    assert str(error.value) == "image 19 is broken"


class Counts(Squares):
    """Counts its reads in all processes together."""

    def __init__(self, count):
        super().__init__(count)
        self.total = multiprocessing.Value("i", 0)

    def __getitem__(self, i):
        with self.total.get_lock():
            self.total.value += 1
        return super().__getitem__(i)


def test_read_ahead_is_bounded_and_stops_with_the_reader():
    dataset = Counts(10_000)
    data = MappedData(dataset, targets=torch.zeros(10_000), workers=2, prefetch=3, varies=False)
    batches = data.batches([torch.tensor([i]) for i in range(10_000)])
    next(batches)
    next(batches)
    time.sleep(0.3)
    ahead = dataset.total.value
    assert 2 <= ahead <= 2 + 2 * 3
    batches.close()
    time.sleep(0.3)
    assert dataset.total.value <= 2 + 2 * 3
    deadline = time.monotonic() + 5
    while multiprocessing.active_children() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not multiprocessing.active_children()


class Images(Squares):
    def __getitem__(self, i):
        from PIL import Image

        return Image.new("RGB", (4, 4)), 0


@pytest.mark.parametrize(
    ("dataset", "message"),
    [
        ([], "empty"),
        ([torch.zeros(2)] * 3, "not a pair"),
        ([{"x": 1}] * 3, "not a pair"),
        ([(torch.zeros(2), "cat")] * 3, "'cat'.*whole numbers"),
        ([(torch.zeros(2), 0.5)] * 3, "whole numbers"),
        ([(torch.zeros(2), None)] * 3, "whole numbers"),
        (Images(), "Pillow image.*transform"),
        ([(object(), 0)] * 3, "no tensor: object"),
        (iter([1]), "cannot be read by number"),
    ],
)
def test_mistakes_get_one_line(dataset, message):
    with pytest.raises(UserError, match=message) as error:
        MappedData(dataset)
    assert "\n" not in str(error.value)


def test_mixed_sizes_name_the_samples():
    data = MappedData([(torch.zeros(3), 0), (torch.zeros(4), 1)] * 2)
    with pytest.raises(UserError, match=r"mixed sizes: sample 0 has shape \(3,\), sample 1 \(4,\)"):
        draws(data, order=[torch.tensor([0, 1])])


@pytest.mark.parametrize("options", [{"workers": -1}, {"workers": "two"}, {"targets": torch.zeros(3)}])
def test_bad_options(options):
    with pytest.raises(UserError):
        MappedData(Squares(), **options)
