"""MOTA with movers: what rests does not move, who is trusted with what, and that it is kept whole."""

import numpy as np
import pytest
import torch
from scipy.stats import multivariate_normal

import manymodes as mm
from manymodes.errors import UserError
from manymodes.modes import joint
from manymodes.strategies.allocation import SHRINKAGE, Allocation, directions, flattened
from manymodes.task import Task, TensorData

FAST = {"epochs": 2, "batch_size": 32, "device": "cpu"}


def mota(stream, **options):
    options = {"modes": 3, "movers": 1, "weighting": "familiar"} | FAST | options
    torch.manual_seed(0)
    return mm.MOTA(mm.models.mlp(64, (16,), outputs=stream.num_outputs), **options)


@pytest.fixture(scope="module")
def renditions():
    """All ten digits in every task, each task another rendition of the handwriting."""
    return mm.streams.digits("instance", tasks=4)


def test_a_task_moves_its_movers_and_nothing_else(renditions):
    learner = mota(renditions, start="latest")
    for number, task in enumerate(renditions):
        before = learner.modes.theta.clone()
        learner.learn(task)
        moved = (learner.modes.theta != before).any(dim=1).nonzero().flatten().tolist()
        assert moved == [number % 3]
    assert learner.knows == [[0, 3], [1], [2]]


def test_two_movers_take_turns(renditions):
    learner, moved = mota(renditions, movers=2), []
    for task in renditions:
        before = learner.modes.theta.clone()
        learner.learn(task)
        moved.append((learner.modes.theta != before).any(dim=1).nonzero().flatten().tolist())
    assert moved == [[0, 1, 2], [0, 2], [1, 2], [0, 1]], "task 1 drives all modes apart"


@pytest.mark.parametrize("start", ["latest", "heir"])
def test_where_a_new_mover_begins(renditions, start):
    learner, seen = mota(renditions, start=start), []
    learner.learn(renditions[0])
    first, spring = learner.modes.theta[0].clone(), learner.springs[0].importance.clone()
    learner.prepare = lambda task: seen.append(
        (
            learner.modes.theta[1].clone(),
            learner.before.theta[1].clone(),
            {mode: held.importance.clone() for mode, held in learner.springs.items()},
        )
    )
    learner.learn(renditions[1])
    theta, before, springs = seen[0]
    assert torch.equal(theta, first)
    assert torch.equal(before, first), "its drift counts from there"
    assert (1 in springs) == (start == "heir")
    assert learner.knows[1] == ([0, 1] if start == "heir" else [1])
    if start == "heir":
        assert torch.equal(springs[1], spring)


def test_weights_equal_the_formula(renditions):
    """With a sharpness of 1: Bayes' rule over Gaussians around the labels' mean sketches, by scipy."""
    allocation, valid = Allocation(modes=2, size=6, sharpness=1.0), [0, 1, 2, 5]
    movers = [[0], [1], [0, 1]]
    for task, moved in zip(renditions, movers, strict=False):
        allocation = allocation.after(task, moved, torch.device("cpu"))
    first = flattened(next(renditions[0].train.batches([torch.arange(len(renditions[0].train))])).inputs)
    centre, scale = first.mean(dim=0), first.std(dim=0, correction=0) + 1e-3

    def sketch(data):
        inputs = flattened(next(data.batches([torch.arange(len(data))])).inputs)
        return (((inputs - centre) / scale) @ directions(64, 6)).double().numpy()

    learnt = [(sketch(task.train), task.train.targets.numpy()) for task in list(renditions)[:3]]
    within = [rows[y == label] - rows[y == label].mean(axis=0) for rows, y in learnt for label in range(10)]
    covariance = np.cov(np.concatenate(within).T, bias=True)
    covariance = (1 - SHRINKAGE) * covariance + SHRINKAGE * np.eye(6) * np.trace(covariance) / 6
    test, densities = renditions[1].test, []
    for rows, y in learnt:
        share = {label: (y == label).sum() / np.isin(y, valid).sum() for label in valid}
        around = {label: multivariate_normal(rows[y == label].mean(axis=0), covariance) for label in valid}
        densities.append(sum(share[label] * around[label].pdf(sketch(test)) for label in valid))
    p_TS = np.stack(densities) / np.sum(densities, axis=0)
    expected = np.stack([p_TS[0] + p_TS[2] / 2, p_TS[1] + p_TS[2] / 2])
    found = allocation.weigh(test, valid, torch.device("cpu"))
    np.testing.assert_allclose(found.exp().numpy(), expected, atol=2e-4)


