"""MOTA against the printed algorithm, and what it promises beyond it."""

import copy
import itertools
from dataclasses import replace

import pytest
import torch
from torch import nn

from manymodes import EWC, MOTA, LwFEWC, checkpoints
from manymodes.modes import simplex
from manymodes.penalties import Quadratic
from manymodes.strategies import mota as mota_file
from manymodes.strategies import separation
from manymodes.task import Task, TensorData
from tests import toys
from tests.reference.mota import PrintedMOTA, Settings, batches_in_order, estimate_batch_norm
from tests.strategies.recording import GROUPS, Recorded, assert_same_weights, network

TRAINING = {"epochs": 3, "batch_size": 8, "lr": 0.02, "weight_decay": 0.01, "device": "cpu"}
PRINTED = {
    "modes": 2, "strength": 100.0, "separation": 10.0, "drift": "fisher", "joint_weight": 1.0,
    "drift_weight": 0.1,
}  # fmt: skip


def mota(module, **options):
    """The printed algorithm, whatever the defaults are."""
    return MOTA(module, **PRINTED | TRAINING | options)


def tasks(count=3, groups=GROUPS, samples=20):
    """Tasks in float64 that record their training batches, with held-out data."""
    return [
        Task(f"task {t}", Recorded(*toys.blobs(g, samples, dtype=torch.float64, spread=1.0, seed=t)),
             TensorData(*toys.blobs(g, 11, dtype=torch.float64, spread=1.0, seed=20 + t)), None, tuple(g))
        for t, g in enumerate(groups[:count])
    ]  # fmt: skip


def learn_all(learner, given):
    for task in given:
        learner.learn(task)
    return learner


@pytest.fixture
def alphas(monkeypatch):
    """The points on the simplex that a learner draws."""
    drawn = []

    def recorded(count, generator):
        drawn.append(simplex(count, generator))
        return drawn[-1]

    monkeypatch.setattr(separation, "simplex", recorded)
    return drawn


# ---- the printed algorithm --------------------------------------------------------------------------

CASES = {
    "two modes": {},
    "three modes": {"modes": 3, "strength": 30.0},
    "without backtracking": {"backtracking": False},
    "each mode's own Fisher": {"fisher": "mode"},
    "merged anchors": {"anchor": "merged"},
    "drift of the function": {"drift": "function", "distillation": 2.0},
    "both drifts": {"drift": "both", "distillation": 0.5, "temperature": 3.0},
    "a joint teacher": {"drift": "both", "teacher": "joint"},
    "half of the loss its own": {"joint_weight": 0.5},
    "the own loss alone": {"joint_weight": 0.0},
    "search on training data": {"search": "train"},
    "a heavy drift": {"drift_weight": 1.0, "strength": 300.0},
    "hardly a separation": {"separation": 0.1},
    "all at once": {"mode_parallel": True, "modes": 3},
}


def settings_of(learner, order=None):
    return Settings(
        epochs=learner.epochs, lr=learner.lr, weight_decay=learner.weight_decay, strength=learner.strength,
        separation=learner.separation, fisher=learner.fisher, merged=learner.anchor == "merged",
        distillation=learner.distillation, temperature=learner.temperature,
        shared_teacher=learner.shared_teacher, joint_weight=learner.joint_weight,
        backtracking=learner.backtracking, drift_weight=learner.drift_weight, order=order,
        at_once=learner.mode_parallel,
    )  # fmt: skip


def printed(learner, norm=False):
    """The slow one beside a learner, both from modes that are a little apart.

    Equal modes are a saddle of the cosine, and what leaves it where the loss has no say (outputs of later
    tasks) is rounding, which AdamW scales up: two correct programs would differ, and do between processors.
    """
    generator = torch.Generator().manual_seed(5)
    noise = torch.randn(learner.modes.theta.shape, generator=generator, dtype=torch.float64)
    learner.modes.theta.add_(noise, alpha=0.02)
    modules = [network(norm=norm) for _ in range(len(learner.modes))]
    for row, module in zip(learner.modes.theta, modules, strict=True):
        nn.utils.vector_to_parameters(row.clone(), module.parameters())
    return PrintedMOTA(modules, settings_of(learner))


