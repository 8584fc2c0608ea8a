"""`pytest tests/laws --strategy my_package.my_file:MyLearner` runs the laws on your strategy."""

import pytest

pytest.register_assert_rewrite("tests.laws.laws")


def pytest_addoption(parser):
    parser.addoption("--strategy", action="append", help="run the laws on this strategy instead of all")
