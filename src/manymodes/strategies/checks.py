"""Checks on what a person gives: options and a task's data, each failing with one line."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch

from manymodes.errors import UserError, require
from manymodes.task import Data, Task, TensorData

if TYPE_CHECKING:
    from manymodes.strategies.base import Strategy


def check_options(**options: Any) -> None:
    """Counts are whole numbers from one; rates and strengths are finite and not negative."""
    for option, value in options.items():
        if option in ("epochs", "batch_size", "modes"):
            whole = isinstance(value, int) and not isinstance(value, bool)
            require(whole and value >= 1, f"{option} must be a whole number from 1, not {value!r}")
        elif option == "lr":
            require(_number(value) and value > 0, f"lr must be a number above 0, not {value!r}")
        elif option == "seed":
            require(
                isinstance(value, int) and value >= 0, f"seed must be a whole number from 0, not {value!r}"
            )
        else:
            require(_number(value) and value >= 0, f"{option} must be a number from 0, not {value!r}")


def _number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def check_task(learner: Strategy, task: Task) -> int:
    """Check the data against the model; returns the model's number of outputs."""
    require(len(task.train) > 0, f"task {task.name!r} has no training sample")
    require(len(task.classes) > 0, f"task {task.name!r} names no class: say which outputs are valid for it")
    for part, data in (("train", task.train), ("val", task.val)):
        if data is not None and len(data):
            _check_inputs(task.name, part, data)
    outputs = probe(learner, task.train)
    require(
        all(0 <= c < outputs for c in task.classes),
        f"task {task.name!r} has classes {_range(task.classes)} but the model has {outputs} outputs "
        f"(0 to {outputs - 1}): build it with outputs={max(task.classes) + 1} or renumber the labels",
    )
    for part, data in (("train", task.train), ("val", task.val)):
        if data is not None and len(data):
            strange = sorted(set(data.targets.unique().tolist()) - set(task.classes))
            require(
                not strange,
                f"task {task.name!r} has labels {strange[:5]} in its {part} data that are not among its "
                f"classes {_range(task.classes)}",
            )
    return outputs


def _range(classes: tuple[int, ...]) -> str:
    return str(list(classes)) if len(classes) <= 12 else f"{min(classes)} to {max(classes)}"


def _check_inputs(name: str, part: str, data: Data) -> None:
    if not isinstance(data, TensorData) or not data.inputs.is_floating_point():
        return
    bad = (
        ~torch.isfinite(data.inputs).flatten(1).all(dim=1)
        if data.inputs.dim() > 1
        else ~torch.isfinite(data.inputs)
    )
    count = int(bad.sum())
    require(
        count == 0,
        f"task {name!r} has NaN or infinite inputs in {count} of {len(data)} {part} samples "
        f"(the first is sample {int(bad.float().argmax())}): remove or fill them",
    )


@torch.no_grad()
def probe(learner: Strategy, data: Data) -> int:
    """Run one sample to learn how many outputs the model has, or why it does not accept the data."""
    batch = next(iter(data.batches([torch.tensor([0])])))
    inputs = batch.inputs.to(learner.model.device)
    try:
        with learner.model.evaluating():
            logits = learner.forward(inputs)
    except (RuntimeError, ValueError, IndexError, TypeError) as error:
        first = str(error).splitlines()[0]
        raise UserError(
            f"the model does not accept an input of shape {tuple(inputs.shape[1:])} ({inputs.dtype}): {first}"
        ) from None
    require(
        isinstance(logits, torch.Tensor) and logits.dim() == 2,
        "the model must return logits of shape (samples, outputs), not "
        + (str(tuple(logits.shape)) if isinstance(logits, torch.Tensor) else type(logits).__name__),
    )
    return int(logits.shape[1])
