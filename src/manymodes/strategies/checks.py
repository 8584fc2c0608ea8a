"""Checks on what a person gives: options and a task's data, each failing with one line."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch

from manymodes.errors import TrainingDiverged, UserError, require
from manymodes.task import Data, Task, TensorData

if TYPE_CHECKING:
    from manymodes.strategies.base import Strategy


LEAST = {
    "epochs": 1,
    "batch_size": 1,
    "modes": 1,
    "seed": 0,
    "fisher_samples": 0,
    "budget": 0,
    "micro_batch": 0,
}


def check_options(**options: Any) -> None:
    """Counts are whole numbers from one; rates and strengths are finite and not negative."""
    for option, value in options.items():
        if option in LEAST:
            whole = isinstance(value, int) and not isinstance(value, bool)
            least = LEAST[option]
            require(whole and value >= least, f"{option} must be a whole number from {least}, not {value!r}")
        elif option in ("lr", "temperature", "damping"):
            require(_number(value) and value > 0, f"{option} must be a number above 0, not {value!r}")
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
            check_inputs(f"{part} samples of task {task.name!r}", data)
    outputs = probe(learner, task.train)
    require(
        all(isinstance(c, int) for c in task.classes) and min(task.classes) >= 0,
        f"the classes of task {task.name!r} must be numbers of outputs, from 0, not {_range(task.classes)}",
    )
    require(
        max(task.classes) < outputs,
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


def check_inputs(whose: str, data: Data) -> None:
    """Tensors in memory hold numbers; other data is read too late for a check."""
    if not isinstance(data, TensorData) or not data.inputs.is_floating_point() or not len(data):
        return
    if bool(torch.isfinite(data.inputs.sum())):  # one quick pass; NaN and infinity cannot leave a finite sum
        return
    bad = ~torch.isfinite(data.inputs).view(len(data), -1).all(dim=1)
    count = int(bad.sum())
    require(
        count == 0,
        f"NaN or infinite inputs in {count} of {len(data)} {whose} "
        f"(the first is sample {int(bad.float().argmax())}): remove or fill them",
    )


@torch.no_grad()
def check_outputs(learner: Strategy, task: Task) -> None:
    """What every mode says about a few samples are numbers."""
    batch = next(iter(task.train.batches([torch.arange(min(len(task.train), 8))])))
    inputs = batch.inputs.to(learner.model.device)
    for mode in range(len(learner.modes)):
        learner.use(mode)
        with learner.model.evaluating():
            logits = learner.forward(inputs)
        if not bool(torch.isfinite(logits).all()):
            raise TrainingDiverged(f"the outputs of mode {mode} are not finite")


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
