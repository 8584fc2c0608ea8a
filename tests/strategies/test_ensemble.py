"""Ensembles: independent learners, from seeds or driven apart."""

import copy

import pytest
import torch

from manymodes import MOTA, Ensemble, Finetune
from manymodes.errors import UserError
from manymodes.flat import FlatModel
from manymodes.models import mlp, reset_parameters
from tests import toys
from tests.strategies.recording import network

TRAINING = {"epochs": 3, "batch_size": 8, "lr": 0.02, "device": "cpu"}
GROUPS = ((0, 1), (2, 3), (4, 5))


def tasks(count=3):
    return [toys.task(g, 20, dtype=torch.float64, val=0, name=str(g)) for g in GROUPS[:count]]


def learn_all(learner, given):
    for task in given:
        learner.learn(task)
    return learner


def ensemble(**options):
    return Ensemble(network(norm=True), **TRAINING | options)


# ---- seeds -------------------------------------------------------------------------------------------


def test_seeds_draw_every_mode_anew():
    module, learner = network(norm=True), ensemble(init="seeds", modes=3)
    start = FlatModel(copy.deepcopy(module)).theta.data
    for mode in range(3):
        assert not torch.equal(learner.modes.theta[mode], start)
        for other in range(mode):
            assert not torch.equal(learner.modes.theta[mode], learner.modes.theta[other])
    assert torch.equal(learner.modes.theta, ensemble(init="seeds", modes=3).modes.theta)
    assert not torch.equal(learner.modes.theta, ensemble(init="seeds", modes=3, seed=1).modes.theta)


def test_the_papers_seeds():
    """Seeds 1, 2, ... of the run with seed 0."""
    learner = ensemble(init="seeds", modes=2)
    for mode in range(2):
        module = network(norm=True)
        reset_parameters(module, 1 + mode)
        assert torch.equal(learner.modes.theta[mode], FlatModel(module).theta.data)


def test_your_model_is_not_drawn_anew():
    module = network()
    before = copy.deepcopy(module.state_dict())
    Ensemble(module, init="seeds", **TRAINING)
    assert all(torch.equal(v, before[k]) for k, v in module.state_dict().items())


def test_of_a_pretrained_network_only_the_head_is_drawn():
    module = mlp(6, (5,), outputs=4)
    module.pretrained = True
    learner = Ensemble(module, init="seeds", modes=2, **TRAINING)
    for segment in learner.model.segments:
        rows = learner.modes.theta[:, segment.slice]
        assert torch.equal(rows[0], rows[1]) == (not segment.name.startswith("fc."))
    assert torch.equal(learner.modes.theta[0, :30].view(5, 6), module.hidden[0].weight.data)


@pytest.mark.parametrize("init", ["seeds"])
def test_modes_from_seeds_are_independent_of_each_other(init):
    """Mode 0 of three is the single mode of one: nothing a mode learns reaches another."""
    one = learn_all(ensemble(init=init, modes=1), tasks())
    three = learn_all(ensemble(init=init, modes=3), tasks())
    assert torch.equal(one.modes.theta[0], three.modes.theta[0])
    assert torch.equal(one.modes.buffers[0], three.modes.buffers[0])


@pytest.mark.parametrize("init", ["seeds", "distance"])
def test_after_task_1_no_mode_sees_another(init):
    """Another second mode changes nothing for the first."""
    plain, moved = (ensemble(init=init).learn(tasks(1)[0]) for _ in range(2))
    moved.modes.theta[1] += 1.0
    learn_all(plain, tasks()[1:])
    learn_all(moved, tasks()[1:])
    assert torch.equal(plain.modes.theta[0], moved.modes.theta[0])
    assert torch.equal(plain.modes.buffers[0], moved.modes.buffers[0])
    assert not torch.equal(plain.modes.theta[1], moved.modes.theta[1])


def test_every_mode_sees_the_data_in_its_own_order():
    start = network()
    learner = Ensemble(start, init="seeds", modes=2, **TRAINING)
    learner.modes.theta[1] = learner.modes.theta[0]
    learner.learn(tasks(1)[0])
    assert not torch.equal(learner.modes.theta[0], learner.modes.theta[1])


# ---- distance ----------------------------------------------------------------------------------------


def test_distance_starts_as_mota_does():
    """Task 1 is MOTA's initialize_task1, BatchNorm statistics included."""
    one = ensemble(init="distance", separation=5.0).learn(tasks(1)[0])
    other = MOTA(network(norm=True), separation=5.0, **TRAINING).learn(tasks(1)[0])
    assert torch.equal(one.modes.theta, other.modes.theta)
    assert torch.equal(one.modes.buffers, other.modes.buffers)


def test_later_tasks_are_plain_fine_tuning_of_each_mode():
    first, second = tasks(2)
    learner = ensemble(init="distance").learn(first)
    single = Finetune(network(norm=True), **TRAINING).learn(first)
    single.modes.theta[0], single.modes.buffers[0] = learner.modes.theta[0], learner.modes.buffers[0]
    learner.learn(second)
    single.learn(second)
    assert torch.equal(learner.modes.theta[0], single.modes.theta[0])


def test_one_mode_is_fine_tuning():
    one = learn_all(ensemble(init="distance", modes=1), tasks())
    other = learn_all(Finetune(network(norm=True), **TRAINING), tasks())
    assert torch.equal(one.modes.theta, other.modes.theta)


@pytest.mark.parametrize("init", ["seeds", "distance"])
def test_predictions_are_the_average_of_the_modes(init):
    learner, x = learn_all(ensemble(init=init, modes=3), tasks(2)), torch.randn(5, 6, dtype=torch.float64)
    total = torch.zeros(5, 6, dtype=torch.float64)
    for theta, buffers in zip(learner.modes.theta, learner.modes.buffers, strict=True):
        with torch.no_grad(), learner.model.bound(theta, buffers), learner.model.evaluating():
            total[:, :4] += learner.model.module(x)[:, :4].softmax(dim=1) / 3
    torch.testing.assert_close(learner.predict(x), total)


def test_an_unknown_init_is_named():
    with pytest.raises(UserError, match="did you mean 'seeds'"):
        ensemble(init="seed")
