"""Seeds, batches, schedule, optimiser, the gradient."""

import copy
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.nn.functional import cross_entropy

from manymodes import MOTA, distributed, train
from manymodes.errors import UserError
from manymodes.feeding import on_device
from manymodes.flat import FlatModel
from manymodes.task import Batch, Task, TensorData
from manymodes.train import (
    Mean,
    Optimiser,
    gradient,
    in_order,
    one_cycle,
    randomness,
    seed_of,
    shuffled,
    steps_per_epoch,
    to_device,
)
from tests.toys import blobs, net


def optimiser(parameter, **changed):
    options = {"name": "adamw", "lr": 0.1, "weight_decay": 0.01, "schedule": "1cycle", "total_steps": 20}
    return Optimiser(parameter, **options | changed)


# ---- seeds -----------------------------------------------------------------------------------------


def test_seeds_are_stable():
    """Whoever changes these changes the numbers of every run ever made."""
    assert seed_of(0, 1, 2) == 8462395873746552714
    assert seed_of() == 1665333220245342802
    assert seed_of(3407, 0, None, "fisher") == 5904599663723479823


@given(st.lists(st.integers() | st.text() | st.none(), max_size=4))
def test_seeds_fit_a_generator(what):
    seed = seed_of(*what)
    assert 0 <= seed < 2**63
    torch.Generator().manual_seed(seed)


def test_seeds_tell_arguments_apart():
    assert (
        len(
            {seed_of(1, 2), seed_of(12), seed_of("1", 2), seed_of(2, 1), seed_of((1, 2)), seed_of(1, 2, None)}
        )
        == 6
    )


def test_randomness_restores_the_global_generator():
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    with randomness(1, 2) as generator:
        inside = torch.rand(2), torch.rand(2, generator=generator)
    assert torch.equal(torch.rand(3), expected)
    with randomness(1, 2) as generator:
        assert torch.equal(torch.rand(2), inside[0])
        assert torch.equal(torch.rand(2, generator=generator), inside[1])


# ---- batches ---------------------------------------------------------------------------------------


@given(st.integers(1, 60), st.integers(1, 20), st.integers(0, 5))
def test_shuffled_visits_everything_once_and_steps_agree(count, batch_size, seed):
    batches = shuffled(count, batch_size, torch.Generator().manual_seed(seed))
    assert sorted(torch.cat(batches).tolist()) == list(range(count))
    assert len(batches) == steps_per_epoch(count, batch_size)
    lone = [len(b) for b in batches if len(b) == 1]
    assert not lone or count == 1 or batch_size == 1
    assert all(len(b) == batch_size for b in batches[:-2])
    assert max(map(len, batches)) <= batch_size + 1


@pytest.mark.parametrize(("count", "size", "lengths"), [
    (1, 4, [1]), (4, 4, [4]), (5, 4, [5]), (6, 4, [4, 2]), (9, 4, [4, 5]), (3, 1, [1, 1, 1]), (2, 1, [1, 1]),
])  # fmt: skip
def test_a_lone_last_sample_joins_the_batch_before(count, size, lengths):
    assert [len(b) for b in shuffled(count, size, torch.Generator())] == lengths


def test_shuffled_depends_on_the_generator_alone():
    one, same, other = (shuffled(50, 8, torch.Generator().manual_seed(s)) for s in (1, 1, 2))
    assert all(torch.equal(a, b) for a, b in zip(one, same, strict=True))
    assert not torch.equal(one[0], other[0])


def test_in_order_keeps_the_order():
    assert torch.cat(in_order(1000, 64)).tolist() == list(range(1000))
    assert in_order(0, 64)[0].numel() == 0


def test_small_tensors_move_once_large_ones_batch_by_batch(monkeypatch):
    data, device = TensorData(torch.zeros(4, 2), torch.zeros(4)), torch.device("meta")
    assert to_device(data, torch.device("cpu")) is data
    assert to_device(data, device).inputs.device == device
    moved = next(on_device(data.batches([torch.arange(2)]), device))
    assert (moved.inputs.device, moved.targets.device, moved.index.device.type) == (device, device, "cpu")
    monkeypatch.setattr(train, "ON_DEVICE_BYTES", 31)
    assert to_device(data, device) is data


# ---- schedule and optimiser --------------------------------------------------------------------------


@pytest.mark.parametrize("total", [2, 3, 4, 5, 7, 10, 33, 100, 101, 1000])
def test_one_cycle_is_torchs(total):
    parameter = nn.Parameter(torch.zeros(1))
    inner = torch.optim.AdamW([parameter], lr=1.0)
    schedule = torch.optim.lr_scheduler.OneCycleLR(inner, max_lr=0.3, total_steps=total)
    for step in range(total):
        factor, beta = one_cycle(step, total)
        group = inner.param_groups[0]
        assert factor * 0.3 == pytest.approx(group["lr"], rel=1e-9, abs=1e-15)
        assert beta == pytest.approx(group["betas"][0], rel=1e-12)
        parameter.grad = torch.ones(1)
        inner.step()
        if step + 1 < total:
            schedule.step()


