"""What a step costs, counted instead of timed: forwards, backwards, kernels, bytes. None of it may grow.

benchmarks/ has the times. A count is the same on every machine and in every run, so its bound is exact.
"""

from collections import Counter

import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils._python_dispatch import TorchDispatchMode

from manymodes import EWC, MOTA, Finetune, fisher
from manymodes.flat import FlatModel
from manymodes.modes import Modes
from tests import toys

GROUPS = tuple((2 * t, 2 * t + 1) for t in range(6))
OPTIONS = {"epochs": 1, "batch_size": 8, "lr": 0.01, "device": "cpu"}
# Views and asking for a size are no work.
FREE = {"view", "t", "transpose", "detach", "alias", "slice", "select", "unsqueeze", "squeeze", "expand",
        "split", "as_strided", "_unsafe_view", "permute", "unbind"}  # fmt: skip


class Work(TorchDispatchMode):
    """Every kernel that runs, by name, and the bytes of memory that kernels ask for."""

    def __init__(self):
        super().__init__()
        self.kernels, self.bytes = Counter(), 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        name = function.overloadpacket.__name__
        if name not in FREE:
            self.kernels[name] += 1
            given = {t.untyped_storage().data_ptr() for t in _tensors([*args, *(kwargs or {}).values()])}
            made = {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in _tensors([result])}
            self.bytes += sum(size for place, size in made.items() if place not in given)
        return result

    @property
    def count(self):
        return self.kernels.total()


def _tensors(values):
    for value in values:
        if isinstance(value, torch.Tensor):
            yield value
        elif isinstance(value, list | tuple):
            yield from _tensors(value)


class Calls:
    """Forwards and backwards of a learner's network, in samples and calls."""

    def __init__(self, learner, monkeypatch):
        self.forwards, self.backwards = [], 0
        learner.model.module.register_forward_pre_hook(lambda m, x: self.forwards.append(len(x[0])))
        backward = torch.Tensor.backward

        def counted(tensor, *args, **options):
            self.backwards += 1
            return backward(tensor, *args, **options)

        monkeypatch.setattr(torch.Tensor, "backward", counted)


def net():
    return toys.net(hidden=32, outputs=12)


def step_of(learner, task):
    """The work of one training step in the middle of a task; buffers that are made once are there already."""
    learner.begin(task)
    learner.prepare(task)
    learner.train_mode()
    valid = learner.valid(task.classes)
    batch = next(task.train.batches([torch.arange(8)]))
    for _ in range(2):
        with Work() as work:
            learner.step(0, batch, lambda b: learner.loss(b, valid))
    return work


def after(learner, count):
    """The learner after so many tasks, and the next task."""
    for group in GROUPS[:count]:
        learner.learn(toys.task(group))
    return learner, toys.task(GROUPS[count])


def bare_step():
    """A hand-written one: the floor."""
    model, (x, y) = net(), toys.blobs(GROUPS[1], 8)
    optimiser = torch.optim.AdamW(model.parameters(), lr=0.01, weight_decay=0.0, fused=True)
    for _ in range(2):
        with Work() as work:
            optimiser.zero_grad()
            cross_entropy(model(x)[:, 2:4], y - 2).backward()
            optimiser.step()
    return work


# ---- one step ----------------------------------------------------------------------------------------


def test_a_step_of_fine_tuning_is_a_bare_step():
    bare, ours = bare_step(), step_of(*after(Finetune(net(), **OPTIONS), 1))
    # The flat gradient is set to zero, and each parameter's is added into it.
    parameters = len(list(net().parameters()))
    assert ours.kernels - bare.kernels == Counter({"zero_": 1, "add_": parameters})
    assert ours.kernels["_fused_adamw_"] == bare.kernels["_fused_adamw_"] == 1
    assert ours.bytes <= bare.bytes


def test_springs_cost_two_kernels_and_no_memory_over_any_number_of_tasks():
    finetune = step_of(*after(Finetune(net(), **OPTIONS), 1))
    for tasks in (1, 2, 5):
        ewc = step_of(*after(EWC(net(), **OPTIONS), tasks))
        assert ewc.kernels - finetune.kernels == Counter({"sub": 1, "addcmul_": 1})
        assert ewc.bytes <= finetune.bytes


