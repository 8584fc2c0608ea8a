"""Live logging while runs learn: `--log csv,tensorboard,wandb,mlflow`.

Each logger gets the same scalars: loss, penalty and drift of every mode after every epoch, and the accuracy
on every task (and their average) after every task. The packages are optional and imported when asked for.
"""

from __future__ import annotations

import csv
import importlib.util
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TextIO

from manymodes.errors import UserError, unknown

if TYPE_CHECKING:
    from manymodes.run import Record
    from manymodes.strategies.base import Event

LOGGERS = {"csv": "", "tensorboard": "tensorboard", "wandb": "wandb", "mlflow": "mlflow"}  # name: package


class Logger(Protocol):
    """Takes scalars by name."""

    def write(self, step: int, scalars: dict[str, float]) -> None:
        """Scalars at a step (epochs since the beginning of the stream)."""

    def close(self) -> None:
        """The run is over, or interrupted."""


def parse_loggers(text: str) -> tuple[str, ...]:
    """Names separated by commas; an unknown one, or one whose package is missing, is one clear line.

    >>> parse_loggers("csv"), parse_loggers("")
    (('csv',), ())
    """
    names = tuple(filter(None, (name.strip() for name in text.split(","))))
    for name in names:
        if name not in LOGGERS:
            raise unknown("logger in --log", name, LOGGERS)
        package = LOGGERS[name]
        if package and importlib.util.find_spec(package) is None:
            raise UserError(f"--log {name} needs the package {package}: pip install {package} (or --log csv)")
    return names


class Logs:
    """The loggers of one run."""

    def __init__(self, names: Sequence[str], run: Path, settings: dict[str, Any]) -> None:
        makers: dict[str, Callable[[Path, dict[str, Any]], Logger]] = {
            "csv": CSV,
            "tensorboard": TensorBoard,
            "wandb": Wandb,
            "mlflow": MLflow,
        }
        self._loggers: list[Logger] = [makers[name](run, settings) for name in names]
        self._step = 0

    def event(self, event: Event) -> None:
        """One pass of a mode is done."""
        self._step = event.task * event.epochs + event.epoch
        of = f"mode {event.mode + 1}"
        values = {"loss": event.loss, "penalty": event.penalty, "drift": event.drift}
        self._write({f"{what}/{of}": value for what, value in values.items()})

    def task(self, record: Record) -> None:
        """A task is learnt and evaluated."""
        row = record.accuracy[-1]
        seen = row[: record.tasks_done]
        scalars = {f"accuracy/task {number + 1}": value for number, value in enumerate(row)}
        self._write(scalars | {"accuracy/average": sum(seen) / len(seen)})

    def close(self) -> None:
        """Close them all."""
        for logger in self._loggers:
            logger.close()

    def _write(self, scalars: dict[str, float]) -> None:
        for logger in self._loggers:
            logger.write(self._step, scalars)


class CSV:
    """RUN/log.csv: one line per scalar, readable while it grows."""

    def __init__(self, run: Path, settings: dict[str, Any]) -> None:
        path = run / "log.csv"
        fresh = not path.exists()
        self._file: TextIO = open(path, "a", newline="", encoding="utf-8")  # noqa: SIM115
        self._writer = csv.writer(self._file)
        if fresh:
            self._writer.writerow(["step", "name", "value"])

    def write(self, step: int, scalars: dict[str, float]) -> None:
        """Lines, flushed."""
        self._writer.writerows([step, name, value] for name, value in scalars.items())
        self._file.flush()

    def close(self) -> None:
        """Close the file."""
        self._file.close()


class TensorBoard:
    """RUN/tensorboard: `tensorboard --logdir RUNS` shows all runs of a folder."""

    def __init__(self, run: Path, settings: dict[str, Any]) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self._writer: Any = SummaryWriter(str(run / "tensorboard"))

    def write(self, step: int, scalars: dict[str, float]) -> None:
        """One point per scalar."""
        for name, value in scalars.items():
            self._writer.add_scalar(name.replace(" ", "_"), value, step)

    def close(self) -> None:
        """Flush and close."""
        self._writer.close()


class Wandb:
    """A Weights & Biases run named like the run directory; WANDB_MODE=offline keeps it on this machine."""

    def __init__(self, run: Path, settings: dict[str, Any]) -> None:
        import wandb

        self._run: Any = wandb.init(project="manymodes", name=run.name, dir=str(run), config=settings)

    def write(self, step: int, scalars: dict[str, float]) -> None:
        """Scalars of one step."""
        self._run.log(scalars, step=step)

    def close(self) -> None:
        """Finish the run."""
        self._run.finish()


class MLflow:
    """An MLflow run in the experiment of the stream's name; MLFLOW_TRACKING_URI says where."""

    def __init__(self, run: Path, settings: dict[str, Any]) -> None:
        import mlflow

        experiment = mlflow.set_experiment(str(settings["stream"]["name"]))
        self._client: Any = mlflow.MlflowClient()
        made = self._client.create_run(experiment.experiment_id, run_name=run.name)
        self._id = made.info.run_id
        for part in ("strategy", "stream", "model"):
            for name, value in settings[part].items():
                self._client.log_param(self._id, f"{part}.{name}", value)

    def write(self, step: int, scalars: dict[str, float]) -> None:
        """Scalars of one step."""
        for name, value in scalars.items():
            self._client.log_metric(self._id, name, value, step=step)

    def close(self) -> None:
        """End the run."""
        self._client.set_terminated(self._id)