def test_an_input_goes_to_the_mode_that_learnt_its_like(renditions):
    learner = mota(renditions, modes=4, start="latest", epochs=10, sharpness=1.0)
    for task in renditions:
        learner.learn(task)
    equal, weighted, trusted = [], [], []
    for number, task in enumerate(renditions):
        data, valid = task.test, learner.valid(task.classes)
        log_probs, log_weights = learner.mode_log_probs(data, valid), learner.log_weights(data, valid)
        assert log_weights.exp().sum(dim=0).allclose(torch.ones(len(data)))
        right = joint(log_probs, log_weights).argmax(dim=1) == data.targets
        weighted.append(right.float().mean().item())
        equal.append((joint(log_probs).argmax(dim=1) == data.targets).float().mean().item())
        trusted.append(log_weights[number].exp().mean().item())
    assert np.mean(trusted) > 0.7
    assert np.mean(weighted) > np.mean(equal) + 0.03


def test_in_task_il_the_valid_outputs_tell_the_mode():
    stream = mm.streams.digits("task", tasks=3)
    learner = mota(stream, start="latest")
    assert learner.log_weights(stream[0].test, learner_valid(learner, stream, 0)) is None, (
        "nothing is known yet"
    )
    for task in stream:
        learner.learn(task)
    for number, task in enumerate(stream):
        weights = learner.log_weights(task.test, learner.valid(task.classes)).exp()
        assert weights[number].eq(1).all()
        assert weights.sum().item() == len(task.test)


def learner_valid(learner, stream, number):
    return learner.valid_for(stream[number].test, stream[number].classes)


def test_no_input_is_kept_and_what_is_kept_is_counted(renditions):
    learner = mota(renditions, sketch=8)
    for task in renditions:
        learner.learn(task)
    kept = learner.storage()["statistics"]
    assert kept == 1 + 2 * 64 + 4 * 10 * (1 + 8) + 36
    assert kept == mm.MOTA.beside(learner.options, learner.model.module, renditions)
    assert mm.MOTA.beside({}, learner.model.module, renditions) == 0


@pytest.mark.parametrize("start", ["own", "latest", "heir"])
def test_saved_within_a_task_and_gone_on_with_to_the_bit(renditions, tmp_path, start):
    whole, parts = mota(renditions, start=start, drift="both"), mota(renditions, start=start, drift="both")
    for number, task in enumerate(renditions):
        whole.learn(task)
        if number == 2:
            with pytest.raises(KeyboardInterrupt):
                parts.learn(task, on_epoch=lambda learner: _save_and_stop(learner, tmp_path / "l"))
            parts = mm.load(tmp_path / "l")
        parts.learn(task)
    test = renditions[0].test
    inputs = next(test.batches([torch.arange(50)])).inputs
    assert torch.equal(whole.modes.theta, parts.modes.theta)
    assert torch.equal(whole.predict(inputs), parts.predict(inputs))
    assert whole.knows == parts.knows


def _save_and_stop(learner, path):
    learner.save(path)
    raise KeyboardInterrupt


def test_resting_modes_take_no_part_in_the_joint_loss(renditions):
    """With one mover the joint loss is the mover's own, whatever the resting modes say."""
    learners = [mota(renditions, joint_weight=weight, start="latest") for weight in (0.0, 1.0)]
    for task in list(renditions)[:2]:
        for learner in learners:
            learner.learn(task)
    assert torch.equal(learners[0].modes.theta, learners[1].modes.theta)


def test_class_il_weighs_all_tasks_seen():
    stream = mm.streams.digits("class", tasks=3)
    learner = mota(stream, start="latest")
    for task in stream:
        learner.learn(task)
    weights = learner.log_weights(stream[2].test, learner.valid(stream[2].classes)).exp()
    assert weights.sum(dim=0).allclose(torch.ones(len(stream[2].test)))
    assert (weights > 0).sum() > len(stream[2].test)


def test_constant_inputs_do_no_harm():
    """Features that never vary, and as many samples as one: the covariance is shrunk and stays regular."""
    task = Task("still", TensorData(torch.ones(4, 5), torch.tensor([0, 1, 0, 1])), None, None, (0, 1))
    allocation = Allocation(2, 3, 1.0).after(task, [0], torch.device("cpu"))
    allocation = allocation.after(task, [1], torch.device("cpu"))
    weights = allocation.weigh(task.train, (0, 1), torch.device("cpu"))
    assert weights.exp().allclose(torch.full((2, 4), 0.5))


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"movers": 4}, "there are 3 modes"),
        ({"movers": 2, "start": "latest"}, "needs movers=1"),
        ({"start": "neighbour"}, "heir, latest, own"),
        ({"weighting": "loud"}, "equal, familiar"),
        ({"sketch": 0}, "sketch must be"),
        ({"movers": -1}, "movers"),
        ({"sharpness": -0.5}, "sharpness"),
    ],
)
def test_what_cannot_be_is_said(renditions, options, said):
    with pytest.raises(UserError, match=said):
        mota(renditions, **options)
