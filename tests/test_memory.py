"""The memory: exact quotas, a uniform draw, samples kept as they are."""

import math
from collections import Counter

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from manymodes.errors import UserError
from manymodes.memory import Memory, read, replay_order, smallest_keys
from manymodes.streams.mapped import MappedData
from manymodes.task import TensorData
from tests.reference.reservoir import Reservoir


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def numbered(start, classes):
    """Samples whose only feature is their number."""
    numbers = torch.arange(start, start + len(classes), dtype=torch.float32)
    return TensorData(numbers[:, None], torch.tensor(classes))


TASKS = st.lists(st.lists(st.integers(0, 3), min_size=1, max_size=30), min_size=1, max_size=4)


@given(TASKS, st.integers(0, 8), st.integers(0, 2**31))
def test_it_is_the_slow_reservoir(tasks, budget, seed):
    memory, slow, seen, start = Memory(budget), Reservoir(budget), Counter(), 0
    for owner, classes in enumerate(tasks):
        keys = torch.rand(len(classes), dtype=torch.float64, generator=generator(seed + owner))
        slow.add(keys.tolist(), classes, list(range(start, start + len(classes))))
        memory.add(numbered(start, classes), owner, generator(seed + owner))
        seen.update(classes)
        start += len(classes)
        # exact quotas: of every class as many as were seen, up to the budget
        assert Counter(memory.targets.tolist()) == {c: min(budget, n) for c, n in seen.items() if budget}
        assert sorted(memory.inputs.flatten().tolist()) == slow.kept()
        truth = [c for task in tasks for c in task]
        owners = [t for t, task in enumerate(tasks) for _ in task]
        numbers = [int(n) for n in memory.inputs.flatten()]
        assert memory.targets.tolist() == [truth[n] for n in numbers]
        assert memory.owners.tolist() == [owners[n] for n in numbers]
        assert len(memory) == len(memory.keys) == len(memory.owners)


def test_every_sample_is_kept_equally_often_whenever_it_came():
    trials, counts = 400, torch.zeros(60)
    for seed in range(trials):
        memory = Memory(10)
        for owner, start in enumerate((0, 20, 40)):
            memory.add(numbered(start, [0] * 20), owner, generator(1000 * seed + owner))
        counts[memory.inputs.flatten().long()] += 1
    expected = trials * 10 / 60
    spread = math.sqrt(trials * (1 / 6) * (5 / 6))
    assert counts.sum() == trials * 10
    assert ((counts - expected).abs() < 4.5 * spread).all()


def test_the_draw_depends_on_the_generator_alone():
    drawn = []
    for disturbance in (1, 2):
        torch.manual_seed(disturbance)
        memory = Memory(3)
        memory.add(numbered(0, [0, 1] * 20), 0, generator(5))
        drawn.append(memory.inputs.clone())
    assert torch.equal(*drawn)
    other = Memory(3)
    other.add(numbered(0, [0, 1] * 20), 0, generator(6))
    assert not torch.equal(other.inputs, drawn[0])


def test_smallest_keys_does_not_care_how_classes_are_numbered():
    keys, classes = torch.rand(40, generator=generator()), torch.randint(4, (40,), generator=generator(1))
    renamed = torch.tensor([3, 0, 2, 1])[classes]
    assert torch.equal(smallest_keys(keys, classes, 3), smallest_keys(keys, renamed, 3))


@given(st.integers(1, 30), st.integers(1, 12), st.integers(1, 20))
def test_replay_goes_round_and_round(samples, batch, steps):
    order = replay_order(samples, batch, steps, generator())
    assert len(order) == steps
    assert {len(index) for index in order} == {min(batch, samples)}
    counts = Counter(torch.cat(order).tolist())
    times = [counts[i] for i in range(samples)]
    assert max(times) - min(times) <= 1


# ---- how samples are kept -----------------------------------------------------------------------------


def to_unit(raw):
    return raw.float() / 255


def pixels(count=12, seed=0, transform=to_unit, augment=None):
    raw = torch.randint(0, 256, (count, 1, 4, 4), dtype=torch.uint8, generator=generator(seed))
    return TensorData(raw, torch.arange(count) % 2, transform, augment)


class Pictures:
    """A map-style data set of uint8 arrays."""

    def __init__(self, data):
        self.data = data

    def __len__(self):
        return len(self.data)

    def __getitem__(self, i):
        return self.data.inputs[i].numpy(), int(self.data.targets[i])


