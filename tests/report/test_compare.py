"""Significance over seeds, against scipy and the definitions."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from manymodes.report.compare import differences, holm, paired_p
from manymodes.report.groups import experiments
from manymodes.report.runs import read_runs
from tests.reference import significance
from tests.report.synthetic import write_run

values = st.floats(-1, 1, allow_nan=False).map(lambda x: round(x, 4))


@given(st.lists(values, min_size=2, max_size=8).filter(lambda v: len(set(v)) > 1))
def test_paired_p_is_that_of_scipy(differences):
    assert paired_p(differences) == pytest.approx(significance.paired(differences), rel=1e-6, abs=1e-12)


def test_paired_p_where_there_is_no_spread():
    assert paired_p([0.0, 0.0]) == 1.0
    assert paired_p([0.1, 0.1]) == 0.0
    assert paired_p([0.1]) is None


@given(st.lists(st.floats(1e-6, 1), min_size=1, max_size=9, unique=True))
def test_holm_is_its_definition(p):
    named = {str(n): value for n, value in enumerate(p)}
    found, wanted = holm(named), significance.holm(named)
    assert found == pytest.approx(wanted)
    assert all(found[n] >= named[n] for n in named)


def test_differences_are_to_the_best_over_common_seeds(tmp_path):
    for seed, (a, b) in enumerate([(0.9, 0.8), (0.92, 0.81), (0.91, 0.83)]):
        write_run(tmp_path, "mota", seed=seed, tasks=1, accuracy=[[0.5], [a]])
        write_run(tmp_path, "ewc", seed=seed, tasks=1, accuracy=[[0.5], [b]])
    write_run(tmp_path, "multitask", seed=0, tasks=1, accuracy=[[0.5], [0.99]])
    found = differences(experiments(read_runs([tmp_path]).runs)[0])
    assert set(found) == {"ewc"}, "neither the best nor the upper bound"
    assert found["ewc"].mean == pytest.approx(-(0.1 + 0.11 + 0.08) / 3)
    assert found["ewc"].p == pytest.approx(significance.paired([-0.1, -0.11, -0.08]))
    assert not found["ewc"].tied
