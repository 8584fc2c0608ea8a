"""What a person hands to `learn`, as a Task on the learner's device."""

from __future__ import annotations

from collections.abc import Iterable
from operator import index
from typing import Any

import torch

from manymodes.errors import UserError, require
from manymodes.task import Data, Task, as_data
from manymodes.train import to_device


def as_task(
    data: Any, targets: Any, val: Any, classes: Any, name: str | None, *, number: int, device: torch.device
) -> Task:
    """A Task as it is, or one made of (inputs, targets), a TensorDataset or a map-style Dataset.

    Without `classes` the valid outputs are the labels that occur. The test part is left out: no strategy
    gets it, whether it rehearses or not.
    """
    if isinstance(data, Task):
        extra = {"targets": targets, "val": val, "classes": classes, "name": name}
        given = [option for option, value in extra.items() if value is not None]
        require(not given, f"a Task has its own {', '.join(given)}: change it with dataclasses.replace")
        task = data
    else:
        train = as_data(data, targets)
        found: Any = sorted(set(train.targets.tolist())) if classes is None else classes
        held_out = None if val is None else as_data(val)
        task = Task(name or f"task {number}", train, held_out, None, found)
    return Task(
        task.name,
        to_device(task.train, device),
        None if task.val is None else to_device(task.val, device),
        None,
        tuple(_numbers(task.classes)),
    )


def unlabelled(inputs: Any) -> Data:
    """Inputs to predict as data; targets are not known and not read."""
    try:
        count = len(inputs)
    except TypeError:
        raise UserError(f"predict needs inputs with a first axis of samples, not {inputs!r}") from None
    return as_data(inputs, torch.zeros(count))


def _numbers(classes: Iterable[Any]) -> Iterable[Any]:
    """Whole numbers of any kind (numpy's, say) as ints; the rest is left for the check to name."""
    try:
        return [index(c) if hasattr(c, "__index__") else c for c in classes]
    except TypeError:
        return [classes]
