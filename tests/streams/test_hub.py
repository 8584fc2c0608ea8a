"""Hugging Face sets without the hub: the real CIFAR-100 parquet files, and small saved sets."""

import numpy as np
import pytest
import torch
from PIL import Image as Pillow

import manymodes.streams as streams
from manymodes.errors import UserError

datasets = pytest.importorskip("datasets")
RNG = np.random.default_rng(0)


@pytest.fixture(scope="module", autouse=True)
def quiet_and_apart(tmp_path_factory):
    """No progress bars, no network, and a cache of its own."""
    datasets.disable_progress_bars()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path_factory.mktemp("datasets"))
        patch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
        yield
    datasets.enable_progress_bars()


def pictures(count, classes=4, size=6, **columns):
    features = {
        "image": datasets.Image(),
        "label": datasets.ClassLabel(names=[f"kind {c}" for c in range(classes)]),
    }
    data = {
        "image": [
            Pillow.fromarray(RNG.integers(0, 256, (size, size, 3), dtype=np.uint8)) for _ in range(count)
        ],
        "label": [i % classes for i in range(count)],
        **columns,
    }
    features |= {name: datasets.Value("string") for name in columns}
    return datasets.Dataset.from_dict(data, features=datasets.Features(features))


def test_saved_set_with_its_own_parts(tmp_path):
    parts = datasets.DatasetDict(train=pictures(80), validation=pictures(8), test=pictures(20))
    parts.save_to_disk(tmp_path / "mine")
    stream = streams.make_stream(f"huggingface:{tmp_path / 'mine'}", tasks=2)
    assert (stream.name, stream.scenario, stream.num_outputs) == ("mine", "task", 4)
    assert [[len(p) for p in (t.train, t.val, t.test)] for t in stream] == [[40, 4, 10]] * 2
    images = {np.asarray(row["image"]).tobytes(): row["label"] for row in parts["test"]}
    for task in stream:
        for image, target in zip(task.test.inputs, task.test.targets.tolist(), strict=True):
            assert images[image.permute(1, 2, 0).numpy().tobytes()] == target


def test_a_column_whose_values_are_the_tasks(tmp_path):
    pictures(60, 2, site=["rome" if i < 30 else "oslo" for i in range(60)]).save_to_disk(tmp_path / "mine")
    stream = streams.huggingface(str(tmp_path / "mine"), by="site")
    assert (stream.scenario, [task.name for task in stream]) == ("instance", ["oslo", "rome"])
    assert sum(len(p) for p in (stream[0].train, stream[0].val, stream[0].test)) == 30


def test_table_of_numbers(tmp_path):
    table = {
        "a": RNG.normal(size=60),
        "b": np.arange(60),
        "y": [i % 3 for i in range(60)],
        "year": [2000 + i // 20 for i in range(60)],
        "note": ["x"] * 60,
    }
    datasets.Dataset.from_dict(table).to_parquet(tmp_path / "table.parquet")
    stream = streams.huggingface(str(tmp_path / "table.parquet"), by="year")
    assert [task.name for task in stream] == ["2000", "2001", "2002"]
    assert stream.input_shape == (2,)
    batch = next(stream[1].train.batches([torch.arange(14)]))
    assert (batch.inputs[:, 1] % 3 == batch.targets).all()


def test_the_real_cifar100(cifar_dir, tmp_path):
    """2,000 test images through `datasets`: the same images and labels as from our own reader."""
    files = str(cifar_dir / "cifar100" / "test-00000-of-00001.parquet")
    path = str(tmp_path / "test-part.parquet")
    datasets.load_dataset("parquet", data_files=files)["train"].select(range(2000)).to_parquet(path)
    with pytest.raises(UserError, match=r"labels=\.\.\., one of fine_label, coarse_label"):
        streams.huggingface(path)
    stream = streams.huggingface(path, labels="fine_label", tasks=10, normalise="cifar100")
    assert (len(stream), stream.num_outputs, stream.input_shape) == (10, 100, (3, 32, 32))
    ours = streams.split_cifar100(data_dir=cifar_dir, split="official", tasks=1)
    assert stream.class_names == ours.class_names
    test = ours[0].test
    known = {x.numpy().tobytes(): y for x, y in zip(test.inputs, test.targets.tolist(), strict=True)}
    for task in stream:
        for x, y in zip(task.train.inputs, task.train.targets.tolist(), strict=True):
            assert known[x.numpy().tobytes()] == y


CASES = [
    ({}, {"labels": "lable"}, "did you mean 'label'"),
    ({}, {"inputs": "label"}, "holds ClassLabel, not images"),
    ({}, {"by": "site"}, "unknown column"),
    ({}, {"scenario": "instance"}, "needs by="),
    ({}, {"tasks": 9}, "1 to 4 tasks"),
    ({}, {"tasks": 3}, "one class only"),
    ({"site": ["a"] * 40}, {"by": "site", "tasks": 2}, "exclude each other"),
    ({}, {"size": 0}, "size=0"),
]


@pytest.mark.parametrize(("columns", "options", "message"), CASES)
def test_mistakes_get_one_line(columns, options, message, tmp_path):
    pictures(40, **columns).save_to_disk(tmp_path / "mine")
    with pytest.raises(UserError, match=message) as error:
        streams.huggingface(str(tmp_path / "mine"), **options)
    assert "\n" not in str(error.value)


def test_what_cannot_be_loaded(tmp_path):
    for name in (str(tmp_path), "no-such-org/no-such-set"):
        with pytest.raises(UserError) as error:
            streams.make_stream(f"huggingface:{name}")
        assert "\n" not in str(error.value)
    (tmp_path / "bad.parquet").write_bytes(b"no parquet")
    with pytest.raises(UserError, match="cannot load") as error:
        streams.huggingface(str(tmp_path / "bad.parquet"))
    assert "\n" not in str(error.value)


def test_samples_without_a_label(tmp_path):
    table = {"a": [1.0, 2.0, 3.0], "label": [0, 1, None]}
    datasets.Dataset.from_dict(table).to_parquet(tmp_path / "t.parquet")
    with pytest.raises(UserError, match="1 of 3 samples have no label"):
        streams.huggingface(str(tmp_path / "t.parquet"))


def test_text_is_not_numbers(tmp_path):
    datasets.Dataset.from_dict({"text": ["a", "b"], "label": [0, 1]}).to_parquet(tmp_path / "t.parquet")
    with pytest.raises(UserError, match="no column of images or numbers"):
        streams.huggingface(str(tmp_path / "t.parquet"))
