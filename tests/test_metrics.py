"""Every metric against the paper's formula, index by index."""

import copy
import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from manymodes import metrics
from manymodes.errors import UserError
from tests.reference import metrics as slow

ACCURACIES = st.floats(0, 1)


def matrices(least=1):
    """(T + 1) x T accuracies."""
    return st.integers(least, 6).flatmap(
        lambda tasks: st.lists(
            st.lists(ACCURACIES, min_size=tasks, max_size=tasks), min_size=tasks + 1, max_size=tasks + 1
        )
    )


@given(matrices())
def test_average_accuracy(accuracy):
    tasks = len(accuracy) - 1
    for t in range(1, tasks + 1):
        assert metrics.average_accuracy(accuracy, t) == pytest.approx(slow.average_accuracy(accuracy, t))
    assert metrics.average_accuracy(accuracy) == metrics.average_accuracy(accuracy, tasks)
    assert metrics.average_accuracies(accuracy) == [
        metrics.average_accuracy(accuracy, t + 1) for t in range(tasks)
    ]


@given(matrices(least=2))
@pytest.mark.parametrize("name", ["backward_transfer", "forward_transfer", "remembering", "forgetting"])
def test_the_papers_formulas(name, accuracy):
    assert getattr(metrics, name)(accuracy) == pytest.approx(getattr(slow, name)(accuracy), abs=1e-12)


@given(matrices())
def test_forgetting_is_at_least_minus_backward_transfer(accuracy):
    assert metrics.forgetting(accuracy) >= -metrics.backward_transfer(accuracy) - 1e-12


@given(matrices())
def test_inputs_are_not_changed(accuracy):
    matrix = np.array(accuracy)
    before = copy.deepcopy(accuracy), matrix.copy()
    metrics.summary(accuracy)
    metrics.summary(matrix)
    assert accuracy == before[0]
    assert np.array_equal(matrix, before[1])


@given(matrices(least=2), ACCURACIES)
def test_the_last_task_cannot_be_forgotten(accuracy, other):
    """Its column is in the average accuracy and the forward transfer, and nowhere else."""
    changed = copy.deepcopy(accuracy)
    changed[-1][-1] = other
    for name in ("backward_transfer", "forgetting", "remembering", "forward_transfer"):
        assert getattr(metrics, name)(changed) == getattr(metrics, name)(accuracy)
    for row in changed[:-1]:
        row[-1] = other
    for name in ("backward_transfer", "forgetting", "remembering"):
        assert getattr(metrics, name)(changed) == getattr(metrics, name)(accuracy)


@given(matrices(least=2), ACCURACIES)
def test_the_initial_model_counts_in_forward_transfer_alone(accuracy, other):
    changed = copy.deepcopy(accuracy)
    changed[0] = [other] * len(changed[0])
    for name in ("backward_transfer", "forgetting", "remembering", "average_accuracy", "just_learnt"):
        assert getattr(metrics, name)(changed) == getattr(metrics, name)(accuracy)


def test_forgetting_is_taken_from_the_peak_not_from_the_first():
    accuracy = [[0.5, 0.5, 0.5], [0.7, 0.5, 0.5], [0.9, 0.8, 0.5], [0.6, 0.8, 0.9]]
    assert metrics.forgetting(accuracy) == pytest.approx((0.3 + 0.0) / 2)
    assert metrics.backward_transfer(accuracy) == pytest.approx((-0.1 + 0.0) / 2)
    assert metrics.just_learnt(accuracy) == pytest.approx((0.7 + 0.8 + 0.9) / 3)


def test_a_single_task_neither_transfers_nor_forgets():
    found = metrics.summary([[0.5], [0.9]])
    zero = [found[k] for k in ("backward_transfer", "forward_transfer", "forgetting")]
    assert zero == [0.0, 0.0, 0.0]
    assert found["remembering"] == 1.0
    assert found["average_accuracy"] == 0.9


def test_tensors_and_arrays_are_welcome():
    accuracy = [[0.5, 0.5], [0.9, 0.6], [0.7, 0.9]]
    assert metrics.summary(np.array(accuracy)) == metrics.summary(accuracy)
    assert metrics.forgetting(torch.tensor(accuracy, dtype=torch.float64)) == pytest.approx(0.2)


