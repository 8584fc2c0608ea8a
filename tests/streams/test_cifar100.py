"""Split-CIFAR-100 on the real data: counts, names, groups, pixels; then the three scenarios."""

import json
import time

import numpy as np
import pytest
import torch

import manymodes.streams as streams
from manymodes.errors import UserError
from manymodes.streams.cifar_files import read_cifar


@pytest.fixture(scope="module")
def cifar(cifar_dir):
    return read_cifar(cifar_dir)


def make(cifar_dir, *args, **options):
    return streams.split_cifar100(*args, data_dir=cifar_dir, **options)


def test_counts(cifar):
    assert cifar.images.shape == (60000, 3, 32, 32)
    assert cifar.images.dtype == np.uint8
    assert cifar.train_count == 50000
    assert np.bincount(cifar.fine[:50000]).tolist() == [500] * 100
    assert np.bincount(cifar.fine[50000:]).tolist() == [100] * 100
    assert np.bincount(cifar.coarse[:50000]).tolist() == [2500] * 20
    assert np.bincount(cifar.coarse[50000:]).tolist() == [500] * 20


def test_names_and_groups(cifar):
    assert cifar.fine_names[:3] == ("apple", "aquarium_fish", "baby")
    assert cifar.fine_names[-1] == "worm"
    assert list(cifar.fine_names) == sorted(cifar.fine_names)
    groups = {
        name: {cifar.fine_names[f] for f in np.unique(cifar.fine[cifar.coarse == c])}
        for c, name in enumerate(cifar.coarse_names)
    }
    assert [len(group) for group in groups.values()] == [5] * 20
    assert len(set().union(*groups.values())) == 100
    assert groups["fruit_and_vegetables"] == {"apple", "mushroom", "orange", "pear", "sweet_pepper"}
    assert groups["aquatic_mammals"] == {"beaver", "dolphin", "otter", "seal", "whale"}
    assert groups["people"] == {"baby", "boy", "girl", "man", "woman"}
    assert groups["vehicles_1"] == {"bicycle", "bus", "motorcycle", "pickup_truck", "train"}
    assert groups["vehicles_2"] == {"lawn_mower", "rocket", "streetcar", "tank", "tractor"}


def test_pixels(cifar):
    """Sums per channel, of a class and of a coarse class, computed independently from the parquet files."""
    train, test = cifar.images[:50000], cifar.images[50000:]
    assert train.sum((0, 2, 3), dtype=np.int64).tolist() == [6620373279, 6352382090, 5756623363]
    assert test.sum((0, 2, 3), dtype=np.int64).tolist() == [1328569193, 1272680636, 1153999502]
    per_image = cifar.images.sum((1, 2, 3), dtype=np.int64)
    fine_sum = np.bincount(cifar.fine[:50000], per_image[:50000])
    assert fine_sum[[0, 42, 99]].tolist() == [198919835, 161589686, 193488245]
    coarse_sum = np.bincount(cifar.coarse[50000:], per_image[50000:])
    assert coarse_sum[[0, 19]].tolist() == [181894056, 201806380]
    levels = np.arange(256) / 255
    for channel, (mean, std) in enumerate([(0.50708, 0.26733), (0.48655, 0.25644), (0.44092, 0.27615)]):
        share = np.bincount(train[:, channel].ravel(), minlength=256) / train[:, channel].size
        assert levels @ share == pytest.approx(mean, abs=5e-6)
        assert np.sqrt(levels**2 @ share - (levels @ share) ** 2) == pytest.approx(std, abs=5e-6)


def test_known_duplicates(cifar):
    prints = [image.tobytes() for image in cifar.images]
    train, test = prints[:50000], prints[50000:]
    assert len(train) - len(set(train)) == 14
    assert len(set(train) & set(test)) == 10


def test_second_load_is_quick(cifar_dir, cifar):
    start = time.perf_counter()
    stream = make(cifar_dir)
    stream[0]
    assert time.perf_counter() - start < 1


def test_task_scenario(cifar_dir):
    stream = make(cifar_dir)
    assert (stream.name, stream.num_outputs, stream.input_shape) == ("split-cifar100", 100, (3, 32, 32))
    assert len(stream) == 10
    assert len(stream.class_names) == 100
    first = stream[0]
    assert len(first.classes) == 10
    assert [len(part) for part in (first.train, first.val, first.test)] == [4200, 600, 1200]
    assert torch.bincount(first.train.targets, minlength=100)[list(first.classes)].tolist() == [420] * 10
    names = [name for group in stream.info["tasks"].values() for name in group]
    assert sorted(names) == sorted(stream.class_names)
    assert json.loads(json.dumps(stream.info)) == stream.info


def test_labels_fit_images(cifar_dir, cifar):
    """Looked up by pixels: the first thousand images of the last task carry their own labels."""
    task = make(cifar_dir, seed=7)[9]
    labels = {}
    for image, label in zip(cifar.images, cifar.fine.tolist(), strict=True):
        labels.setdefault(image.tobytes(), set()).add(label)
    pairs = zip(task.train.inputs[:1000], task.train.targets[:1000].tolist(), strict=True)
    assert all(target in labels[image.numpy().tobytes()] for image, target in pairs)


