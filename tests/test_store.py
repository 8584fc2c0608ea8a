"""States in files: what goes in comes out, and what is wrong is named in one line."""

import json
import os
import threading

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

from manymodes import files, locks, store
from manymodes.errors import DamagedFile, UserError

DTYPES = sorted(store._TYPES, key=str)


@st.composite
def tensors(draw):
    shape = draw(st.lists(st.integers(0, 4), max_size=3))
    dtype = draw(st.sampled_from(DTYPES))
    seed = draw(st.integers(0, 1000))
    values = torch.randn(shape, generator=torch.Generator().manual_seed(seed)) * 50
    tensor = values.abs().to(dtype) if dtype is torch.uint8 else values.to(dtype)
    return tensor.t() if tensor.dim() == 2 and draw(st.booleans()) else tensor


leaves = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False), st.text(max_size=8), tensors()
)
keys = st.text(max_size=4) | st.sampled_from(["$tensor", "$file", "$$x", "a.b", "a", "b", "0"])
states = st.recursive(
    leaves,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(keys, inner, max_size=4),
    max_leaves=12,
)


def same(a, b):
    if isinstance(a, torch.Tensor):
        return isinstance(b, torch.Tensor) and a.dtype == b.dtype and a.shape == b.shape and torch.equal(a, b)
    if isinstance(a, dict):
        return isinstance(b, dict) and a.keys() == b.keys() and all(same(a[k], b[k]) for k in a)
    if isinstance(a, list):
        return isinstance(b, list) and len(a) == len(b) and all(map(same, a, b))
    return type(a) is type(b) and a == b


@settings(max_examples=200, deadline=None)
@given(state=states)
def test_a_state_comes_back_as_it_was(state, tmp_path_factory):
    path = tmp_path_factory.mktemp("s") / "x.safetensors"
    store.save_state(path, state, {"a": [1]})
    found, meta = store.load_state(path)
    assert same(state, found)
    assert meta == {"a": [1]}
    count = len(store.flatten(state)[0])
    assert len(load_file(path)) == count  # an ordinary safetensors file
    path.unlink()


def test_the_same_state_gives_the_same_bytes(tmp_path):
    state = {
        "b": torch.ones(3),
        "a": torch.zeros(2, dtype=torch.int8),
        "c": torch.ones(1, dtype=torch.float64),
    }
    for name in "xy":
        store.save_state(tmp_path / name, state, {})
    assert (tmp_path / "x").read_bytes() == (tmp_path / "y").read_bytes()


def test_tensors_that_share_memory_are_saved_each(tmp_path):
    whole = torch.arange(6.0)
    store.save_state(tmp_path / "x", {"a": whole, "b": whole[2:]}, {})
    found, _ = store.load_state(tmp_path / "x")
    assert found["b"].tolist() == [2, 3, 4, 5]


def test_loaded_tensors_are_aligned_and_of_their_own(tmp_path):
    """A matrix product may round by where a vector begins; a mapped file may be replaced."""
    store.save_state(
        tmp_path / "x",
        {f"{i}": torch.ones(3, dtype=torch.uint8) for i in range(9)} | {"f": torch.ones(7)},
        {},
    )
    found, _ = store.load_state(tmp_path / "x")
    assert all(tensor.data_ptr() % 64 == 0 for tensor in found.values())
    (tmp_path / "x").write_bytes(b"")
    assert found["f"].sum() == 7


@pytest.mark.parametrize("step", range(0, 1000, 97))
def test_every_flipped_bit_is_found(step, tmp_path):
    path = tmp_path / "x.safetensors"
    store.save_state(path, {"a": torch.arange(50.0), "b": [1, "text"]}, {"m": 1})
    good = path.read_bytes()
    for where in range(step, len(good), 1000):
        for bit in (0, 3, 7):
            data = bytearray(good)
            data[where] ^= 1 << bit
            path.write_bytes(data)
            with pytest.raises(UserError, match=r"damaged|format|not one that manymodes"):
                store.load_state(path)


@pytest.mark.parametrize("keep", [0, 1, 7, 8, 9, 100, -1, -50])
def test_a_truncated_file_is_found(keep, tmp_path):
    path = tmp_path / "x.safetensors"
    store.save_state(path, {"a": torch.arange(50.0)}, {})
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(DamagedFile, match=r"x.safetensors is damaged"):
        store.load_state(path)


def test_files_of_others(tmp_path):
    save_file({"a": torch.ones(1)}, tmp_path / "foreign.safetensors")
    with pytest.raises(DamagedFile, match="not one that manymodes wrote"):
        store.load_state(tmp_path / "foreign.safetensors")
    with pytest.raises(UserError, match="no such file"):
        store.load_state(tmp_path / "absent")
    with pytest.raises(UserError, match="no ordinary file"):
        store.load_state(tmp_path)
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(UserError, match="no ordinary file"):
        store.load_state(tmp_path / "pipe")


def test_a_file_of_a_later_version(tmp_path, monkeypatch):
    monkeypatch.setattr(store, "FORMAT", 7)
    store.save_state(tmp_path / "x", {}, {})
    monkeypatch.undo()
    with pytest.raises(UserError, match="format 7, this version reads up to 1: update manymodes") as error:
        store.load_state(tmp_path / "x")
    assert not isinstance(error.value, DamagedFile)  # it is good: nobody may throw it away


def test_what_cannot_be_saved_is_named(tmp_path):
    with pytest.raises(UserError, match=r"a is torch.complex64"):
        store.save_state(tmp_path / "x", {"a": torch.ones(1, dtype=torch.complex64)}, {})
    with pytest.raises(UserError, match="options must be plain values"):
        store.save_state(tmp_path / "x", {}, {"device": torch.device("cpu")})
    assert list(tmp_path.iterdir()) == []


