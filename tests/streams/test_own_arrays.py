"""A person's own arrays: images, tables, series; names, numbers, mistakes; nothing is unpickled."""

from contextlib import suppress

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import manymodes.streams as streams
from manymodes.errors import UserError

RNG = np.random.default_rng(0)


def table(samples=120, features=5, classes=4, tasks=2, disjoint=True):
    y = np.arange(samples) % classes
    task = y * tasks // classes if disjoint else np.arange(samples) // (samples // tasks)
    return {"x": RNG.normal(size=(samples, features)), "y": y, "task": task}


def test_table_in_memory():
    data = table()
    stream = streams.arrays(data)
    assert (stream.scenario, len(stream), stream.num_outputs, stream.input_shape) == ("task", 2, 4, (5,))
    for number, task in enumerate(stream):
        assert [len(part) for part in (task.train, task.val, task.test)] == [42, 6, 12]
        batch = next(task.train.batches([torch.arange(42)]))
        assert batch.inputs.dtype == torch.float32
        for x, y in zip(batch.inputs, batch.targets.tolist(), strict=True):
            (row,) = np.flatnonzero((data["x"].astype(np.float32) == x.numpy()).all(1))
            assert (data["y"][row], data["task"][row]) == (y, number)


def test_tensors_and_series():
    stream = streams.arrays({"x": torch.randn(60, 2, 50), "y": torch.arange(60) % 2}, title="ecg")
    assert (stream.name, stream.input_shape, len(stream), stream.scenario) == ("ecg", (2, 50), 1, "instance")


@pytest.mark.parametrize("shape", [(40, 6, 7), (40, 6, 7, 3), (40, 3, 6, 7), (40, 6, 7, 1)])
def test_images_stay_uint8_channels_first(shape):
    x = RNG.integers(0, 256, shape, dtype=np.uint8)
    stream = streams.arrays({"x": x, "y": np.arange(40) % 2}, augment=True)
    assert stream.input_shape == (3 if 3 in shape[1:] else 1, 6, 7)
    data = stream[0].train
    assert data.inputs.dtype == torch.uint8
    batch = next(data.batches([torch.arange(5)]))
    assert batch.inputs.min() >= -1
    assert batch.inputs.max() <= 1.0001
    assert data.augments
    assert not stream[0].test.augments


def test_npz_with_names_and_parts(tmp_path):
    names = np.array(["ok", "crack", "scratch", "ok"] * 10)
    np.savez(
        tmp_path / "factory.npz",
        x=RNG.normal(size=(40, 3)),
        y=names,
        task=np.array(["spring", "autumn"] * 20),
        split=np.array(["train", "train", "train", "train", "test"] * 8),
    )
    stream = streams.arrays(tmp_path / "factory.npz")
    assert stream.name == "factory"
    assert stream.class_names == ("crack", "ok", "scratch")
    assert [task.name for task in stream] == ["spring", "autumn"]  # as they appear
    assert stream.scenario == "class"
    assert sum(len(task.test) for task in stream) == 8
    assert sum(len(task.val) for task in stream) == 4  # a tenth of what is called train


def test_numbered_tasks_come_in_their_order():
    data = table(disjoint=False, tasks=12)
    data["task"] = data["task"][::-1] * 5 - 10
    stream = streams.arrays(data)
    assert [task.name for task in stream] == [str(n) for n in range(-10, 50, 5)]


def test_labels_need_no_order():
    y = np.array([100.0, -3.0, 7.0] * 20)
    assert streams.arrays({"x": RNG.normal(size=(60, 2)), "y": y}).class_names == ("-3", "7", "100")


def test_integers_for_embeddings():
    data = {"x": RNG.integers(0, 50, (40, 9)), "y": np.arange(40) % 2}
    assert next(streams.arrays(data)[0].train.batches([torch.arange(2)])).inputs.dtype == torch.float32
    kept = streams.arrays(data, integers=True)
    assert next(kept[0].train.batches([torch.arange(2)])).inputs.dtype == torch.int64


def test_caller_s_arrays_are_not_changed():
    data = table()
    before = {key: value.copy() for key, value in data.items()}
    list(streams.arrays(data))
    assert all(np.array_equal(data[key], before[key]) for key in data)