def test_parts_are_disjoint(cifar_dir):
    task = make(cifar_dir, "instance")[0]
    parts = [{image.numpy().tobytes() for image in part.inputs} for part in (task.train, task.val, task.test)]
    assert len(parts[0] & parts[2]) <= 3  # the set's own duplicates, no more
    assert len(parts[0] & parts[1]) <= 3


def test_official_split_keeps_the_official_test_images(cifar_dir, cifar):
    stream = make(cifar_dir, split="official")
    assert [len(part) for part in (stream[0].train, stream[0].val, stream[0].test)] == [4500, 500, 1000]
    official = {image.tobytes() for image in cifar.images[50000:]}
    assert all(image.numpy().tobytes() in official for image in stream[3].test.inputs)


def test_instance_scenario(cifar_dir, cifar):
    stream = make(cifar_dir, "instance")
    assert (len(stream), stream.num_outputs) == (5, 20)
    assert stream.class_names == cifar.coarse_names
    group_of = dict(zip(cifar.fine.tolist(), cifar.coarse.tolist(), strict=True))
    seen = []
    for task, fine in zip(stream, stream.info["fine_classes_of_tasks"], strict=True):
        assert task.classes == tuple(range(20))
        assert [len(part) for part in (task.train, task.val, task.test)] == [8400, 1200, 2400]
        assert sorted(group_of[cifar.fine_names.index(name)] for name in fine) == list(range(20))
        seen += fine
    assert sorted(seen) == list(cifar.fine_names)


def test_class_scenario(cifar_dir):
    stream = make(cifar_dir, "class", tasks=4)
    assert [len(task.classes) for task in stream] == [25, 50, 75, 100]


def test_normalised_batches(cifar_dir):
    task = make(cifar_dir)[0]
    batch = next(task.train.batches([torch.arange(0, 4200, 7)]))
    assert batch.inputs.shape == (600, 3, 32, 32)
    assert batch.inputs.mean().abs() < 0.3
    assert 0.7 < batch.inputs.std() < 1.3
    assert not task.train.augments


def test_augmented_training_only(cifar_dir):
    task = make(cifar_dir, augment=True)[0]
    assert task.train.augments
    assert not task.test.augments
    index = [torch.arange(8)]
    plain = next(task.train.batches(index)).inputs
    drawn = [next(task.train.batches(index, torch.Generator().manual_seed(s))).inputs for s in (1, 1, 2)]
    assert torch.equal(drawn[0], drawn[1])
    assert not torch.equal(drawn[0], drawn[2])
    assert not torch.equal(drawn[0], plain)


def test_subsets_of_classes(cifar_dir):
    late = make(cifar_dir, classes="50-99", tasks=5, limit=200)
    assert (late.num_outputs, len(late), len(late[0].classes)) == (50, 5, 10)
    assert late.class_names[0] == "mouse"
    assert torch.bincount(late[0].train.targets, minlength=50)[list(late[0].classes)].tolist() == [20] * 10
    early = make(cifar_dir, classes=50, tasks=1)
    assert early[0].classes == tuple(range(50))
    assert not set(early.class_names) & set(late.class_names)
    pair = make(cifar_dir, classes=["apple", "worm"], tasks=1)
    assert pair.class_names == ("apple", "worm")
    shared = make(cifar_dir, head="shared")
    assert shared.num_outputs == 10
    assert shared[9].train.targets.max() == 9


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"classes": ["apple", "appel"]}, "did you mean 'apple'"),
        ({"classes": "50-100"}, "0 to 99"),
        ({"classes": "a-b"}, "unknown class"),
        ({"classes": 101}, "0 to 99"),
        ({"classes": []}, "at least one"),
        ({"classes": 50, "scenario": "instance"}, "of the chosen classes"),
        ({"scenario": "instance", "tasks": 6}, "1 to 5 tasks"),
        ({"split": "mine"}, "Valid: official, paper"),
        ({"normalise": "cifar"}, "did you mean 'cifar100'"),
        ({"scenario": "domain"}, "unknown scenario"),
        ({"tasks": 101}, "1 to 100"),
        ({"limit": 3}, "limit=3"),
    ],
)
def test_mistakes_get_one_line(cifar_dir, options, message):
    with pytest.raises(UserError, match=message) as error:
        make(cifar_dir, **options)
    assert "\n" not in str(error.value)


def test_missing_data_says_where_and_how(tmp_path):
    with pytest.raises(UserError, match="manymodes data fetch split-cifar100") as error:
        streams.split_cifar100(data_dir=tmp_path)
    assert str(tmp_path) in str(error.value)
    with pytest.raises(UserError, match="does not exist"):
        streams.split_cifar100(data_dir=tmp_path / "nowhere")