# ---- blobs ------------------------------------------------------------------------------------------


def test_a_blob_is_referred_to_in_its_folder_and_included_elsewhere(tmp_path):
    pool = tmp_path / "pool"
    blob = store.save_blob(pool, {"theta": torch.arange(3.0)})
    assert store.save_blob(pool, {"theta": torch.arange(3.0)}) == blob
    assert len(list(pool.iterdir())) == 1
    store.save_state(tmp_path / "x", {"w": blob}, {}, pool)
    found, _ = store.load_state(tmp_path / "x", pool)
    assert found["w"] == blob
    assert store.read_meta(tmp_path / "x") == ({}, [blob.path.name])
    store.save_state(tmp_path / "y", {"w": blob}, {})
    found, _ = store.load_state(tmp_path / "y")
    assert found["w"]["theta"].tolist() == [0, 1, 2]
    with pytest.raises(DamagedFile, match="may not refer to"):
        store.load_state(tmp_path / "x")  # without the folder


def test_a_blob_must_be_there_and_be_what_its_name_says(tmp_path):
    pool = tmp_path / "pool"
    blobs = [store.save_blob(pool, {"theta": torch.full((3,), float(i))}) for i in range(2)]
    store.save_state(tmp_path / "x", {"w": blobs[0]}, {}, pool)
    os.replace(blobs[1].path, blobs[0].path)  # a sound file under a wrong name
    with pytest.raises(DamagedFile, match="content does not match its name"):
        store.load_state(tmp_path / "x", pool)
    blobs[0].path.unlink()
    with pytest.raises(DamagedFile, match="is not there"):
        store.load_state(tmp_path / "x", pool)


@pytest.mark.parametrize(
    "name", ["../secret.safetensors", "/etc/passwd", "a" * 64, f"../{'a' * 64}.safetensors"]
)
def test_a_state_reaches_no_file_outside_its_folder(name, tmp_path):
    tensors, *_ = store.flatten({"w": 1})
    body = json.dumps({"state": {"w": {"$file": name}}, "meta": {}, "files": [name]})
    store._write(tmp_path / "x", tensors, body)
    with pytest.raises(DamagedFile, match="may not refer to"):
        store.load_state(tmp_path / "x", tmp_path / "pool")


# ---- files ------------------------------------------------------------------------------------------


def test_a_write_that_fails_leaves_the_old_file(tmp_path):
    path = tmp_path / "x"
    files.write_text(path, "good")

    def fail(temporary):
        temporary.write_text("half")
        raise OSError(28, "No space left on device")

    with pytest.raises(UserError, match=r"cannot write .*no space is left"):
        files.write_atomically(path, fail)
    assert path.read_text() == "good"
    assert list(tmp_path.iterdir()) == [path]


def test_what_a_killed_process_left_is_used_again(tmp_path):
    (tmp_path / ".x.tmp").write_text("half of something long")
    files.write_text(tmp_path / "x", "good")
    assert (tmp_path / "x").read_text() == "good"
    assert [path.name for path in tmp_path.iterdir()] == ["x"]


def test_two_writers_of_one_file_never_mix(tmp_path):
    path, refused = tmp_path / "x", []

    def write(letter):
        for _ in range(30):
            try:
                files.write_text(path, letter * 10_000)
            except UserError as error:
                refused.append(str(error))

    threads = [threading.Thread(target=write, args=(letter,)) for letter in "ab"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert path.read_text() in ("a" * 10_000, "b" * 10_000)
    assert all("another process is writing it" in line for line in refused)
    assert list(tmp_path.iterdir()) == [path]


def test_locks(tmp_path):
    path = tmp_path / "lock"
    assert not locks.held(path)
    descriptor = locks.claim(path)
    assert locks.held(path)
    with pytest.raises(BlockingIOError):
        locks.claim(path, wait=0.1)
    path.unlink()
    second = locks.claim(path)  # another file by now
    os.close(descriptor)
    os.close(second)
    assert not locks.held(path)


def test_json_has_no_nan(tmp_path):
    files.write_json(tmp_path / "x", {"a": [float("nan"), float("-inf"), 1.5]})
    assert files.read_json(tmp_path / "x") == {"a": [None, None, 1.5]}


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("a: &x [1]\nb: *x\n", "aliases .* are not allowed"),
        ("a: !!python/object/apply:os.system ['true']\n", "could not determine a constructor"),
        ("a: 1\na: 2\n", "'a' is given twice"),
        ("[" * 2000, "not valid YAML"),
        ("a: 2024-13-45\n", "not valid YAML"),
        ("a: " + "9" * 5000, "not valid YAML"),
        ("\x00", "not valid YAML"),
        ("a: b: c", "not valid YAML"),
    ],
)
def test_yaml_is_plain(text, told, tmp_path):
    (tmp_path / "x.yaml").write_text(text)
    with pytest.raises(UserError, match=told) as error:
        files.read_yaml(tmp_path / "x.yaml")
    assert "\n" not in str(error.value)


def test_text_of_a_sensible_size_in_utf8(tmp_path):
    (tmp_path / "x").write_bytes(b"\xff\xfe")
    with pytest.raises(UserError, match="not text in UTF-8"):
        files.read_yaml(tmp_path / "x")
    (tmp_path / "x").write_text("a" * (2**20 + 1))
    with pytest.raises(UserError, match="over 1 MB"):
        files.read_yaml(tmp_path / "x")
