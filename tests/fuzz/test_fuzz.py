"""Hostile and broken files: success or one clear line, whatever is in them."""

import os
import tempfile
import warnings
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.fuzz.kinds import KINDS, check

CASES = 200  # `make fuzz` tries 2,000 of each


@pytest.fixture
def folder():
    """In memory where that is possible: a thousand small files are flushed to disk one by one."""
    memory = "/dev/shm"
    with tempfile.TemporaryDirectory(dir=memory if os.access(memory, os.W_OK) else None) as name:
        yield Path(name)


@pytest.mark.parametrize("name", KINDS)
def test_fuzz(name, folder):
    kind = KINDS[name](folder / "files")
    outcomes = {True: 0, False: 0}

    @settings(max_examples=CASES, deadline=None, suppress_health_check=list(HealthCheck), database=None)
    @given(data=st.data())
    def attempt(data):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # numpy and Pillow warn of what they then refuse
            outcomes[check(kind, data.draw(kind.data()))] += 1

    attempt()
    assert outcomes[True] > 0  # the good file is among them, so that this can fail
    assert outcomes[False] > 0 or name == "configurations"
