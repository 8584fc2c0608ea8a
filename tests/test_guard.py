"""A strategy that does not declare rehearsal cannot read an earlier task's data, however it tries."""

import gc
import weakref

import pytest
import torch
from torch.utils.data import DataLoader, Dataset

from manymodes import ER, EWC, Finetune
from manymodes.errors import PastDataError
from manymodes.strategies.registry import REGISTRY, strategy_class
from manymodes.task import GuardedData, TensorData
from tests import toys


class Cheat(Finetune):
    """Keeps something of its first task and uses it when the second one begins."""

    kept = None

    def keep(self, task):
        raise NotImplementedError

    def use_it(self):
        raise NotImplementedError

    def begin(self, task):
        if self.kept is not None:
            self.use_it()
        super().begin(task)

    def end(self, task):
        super().end(task)
        if self.kept is None:
            self.kept = self.keep(task)


class KeepsTheTask(Cheat):
    def keep(self, task):
        return task

    def use_it(self):
        list(self.kept.train.batches([torch.arange(4)]))


class KeepsTheHeldOutPart(Cheat):
    def keep(self, task):
        return task.val

    def use_it(self):
        list(self.kept.batches([torch.arange(4)]))


class KeepsAnIterator(Cheat):
    def keep(self, task):
        batches = iter(task.train.batches([torch.arange(4), torch.arange(4, 8)]))
        next(batches)  # already running
        return batches

    def use_it(self):
        next(self.kept)


class KeepsAMethod(Cheat):
    def keep(self, task):
        return task.train.batches

    def use_it(self):
        list(self.kept([torch.arange(4)]))


class KeepsTheTargets(Cheat):
    def keep(self, task):
        return task.train

    def use_it(self):
        assert len(self.kept.targets)


class AsksForTheLength(KeepsTheTargets):
    def use_it(self):
        len(self.kept)


class Wrapped(Dataset):
    def __init__(self, data):
        self.data, self.size = data, len(data)

    def __len__(self):
        return self.size

    def __getitem__(self, i):
        batch = next(iter(self.data.batches([torch.tensor([i])])))
        return batch.inputs[0], batch.targets[0]


class KeepsADataset(Cheat):
    def keep(self, task):
        return Wrapped(task.train)

    def use_it(self):
        next(iter(DataLoader(self.kept, batch_size=4)))


class KeepsALoader(KeepsADataset):
    def keep(self, task):
        return DataLoader(super().keep(task), batch_size=4)

    def use_it(self):
        next(iter(self.kept))


class TrainsOnBoth(Cheat):
    """The plainest one: an epoch over the old task after each epoch."""

    def keep(self, task):
        return task

    def use_it(self):
        pass

    def epoch(self, task):
        super().epoch(task)
        if self.kept is not None:
            super().epoch(self.kept)


CHEATS = [
    KeepsTheTask, KeepsTheHeldOutPart, KeepsAnIterator, KeepsAMethod, KeepsTheTargets, AsksForTheLength,
    KeepsADataset, KeepsALoader, TrainsOnBoth,
]  # fmt: skip


@pytest.mark.parametrize("cheat", CHEATS)
@pytest.mark.parametrize("mapped", [False, True])
def test_cheating_raises(cheat, mapped):
    learner = cheat(toys.net(), epochs=1)

    def given(classes):
        x, y = toys.blobs(classes)
        pairs = list(zip(x, y.tolist(), strict=True)) if mapped else (x, y)
        return {"data": pairs, "val": pairs, "name": f"the {classes[0]}s"}

    learner.learn(**given((0, 1)))
    before = learner.modes.theta.clone()
    with pytest.raises(PastDataError, match="task 'the 0s' was read after") as error:
        learner.learn(**given((2, 3)))
    assert "rehearses = True" in str(error.value)
    assert torch.equal(learner.modes.theta, before)
    assert learner.tasks_learnt == 1


@pytest.mark.parametrize("cheat", CHEATS)
def test_who_declares_it_may(cheat):
    honest = type("Honest", (cheat,), {"rehearses": True})
    learner = honest(toys.net(), epochs=1)
    learner.learn(toys.task((0, 1))).learn(toys.task((2, 3)))
    assert learner.tasks_learnt == 2


def test_a_failed_task_is_closed_too():
    seen = []

    class Keeps(Finetune):
        def epoch(self, task):
            seen.append(task.train)
            raise RuntimeError

    with pytest.raises(RuntimeError):
        Keeps(toys.net()).learn(toys.task((0, 1)))
    with pytest.raises(PastDataError):
        len(seen[0])


@pytest.mark.parametrize("base", [EWC, ER])
def test_no_strategy_ever_gets_the_test_part(base):
    seen = []

    class Looks(base):
        def begin(self, task):
            seen.append(task.test)
            super().begin(task)

    Looks(toys.net(), epochs=1).learn(toys.task((0, 1)))
    assert seen == [None]


@pytest.mark.parametrize("name", [n for n in REGISTRY if not strategy_class(n).rehearses])
def test_nothing_keeps_the_data_alive(name):
    learner = strategy_class(name)(toys.net(), epochs=1)
    for classes in ((0, 1), (2, 3)):
        task = toys.task(classes)
        alive = [weakref.ref(task.train), weakref.ref(task.val)]
        learner.learn(task)
        del task
        gc.collect()
        assert [ref() for ref in alive] == [None, None]


def test_open_and_closed():
    data = GuardedData(TensorData(torch.arange(4.0)[:, None], torch.tensor([0, 1, 0, 1])), "a")
    assert len(data) == 4
    assert not data.augments
    assert data.targets.tolist() == [0, 1, 0, 1]
    data.close()
    for read in (len, lambda d: d.targets, lambda d: d.augments, lambda d: list(d.batches([]))):
        with pytest.raises(PastDataError, match="'a'"):
            read(data)


def test_what_does_not_rehearse_is_what_the_paper_says():
    assert [n for n in REGISTRY if strategy_class(n).rehearses] == ["multitask", "er", "agem"]
