"""Tiny-ImageNet in its true layout, as a directory and as the zip, fetched from a local server."""

import hashlib
import io
import zipfile
from functools import partial

import numpy as np
import pytest
import torch
from PIL import Image

import manymodes.streams as streams
from manymodes.errors import UserError
from manymodes.streams import tiny_imagenet
from manymodes.streams.transfer import Patience
from tests.streams.server import website

WNIDS = ("n02124075", "n04067472", "n04540053", "n04099969")
WORDS = {
    "n02124075": "Egyptian cat",
    "n04067472": "reel",
    "n04540053": "volleyball",
    "n04099969": "reel, spool",
}


def jpeg(rng, grey=False):
    out = io.BytesIO()
    pixels = rng.integers(0, 256, (64, 64) if grey else (64, 64, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(out, "JPEG")
    return out.getvalue()


@pytest.fixture(scope="module")
def files():
    """The official set, smaller: 20 training and 5 validation images of four classes; some grey."""
    rng = np.random.default_rng(0)
    found = {"wnids.txt": "\n".join(WNIDS) + "\n"}
    found["words.txt"] = "".join(f"{w}\t{name}\n" for w, name in WORDS.items()) + "n00001740\tentity\n"
    for wnid in WNIDS:
        for i in range(20):
            found[f"train/{wnid}/images/{wnid}_{i}.JPEG"] = jpeg(rng, grey=i == 7)
        found[f"train/{wnid}/{wnid}_boxes.txt"] = f"{wnid}_0.JPEG\t0\t10\t63\t58\n"
    annotations = ""
    for i in range(20):
        found[f"val/images/val_{i}.JPEG"] = jpeg(rng)
        annotations += f"val_{i}.JPEG\t{WNIDS[i % 4]}\t0\t32\t44\t62\n"
    found["val/val_annotations.txt"] = annotations
    found["test/images/test_0.JPEG"] = jpeg(rng)
    return {path: text.encode() if isinstance(text, str) else text for path, text in found.items()}


@pytest.fixture(scope="module")
def packed(files):
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        for path, content in files.items():
            archive.writestr(f"tiny-imagenet-200/{path}", content)
    return out.getvalue()


@pytest.fixture(scope="module")
def root(files, tmp_path_factory):
    root = tmp_path_factory.mktemp("tiny")
    for path, content in files.items():
        (root / "tiny-imagenet-200" / path).parent.mkdir(parents=True, exist_ok=True)
        (root / "tiny-imagenet-200" / path).write_bytes(content)
    return root


def test_directory(root):
    stream = streams.split_tiny_imagenet(data_dir=root, tasks=2)
    assert (stream.num_outputs, stream.input_shape) == (4, (3, 64, 64))
    assert stream.class_names == ("Egyptian cat", "reel (n04067472)", "reel (n04099969)", "volleyball")
    assert [len(task.classes) for task in stream] == [2, 2]
    sizes = [[len(part) for part in (t.train, t.val, t.test)] for t in stream]
    assert sizes == [[36, 4, 10]] * 2  # of 25 of each class: 18, 2, 5


def test_images_carry_their_labels(root, files):
    stream = streams.split_tiny_imagenet("class", data_dir=root, tasks=2, split="official")
    wnids = sorted(WNIDS)
    train = {}
    for path, content in files.items():
        if path.startswith("train") and path.endswith("JPEG"):
            pixels = np.asarray(Image.open(io.BytesIO(content)).convert("RGB"))
            train[pixels.tobytes()] = wnids.index(path.split("/")[1])
    for task in stream:
        assert [len(part) for part in (task.train, task.val, task.test)] == [36, 4, 10]
        for image, target in zip(task.train.inputs, task.train.targets.tolist(), strict=True):
            assert train[image.permute(1, 2, 0).numpy().tobytes()] == target
        assert not any(image.permute(1, 2, 0).numpy().tobytes() in train for image in task.test.inputs)
    assert torch.bincount(stream[1].test.targets, minlength=4).sum() == 10


def test_fetched_zip_gives_the_same(root, packed, tmp_path, monkeypatch):
    monkeypatch.setattr("manymodes.streams.fetch.Patience", partial(Patience, first_wait=0.001))
    monkeypatch.setattr(tiny_imagenet, "MD5", hashlib.md5(packed).hexdigest())
    with website() as site:
        site.files["tiny-imagenet-200.zip"] = packed
        site.mishaps = [("drop", 30_000)]
        monkeypatch.setattr(tiny_imagenet, "URL", site.url("tiny-imagenet-200.zip"))
        fetched = streams.split_tiny_imagenet(data_dir=tmp_path, download=True, tasks=2)
        assert [request[2] for request in site.requests] == [200, 206]
    local = streams.split_tiny_imagenet(data_dir=root, tasks=2)
    for one, other in zip(fetched, local, strict=True):
        assert torch.equal(one.train.inputs, other.train.inputs)
        assert torch.equal(one.test.targets, other.test.targets)


def test_wrong_zip_is_not_kept(packed, tmp_path, monkeypatch):
    with website() as site:
        site.files["tiny-imagenet-200.zip"] = packed
        monkeypatch.setattr(tiny_imagenet, "URL", site.url("tiny-imagenet-200.zip"))
        with pytest.raises(UserError, match="expected md5:90528d7ca1a48142e341f4ef8d21d0de"):
            streams.split_tiny_imagenet(data_dir=tmp_path, download=True)
    assert [file.suffix for file in tmp_path.rglob("*.zip*")] == [".lock"]


@pytest.mark.parametrize("cut", [100, 50_000, -100])
def test_damaged_zip(packed, tmp_path, cut):
    (tmp_path / "tiny-imagenet-200.zip").write_bytes(packed[:cut])
    with pytest.raises(UserError, match="not the whole of Tiny-ImageNet") as error:
        streams.split_tiny_imagenet(data_dir=tmp_path)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("gone", ["val/images/val_3.JPEG", "words.txt", "train/n02124075/images"])
def test_incomplete_directory(files, tmp_path, gone):
    for path, content in files.items():
        if not path.startswith(gone):
            (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / path).write_bytes(content)
    with pytest.raises(UserError, match=r"not the whole of Tiny-ImageNet|classes have images") as error:
        streams.split_tiny_imagenet(data_dir=tmp_path)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"scenario": "instance"}, "Valid: class, task"),
        ({"split": "half"}, "Valid: official, paper"),
        ({"tasks": 5}, "1 to 4"),
        ({"tasks": 4}, "one class only"),
    ],
)
def test_mistakes_get_one_line(root, options, message):
    with pytest.raises(UserError, match=message) as error:
        streams.split_tiny_imagenet(data_dir=root, **options)
    assert "\n" not in str(error.value)
