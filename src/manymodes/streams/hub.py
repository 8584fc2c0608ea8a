"""Data sets of the Hugging Face hub, or files in its formats, through the `datasets` package."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from manymodes.errors import require
from manymodes.streams.hub_tables import Columns, Table, find_columns, label_names, load_table
from manymodes.streams.image_sets import MEMORY_GB, ImageOptions, image_set
from manymodes.streams.own import Choices, natural, own_stream
from manymodes.streams.own_arrays import arrays
from manymodes.streams.split import class_order
from manymodes.task import Stream


def huggingface(
    dataset: str,
    *,
    subset: str | None = None,
    inputs: str | None = None,
    labels: str | None = None,
    by: str | None = None,
    tasks: int | None = None,
    scenario: str | None = None,
    seed: int = 0,
    head: str = "multi",
    limit: int | None = None,
    size: int | None = None,
    channels: int = 3,
    val: float = 0.1,
    test: float = 0.2,
    normalise: str = "imagenet",
    augment: bool = False,
    skip_unreadable: bool = False,
    workers: int | None = None,
    memory_gb: float = MEMORY_GB,
) -> Stream:
    """A set of the Hugging Face hub by name, or a local one: a saved data set, or parquet files.

    The set's own train, validation and test parts are kept; what it does not have is cut from the
    training part. The tasks are groups of classes, or the values of the column `by`.

    Args:
        dataset: a name such as "cifar100" or "org/name", or the path of what `save_to_disk` wrote, of
            a parquet file, or of a directory of parquet files.
        subset: the set's configuration, where it has several.
        inputs: the column of images; the only one unless given. Without images all columns of numbers.
        labels: the column of labels; the only class label unless given.
        by: a column (a domain, a site, a year) whose values are the tasks.
        tasks: number of groups of classes, in an order fixed by `seed`; 5 unless given.
        scenario: "task", "class" or "instance"; inferred from the tasks unless given.
        seed: fixes the order of the classes and the split.
        head: "multi" (an output per class) or "shared" (the tasks share outputs; scenario "task" only).
        limit: at most this many training samples per task, the same number of each class.
        size: scale all images to size x size pixels (their central square); needed if sizes differ.
        channels: 3 for colour, 1 for grey.
        val: share of each class held out for validation, where the set names none.
        test: share of each class held out for testing, where the set names none.
        normalise: "imagenet", "half", "cifar100" or "none"; images only.
        augment: random crops and mirroring of training batches; images only.
        skip_unreadable: leave out images that cannot be decoded, with a warning that counts them.
        workers: processes that decode images which do not fit in memory; half of the cores unless given.
        memory_gb: decoded images up to this size are held in memory.

    """
    table = load_table(dataset, subset)
    columns = find_columns(table.rows, inputs, labels, by)
    label_S = label_names(table.rows, columns.label)
    task_S, order = _tasks(table, label_S, by, tasks, scenario, seed)
    choices = Choices(scenario, head, seed, limit, val, test)
    if columns.image is None:
        return _numbers(dataset, table, columns, label_S, task_S, choices)
    images = image_set(
        _Encoded(table.rows, columns.image),
        ImageOptions(size, channels, normalise, augment, skip_unreadable, memory_gb, workers),
    )
    task_S = [task_S[i] for i in images.kept]
    return own_stream(
        Path(dataset).name,
        [label_S[i] for i in images.kept],
        task_S,
        None if table.parts is None else [table.parts[i] for i in images.kept],
        images.select,
        choices,
        input_shape=images.input_shape,
        task_order=natural(set(task_S)),
        info={
            "source": f"Hugging Face datasets, {dataset}" + (f" ({subset})" if subset else ""),
            "class_order": order,
            "unreadable": images.unreadable,
            "normalise": normalise,
            "augment": augment,
        },
    )


def _tasks(
    table: Table, labels: list[str], by: str | None, tasks: int | None, scenario: str | None, seed: int
) -> tuple[list[str], list[str]]:
    """Every sample's task, and the order in which the classes arrive where that makes the tasks."""
    if by is not None:
        require(tasks is None, "tasks and by exclude each other: the values of the column are the tasks")
        return [str(value) for value in table.rows[by]], []
    require(scenario != "instance", "scenario='instance' needs by=..., a column whose values are the tasks")
    return _by_class(labels, tasks, seed)


def _by_class(labels: list[str], tasks: int | None, seed: int) -> tuple[list[str], list[str]]:
    """The task of every sample, and the classes in the order in which they arrive."""
    names = natural(set(labels))
    tasks = min(5, max(1, len(names) // 2)) if tasks is None else tasks
    require(1 <= tasks <= len(names), f"tasks={tasks!r}: {len(names)} classes make 1 to {len(names)} tasks")
    order = [names[i] for i in class_order(len(names), seed)]
    task_of = {
        name: f"task {t + 1}"
        for t, group in enumerate(np.array_split(np.array(order, dtype=object), tasks))
        for name in group
    }
    return [task_of[label] for label in labels], order


def _numbers(
    dataset: str, table: Table, columns: Columns, labels: list[str], tasks: list[str], choices: Choices
) -> Stream:
    source: dict[str, Any] = {
        "x": np.stack([np.asarray(table.rows[name], dtype=np.float32) for name in columns.numbers], axis=1),
        "y": np.array(labels),
        "task": np.array(tasks),
    }
    if table.parts is not None:
        source["split"] = np.array([("train", "val", "test")[part] for part in table.parts])
    order = natural(set(tasks))
    rows = np.argsort([order.index(task) for task in tasks], kind="stable")  # arrays: tasks as they appear
    return arrays(
        {key: value[rows] for key, value in source.items()}, title=Path(dataset).name, **choices._asdict()
    )


class _Encoded(Sequence[Path | bytes]):
    """The encoded images of a column, each read when asked for."""

    def __init__(self, rows: Any, column: str) -> None:
        import datasets

        self.column = rows.select_columns([column]).cast_column(column, datasets.Image(decode=False))
        self.name = column

    def __len__(self) -> int:
        return len(self.column)

    def __getitem__(self, i: Any) -> Any:
        image = self.column[i][self.name] or {}
        return image["bytes"] if image.get("bytes") else Path(image.get("path") or "")