@pytest.mark.parametrize("groups", [GROUPS, ((0, 1, 2),) * 3], ids=["task-IL", "instance-IL"])
@pytest.mark.parametrize("norm", [False, True], ids=["plain", "batch norm"])
@pytest.mark.parametrize("name", CASES)
def test_three_tasks_equal_the_printed_algorithm(name, norm, groups, alphas):
    if groups != GROUPS and (norm or CASES[name].get("modes") == 3):
        pytest.skip("the cases that differ are enough")
    options = {"strength": 20.0, "separation": 2.0} | CASES[name]
    learner = mota(network(norm=norm), **options)
    slow = printed(learner, norm)
    chosen = []
    for number, task in enumerate(tasks(groups=groups)):
        learner.learn(task)
        data = task.train.inputs, task.train.targets
        if number == 0:
            slow.initialize_task1(data, task.classes, task.train.drawn, alphas)
        else:
            held_out = data if learner.search == "train" else (task.val.inputs, task.val.targets)
            slow.update_parameters(data, held_out, task.classes, task.train.drawn)
            if learner.backtracking:
                assert learner.choice.epochs == slow.chosen
                chosen.append(slow.chosen)
        for mode, module in enumerate(slow.modules):
            assert_same_weights(learner, module, mode, rtol=1e-5)
    assert len(alphas) == 9
    moved = [slow.modules[0], slow.modules[1]]
    assert not torch.equal(next(moved[0].parameters()), next(moved[1].parameters()))


def test_the_least_rigid_mode_moves_first(alphas):
    """One reordered task against the printed algorithm in that order."""
    learner = mota(network(), order="rigidity", fisher="mode", strength=20.0, separation=2.0)
    slow = printed(learner)
    first, second = tasks(2)
    learner.learn(first)
    slow.initialize_task1((first.train.inputs, first.train.targets), first.classes, first.train.drawn, alphas)
    learner.springs[0].importance.mul_(10.0)
    for _, importance in slow.springs[0]:
        for f in importance:
            f.mul_(10.0)
    slow.settings.order = (1, 0)
    learner.learn(second)
    slow.update_parameters(
        (second.train.inputs, second.train.targets), (second.val.inputs, second.val.targets),
        second.classes, second.train.drawn,
    )  # fmt: skip
    for mode, module in enumerate(slow.modules):
        assert_same_weights(learner, module, mode, rtol=1e-6)
    other = mota(network(), order="fixed", fisher="mode", strength=20.0, separation=2.0)
    other.learn(tasks(1)[0])
    other.springs[0].importance.mul_(10.0)
    other.learn(tasks(2)[1])
    assert not torch.equal(other.modes.theta, learner.modes.theta)


# ---- one mode is EWC --------------------------------------------------------------------------------


@pytest.mark.parametrize("options", [
    {}, {"fisher_kind": "sampled"}, {"fisher_samples": 7}, {"anchor": "merged", "fisher_kind": "exact"},
    {"optimiser": "sgd", "schedule": "constant", "batchnorm": "frozen"},
])  # fmt: skip
@pytest.mark.parametrize("norm", [False, True])
def test_one_mode_without_backtracking_is_ewc_to_the_bit(options, norm):
    shared = {"strength": 50.0, "seed": 3, **options, **TRAINING}
    ewc = learn_all(EWC(network(norm=norm), **shared), tasks())
    single = learn_all(mota(network(norm=norm), modes=1, backtracking=False, **shared), tasks())
    assert torch.equal(ewc.modes.theta, single.modes.theta)
    assert torch.equal(ewc.modes.buffers, single.modes.buffers)
    assert torch.equal(ewc.springs.importance, single.springs[0].importance)
    assert torch.equal(ewc.springs.anchor, single.springs[0].anchor)


def test_one_mode_with_both_drifts_is_lwf_with_ewc_to_the_bit():
    shared = {"strength": 50.0, "distillation": 0.7, "temperature": 3.0, **TRAINING}
    both = learn_all(LwFEWC(network(norm=True), **shared), tasks())
    single = learn_all(mota(network(norm=True), modes=1, drift="both", backtracking=False, **shared), tasks())
    assert torch.equal(both.modes.theta, single.modes.theta)


# ---- looked up or evaluated -------------------------------------------------------------------------


def unchanged(raw, generator):
    return raw


@pytest.mark.parametrize("options", [{}, {"modes": 3}, {"drift": "both"}, {"joint_weight": 0.3},
                                     {"mode_parallel": True}])  # fmt: skip
def test_looking_up_equals_evaluating(options):
    """Data that claims to augment makes MOTA evaluate the resting modes on every batch."""

    def augmenting(task):
        data = TensorData(task.train.inputs, task.train.targets, augment=unchanged)
        return replace(task, train=data)

    one = learn_all(mota(network(norm=True), **options), tasks())
    other = learn_all(mota(network(norm=True), **options), [augmenting(t) for t in tasks()])
    torch.testing.assert_close(one.modes.theta, other.modes.theta, rtol=1e-7, atol=1e-9)
    assert one.choice.epochs == other.choice.epochs