@pytest.mark.parametrize("mapped", [False, True])
def test_uint8_is_kept_as_uint8_and_prepared_when_replayed(mapped):
    data = pixels()
    given = MappedData(Pictures(data), to_unit) if mapped else data
    memory = Memory(3)
    memory.add(given, 0, generator())
    assert memory.inputs.dtype == torch.uint8
    assert memory.bytes == 6 * 16 + 6 * (8 + 8 + 8)
    replayed = next(iter(memory.as_data(given).batches([torch.arange(6)])))
    assert replayed.inputs.dtype == torch.float32
    originals = {
        tuple(row.flatten().tolist()): int(y) for row, y in zip(data.inputs, data.targets, strict=True)
    }
    for raw, unit, y in zip(memory.inputs, replayed.inputs, replayed.targets, strict=True):
        assert originals[tuple(raw.flatten().tolist())] == int(y)
        assert torch.equal(unit, to_unit(raw))


def test_replay_is_augmented_like_the_task_and_only_in_training():
    def flip(raw, generator):
        return raw.flip(-1)

    memory = Memory(3)
    memory.add(pixels(augment=flip), 0, generator())
    data = memory.as_data(pixels(seed=1, augment=flip))
    plain = next(iter(data.batches([torch.arange(6)]))).inputs
    trained = next(iter(data.batches([torch.arange(6)], generator()))).inputs
    assert torch.equal(plain, to_unit(memory.inputs))
    assert torch.equal(trained, plain.flip(-1))


def test_what_is_not_uint8_is_kept_as_the_network_sees_it():
    x = torch.randn(6, 3, generator=generator())
    memory = Memory(2)
    memory.add(TensorData(x, torch.zeros(6), transform=lambda raw: 2 * raw), 0, generator())
    assert memory.inputs.dtype == torch.float32
    assert all(any(torch.equal(row, 2 * sample) for sample in x) for row in memory.inputs)
    mapped = Memory(6)
    mapped.add(MappedData([(np.float32([i, i]), 0) for i in range(6)], lambda raw: raw + 1), 0, generator())
    assert sorted(mapped.inputs[:, 0].tolist()) == [1, 2, 3, 4, 5, 6]


def test_tasks_with_different_transforms_are_each_prepared_by_their_own():
    memory, first, second = Memory(3), pixels(), pixels(seed=1, transform=lambda raw: -raw.float())
    memory.add(first, 0, generator())
    raw = memory.inputs.clone()
    # before the second task is learnt its transform is not used on the first one's samples
    assert torch.equal(read(memory.as_data(second), torch.arange(6)), to_unit(raw))
    memory.add(second, 1, generator(1))
    assert memory.inputs.dtype == torch.float32
    prepared = read(memory.as_data(second), torch.arange(len(memory)))
    assert (prepared[memory.owners == 0] >= 0).all()
    assert (prepared[memory.owners == 1] <= 0).all()
    assert set(memory.owners.tolist()) == {0, 1}


def test_equal_transforms_that_are_different_objects_are_recognised():
    memory = Memory(3)
    memory.add(pixels(), 0, generator())
    memory.add(pixels(seed=1, transform=lambda raw: raw.float() / 255), 1, generator(1))
    assert memory.inputs.dtype == torch.uint8


def test_no_tensor_that_others_hold_is_changed():
    memory, data = Memory(3), pixels()
    memory.add(data, 0, generator())
    state = memory.state_dict()
    copies = {k: v.clone() for k, v in state.items() if v is not None}
    memory.add(pixels(seed=1), 1, generator(1))
    assert all(torch.equal(state[k], copies[k]) for k in copies)


def test_a_loaded_memory_recognises_the_transform_or_asks_for_it():
    memory = Memory(3)
    memory.add(pixels(), 0, generator())
    expected = read(memory.as_data(pixels()), torch.arange(6))
    same, strange = pixels(seed=9), pixels(seed=9, transform=lambda raw: raw.float())
    loaded = Memory(3)
    loaded.load_state_dict(memory.state_dict())
    assert torch.equal(read(loaded.as_data(same), torch.arange(6)), expected)
    loaded = Memory(3)
    loaded.load_state_dict(memory.state_dict())
    with pytest.raises(UserError, match="recall"):
        loaded.as_data(strange)
    loaded.recall(pixels())
    assert torch.equal(read(loaded.as_data(strange), torch.arange(6)), expected)


def test_mixed_shapes_are_one_clear_line():
    memory = Memory(3)
    memory.add(TensorData(torch.zeros(4, 2), torch.zeros(4)), 0, generator())
    with pytest.raises(UserError, match=r"\(2,\).*\(3,\)"):
        memory.add(TensorData(torch.zeros(4, 3), torch.ones(4)), 1, generator(1))