def test_one_cycle_at_the_edges():
    assert one_cycle(0, 1) == (1.0, pytest.approx(0.85))
    assert one_cycle(150, 100) == one_cycle(99, 100)


def test_adamw_with_1cycle_is_torchs():
    start, gradients = torch.randn(7), torch.randn(20, 7)
    ours = nn.Parameter(start.clone())
    theirs = nn.Parameter(start.clone())
    our_optimiser = optimiser(ours)
    their_optimiser = torch.optim.AdamW([theirs], lr=0.1, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.OneCycleLR(their_optimiser, max_lr=0.1, total_steps=20)
    for step, g in enumerate(gradients):
        ours.grad, theirs.grad = g.clone(), g.clone()
        our_optimiser.step()
        their_optimiser.step()
        if step < 19:
            schedule.step()
    torch.testing.assert_close(ours.data, theirs.data, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", ["adamw", "sgd"])
@pytest.mark.parametrize("schedule", ["1cycle", "constant"])
def test_an_optimiser_continues_where_its_state_was_taken(name, schedule):
    gradients = torch.randn(12, 5)

    def run(opt, steps):
        for g in steps:
            opt.parameter.grad = g.clone()
            opt.step()

    whole = optimiser(nn.Parameter(torch.ones(5)), name=name, schedule=schedule, total_steps=12)
    run(whole, gradients)
    first = optimiser(nn.Parameter(torch.ones(5)), name=name, schedule=schedule, total_steps=12)
    run(first, gradients[:5])
    state = copy.deepcopy(first.state_dict())
    second = optimiser(
        nn.Parameter(first.parameter.data.clone()), name=name, schedule=schedule, total_steps=12
    )
    second.load_state_dict(state)
    run(first, gradients[5:7])  # must not reach the second one's tensors
    run(second, gradients[5:])
    assert torch.equal(second.parameter.data, whole.parameter.data)
    assert set(state) == {"steps", "state"}


def test_a_fresh_optimisers_state_is_empty():
    fresh = optimiser(nn.Parameter(torch.ones(2)))
    assert fresh.state_dict() == {"steps": 0, "state": {}}
    fresh.load_state_dict(fresh.state_dict())
    assert fresh.steps == 0


def test_the_constant_schedule_leaves_the_rate_alone():
    parameter = nn.Parameter(torch.ones(1))
    opt = optimiser(parameter, schedule="constant", name="sgd", weight_decay=0.0)
    for _ in range(2):
        parameter.grad = torch.ones(1)
        opt.step()
    assert parameter.item() == pytest.approx(1 - 0.1 - 0.19)


# ---- the gradient ------------------------------------------------------------------------------------


def batch_of(count=9):
    inputs, targets = blobs((0, 1, 2), count)
    return Batch(torch.arange(count), inputs, targets)


def loss_of(model):
    return lambda batch: cross_entropy(model.module(batch.inputs), batch.targets)


def test_gradient_is_a_plain_backward():
    plain, batch = net(), batch_of()
    model = FlatModel(copy.deepcopy(plain))
    model.grad.fill_(3.0)
    value = gradient(model, loss_of(model), batch)
    expected = cross_entropy(plain(batch.inputs), batch.targets)
    expected.backward()
    assert value.item() == expected.item()
    assert not value.requires_grad
    assert torch.equal(model.grad, torch.cat([p.grad.flatten() for p in plain.parameters()]))


@pytest.mark.parametrize("room", [1, 2, 3, 5, 9])
def test_halves_equal_the_whole(room):
    """A simulated GPU with room for `room` samples."""
    model, batch, asked = FlatModel(net(dtype=torch.float64)), batch_of(), []
    batch = Batch(batch.index, batch.inputs.double(), batch.targets)
    whole = gradient(model, loss_of(model), batch), model.grad.clone()

    def tight(piece):
        asked.append(len(piece.index))
        if len(piece.index) > room:
            raise torch.cuda.OutOfMemoryError("no room")
        return loss_of(model)(piece)

    value = gradient(model, tight, batch)
    torch.testing.assert_close(value, whole[0])
    torch.testing.assert_close(model.grad, whole[1])
    assert sum(size for size in asked if size <= room) == 9


class Tight(nn.Module):
    """A network with room for a few samples at a time, which has changed something before it finds out."""

    def __init__(self, room, norm=True):
        super().__init__()
        self.room, self.asked = room, []
        self.norm = nn.BatchNorm1d(6, dtype=torch.float64) if norm else nn.Identity()
        self.fc = nn.Linear(6, 3, dtype=torch.float64)

    def forward(self, x):
        x = self.norm(x.double())
        self.asked.append(len(x))
        if len(x) > self.room:
            raise torch.OutOfMemoryError("no room")
        return self.fc(x)


def test_what_fits_is_found_once_and_said_and_failures_leave_nothing(capsys):
    """Three steps of 9 samples with room for 4 equal those with --micro-batch 3, the statistics too."""
    batch, found = batch_of(), []
    for tight, room in ((Tight(4), 0), (Tight(9), 3)):
        torch.nn.init.constant_(tight.fc.weight, 0.1)
        torch.nn.init.constant_(tight.fc.bias, 0.0)
        model = FlatModel(tight)
        model.room = room
        for _ in range(3):
            gradient(model, loss_of(model), batch)
            model.theta.data.sub_(model.grad, alpha=0.1)
        found.append((tight.asked, model.theta.data, model.buffers, tight.norm.num_batches_tracked))
    assert found[0][0] == [9, 5, 3, 3, 3, 3, 3, 3, 3, 3, 3]
    for ours, theirs in zip(found[0][1:], found[1][1:], strict=True):
        assert torch.equal(ours, theirs)
    said = capsys.readouterr().err.splitlines()
    assert said[-1] == (
        "manymodes: no room for 5 samples at a time: 3 from now on, gradients are added up, and BatchNorm "
        "normalises over so many"
    )
    assert len(said) == 2


@pytest.mark.parametrize(("room", "norm"), [(1, True), (0, False)])
def test_no_room_at_all_is_one_line(room, norm):
    model = FlatModel(Tight(room, norm))
    with pytest.raises(UserError, match="there is no room for"):
        gradient(model, loss_of(model), batch_of())


def test_a_learner_goes_on_in_smaller_pieces(capsys):
    """Training, looking up, evaluating; without BatchNorm nothing but rounding changes."""
    data = TensorData(torch.randn(40, 6, generator=torch.Generator().manual_seed(0)), torch.arange(40) % 3)
    task = Task("one", data, data, data, (0, 1, 2))
    found = []
    for room in (10, 1000):
        torch.manual_seed(0)
        network = Tight(room, norm=False)
        learner = MOTA(network, modes=2, epochs=2, batch_size=32, device="cpu", lr=0.01)
        learner.learn(task).learn(replace(task, name="two"))
        found.append(learner.predict(data))
    torch.testing.assert_close(*found)
    assert (
        "no room for 16 samples at a time: 8 from now on, gradients are added up\n" in capsys.readouterr().err
    )


def test_several_processes_are_told_to_begin_with_less(monkeypatch):
    """Half of them in the middle of a step cannot be waited for."""
    monkeypatch.setattr(distributed, "count", lambda: 2)
    model = FlatModel(Tight(4))
    with pytest.raises(UserError, match="give --micro-batch 5, or more processes"):
        gradient(model, loss_of(model), batch_of())


def test_no_room_for_a_single_sample_says_so():
    model = FlatModel(net())

    def never(batch):
        raise torch.cuda.OutOfMemoryError("no room")

    with pytest.raises(UserError, match="no room for a single sample"):
        gradient(model, never, batch_of())


def test_running_out_in_the_backward_leaves_no_half_gradient():
    class Fails(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, size):
            ctx.size = size
            return x.clone()

        @staticmethod
        def backward(ctx, g):
            if ctx.size > 5:
                raise torch.cuda.OutOfMemoryError("no room")
            return g, None

    model, batch = FlatModel(net(dtype=torch.float64)), batch_of()
    batch = Batch(batch.index, batch.inputs.double(), batch.targets)
    gradient(model, loss_of(model), batch)
    whole = model.grad.clone()

    def loss(piece):
        hidden = Fails.apply(model.module[0](piece.inputs), len(piece.index))
        return cross_entropy(model.module[2](model.module[1](hidden)), piece.targets)

    gradient(model, loss, batch)
    torch.testing.assert_close(model.grad, whole)


@given(st.lists(st.floats(-1e3, 1e3), max_size=8))
def test_mean(values):
    mean = Mean()
    for value in values:
        mean.add(value)
    if values:
        assert mean.value() == pytest.approx(sum(values) / len(values), abs=1e-9)
    else:
        assert mean.value() != mean.value()


def test_mean_keeps_the_values_it_is_given():
    mean, value = Mean(), torch.tensor(2.0)
    mean.add(value)
    mean.add(value)
    assert (mean.value(), value.item()) == (2.0, 2.0)