def test_an_epoch_costs_one_training_pass_and_one_look_per_mode(monkeypatch):
    """Linear in the number of modes: forwards are counted, not timed."""
    counts = {}
    for modes in (2, 3, 4, 6):
        learner = mota(network(), modes=modes, backtracking=False, strength=0.0)
        first, second = tasks(2)
        learner.learn(first)
        seen = []
        inner = learner.model.module.forward
        learner.model.module.forward = lambda x, inner=inner, seen=seen: (seen.append(len(x)), inner(x))[1]
        learner.learn(second)
        counts[modes] = sum(seen)
    per_mode = (
        TRAINING["epochs"] * 2 * 20 + 20 + 8
    )  # train and look per epoch, one look before, a check after
    assert counts == {n: n * per_mode + 1 for n in counts}  # and the sample that asks for the outputs


# ---- task 1 -----------------------------------------------------------------------------------------


def test_statistics_after_task_1_are_each_modes_own():
    learner = mota(network(norm=True), modes=2, separation=20.0)
    task = tasks(1)[0]
    learner.learn(task)
    assert not torch.allclose(learner.modes.buffers[0], learner.modes.buffers[1])
    for theta, buffers in zip(learner.modes.theta, learner.modes.buffers, strict=True):
        module = network(norm=True)
        for segment in learner.model.segments:
            module.get_parameter(segment.name).data = theta[segment.slice].view(segment.shape).clone()
        estimate_batch_norm(module, batches_in_order((task.train.inputs,), TRAINING["batch_size"]))
        for segment in learner.model.buffer_segments:
            found = buffers[segment.slice].view(segment.shape)
            torch.testing.assert_close(found, module.get_buffer(segment.name))


def test_separation_drives_the_modes_apart():
    def similarity(weight):
        learner = mota(network(), separation=weight, epochs=10).learn(tasks(1)[0])
        return learner.modes.theta[:, :30].double()

    apart, close = (torch.cosine_similarity(*similarity(w), dim=0) for w in (30.0, 0.0))
    assert apart < close - 0.1


def test_learning_all_tasks_works_with_one_sample_too_many():
    """17 samples, batches of 8: the lone last one joins the batch before, in task 1 and later."""
    learner = mota(network(norm=True))
    learn_all(learner, tasks(2, samples=17))
    assert torch.isfinite(learner.modes.theta).all()


# ---- backtracking -----------------------------------------------------------------------------------


def objective(learner, task, kept, epochs):
    """-1/S sum_s log mean_i p_i + drift_weight * sum_i drift_i at a combination of checkpoints."""
    rows = [next(r for r in row if r.epoch == e) for row, e in zip(kept, epochs, strict=True)]
    joint = sum(r.probabilities_S for r in rows) / len(rows)
    return float(-joint.log().mean()) + learner.drift_weight * sum(r.drift for r in rows)


@pytest.mark.parametrize("options", [
    {}, {"modes": 3}, {"strength": 3000.0, "drift_weight": 1.0}, {"drift": "both"}, {"search": "train"},
])  # fmt: skip
def test_backtracking_is_never_worse_than_the_last_or_the_first_epoch(options, monkeypatch):
    everything = []

    def keep_all(probabilities, drifts, *rest, **options):
        return torch.ones(len(drifts), dtype=torch.bool)

    monkeypatch.setattr(checkpoints, "can_still_win", keep_all)
    rewind = MOTA._rewind

    def watched(self):
        everything.append(self._checkpoints.kept)
        rewind(self)

    monkeypatch.setattr(MOTA, "_rewind", watched)
    learner = mota(network(), **options)
    for number, task in enumerate(tasks()):
        learner.learn(task)
        if number == 0:
            assert learner.choice is None
            continue
        kept, last = everything[-1], TRAINING["epochs"]
        values = {
            epochs: objective(learner, task, kept, epochs)
            for epochs in itertools.product(range(last + 1), repeat=len(learner.modes))
        }
        assert values[learner.choice.epochs] <= min(values.values()) + 1e-9
        assert values[learner.choice.epochs] <= values[(last,) * len(learner.modes)] + 1e-9
        assert values[learner.choice.epochs] <= values[(0,) * len(learner.modes)] + 1e-9
        assert learner.choice.proven