# ---- one epoch of MOTA -------------------------------------------------------------------------------


def epochs_of(modes, tasks, monkeypatch, epochs=2, **options):
    """The work of each epoch, and all forwards and backwards of these epochs."""
    given = OPTIONS | {"modes": modes, "drift": "fisher"} | options
    learner, task = after(MOTA(net(), **given), tasks)
    learner.epochs, works = epochs, []
    learner.epochs_done = 0
    learner.before = Modes(learner.modes.theta.clone(), learner.modes.buffers.clone())
    learner.begin(task)
    learner.prepare(task)
    calls = Calls(learner, monkeypatch)
    for _ in range(epochs):
        with Work() as work:
            learner.epoch(task)
        learner.epochs_done += 1
        works.append(work)
    return works, calls


def test_an_epoch_is_a_pass_and_a_look_up_for_each_mode(monkeypatch):
    batches = [8, 8, 8, 6]  # of 30 samples
    for modes, drift in ((2, "fisher"), (3, "fisher"), (6, "both"), (2, "function")):
        _, calls = epochs_of(modes, 1, monkeypatch, epochs=1, drift=drift)
        assert calls.forwards == modes * [*batches, 30, 12]  # then all training and held-out samples
        assert calls.backwards == modes * len(batches)
    _, calls = epochs_of(2, 1, monkeypatch, epochs=1, drift="both", search="train")
    assert calls.forwards == 2 * [*batches, 30]  # what is looked up serves the search as well


def test_an_epoch_is_linear_in_modes(monkeypatch):
    count = {n: epochs_of(n, 1, monkeypatch)[0][0].count for n in (2, 3, 4, 6)}
    per_mode = count[3] - count[2]
    assert per_mode > 0
    assert count[4] - count[3] == per_mode
    assert count[6] - count[4] == 2 * per_mode


def test_an_epoch_costs_the_same_after_any_number_of_tasks_and_epochs(monkeypatch):
    counts = {tasks: epochs_of(2, tasks, monkeypatch, epochs=4)[0] for tasks in (1, 2, 5)}
    first = counts[1][0]
    for works in counts.values():
        for work in works:
            # what rules a checkpoint out runs in numpy; the search's rows are stacked once an epoch
            assert work.kernels - first.kernels <= Counter()
    assert len({works[1].bytes for works in counts.values()}) == 1  # in the first, room is made once


# ---- the Fisher --------------------------------------------------------------------------------------


def fisher_work(samples, batch_size, monkeypatch):
    model = nn.Sequential(nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(64, 3))
    flat, calls = FlatModel(model.eval()), []
    model.register_forward_pre_hook(lambda m, x: calls.append(len(x[0])))
    with Work() as work:
        fisher.diagonal(flat, torch.randn(samples, 2, 6, 6), torch.arange(samples) % 3, batch_size=batch_size)
    return work, calls


def test_the_fisher_takes_one_forward_per_batch_and_never_one_per_sample(monkeypatch):
    small, few = fisher_work(16, 8, monkeypatch)
    large, many = fisher_work(64, 8, monkeypatch)
    wide, _ = fisher_work(64, 32, monkeypatch)
    assert few == [2, 1, 8, 8]  # the rules are checked on two samples first
    assert many == [2, 1, *[8] * 8]
    per_batch = (large.count - small.count) / 6
    assert per_batch == int(per_batch)
    assert wide.count == small.count


def test_the_fisher_makes_no_gradient_per_sample():
    """For a wide layer: a batch asks for a small part of what per-sample gradients would take."""
    flat = FlatModel(nn.Sequential(nn.Linear(300, 400), nn.ReLU(), nn.Linear(400, 3)))
    with Work() as work:
        fisher.diagonal(flat, torch.randn(128, 300), torch.arange(128) % 3, batch_size=64)
    assert work.bytes < 0.2 * 128 * flat.theta.numel() * 4
