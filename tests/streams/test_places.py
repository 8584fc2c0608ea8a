"""The cache of arrays: made once, mapped, remade when a source changes or the cache is damaged."""

import os

import numpy as np
import pytest

from manymodes.streams.places import cache_dir, cached_arrays


@pytest.fixture
def made(tmp_path, monkeypatch):
    monkeypatch.setenv("MANYMODES_CACHE", str(tmp_path / "cache"))
    source = tmp_path / "source"
    source.write_text("one")
    calls = []

    def get(options=""):
        def make():
            calls.append(1)
            return {"x": np.arange(5), "name": np.array("é")}

        return cached_arrays("test", [source], make, options)

    get.calls, get.source = calls, source
    return get


def test_made_once_then_mapped(made):
    assert made()["x"].tolist() == [0, 1, 2, 3, 4]
    again = made()
    assert isinstance(again["x"], np.memmap)
    assert str(again["name"]) == "é"
    assert len(made.calls) == 1


def test_writing_to_the_array_does_not_reach_the_file(made):
    made()["x"][0] = 9
    assert made()["x"][0] == 0


def test_a_changed_source_or_option_makes_anew(made):
    made()
    os.utime(made.source, ns=(1, 1))
    made()
    made(options=32)
    assert len(made.calls) == 3


@pytest.mark.parametrize("damage", ["truncate", "empty", "remove"])
def test_damaged_cache_is_made_anew(made, damage):
    made()
    (file,) = cache_dir().rglob("x.npy")
    if damage == "remove":
        for each in file.parent.iterdir():
            each.unlink()
    else:
        file.write_bytes(file.read_bytes()[:-8] if damage == "truncate" else b"")
    assert made()["x"].tolist() == [0, 1, 2, 3, 4]
    assert len(made.calls) == 2


def test_unwritable_cache_is_no_obstacle(made, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("MANYMODES_CACHE", str(tmp_path / "file" / "below"))
    assert made()["x"].tolist() == [0, 1, 2, 3, 4]


def test_nothing_temporary_stays(made):
    made()
    assert len(list((cache_dir() / "arrays").iterdir())) == 1


def test_where_the_cache_is(monkeypatch):
    monkeypatch.delenv("MANYMODES_CACHE", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", "/somewhere")
    assert str(cache_dir()) == "/somewhere/manymodes"
