"""The laws on everything that is registered: a new strategy gets them for free."""

import pytest

from manymodes.strategies.registry import REGISTRY
from tests.laws.cases import NETWORKS, VARIANTS, Case, Lab, all_cases
from tests.laws.laws import LAWS, applicable


def pytest_generate_tests(metafunc):
    if "lab" not in metafunc.fixturenames:
        return
    given = metafunc.config.getoption("--strategy", default=None)
    cases = [Case(name) for name in given] if given else all_cases()
    labs = [Lab(case, network) for case in cases for network in NETWORKS]
    found = [pytest.param(lab, name, id=f"{name}-{lab}") for lab in labs for name in applicable(lab)]
    metafunc.parametrize(("lab", "name"), found)


def test_law(lab, name):
    LAWS[name](lab)


def test_every_variant_is_of_a_registered_strategy():
    assert {name for name, _ in VARIANTS} <= set(REGISTRY)
