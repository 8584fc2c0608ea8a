"""Tables of the Hugging Face `datasets` package: loading them, and which of their columns is what."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

from manymodes.errors import UserError, require, unknown
from manymodes.streams.own import PARTS

LABEL_NAMES = ("label", "labels", "target", "class", "y")


class Table(NamedTuple):
    """All rows of all parts, and which part each belongs to (None: the set has one only)."""

    rows: Any
    parts: list[int] | None


class Columns(NamedTuple):
    """Which columns are what; `image` is None for a table of numbers."""

    image: str | None
    numbers: list[str]
    label: str


def load_table(dataset: str, subset: str | None) -> Table:
    """A set of the hub, what `save_to_disk` wrote, or parquet files."""
    try:
        import datasets
    except ImportError:
        raise UserError('huggingface needs the datasets package: pip install "manymodes[hub]"') from None
    path = Path(dataset).expanduser()
    try:
        if (path / "dataset_dict.json").is_file() or (path / "state.json").is_file():
            found = datasets.load_from_disk(str(path))
        elif path.exists():
            found = datasets.load_dataset("parquet", data_files=_parquet_files(path))
        else:
            found = datasets.load_dataset(dataset, subset)
    except UserError:
        raise
    except Exception as error:  # network, hub and file formats fail in ways of their own
        reason = (str(error) or type(error).__name__).splitlines()[0]
        raise UserError(f"huggingface: cannot load {dataset!r}: {reason}") from None
    splits = {"train": found} if isinstance(found, datasets.Dataset) else dict(found)
    known = {name: split for name, split in splits.items() if name.lower() in PARTS}
    if not known:
        known = {"train": next(iter(splits.values()))}
    rows = datasets.concatenate_datasets(list(known.values()))
    parts = [PARTS[name.lower()] for name, split in known.items() for _ in range(len(split))]
    return Table(rows, parts if len(set(parts)) > 1 else None)


def _parquet_files(path: Path) -> dict[str, list[str]]:
    """Files by the part that their names begin with, as in train-00000-of-00001.parquet."""
    files = [path] if path.is_file() else sorted(path.rglob("*.parquet"))
    require(len(files) > 0, f"{path} holds neither a saved data set nor parquet files")
    parts: dict[str, list[str]] = {}
    for file in files:
        part = file.stem.split("-")[0].lower()
        parts.setdefault(part if part in PARTS else "train", []).append(str(file))
    return parts


def find_columns(rows: Any, inputs: str | None, labels: str | None, by: str | None) -> Columns:
    """The columns as named, or the only ones that can be meant."""
    features = dict(rows.features)
    for option, column in (("inputs", inputs), ("labels", labels), ("by", by)):
        if column is not None and column not in features:
            raise unknown(f"column ({option})", column, features)
    kinds = {name: type(feature).__name__ for name, feature in features.items()}
    classes = [name for name, kind in kinds.items() if kind == "ClassLabel" and name != by]
    named = [name for name in LABEL_NAMES if name in features]
    candidates = [labels] if labels else classes or named[:1]
    require(
        len(candidates) == 1,
        f"which column holds the labels? Give labels=..., one of {', '.join(candidates or features)}",
    )
    label = candidates[0]
    images = [inputs] if inputs else [name for name, kind in kinds.items() if kind == "Image"]
    require(len(images) < 2, f"which column holds the images? Give inputs=..., one of {', '.join(images)}")
    if images:
        require(kinds[images[0]] == "Image", f"inputs={images[0]!r} holds {kinds[images[0]]}, not images")
        return Columns(images[0], [], label)
    numeric = [
        name
        for name, feature in features.items()
        if str(getattr(feature, "dtype", "")).startswith(("int", "uint", "float", "bool"))
    ]
    numbers = [name for name in numeric if name not in (label, by, *classes)]
    require(len(numbers) > 0, f"no column of images or numbers among {', '.join(features)}")
    return Columns(None, numbers, label)


def label_names(rows: Any, column: str) -> list[str]:
    """Every sample's label by name."""
    feature, values = rows.features[column], list(rows[column])
    empty = sum(value is None or value == -1 for value in values)
    require(empty == 0, f"{empty} of {len(values)} samples have no label in column {column!r}")
    return (
        [feature.int2str(value) for value in values]
        if hasattr(feature, "int2str")
        else [str(v) for v in values]
    )