@pytest.mark.parametrize(
    "accuracy", [[[0.5]], [[0.5, 0.5]] * 2, [0.5, 0.5], [[]], [], [[0.5], [0.5, 0.6]], [["a"], ["b"]]]
)
def test_what_is_no_accuracy_matrix(accuracy):
    with pytest.raises(UserError, match=r"T \+ 1 rows"):
        metrics.backward_transfer(accuracy)


@pytest.mark.parametrize("after", [0, 3, -1])
def test_average_accuracy_after_a_task_that_is_not_there(after):
    with pytest.raises(UserError, match="1 to 2"):
        metrics.average_accuracy([[0.5, 0.5]] * 3, after)


@given(st.lists(st.lists(st.floats(0, 10), min_size=2, max_size=2), min_size=2, max_size=6))
def test_task_drift(drift):
    assert metrics.task_drift(drift) == pytest.approx(slow.task_drift(drift))


def test_drift_begins_after_task_1():
    assert metrics.task_drift([[5.0]]) == 0.0
    assert metrics.task_drift([]) == 0.0
    assert metrics.task_drift([[5.0], [1.0]]) == 1.0


# ---- probabilities -----------------------------------------------------------------------------------


def distributions(seed, samples, classes, scale):
    generator = np.random.default_rng(seed)
    logits = scale * generator.normal(size=(samples, classes))
    exps = np.exp(logits - logits.max(axis=1, keepdims=True))
    return exps / exps.sum(axis=1, keepdims=True), generator.integers(classes, size=samples)


SCALES = st.sampled_from([0.0, 0.3, 2.0, 40.0])


@given(st.integers(0, 10_000), st.integers(1, 30), st.integers(1, 6), SCALES)
def test_negative_log_likelihood(seed, samples, classes, scale):
    probabilities, targets = distributions(seed, samples, classes, scale)
    expected = slow.negative_log_likelihood(probabilities.tolist(), targets.tolist())
    assert metrics.negative_log_likelihood(probabilities, targets) == pytest.approx(
        expected, rel=1e-9, abs=1e-12
    )


@given(st.integers(0, 10_000), st.integers(1, 60), st.integers(1, 6), SCALES, st.integers(1, 20))
def test_calibration_error(seed, samples, classes, scale, bins):
    probabilities, targets = distributions(seed, samples, classes, scale)
    expected = slow.calibration_error(probabilities.tolist(), targets.tolist(), bins)
    assert metrics.calibration_error(probabilities, targets, bins) == pytest.approx(
        expected, rel=1e-9, abs=1e-12
    )


def test_calibration_of_the_sure_and_right_and_of_the_sure_and_wrong():
    assert metrics.calibration_error([[1.0, 0.0]] * 4, [0] * 4) == 0.0
    assert metrics.calibration_error([[1.0, 0.0]] * 4, [1] * 4) == 1.0


SCORES = st.lists(st.integers(0, 6).map(float), min_size=1, max_size=20)  # few values: many ties


@given(SCORES, SCORES)
def test_auroc(inside, outside):
    assert metrics.auroc(inside, outside) == pytest.approx(slow.auroc(inside, outside))


def test_auroc_of_scores_apart():
    assert metrics.auroc([1, 2], [3, 4]) == 1.0
    assert metrics.auroc([3, 4], [1, 2]) == 0.0


def test_mean_interval_against_a_table():
    """t(0.975) with 4 degrees of freedom is 2.776."""
    mean, half = metrics.mean_interval([1.0, 2.0, 3.0, 4.0, 5.0])
    assert mean == 3.0
    assert half == pytest.approx(2.776 * math.sqrt(2.5 / 5), rel=1e-3)
    assert metrics.mean_interval([4.0]) == (4.0, 0.0)
    assert math.isnan(metrics.mean_interval([])[0])
    assert metrics.mean_interval([2.0, 2.0])[1] == 0.0


def test_summary_has_the_keys_of_metrics_json():
    found = metrics.summary([[0.5, 0.5], [0.9, 0.6], [0.7, 0.9]])
    assert {"average_accuracy", "backward_transfer", "forward_transfer", "remembering", "forgetting"} <= set(
        found
    )
    assert found["average_accuracies"] == pytest.approx([0.9, 0.8])
