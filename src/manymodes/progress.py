"""What a person sees while a run learns: a live bar in a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import BarColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bar

if TYPE_CHECKING:
    from manymodes.config import Config
    from manymodes.strategies.base import Event, Strategy
    from manymodes.task import Stream


class Progress:
    """Told of a run's beginning and of each pass of a mode."""

    def __init__(self, console: Console | None, prefix: str = "") -> None:
        self.console, self.prefix = console, prefix
        self._bar: Bar | None = None
        self._tasks = 1

    @classmethod
    def silent(cls) -> Progress:
        """Says nothing."""
        return cls(None)

    @classmethod
    def for_terminal(cls, number: int, total: int) -> Progress:
        """On stderr, with the run's number among several."""
        return cls(Console(file=sys.stderr), f"[{number}/{total}] " if total > 1 else "")

    @contextmanager
    def of(self, config: Config, stream: Stream, learner: Strategy) -> Iterator[None]:
        """Around one run."""
        if self.console is None:
            yield
            return
        self._tasks = len(stream)
        self._start, name = time.perf_counter(), f"{self.prefix}{config.label} seed {config.seed}"
        if not self.console.is_terminal:
            modes, parameters = learner.modes.theta.shape
            self._line(f"{name}: {stream.name}, {len(stream)} tasks, {modes} x {parameters:,} parameters")
            yield
            self._line(f"{name}: done in {time.perf_counter() - self._start:.1f} s")
            return
        columns = (
            TextColumn("{task.description}"),
            BarColumn(bar_width=24),
            TextColumn("{task.fields[what]}"),
        )
        with Bar(*columns, TimeRemainingColumn(), console=self.console, transient=True) as self._bar:
            passes = len(stream) * learner.epochs * len(learner.modes)
            self._id = self._bar.add_task(name, total=passes, what="")
            yield
        self._bar = None

    def event(self, event: Event) -> None:
        """One pass of a mode is done."""
        if self.console is None:
            return
        what = f"task {event.task + 1}/{self._tasks}  epoch {event.epoch}/{event.epochs}"
        what += f"  mode {event.mode + 1}/{event.modes}  loss {event.loss:.3f}"
        if self._bar is not None:
            done = (event.task * event.epochs + event.epoch - 1) * event.modes + event.mode + 1
            self._bar.update(self._id, completed=done, what=what)
        elif event.epoch == event.epochs:
            self._line(f"{self.prefix}  {what}")

    def _line(self, text: str) -> None:
        print(text, file=sys.stderr, flush=True)