def with_(**changes):
    return {**table(), **changes}


NAN = table()["x"].copy()
NAN[[3, 7], 0] = np.nan, np.inf

CASES = [
    (with_(y=np.arange(119) % 4), {}, "x has 120 samples but y has 119"),
    (with_(task=np.zeros(5)), {}, "task has 5"),
    (with_(split=np.array(["train"])), {}, "split has 1"),
    (with_(split=np.array(["trian"] * 120)), {}, "did you mean 'train'"),
    (with_(split=np.array(["test"] * 120)), {}, "no sample is called 'train'"),
    (with_(x=NAN), {}, "NaN or infinite values in 2 of 120 samples, first in sample 3"),
    (with_(y=np.where(np.arange(120) > 3, 1.0, np.nan)), {}, "no whole numbers"),
    (with_(y=np.arange(120) / 7), {}, "no whole numbers"),
    (with_(y=np.zeros(120)), {}, "one class only"),
    (with_(task=np.arange(120) % 4), {}, "one class only"),
    (with_(y=np.zeros((120, 4))), {}, r"y has shape \(120, 4\)"),
    (with_(x=np.array(["a"] * 120)), {}, "x is of type"),
    (with_(x=np.zeros((0, 3)), y=[], task=[]), {}, "empty"),
    (with_(x=np.float64(3)), {}, "single value"),
    (with_(x=[[1, 2], [3]]), {}, "cannot become an array"),
    (with_(y=[{}] * 120), {}, "neither whole numbers nor names"),
    (with_(labels=np.zeros(120)), {}, "unknown array 'labels'"),
    ({"x": np.zeros((3, 2))}, {}, "no array 'y'"),
    ({}, {}, "no array 'x'"),
    (table(), {"augment": True}, "not uint8 images"),
    (table(), {"scenario": "domain"}, "unknown scenario"),
    (table(), {"scenario": "instance"}, "has no sample of class"),
    (table(), {"head": "two"}, "unknown head"),
    (table(), {"normalise": "x"}, "unknown normalise"),
    (table(), {"test": -0.1}, "test=-0.1"),
    (table(), {"limit": 1}, "limit=1"),
    ("/nowhere/at/all.npz", {}, "is not there"),
]


@pytest.mark.parametrize(("source", "options", "message"), CASES)
def test_mistakes_get_one_line(source, options, message):
    with pytest.raises(UserError, match=message) as error:
        streams.arrays(source, **options)
    assert "\n" not in str(error.value)


class Evil:
    def __reduce__(self):
        return print, ("executed",)


def test_pickled_arrays_are_refused(tmp_path, capsys):
    evil = np.array([Evil(), Evil()], dtype=object)
    np.savez(tmp_path / "evil.npz", x=np.zeros((2, 1)), y=evil)
    with pytest.raises(UserError, match="plain arrays") as error:
        streams.arrays(tmp_path / "evil.npz")
    assert "\n" not in str(error.value)
    (tmp_path / "evil.npz").write_bytes(__import__("pickle").dumps(Evil()))
    with pytest.raises(UserError, match="plain arrays"):
        streams.arrays(tmp_path / "evil.npz")
    assert "executed" not in capsys.readouterr().out


def test_a_single_array_file(tmp_path):
    np.save(tmp_path / "x.npy", np.zeros(3))
    with pytest.raises(UserError, match="single array"):
        streams.arrays(tmp_path / "x.npy")


@given(st.integers(0, 2000), st.binary(min_size=1, max_size=40), st.booleans())
@settings(max_examples=200, deadline=None)
def test_damaged_files_load_or_are_refused(tmp_path_factory, where, noise, cut):
    folder = tmp_path_factory.getbasetemp()
    (np.savez_compressed if where % 2 else np.savez)(folder / "good.npz", **table(samples=40))
    content = bytearray((folder / "good.npz").read_bytes())
    content[where : where + len(noise)] = noise
    (folder / "bad.npz").write_bytes(content[: where + len(noise)] if cut else content)
    with suppress(UserError):
        streams.arrays(folder / "bad.npz")