def test_dropping_losers_early_changes_nothing(monkeypatch):
    plain = learn_all(mota(network()), tasks())

    def keep_all(probabilities, drifts, *rest, **options):
        return torch.ones(len(drifts), dtype=torch.bool)

    monkeypatch.setattr(checkpoints, "can_still_win", keep_all)
    kept = learn_all(mota(network()), tasks())
    assert torch.equal(plain.modes.theta, kept.modes.theta)


@pytest.mark.parametrize("limit", [0, 1200])
@pytest.mark.parametrize("norm", [False, True])
def test_checkpoints_on_disk_give_the_same_result(limit, norm, monkeypatch, tmp_path):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    in_memory = learn_all(mota(network(norm=norm)), tasks())
    monkeypatch.setattr(checkpoints, "MEMORY_BYTES", limit)
    spilled, asked = mota(network(norm=norm)), []
    stored = checkpoints.Checkpoints._stored
    monkeypatch.setattr(
        checkpoints.Checkpoints, "_stored", lambda *given: (asked.append(stored(*given)), asked[-1])[1]
    )
    learn_all(spilled, tasks())
    assert any(not isinstance(where, dict) for where in asked)
    assert torch.equal(in_memory.modes.theta, spilled.modes.theta)
    assert torch.equal(in_memory.modes.buffers, spilled.modes.buffers)
    assert in_memory.choice == spilled.choice
    assert [path for path in tmp_path.iterdir() if path.name.startswith("manymodes")] == []


def test_without_held_out_data_the_training_data_is_searched():
    def without(task):
        return replace(task, val=None)

    one = learn_all(mota(network(), search="train"), tasks())
    other = learn_all(mota(network(), search="val"), [without(t) for t in tasks()])
    assert torch.equal(one.modes.theta, other.modes.theta)
    val = learn_all(mota(network(), search="val", drift_weight=0.0), tasks())
    train = learn_all(mota(network(), search="train", drift_weight=0.0), tasks())
    assert [val.choice.value] != [train.choice.value]


def test_a_mode_that_hardly_moves_may_not_have_a_drift_below_zero(monkeypatch):
    """Rounding makes KL(p || p) a tiny negative number now and then; the search takes no such drift."""
    distances = iter([-1e-9] * 1000)
    monkeypatch.setattr(mota_file, "distillation", lambda logits, *rest: logits.sum() * 0 + next(distances))
    learner = mota(network(), drift="function")
    learn_all(learner, tasks(2))
    assert learner.choice is not None


# ---- distances --------------------------------------------------------------------------------------


def test_the_three_drifts_are_three_methods():
    def learnt(drift):
        return learn_all(mota(network(), drift=drift), tasks(2)).modes.theta

    fisher, function, both = learnt("fisher"), learnt("function"), learnt("both")
    assert not torch.equal(fisher, function)
    assert not torch.equal(function, both)


def test_without_a_fisher_distance_no_fisher_is_computed(monkeypatch):
    monkeypatch.setattr(mota_file.fisher, "diagonal_over", lambda *a, **k: pytest.fail("not needed"))
    learner = learn_all(mota(network(), drift="function"), tasks(2))
    assert learner.springs == {}
    assert learner.storage()["importances"] == 0


def test_the_joint_fisher_is_the_smaller_one():
    """A share r_i <= 1 of a mode's own gradient: it is held to what it is responsible for."""
    first = tasks(1)[0]
    joint = mota(network(), fisher="joint").learn(first)
    own = mota(network(), fisher="mode").learn(first)
    for a, b in zip(joint.springs.values(), own.springs.values(), strict=True):
        assert (a.importance <= b.importance + 1e-12).all()
        assert a.importance.sum() < 0.9 * b.importance.sum()


def test_a_strong_spring_holds():
    drift = []
    for strength in (1.0, 1e3, 1e6):
        learner = mota(network(), strength=strength, fisher="mode", backtracking=False)
        first, second = tasks(2)
        learner.learn(first)
        before, energy = learner.modes.theta.clone(), [copy.copy(s) for s in learner.springs.values()]
        learner.learn(second)
        drift.append(sum(float(Quadratic(s.anchor, s.importance, 1.0).value(t))
                         for s, t in zip(energy, learner.modes.theta, strict=True)))  # fmt: skip
        assert not torch.equal(before, learner.modes.theta)
    assert drift[0] > drift[1] > drift[2]


def test_a_single_linear_layer_has_modes_too():
    learner = mota(nn.Linear(6, 4).double())
    learn_all(learner, tasks(2, groups=((0, 1), (2, 3))))
    assert learner.predict(torch.zeros(1, 6, dtype=torch.float64)).sum().item() == pytest.approx(1.0)
