"""The run directory for the processes of a run that do not write: nothing happens to it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from manymodes.config import Config
from manymodes.rundir import RunDir

if TYPE_CHECKING:
    from manymodes.run import Record
    from manymodes.strategies.base import Event, Strategy
    from manymodes.task import Stream


class Follower(RunDir):
    """Of several processes only the first reads and writes; the others may lie on other machines."""

    def check(self, config: Config) -> None:
        """The first process checks."""

    def begin(self, config: Config) -> None:
        """The first process writes the configuration."""

    def keep(self, stream: Stream) -> None:
        """The first process writes what the data was."""

    @contextmanager
    def locked(self) -> Iterator[None]:
        """The first process holds the lock."""
        yield

    def metrics(self) -> dict[str, Any] | None:
        """The first process knows."""
        return None

    def checkpoints(self) -> list[Path]:
        """The first process has them."""
        return []

    def restore(self, learner: Strategy) -> Record | None:
        """The first process reads the checkpoint and tells."""
        return None

    def event(self, event: Event) -> None:
        """The first process writes it."""

    def due(self) -> bool:
        """The first process decides."""
        return False

    def checkpoint(self, learner: Strategy, record: Record) -> None:
        """The first process saves."""

    def finish(
        self, learner: Strategy, record: Record, config: Config, about: dict[str, Any]
    ) -> dict[str, Any]:
        """The first process writes the metrics and tells."""
        return {}

    def fail(self, message: str) -> None:
        """The first process says why."""
