"""Theorem 1 measured, and the advice on how many modes to take."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("altair")

from manymodes.report import moving, theorem, tradeoff
from manymodes.report.groups import experiments
from manymodes.report.runs import read_runs
from tests.reference import theorem as reference
from tests.report.synthetic import write_run, write_trajectory


def _experiment(folder):
    return experiments(read_runs([folder]).runs)[0]


def _path(draw, tasks, modes, parameters, still=()):
    theta = draw.normal(size=(tasks + 1, modes, parameters)).astype(np.float32)
    for task, mode in still:
        theta[task, mode] = theta[task - 1, mode]
    return theta


def _recorded(folder, strategy, theta, **options):
    drift = np.square(np.diff(theta, axis=0)).mean(axis=2).tolist()
    tasks, modes = len(theta) - 1, theta.shape[1]
    path = write_run(folder, strategy, tasks=tasks, modes=modes, drift=drift, **options)
    write_trajectory(path, theta)


@given(seed=st.integers(0, 10**6), tasks=st.integers(2, 4), modes=st.integers(2, 3))
def test_pi_is_the_formula(tmp_path_factory, seed, tasks, modes):
    folder, draw = tmp_path_factory.mktemp("runs"), np.random.default_rng(seed)
    still = [(t, m) for t in range(1, tasks + 1) for m in range(modes) if t > 1 and draw.random() < 0.5]
    several = _path(draw, tasks, modes, 7, still)
    single, mtl = _path(draw, tasks, 1, 7), _path(draw, tasks, 1, 7)
    _recorded(folder, "mota", several)
    _recorded(folder, "ewc", single)
    _recorded(folder, "multitask", mtl)
    found = theorem.measure(_experiment(folder))
    wanted = reference.pi(several.astype(float), mtl[-1, 0], single[:, 0].astype(float), mtl[-1, 0])
    # A difference of sums of order one, stored in single precision: it may cancel.
    assert found.values == {modes: [pytest.approx(wanted, rel=1e-5, abs=1e-5)]}
    assert ("negative for no N" in theorem.sentence(found)) == (wanted >= 0)


def test_narrower_networks_are_measured_against_their_own_multitask(tmp_path):
    draw = np.random.default_rng(0)
    narrow, wide = {"name": "mlp", "width": 0.5}, {"name": "mlp", "width": 1.0}
    several, single = _path(draw, 3, 2, 4), _path(draw, 3, 1, 8)
    small, large = _path(draw, 3, 1, 4), _path(draw, 3, 1, 8)
    _recorded(tmp_path, "mota", several, model=narrow)
    _recorded(tmp_path, "ewc", single, model=wide)
    _recorded(tmp_path / "small", "multitask", small, model=narrow)
    missing = theorem.measure(_experiment(tmp_path))
    assert not missing.values
    assert "run multitask at the width of a mode" in theorem.sentence(missing)
    _recorded(tmp_path / "large", "multitask", large, model=wide)
    found = theorem.measure(_experiment(tmp_path))
    wanted = reference.pi(several.astype(float), small[-1, 0], single[:, 0].astype(float), large[-1, 0])
    assert found.values == {2: [pytest.approx(wanted, rel=1e-5)]}


def test_without_a_reference_the_reason_is_said(tmp_path):
    write_run(tmp_path, "mota", modes=2)
    assert "needs a run of multitask" in theorem.sentence(theorem.measure(_experiment(tmp_path)))


def _fixed(folder, strategy, accuracy, *, modes=1, seeds=3, spread=0.001, parameters=10, **options):
    for seed in range(seeds):
        value = accuracy + spread * (seed - 1)
        write_run(folder, strategy, modes=modes, seed=seed, tasks=1, parameters=parameters,
                  accuracy=[[0.5], [value]], **options)  # fmt: skip


def test_more_modes_are_advised_where_they_pay(tmp_path):
    _fixed(tmp_path, "ewc", 0.80)
    _fixed(tmp_path, "mota", 0.90, modes=2, parameters=5)
    _fixed(tmp_path, "mota", 0.901, modes=4, parameters=5)
    advice = tradeoff.recommendation(_experiment(tmp_path))
    assert advice[0].startswith("Up to 10 parameters: 2 modes (mota:modes=2, 90.0 %)")
    assert "4 modes" in advice[-1]
    assert "less than the seeds' spread" in advice[-1], (
        "the smallest N that the spread does not tell from the best"
    )


def test_a_single_network_is_advised_where_modes_do_not_pay(tmp_path):
    _fixed(tmp_path, "ewc", 0.90)
    _fixed(tmp_path, "mota", 0.85, modes=2, parameters=5)
    (advice,) = tradeoff.recommendation(_experiment(tmp_path))
    assert (
        advice == "Up to 10 parameters: a single network (ewc, 90.0 %); "
        "2 modes (mota:modes=2) reach 5.0 points less."
    )


def test_who_keeps_data_does_not_compete(tmp_path):
    _fixed(tmp_path, "er", 0.99)
    _fixed(tmp_path, "multitask", 0.995)
    _fixed(tmp_path, "ewc", 0.80)
    _fixed(tmp_path, "mota", 0.90, modes=2, parameters=5)
    assert tradeoff.recommendation(_experiment(tmp_path))[0].startswith("Up to 10 parameters: 2 modes")


def test_reference_lines_are_the_single_networks(tmp_path):
    _fixed(tmp_path, "ewc", 0.8)
    _fixed(tmp_path, "mota", 0.9)
    _fixed(tmp_path, "mota", 0.9, modes=2)
    found = {row["label"]: row for row in tradeoff.rows(_experiment(tmp_path))}
    assert [found[label]["reference"] for label in ("ewc", "mota", "mota:modes=2")] == [1, 0, 0]
    assert found["mota"]["family"] == found["mota:modes=2"]["family"] != found["ewc"]["family"]
    assert tradeoff.varies(_experiment(tmp_path))


def test_the_observation_says_how_far_multitask_moves(tmp_path):
    for strategy, drift in (("multitask", 4.0), ("ewc", 1.0), ("mota", 2.0)):
        write_run(tmp_path, strategy, tasks=2, drift=[[9.0], [drift]])
    text = moving.observation(_experiment(tmp_path))
    assert "4 times as far as EWC and 2 times as far as MOTA" in text
    assert "As the paper observes" in text
