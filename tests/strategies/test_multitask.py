"""Multi-task learning: everything seen so far at once, each sample over its own task's outputs."""

import math

import pytest
import torch

import manymodes as mm
from manymodes import Finetune, Multitask
from manymodes.errors import UserError
from manymodes.strategies.multitask import Union
from manymodes.task import Batch, TensorData
from tests import toys
from tests.strategies.recording import network

TRAINING = {"epochs": 3, "batch_size": 8, "lr": 0.02, "device": "cpu"}
GROUPS = ((0, 1), (2, 3), (4, 5))


def tasks(count=3, valid=None, samples=20):
    return [
        toys.task(
            g, samples, dtype=torch.float64, valid=None if valid is None else valid[t], val=0, name=str(g)
        )
        for t, g in enumerate(GROUPS[:count])
    ]


def multitask(**options):
    return Multitask(network(norm=True), **TRAINING | options)


def test_the_first_task_is_fine_tuning():
    one = multitask().learn(tasks(1)[0])
    other = Finetune(network(norm=True), **TRAINING).learn(tasks(1)[0])
    torch.testing.assert_close(one.modes.theta, other.modes.theta, rtol=1e-9, atol=1e-12)


# ---- the union ---------------------------------------------------------------------------------------


def parts(sizes=(5, 1, 7)):
    start, data = 0, []
    for size in sizes:
        data.append(
            TensorData(torch.arange(start, start + size).float()[:, None], torch.arange(start, start + size))
        )
        start += size
    return data


def test_the_union_is_all_parts_in_order():
    union = Union(parts(), [(0,)] * 3)
    assert len(union) == 13
    assert union.targets.tolist() == list(range(13))
    assert union.owners.tolist() == [0] * 5 + [1] + [2] * 7
    assert not union.augments


def test_a_batch_of_the_union_holds_what_was_asked_for():
    union, generator = Union(parts(), [(0,)] * 3), torch.Generator().manual_seed(0)
    for _ in range(10):
        index = torch.randperm(13, generator=generator)[:6]
        batch = next(iter(union.batches([index])))
        assert sorted(batch.index.tolist()) == sorted(index.tolist())
        assert batch.inputs.flatten().tolist() == batch.index.tolist() == batch.targets.tolist()


def test_the_union_augments_the_part_that_does():
    plain, changing = parts((3, 3))
    changing.augment, changing.augments = lambda raw, generator: raw + 100, True
    union = Union([plain, changing], [(0,)] * 2)
    assert union.augments
    order = [torch.arange(6)]
    assert next(union.batches(order)).inputs.max() < 100
    inputs = next(union.batches(order, torch.Generator())).inputs.flatten()
    assert inputs.tolist() == [0, 1, 2, 103, 104, 105]


# ---- the loss ----------------------------------------------------------------------------------------

CASES = {
    "task": [(0, 1), (2, 3), (4, 5)],
    "class": [(0, 1), (0, 1, 2, 3), (0, 1, 2, 3, 4, 5)],
    "instance": [(0, 1, 2, 3, 4, 5)] * 3,
}


@pytest.mark.parametrize("scenario", CASES)
def test_each_sample_is_scored_on_its_own_tasks_outputs(scenario, monkeypatch):
    """Against a loop over samples; in class-IL earlier samples compete with the new classes too."""
    seen = []
    original = Multitask._loss

    def watched(self, batch: Batch, *rest):
        value = original(self, batch, *rest)
        if self.tasks_learnt == 2:
            logits = self.model.module(batch.inputs)  # again: BatchNorm sees the same batch
            total = 0.0
            for row, label, number in zip(logits, batch.targets.tolist(), batch.index.tolist(), strict=True):
                owner = number // 20
                valid = CASES["task"][owner] if scenario == "task" else tuple(range(6))
                total += math.log(sum(math.exp(row[c]) for c in valid)) - row[label].item()
            seen.append((value.item(), total / len(batch.targets)))
        return value

    monkeypatch.setattr(Multitask, "_loss", watched)
    learner = multitask()
    for task in tasks(valid=CASES[scenario]):
        learner.learn(task)
    assert len(seen) == 3 * 8
    for found, expected in seen:
        assert found == pytest.approx(expected, rel=1e-9)


def test_an_epoch_is_every_sample_seen_so_far():
    counts, learner = [], multitask()
    for task in tasks():
        before = learner.model.module[1].num_batches_tracked.item()
        learner.learn(task)
        counts.append((learner.model.module[1].num_batches_tracked.item() - before) / TRAINING["epochs"])
    assert counts == [3, 5, 8]  # 20, 40, 60 samples in batches of 8
    assert learner.storage()["replay_samples"] == 60


def test_the_schedule_spans_the_union(monkeypatch):
    totals = []
    make = Multitask._optimiser
    monkeypatch.setattr(
        Multitask, "_optimiser", lambda self, p, total: (totals.append(total), make(self, p, total))[1]
    )
    learner = multitask()
    for task in tasks():
        learner.learn(task)
    assert totals == [9, 15, 24]


def test_nothing_old_is_forgotten():
    learner, given = multitask(epochs=30), tasks()
    for task in given:
        learner.learn(task)
    for task in given:
        right = learner.predict(task.train, classes=task.classes).argmax(dim=1) == task.train.targets
        assert right.double().mean() >= 0.85


def test_restart_begins_at_the_initial_weights():
    module, learner = network(norm=True), multitask(restart=True)
    start = learner.modes.theta.clone(), learner.modes.buffers.clone()
    begun = []
    for task in tasks(2):
        learner.learn(task, on_epoch=lambda same: begun.append(same.optimisers[0].steps))
    learner.begin(tasks()[2])
    assert torch.equal(learner.modes.theta, start[0])
    assert torch.equal(learner.modes.buffers, start[1])
    assert torch.equal(start[0][0, :30].view(5, 6), module[0].weight.data)


# ---- past data ---------------------------------------------------------------------------------------


def test_a_loaded_learner_asks_for_its_past(tmp_path):
    given = tasks()
    whole = multitask()
    for task in given[:2]:
        whole.learn(task)
    whole.save(tmp_path / "a.safetensors")
    loaded = mm.load(tmp_path / "a.safetensors", model=network(norm=True))
    before = loaded.modes.theta.clone()
    with pytest.raises(UserError, match=r"data of its 2 earlier tasks: call recall\(tasks\) first"):
        loaded.learn(given[2])
    assert torch.equal(loaded.modes.theta, before)
    assert loaded.tasks_learnt == 2
    loaded.recall(given[:2])
    loaded.learn(given[2])
    whole.learn(given[2])
    assert torch.equal(loaded.modes.theta, whole.modes.theta)


def test_recalling_too_few_or_too_many_is_noticed():
    learner, given = multitask(), tasks()
    learner.learn(given[0])
    learner.recall(given[:2])
    with pytest.raises(UserError, match="1 earlier tasks"):
        learner.learn(given[1])
    learner.recall(given[:1])
    assert learner.learn(given[1]).tasks_learnt == 2


def test_a_failed_task_is_not_kept():
    learner, given = multitask(), tasks()
    learner.learn(given[0])

    def stop(_):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        learner.learn(given[1], on_epoch=stop)
    assert len(learner.past) == 1
    assert learner.learn(given[1]).storage()["replay_samples"] == 40
