"""CIFAR-100 from disk: the official python archive, or parquet files in the Hugging Face layout.

Both give the same arrays in the same order, so a seed means the same split whatever a person has.
"""

from __future__ import annotations

import hashlib
import io
import json
import pickle
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from manymodes.errors import UserError, require
from manymodes.streams.images import UnreadableImage, decode_all
from manymodes.streams.places import Arrays, cached_arrays, find, not_found

ARCHIVE = "cifar-100-python.tar.gz"
URL = f"https://www.cs.toronto.edu/~kriz/{ARCHIVE}"
MD5 = {
    ARCHIVE: "eb9058c3a382ffc7106e4002c42a8d85",
    "train": "16019d7e3df5f24257cddd939b257f8d",
    "test": "f0ef6b0ae62326f3e7ffdfab6717acfc",
    "meta": "7973b15100ade9c7d40fb424638fde48",
}
LAYOUTS = {
    "parquet": ("train-*.parquet", "test-*.parquet"),
    "archive": (ARCHIVE,),
    "pickles": ("train", "test", "meta"),
}
FOLDERS = ("cifar100", "cifar-100-python", "cifar-100", "CIFAR100", "cifar100/cifar100")
WANTED = f"{ARCHIVE}, its extracted directory cifar-100-python/, or train-*.parquet and test-*.parquet"


class Cifar(NamedTuple):
    """All 60,000 images (S, 3, 32, 32), training images first, and their two labels."""

    images: NDArray[np.uint8]
    fine: NDArray[np.int64]
    coarse: NDArray[np.int64]
    fine_names: tuple[str, ...]
    coarse_names: tuple[str, ...]
    train_count: int
    source: str


def read_cifar(root: Path) -> Cifar:
    """CIFAR-100 from what lies in `root`, decoded once and then memory-mapped from the cache."""
    found = find(root, LAYOUTS, FOLDERS)
    if found is None:
        raise not_found("split-cifar100", root, WANTED)
    layout, folder = found
    files = sorted({file for pattern in LAYOUTS[layout] for file in folder.glob(pattern)})
    read: Callable[[], Arrays] = {
        "parquet": lambda: _read_parquet(folder),
        "archive": lambda: _read_pickles(_members(folder / ARCHIVE)),
        "pickles": lambda: _read_pickles(
            {name: (folder / name).read_bytes() for name in ("train", "test", "meta")}
        ),
    }[layout]
    arrays = cached_arrays("cifar100", files, lambda: _in_canonical_order(read()), options=("by digest", MD5))
    return Cifar(
        images=arrays["images"],
        fine=np.asarray(arrays["fine"]),
        coarse=np.asarray(arrays["coarse"]),
        fine_names=tuple(str(name) for name in arrays["fine_names"]),
        coarse_names=tuple(str(name) for name in arrays["coarse_names"]),
        train_count=int(arrays["train_count"]),
        source=f"{layout} in {folder.name}",
    )


def _in_canonical_order(arrays: Arrays) -> Arrays:
    """Each part sorted by its images' digests: no file's own order, and no order of classes or pixels."""
    count = int(arrays["train_count"])
    digests = [hashlib.blake2b(image.tobytes(), digest_size=16).digest() for image in arrays["images"]]
    order = np.arange(len(digests))
    for part in (order[:count], order[count:]):
        part[:] = sorted(part, key=lambda row: (digests[row], arrays["fine"][row]))
    return arrays | {name: arrays[name][order] for name in ("images", "fine", "coarse")}


def _read_parquet(folder: Path) -> Arrays:
    try:
        import pyarrow.parquet as parquet
    except ImportError:
        raise UserError('parquet files need pyarrow: pip install "manymodes[images]"') from None
    tables, names = [], {}
    for part in ("train", "test"):
        files = sorted(folder.glob(f"{part}-*.parquet"))
        try:
            tables += [parquet.read_table(file) for file in files]
            features = json.loads(tables[-1].schema.metadata[b"huggingface"])["info"]["features"]
            names = {key: features[f"{key}_label"]["names"] for key in ("fine", "coarse")}
            rows = [
                row
                for table in tables
                for row in table.column("img").combine_chunks().field("bytes").to_pylist()
            ]
        except (OSError, KeyError, TypeError, ValueError) as error:
            raise UserError(
                f"{files[0]} is not CIFAR-100 in the Hugging Face layout: {type(error).__name__}: {error}"
            ) from None
        if part == "train":
            train_count = len(rows)
    try:
        images = decode_all(rows).numpy()
    except (UnreadableImage, RuntimeError) as error:
        raise UserError(f"an image in {folder} cannot be read: {error}") from None
    labels = {
        key: np.concatenate([table.column(f"{key}_label").to_numpy() for table in tables]).astype(np.int64)
        for key in ("fine", "coarse")
    }
    return _arrays(images, labels["fine"], labels["coarse"], names["fine"], names["coarse"], train_count)


def _arrays(
    images: NDArray[Any],
    fine: NDArray[Any],
    coarse: NDArray[Any],
    fine_names: list[str],
    coarse_names: list[str],
    train_count: int,
) -> Arrays:
    return {
        "images": images,
        "fine": fine,
        "coarse": coarse,
        "fine_names": np.array(fine_names),
        "coarse_names": np.array(coarse_names),
        "train_count": np.array(train_count),
    }


def _members(archive: Path) -> dict[str, bytes]:
    """The three files inside the archive, read only once its checksum holds; nothing is extracted."""
    _verify(archive.read_bytes(), ARCHIVE, archive)
    with tarfile.open(archive, "r:gz") as tar:
        members = {name: tar.extractfile(f"cifar-100-python/{name}") for name in ("train", "test", "meta")}
        return {name: member.read() for name, member in members.items() if member is not None}


def _verify(content: bytes, name: str, where: object) -> None:
    digest = hashlib.md5(content, usedforsecurity=False).hexdigest()
    require(
        digest == MD5[name],
        f"{where} is not the official CIFAR-100 file (md5 {digest}, expected {MD5[name]}): delete it and "
        "fetch it again: manymodes data fetch split-cifar100",
    )


def _read_pickles(files: dict[str, bytes]) -> Arrays:
    """The official files are pickles: read only if their checksums hold, and then only as plain arrays."""
    parts = {}
    for name, content in files.items():
        _verify(content, name, f"the file {name!r}")
        parts[name] = _Plain(io.BytesIO(content), encoding="latin1").load()
    train, test, meta = parts["train"], parts["test"], parts["meta"]
    return _arrays(
        np.concatenate([part["data"].reshape(-1, 3, 32, 32) for part in (train, test)]),
        np.array(train["fine_labels"] + test["fine_labels"], dtype=np.int64),
        np.array(train["coarse_labels"] + test["coarse_labels"], dtype=np.int64),
        meta["fine_label_names"],
        meta["coarse_label_names"],
        len(train["data"]),
    )


class _Plain(pickle.Unpickler):
    """An unpickler that makes lists, dicts, strings, numbers and numpy arrays, and calls nothing else."""

    def find_class(self, module: str, name: str) -> Any:
        """The three names a pickled array needs, whatever numpy wrote them."""
        admitted: dict[tuple[str, str], Any] = {
            ("multiarray", "_reconstruct"): np.zeros(0).__reduce__()[0],
            ("numpy", "ndarray"): np.ndarray,
            ("numpy", "dtype"): np.dtype,
        }
        short = (module.rpartition(".")[2] if module.startswith("numpy.") else module, name)
        if short not in admitted:
            raise UserError(f"a CIFAR-100 file asks for {module}.{name}: it is not the official one")
        return admitted[short]
