"""The official archive in its true format: downloaded, verified, never executed; the same from parquet."""

import os
import pickle
from functools import partial

import numpy as np
import pytest
import torch

import manymodes.streams as streams
from manymodes.errors import UserError
from manymodes.streams import cifar100, cifar_files
from manymodes.streams.transfer import Patience
from tests.streams import cifar_archive
from tests.streams.server import website


@pytest.fixture
def parts():
    return cifar_archive.small_set()


@pytest.fixture
def files(parts):
    return cifar_archive.pickles(parts)


@pytest.fixture
def official(files, monkeypatch):
    """The small files pass for the official ones."""
    packed = cifar_archive.archive(files)
    for name, digest in cifar_archive.checksums(files, packed).items():
        monkeypatch.setitem(cifar_files.MD5, name, digest)
    return packed


def write(folder, files):
    folder.mkdir(parents=True)
    for name, content in files.items():
        (folder / name).write_bytes(content)


def test_the_true_pickle_format_is_read(files, parts, official, tmp_path):
    assert b"cnumpy.core.multiarray\n_reconstruct" in files["train"]
    write(tmp_path / "cifar-100-python", files)
    cifar = cifar_files.read_cifar(tmp_path)
    images, fine, coarse = parts["train"]
    assert cifar.train_count == len(images)
    expected = {(i.transpose(2, 0, 1).tobytes(), f, c) for i, f, c in zip(images, fine, coarse, strict=True)}
    got = zip(cifar.images[: len(images)], cifar.fine, cifar.coarse, strict=False)
    assert {(i.tobytes(), f, c) for i, f, c in got} == expected
    assert cifar.fine_names == tuple(cifar_archive.FINE)


def test_every_layout_gives_the_same_stream(files, parts, official, tmp_path):
    write(tmp_path / "a", {"cifar-100-python.tar.gz": official})
    write(tmp_path / "b" / "cifar-100-python", files)
    (tmp_path / "c" / "cifar100").mkdir(parents=True)
    cifar_archive.write_parquet(tmp_path / "c" / "cifar100", parts)
    made = [streams.split_cifar100(tasks=4, data_dir=tmp_path / name) for name in "abc"]
    for task in range(4):
        first, *others = [stream[task] for stream in made]
        for other in others:
            assert torch.equal(first.train.inputs, other.train.inputs)
            assert torch.equal(first.train.targets, other.train.targets)
            assert torch.equal(first.test.inputs, other.test.inputs)


def test_download_interrupted_then_read(official, tmp_path, monkeypatch):
    monkeypatch.setattr("manymodes.streams.fetch.Patience", partial(Patience, first_wait=0.001))
    with website() as site:
        site.files["cifar-100-python.tar.gz"] = official
        site.mishaps = [("drop", 50_000)]
        monkeypatch.setattr(cifar100, "URL", site.url("cifar-100-python.tar.gz"))
        stream = streams.split_cifar100(tasks=4, data_dir=tmp_path, download=True)
        assert len(stream[0].train) > 0
        streams.split_cifar100(tasks=4, data_dir=tmp_path, download=True)
        assert [request[2] for request in site.requests] == [200, 206]


def test_corrupted_download(official, tmp_path, monkeypatch):
    with website() as site:
        site.files["cifar-100-python.tar.gz"] = official
        site.mishaps = [("corrupt",)]
        monkeypatch.setattr(cifar100, "URL", site.url("cifar-100-python.tar.gz"))
        with pytest.raises(UserError, match="damaged"):
            streams.split_cifar100(data_dir=tmp_path, download=True)


class Evil:
    def __init__(self, folder):
        self.command = f"touch {folder}/executed"

    def __reduce__(self):
        return os.system, (self.command,)


@pytest.mark.parametrize("trusted", [False, True])
def test_nothing_is_executed(files, tmp_path, monkeypatch, trusted):
    """Not before the checksum holds; and not even if a checksum were wrong."""
    files["train"] = pickle.dumps(Evil(tmp_path), protocol=2)
    write(tmp_path / "cifar-100-python", files)
    if trusted:
        for name, digest in cifar_archive.checksums(files, b"").items():
            monkeypatch.setitem(cifar_files.MD5, name, digest)
    with pytest.raises(UserError, match="not the official") as error:
        cifar_files.read_cifar(tmp_path)
    assert "\n" not in str(error.value)
    assert not (tmp_path / "executed").exists()


def test_archive_with_another_checksum_is_not_opened(files, tmp_path):
    write(tmp_path / "cifar100", {"cifar-100-python.tar.gz": cifar_archive.archive(files)})
    with pytest.raises(UserError, match="expected eb9058c3a382ffc7106e4002c42a8d85"):
        cifar_files.read_cifar(tmp_path)


@pytest.mark.parametrize("content", [b"", b"PAR1 no parquet at all PAR1"])
def test_broken_parquet(content, parts, tmp_path):
    cifar_archive.write_parquet(tmp_path, parts)
    (tmp_path / "test-00000-of-00001.parquet").write_bytes(content)
    with pytest.raises(UserError, match="not CIFAR-100 in the Hugging Face layout") as error:
        cifar_files.read_cifar(tmp_path)
    assert "\n" not in str(error.value)


def test_other_parquet(tmp_path):
    import pyarrow as pa
    import pyarrow.parquet as parquet

    for part in ("train", "test"):
        parquet.write_table(pa.table({"a": np.arange(3)}), tmp_path / f"{part}-0.parquet")
    with pytest.raises(UserError, match="not CIFAR-100"):
        cifar_files.read_cifar(tmp_path)
