"""Loss landscapes: the plane, the losses, sharpness, going on after an interruption."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from manymodes.config import Config
from manymodes.errors import UserError
from manymodes.landscape import Evaluator, Settings, landscape
from manymodes.plane import axes, plane
from manymodes.run import evaluate
from manymodes.sweep import execute
from manymodes.trajectory import Trajectory, count_modes, load_mode, recorded


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A real run with two modes and BatchNorm in its network."""
    path = tmp_path_factory.mktemp("runs") / "mota"
    execute(_config("small_cnn"), path)
    return path


def _config(model: str) -> Config:
    return Config({"name": "mota", "epochs": 1, "modes": 2}, {"name": "digits", "tasks": 2}, {"name": model})


SMALL = Settings(points=3, samples=20, draws=2)


@given(seed=st.integers(0, 10**6), steps=st.integers(3, 7), parameters=st.integers(3, 30))
def test_the_plane_is_the_best_one_through_the_end(seed, steps, parameters):
    path = torch.randn(steps, parameters, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    found = plane(path)
    offsets = (path - path[-1]).numpy()
    singular, rows = np.linalg.svd(offsets)[1:]
    assert np.abs(found.directions.numpy() @ found.directions.numpy().T - np.eye(2)).max() < 1e-8
    rest = offsets - offsets @ found.directions.numpy().T @ found.directions.numpy()
    best = offsets - offsets @ rows[:2].T @ rows[:2]
    assert np.square(rest).sum() == pytest.approx(np.square(best).sum(), rel=1e-6, abs=1e-9)
    assert found.explained == pytest.approx((singular**2 / (singular**2).sum())[:2].tolist(), rel=1e-6)
    assert found.path[-1].abs().max() == 0


@pytest.mark.parametrize("path", [torch.zeros(3, 5), torch.tensor([[1.0, 0, 0], [0.0, 0, 0]])])
def test_a_path_without_a_plane_gets_a_direction_of_its_own(path):
    found = plane(path)
    assert torch.allclose(found.directions @ found.directions.T, torch.eye(2), atol=1e-5)
    assert found.explained[1] == 0
    assert all(len(set(axis)) == 5 for axis in axes(found.path, 5))


def test_the_grid_reaches_beyond_the_path(run):
    found = plane(torch.stack([load_mode(path, 0)[0] for path in recorded(run)]))
    x, y = axes(found.path, 7)
    for axis, positions in zip((x, y), found.path.T, strict=True):
        assert axis[0] < positions.min() <= positions.max() < axis[-1]


def test_losses_at_the_final_weights_are_those_of_the_mode(run):
    evaluator = Evaluator(run, Settings(points=3, samples=10**6))
    learner, stream = evaluator.learner, None
    from manymodes.config import build_stream

    stream = build_stream(_config("small_cnn"))
    for mode in range(2):
        theta, buffers = load_mode(recorded(run)[-1], mode)
        found = evaluator.losses(theta, buffers)
        learner.modes.theta.copy_(theta)
        learner.modes.buffers.copy_(buffers)
        for task, loss in zip(stream, found, strict=True):
            assert loss == pytest.approx(evaluate(learner, task.test, task.classes)[1], rel=1e-4)


def test_the_middle_of_a_grid_around_a_still_path_is_the_final_loss(run, tmp_path):
    copy = tmp_path / "still"
    copy.mkdir()
    (copy / "config.yaml").write_bytes((run / "config.yaml").read_bytes())
    theta, buffers = (
        torch.stack(rows) for rows in zip(*(load_mode(recorded(run)[-1], m) for m in range(2)), strict=True)
    )
    for task in range(3):
        Trajectory(copy, "true", 2).add(task, theta, buffers)
    state = json.loads(landscape(copy, SMALL)[0].read_text())
    assert state["loss"][1][1] == pytest.approx(state["final"], rel=1e-3)
    assert min(len(row) for row in state["loss"]) == 3


def test_batchnorm_kept_and_reestimated_differ_and_neither_changes_the_run(run):
    theta, buffers = load_mode(recorded(run)[-1], 0)
    kept, before = Evaluator(run, Settings(samples=20)), buffers.clone()
    fresh = Evaluator(run, Settings(samples=20, batchnorm="reestimate"))
    assert fresh.losses(theta, buffers) != kept.losses(theta, buffers)
    assert fresh.losses(theta, buffers) == fresh.losses(theta, buffers)
    assert torch.equal(buffers, before)
    # With the statistics of its own samples the kept statistics do not matter.
    assert fresh.losses(theta, torch.rand_like(buffers) + 0.5) == fresh.losses(theta, buffers)


def test_sharpness_is_zero_for_no_step_and_grows_with_it(run):
    theta, buffers = load_mode(recorded(run)[-1], 0)
    far = sum(Evaluator(run, Settings(radius=2.0, draws=4)).sharpness(theta, buffers))
    near = sum(Evaluator(run, Settings(radius=1e-6, draws=4)).sharpness(theta, buffers))
    assert abs(near) < 1e-3 < far


def test_what_is_done_is_not_done_again_and_what_was_interrupted_goes_on(run, monkeypatch):
    first = [path.read_bytes() for path in landscape(run, SMALL)]
    calls = []
    real = Evaluator.losses
    monkeypatch.setattr(Evaluator, "losses", lambda self, *a: calls.append(1) or real(self, *a))
    assert [path.read_bytes() for path in landscape(run, SMALL)] == first
    assert not calls
    place = run / "landscape" / "mode-1.json"
    state = json.loads(place.read_text())
    state["loss"] = state["loss"][:1]  # as an interruption leaves it
    place.write_text(json.dumps(state))
    rows = []
    landscape(run, SMALL, lambda done, total: rows.append((done, total)))
    assert len(calls) == 6, "two rows of three points are left"
    assert rows[-1] == (6, 6)
    assert json.loads(place.read_text()) == json.loads(first[1])


def test_other_settings_and_a_damaged_file_begin_anew(run):
    landscape(run, SMALL)
    assert len(json.loads(landscape(run, Settings(points=4, samples=20, draws=2))[0].read_text())["x"]) == 4
    place = run / "landscape" / "mode-0.json"
    place.write_text("{")
    assert len(json.loads(landscape(run, SMALL)[0].read_text())["loss"]) == 3


def test_class_incremental_losses_count_every_class(tmp_path):
    config = Config(
        {"name": "finetune", "epochs": 1},
        {"name": "digits", "scenario": "class", "tasks": 2},
        {"name": "mlp"},
    )
    execute(config, tmp_path / "run")
    evaluator = Evaluator(tmp_path / "run", SMALL)
    assert [len(valid) for _, _, valid in evaluator.tasks] == [10, 10]


@pytest.mark.parametrize(
    "options", [{"points": 2}, {"samples": 0}, {"batchnorm": "train"}, {"radius": 0.0}, {"draws": 0}]
)
def test_settings_that_make_no_sense_are_refused(options):
    with pytest.raises(UserError):
        Settings(**options)


def test_a_run_without_a_path_says_how_to_get_one(tmp_path):
    execute(
        Config({"name": "finetune", "epochs": 1}, {"name": "digits", "tasks": 2}),
        tmp_path,
        record_trajectory="false",
    )
    with pytest.raises(UserError, match="record_trajectory true"):
        landscape(tmp_path)


def test_code_that_a_run_names_is_not_run_unasked(run, tmp_path):
    text = (run / "config.yaml").read_text().replace("name: mota", "name: os:system")
    (tmp_path / "config.yaml").write_text(text)
    for task in range(2):
        Trajectory(tmp_path, "true", 1).add(task, torch.randn(1, 3), torch.zeros(1, 0))
    with pytest.raises(UserError, match=r"--trust"):
        landscape(tmp_path)


def test_a_trajectory_is_recorded_where_it_is_small_or_wanted(tmp_path):
    theta, buffers = torch.randn(2, 5), torch.zeros(2, 0)
    Trajectory(tmp_path / "auto", "auto", tasks=10**9).add(0, theta, buffers)
    Trajectory(tmp_path / "no", "false", tasks=1).add(0, theta, buffers)
    assert recorded(tmp_path / "auto") == recorded(tmp_path / "no") == []
    for task in (0, 1, 3):
        Trajectory(tmp_path / "yes", "true", tasks=10**9).add(task, theta + task, buffers)
    found = recorded(tmp_path / "yes")
    assert len(found) == 2, "as far as there is no gap"
    assert count_modes(found[1]) == 2
    assert torch.equal(load_mode(found[1], 1)[0], theta[1] + 1)
    with pytest.raises(UserError):
        Trajectory(tmp_path, "perhaps")
    with pytest.raises(UserError, match="cannot read mode 5"):
        load_mode(found[0], 5)
