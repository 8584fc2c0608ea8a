"""Run directories as a report reads them: checked on the way in, so that nothing behind has to check."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from manymodes import files
from manymodes.errors import UserError
from manymodes.metrics import summary, task_drift

DEPTH = 3  # how deep below a given folder run directories are looked for


@dataclass(frozen=True)
class Run:
    """One finished run: its configuration, what it measured, its events."""

    path: Path
    config: dict[str, Any]
    metrics: dict[str, Any]
    events: list[dict[str, Any]] = field(repr=False)

    @property
    def accuracy(self) -> list[list[float]]:
        """(T + 1, T), row 0 the initial model."""
        found: list[list[float]] = self.metrics["accuracy"]
        return found

    @property
    def tasks(self) -> int:
        """T, how many tasks."""
        return len(self.accuracy[0])

    @property
    def modes(self) -> int:
        """N, how many modes."""
        return int(self.metrics.get("modes", 1))

    @property
    def seed(self) -> int:
        """The run's seed."""
        return int(self.config["seed"])

    @property
    def strategy(self) -> str:
        """The strategy's name."""
        return str(self.config["strategy"]["name"])

    @property
    def drift(self) -> list[list[float]]:
        """(T, N): mean squared change per parameter of every mode in every task."""
        found: list[list[float]] = self.metrics["drift"]
        return found

    @cached_property
    def numbers(self) -> dict[str, Any]:
        """metrics.json, with what follows from the accuracy matrix computed from it again."""
        return self.metrics | summary(self.accuracy) | {"task_drift": task_drift(self.drift)}

    def get(self, key: str) -> list[Any]:
        """A list that older runs may lack."""
        value = self.metrics.get(key)
        return value if isinstance(value, list) else []


@dataclass(frozen=True)
class Found:
    """What lies in the given folders: finished runs, and a line about each that is not used."""

    runs: list[Run]
    notes: list[str]


def read_runs(folders: Sequence[Path]) -> Found:
    """Every run in the folders; one that cannot be read or is not finished becomes a note.

    Raises:
        UserError: if a folder does not exist, or there is no finished run at all.
    """
    runs: list[Run] = []
    notes: list[str] = []
    for path in dict.fromkeys(p.resolve() for folder in folders for p in _run_paths(folder)):
        if not (path / "metrics.json").exists():
            notes.append(f"{path.name} is not finished")
            continue
        try:
            runs.append(read_run(path))
        except UserError as error:
            notes.append(str(error))
    if not runs:
        where = ", ".join(str(folder) for folder in folders)
        more = f" ({'; '.join(notes[:3])})" if notes else ""
        raise UserError(f"no finished run in {where}{more}: give a folder that `manymodes compare` wrote to")
    return Found(runs, notes)


def _run_paths(folder: Path) -> Iterator[Path]:
    if not folder.is_dir():
        raise UserError(f"{folder} is not a folder: give run directories, or a folder of them")
    level = [folder]
    for _ in range(DEPTH + 1):
        yield from (path for path in level if (path / "config.yaml").is_file() and not _helps(path, folder))
        try:
            level = [
                below
                for path in level
                if not (path / "config.yaml").is_file()
                for below in sorted(path.iterdir())
                if below.is_dir() and not below.is_symlink()
            ]
        except OSError as error:
            raise UserError(f"cannot read {folder}: {error.strerror or error}") from None


def _helps(path: Path, folder: Path) -> bool:
    """Whether it only made the weights that the other runs start from."""
    return path != folder and path.name.startswith("pretrained-")


def read_run(path: Path) -> Run:
    """One run directory; anything that is not what a run writes is one clear line."""
    metrics, config = files.read_json(path / "metrics.json"), files.read_yaml(path / "config.yaml")
    _check_config(path, config)
    _check_metrics(path, metrics)
    return Run(path, config, metrics, read_events(path / "events.jsonl"))


def read_events(path: Path) -> list[dict[str, Any]]:
    """One event per task, epoch and mode: the last one, where a resumed run repeated an epoch."""
    events: dict[tuple[int, int, int], dict[str, Any]] = {}
    try:
        lines = files.read_text(path).splitlines()
    except UserError:
        return []
    for line in lines:
        try:
            event = json.loads(line)
            key = int(event["task"]), int(event["epoch"]), int(event["mode"])
            event["loss"] = float(event["loss"])
        except (ValueError, KeyError, TypeError, RecursionError):
            continue  # a line cut short when the machine stopped
        if math.isfinite(event["loss"]):
            events[key] = event
    return [events[key] for key in sorted(events)]


def _check_config(path: Path, config: Any) -> None:
    parts = ("strategy", "stream", "model")
    named = isinstance(config, dict) and all(
        isinstance(config.get(part), dict) and isinstance(config[part].get("name"), str) for part in parts
    )
    if not named or not isinstance(config.get("seed"), int):
        raise UserError(f"{path / 'config.yaml'} is not the configuration of a run")


def _check_metrics(path: Path, metrics: Any) -> None:
    where = path / "metrics.json"
    accuracy = metrics.get("accuracy") if isinstance(metrics, dict) else None
    if not isinstance(accuracy, list) or len(accuracy) < 2:
        raise UserError(f"{where} has no accuracy matrix: is it the metrics of a run?")
    tasks = len(accuracy) - 1
    if not _is_array(accuracy, (tasks + 1, tasks)):
        raise UserError(f"{where}: accuracy is not a matrix of {tasks + 1} x {tasks} finite numbers")
    modes = metrics.setdefault("modes", 1)
    if not isinstance(modes, int) or modes < 1 or not _is_array(metrics.get("drift"), (tasks, modes)):
        raise UserError(f"{where}: drift is not a matrix of {tasks} tasks x {modes} modes")
    layers = metrics.get("layers")
    layers = len(layers) if isinstance(layers, list) else 0
    shapes = {
        "responsibility": (tasks + 1, tasks, modes),
        "cosine": (tasks, modes, modes),
        "layer_drift": (tasks, layers, modes),
        "seconds_per_task": (tasks,),
    }
    for key, shape in shapes.items():
        if not _is_array(metrics.get(key), shape):
            metrics[key] = []  # written by an older version: its charts are left out
    if not isinstance(metrics.get("storage"), dict):
        metrics["storage"] = {}
    storage = metrics["storage"].items()
    metrics["storage"] = {str(k): int(v) for k, v in storage if isinstance(v, int | float)}


def _is_array(value: Any, shape: tuple[int, ...]) -> bool:
    if not shape:
        return isinstance(value, int | float) and math.isfinite(value)
    return (
        isinstance(value, list)
        and len(value) == shape[0]
        and all(_is_array(item, shape[1:]) for item in value)
    )
