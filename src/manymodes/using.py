"""Using a finished learner: opening it, predicting, evaluating it on a stream."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch

from manymodes import foreign
from manymodes.errors import UserError, require, unknown
from manymodes.modes import joint
from manymodes.preparation import Preparation, preparation_of
from manymodes.reading import Samples
from manymodes.resting import features_of
from manymodes.run import evaluate
from manymodes.saving import load
from manymodes.strategies.base import Strategy
from manymodes.task import Data, Stream, TensorData

FILE = "learner.safetensors"


class Prediction(NamedTuple):
    """One sample's: agreement is the share of modes whose own best label is the joint one."""

    input: str
    label: str
    probability: float
    agreement: float


def learner_file(run: str | Path) -> Path:
    """The learner's file of a run directory, or the file itself."""
    path = Path(run).expanduser()
    require(path.exists(), f"{path} is not there: give a run directory or a {FILE}")
    if path.is_file():
        return path
    if (path / FILE).is_file():
        return path / FILE
    if (path / "config.yaml").exists():
        raise UserError(f"the run in {path} is not finished (no {FILE}): manymodes run --resume {path}")
    inside = sorted(entry.parent.name for entry in path.glob(f"*/{FILE}"))
    hint = f"it holds {len(inside)} runs, such as {path / inside[0]}: give one" if inside else f"no {FILE}"
    raise UserError(f"{path} is not a run directory: {hint}")


def names_of(learner: Strategy) -> list[str]:
    """The names of a learner's outputs: those of its stream, or their numbers."""
    given = learner.about.get("class_names")
    names = [str(name) for name in given] if isinstance(given, list) else []
    count = learner._num_outputs or len(names)
    return [*names, *(str(i) for i in range(len(names), count))][: max(count, 0)]


def preparation_for(learner: Strategy, where: str | Path = "this learner") -> Preparation:
    """How a learner's inputs are prepared."""
    given = learner.about.get("input")
    require(
        given is not None,
        f"{where} does not say how its inputs are prepared (by code, which is not saved): use it from "
        "Python, or set learner.about = manymodes.preparation.about(stream) before saving it",
    )
    return Preparation.from_dict(given, str(where))


def outputs_of(learner: Strategy, names: Iterable[str], option: str = "--classes") -> list[int]:
    """The outputs with these names."""
    known = {name: output for output, name in enumerate(names_of(learner))}
    found = []
    for name in names:
        if name not in known:
            raise unknown(f"class in {option}", name, known)
        found.append(known[name])
    require(len(found) > 0, f"{option} names no class")
    return found


def as_input(learner: Strategy, raw: torch.Tensor, targets: torch.Tensor | None = None) -> TensorData:
    """Raw samples as this learner's data."""
    labels = torch.zeros(len(raw), dtype=torch.long) if targets is None else targets
    return TensorData(raw, labels, transform=preparation_for(learner))


@torch.no_grad()
def predictions(
    learner: Strategy, samples: Samples, classes: Sequence[str] = (), batch: int = 256
) -> Iterator[Prediction]:
    """A prediction per sample, over the named classes (those learnt so far unless given)."""
    require(batch >= 1, f"--batch must be a whole number from 1, not {batch}")
    wanted = outputs_of(learner, classes) if classes else None
    names = names_of(learner)
    for inputs, raw in samples.batches(batch):
        data = as_input(learner, raw)
        valid = learner.valid_for(data, wanted)
        seen = features_of(learner.model, data)
        log_probs_NSK = learner.mode_log_probs(seen, valid)
        best = joint(log_probs_NSK, learner.log_weights(seen, valid)).exp().max(dim=1)
        agreement = (log_probs_NSK.argmax(dim=2) == best.indices).float().mean(dim=0)
        for row, name in enumerate(inputs):
            label = names[valid.classes[int(best.indices[row])]]
            yield Prediction(name, label, float(best.values[row]), float(agreement[row]))


def evaluate_stream(learner: Strategy, stream: Stream) -> list[dict[str, Any]]:
    """Accuracy, NLL and calibration error on the test part of every task of a stream.

    The learner's classes are found by their names. The valid outputs are the task's own where the learner
    is one of task-IL, all that it has learnt (and the task's) in class-IL, all of the stream otherwise.
    """
    output_of = _matched(learner, stream)
    scenario = learner.about.get("scenario", stream.scenario)
    learnt = {c for head in learner.heads for c in head}
    rows = []
    for number, task in enumerate(stream):
        require(task.test is not None, f"task {task.name!r} of stream {stream.name!r} has no test part")
        assert task.test is not None
        own = {int(output_of[c]) for c in task.classes}
        valid = {"task": own, "class": learnt | own, "instance": set(output_of.tolist())}[scenario]
        if number == 0:
            _check_inputs(learner, task.test, stream)
        accuracy, nll, error, _ = evaluate(learner, _relabelled(task.test, output_of), tuple(sorted(valid)))
        rows.append({
            "task": task.name, "samples": len(task.test), "accuracy": accuracy, "nll": nll,
            "calibration_error": error,
        })  # fmt: skip
    return rows


def _matched(learner: Strategy, stream: Stream) -> torch.Tensor:
    """The learner's output of each output of the stream."""
    mine = names_of(learner)
    if not learner.about.get("class_names"):
        require(
            len(mine) == 0 or stream.num_outputs <= len(mine),
            f"stream {stream.name!r} has {stream.num_outputs} classes, this learner {len(mine)} outputs",
        )
        return torch.arange(stream.num_outputs)
    position = {name: i for i, name in enumerate(mine)}
    strange = [name for name in stream.class_names if name not in position]
    require(
        not strange,
        f"stream {stream.name!r} has classes that this learner does not know: "
        + ", ".join(map(repr, strange[:5])),
    )
    return torch.tensor([position[name] for name in stream.class_names])


def _relabelled(data: Data, output_of: torch.Tensor) -> Data:
    view = copy.copy(data)
    view.targets = output_of[data.targets]  # type: ignore[misc]
    return view


def _check_inputs(learner: Strategy, data: Data, stream: Stream) -> None:
    """A stream that prepares its inputs in another way would be evaluated wrongly, not badly."""
    mine, theirs = learner.about.get("input"), preparation_of(data)
    if mine is None or theirs is None:
        return
    own = Preparation.from_dict(mine)
    require(
        own.shape == theirs.shape,
        f"stream {stream.name!r} has inputs of shape {theirs.shape}, this learner takes {own.shape}",
    )
    same = all(
        torch.allclose(a, b, rtol=1e-4, atol=1e-6)
        for a, b in zip(own.coefficients(), theirs.coefficients(), strict=True)
    )
    require(
        same and own.dtype == theirs.dtype,
        f"stream {stream.name!r} prepares its inputs otherwise than this learner's was: give the stream's "
        "normalise (and other) options as they were",
    )


def open_learner(
    run: str | Path, *, model: str | None = None, strategy: str | None = None, **options: Any
) -> tuple[Strategy, Path]:
    """The learner of a run directory or file, and its file.

    `model` and `strategy` are the import paths of those that are a person's own.
    """
    path = learner_file(run)
    return load(path, **foreign.given(path, model, strategy), **options), path
