"""PACS: the real arrays, and the usual directories written from some of them."""

import numpy as np
import pytest
import torch
from PIL import Image

import manymodes.streams as streams
from manymodes.errors import UserError
from manymodes.streams.pacs_domains import CLASSES, DOMAINS


@pytest.fixture(scope="module")
def raw(pacs_dir):
    with np.load(pacs_dir / "pacs" / "pacs_32.npz", allow_pickle=False) as npz:
        return {key: npz[key] for key in npz.files}


@pytest.fixture(scope="module")
def tree(raw, tmp_path_factory):
    """Ten real images of each class and domain, where a person has them."""
    root = tmp_path_factory.mktemp("pacs") / "PACS"
    for d, domain in enumerate(raw["domains"]):
        for c, name in enumerate(raw["classes"]):
            folder = root / str(domain) / str(name)
            folder.mkdir(parents=True)
            rows = np.flatnonzero((raw["domain"] == d) & (raw["y"] == c))[:10]
            for row in rows:
                file = folder / str(raw["filename"][row]).rpartition("/")[2]
                Image.fromarray(raw["x"][row]).save(file.with_suffix(".png"))
    return root.parent


def test_real_data(pacs_dir, raw):
    stream = streams.pacs(data_dir=pacs_dir)
    assert (stream.scenario, stream.num_outputs, stream.input_shape) == ("instance", 7, (3, 32, 32))
    assert stream.class_names == CLASSES
    assert [task.name for task in stream] == list(DOMAINS)
    sizes = {t.name: len(t.train) + len(t.val) + len(t.test) for t in stream}
    assert sizes == {"photo": 1670, "art_painting": 2048, "cartoon": 2344, "sketch": 3929}
    key = {
        (x.tobytes(), str(raw["classes"][y]), str(raw["domains"][d]))
        for x, y, d in zip(raw["x"], raw["y"], raw["domain"], strict=True)
    }
    for task in stream:
        assert task.classes == tuple(range(7))
        for image, target in zip(task.test.inputs, task.test.targets.tolist(), strict=True):
            assert (image.permute(1, 2, 0).numpy().tobytes(), CLASSES[target], task.name) in key


def test_order_and_choice_of_domains(pacs_dir):
    stream = streams.pacs(data_dir=pacs_dir / "pacs", domains=["sketch", "photo"], limit=70)
    assert [task.name for task in stream] == ["sketch", "photo"]
    assert torch.bincount(stream[0].train.targets).tolist() == [10] * 7


def test_directories(tree):
    stream = streams.pacs(data_dir=tree)
    assert [len(part) for part in (stream[2].train, stream[2].val, stream[2].test)] == [49, 7, 14]
    raw = Image.open(tree / "PACS" / "photo" / "dog" / sorted((tree / "PACS/photo/dog").iterdir())[0].name)
    assert any(
        np.array_equal(np.asarray(raw), x.permute(1, 2, 0).numpy())
        for t in [stream[0]]
        for p in (t.train, t.val, t.test)
        for x in p.inputs
    )
    assert streams.pacs(data_dir=tree, size=16).input_shape == (3, 16, 16)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"scenario": "task"}, "Valid: instance"),
        ({"domains": ["photos"]}, "did you mean 'photo'"),
        ({"domains": []}, "domains is empty"),
        ({"domains": ["photo", "photo"]}, "once only"),
        ({"size": 64}, "has images of 32x32"),
        ({"normalise": "pacs"}, "unknown normalise"),
    ],
)
def test_mistakes_get_one_line(pacs_dir, options, message):
    with pytest.raises(UserError, match=message) as error:
        streams.pacs(data_dir=pacs_dir, **options)
    assert "\n" not in str(error.value)


def test_absent_or_broken(tmp_path):
    with pytest.raises(UserError, match=r"Give data_dir with pacs_32\.npz") as error:
        streams.pacs(data_dir=tmp_path)
    assert "fetch" not in str(error.value)
    (tmp_path / "pacs_32.npz").write_bytes(b"PK no zip")
    with pytest.raises(UserError, match="is not PACS as arrays"):
        streams.pacs(data_dir=tmp_path)
