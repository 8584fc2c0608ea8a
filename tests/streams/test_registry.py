"""Streams by name."""

import subprocess
import sys

import pytest

import manymodes.streams as streams
from manymodes.errors import UserError


def test_listing_needs_no_torch():
    code = "import sys, manymodes.streams.registry as r; print('torch' in sys.modules, len(r.STREAMS))"
    printed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert printed.split() == ["False", "8"]


@pytest.mark.parametrize("name", list(streams.STREAMS))
def test_every_registered_stream_has_its_function(name):
    entry = streams.STREAMS[name]
    assert streams.find_stream(name) is getattr(streams, entry.function)
    assert streams.find_stream(name.replace("-", "_")) is streams.find_stream(name)


def test_function_is_not_shadowed_by_its_module():
    for entry in streams.STREAMS.values():
        assert entry.where.partition(":")[0].rpartition(".")[2] != entry.function


def test_options_reach_the_function():
    assert len(streams.make_stream("digits", tasks=2, scenario="class")) == 2


def test_import_path():
    assert len(streams.make_stream("manymodes.streams.digits8x8:digits")) == 5


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("digit", {}, "did you mean 'digits'"),
        ("digits", {"task": 3}, "did you mean 'tasks'"),
        ("no.such.module:f", {}, "cannot import"),
        ("manymodes.streams.digits8x8:nothing", {}, "has no function 'nothing'"),
        ("manymodes.streams.digits8x8:INK", {}, "not a function"),
        ("folder", {}, "path=..."),
    ],
)
def test_mistakes_get_one_line(name, options, message):
    with pytest.raises(UserError, match=message) as error:
        streams.make_stream(name, **options)
    assert "\n" not in str(error.value)
