"""Runs as tasks of a Ray cluster: each in its directory, gone on with elsewhere when its machine is lost."""

from __future__ import annotations

import os
import sys
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

from manymodes.away import Home, run_there
from manymodes.connection import Cluster, connected, gpus
from manymodes.desk import Desk
from manymodes.errors import UserError, one_line
from manymodes.interrupts import Stop
from manymodes.jobs import POLL, Outcome, outcome_of
from manymodes.overview import Overview
from manymodes.parcels import Parcel, packed, unpack
from manymodes.rundir import RunDir
from manymodes.sweep import Run

TRIES = 4  # how often a run is begun or gone on with before it counts as failed


def on_cluster(
    runs: dict[int, Run],
    cluster: Cluster,
    at_once: int | None,
    stop: Stop,
    on_end: Callable[[Outcome], None],
    overview: Overview,
) -> None:
    """on_end(outcome) for each run. When `stop` is asked, those under way save and stop; see Stop."""
    if not runs:
        return
    with connected(cluster) as ray, _marked(list(runs.values())) as marker:
        _Driver(ray, cluster, runs, marker, on_end, overview).go(at_once or len(runs), stop)


class _Driver:
    """Starts tasks, hears of them, starts those again whose machine is gone."""

    def __init__(
        self, ray: Any, cluster: Cluster, runs: dict[int, Run], marker: Path,
        on_end: Callable[[Outcome], None], overview: Overview,
    ) -> None:  # fmt: skip
        self.ray, self.runs, self.on_end, self.overview = ray, runs, on_end, overview
        self.gpus = gpus(ray, cluster)
        self.desk = ray.remote(Desk).options(num_cpus=0).remote()
        self.home = Home(os.getcwd(), [os.path.abspath(entry) for entry in sys.path], str(marker))
        self.waiting = list(runs)
        self.running: dict[Any, int] = {}
        self.attempts = dict.fromkeys(runs, 0)
        self.held: dict[int, ExitStack] = {}  # locks of directories that a task does not see

    def go(self, at_once: int, stop: Stop) -> None:
        """Until all are over."""
        asked = False
        try:
            while self.running or (self.waiting and not stop.asked):
                while self.waiting and len(self.running) < at_once and not stop.asked:
                    self._start(self.waiting.pop(0))
                if stop.asked and not asked:
                    asked = True
                    begun = self.ray.get(self.desk.ask.remote())
                    for task, number in self.running.items():
                        if (number, self.attempts[number]) not in begun:
                            self.ray.cancel(task)
                ready, _ = self.ray.wait(list(self.running), timeout=POLL)
                self._hear()
                for task in ready:
                    self._end(task, self.running.pop(task), stop)
        except self.ray.exceptions.RayActorError:
            raise UserError(
                "the Ray cluster is gone; what the runs saved is there: the same command goes on"
            ) from None
        finally:
            for task in self.running:
                with suppress(Exception):  # the cluster may be gone
                    self.ray.cancel(task, force=True)
            for lock in self.held.values():
                lock.close()

    def _start(self, number: int) -> None:
        run = self.runs[number]
        run = run._replace(path=run.path.absolute())
        threads = run.config.threads or 1
        self.attempts[number] += 1
        task = self.ray.remote(run_there).options(
            num_cpus=threads, num_gpus=0 if run.config.strategy.get("device") == "cpu" else self.gpus,
            max_retries=0, name=run.path.name,
        )  # fmt: skip
        reference = task.remote(self.desk, self.home, run, number, self.attempts[number], threads)
        self.running[reference] = number

    def _hear(self) -> None:
        """Messages at the desk: who began, how far all are, files."""
        begun, events, parcels, said = self.ray.get(self.desk.heard.remote())
        for number, (where, sees) in begun.items():
            self.overview.begun(number, where)
            if not sees:
                self._give(number)
        for number, line in said:
            self.overview.said(number, line)
        for number, event in events.items():
            if number in self.running.values():
                self.overview.news(number, event)
        for number, attempt, parcel in parcels:
            if attempt == self.attempts[number] and number in self.held:
                unpack(self.runs[number].path, parcel)

    def _give(self, number: int) -> None:
        """The files of a run that is on a machine without them; until it ends nobody else writes them."""
        path = self.runs[number].path
        try:
            if number not in self.held:
                lock = ExitStack()
                lock.enter_context(RunDir(path).locked())
                self.held[number] = lock
            told: Parcel | str = packed(path, {})
        except UserError as error:
            told = str(error)
        self.desk.give.remote(number, self.attempts[number], told)

    def _end(self, task: Any, number: int, stop: Stop) -> None:
        exceptions = self.ray.exceptions
        try:
            kind, value = self.ray.get(task)
        except exceptions.RayTaskError as error:
            print(error, file=sys.stderr, flush=True)
            kind, value = "failed", "its task failed; what it said is above"
        except exceptions.RayError as error:
            kind, value = "lost", f"its process died ({one_line(error, 80)})"
        self._hear()  # files that it sent before it ended
        if kind == "lost" and self.attempts[number] < TRIES and not stop.asked:
            self.overview.lost(number, f"{value}; it goes on from its last checkpoint")
            self.waiting.insert(0, number)
            return
        if number in self.held:
            self.held.pop(number).close()
        if kind == "lost" and stop.asked:
            kind = "interrupted"
        if kind == "lost":
            kind, value = "failed", f"{value} {TRIES} times: give it more memory, or fewer --jobs"
        self.on_end(outcome_of(number, kind, value))


@contextmanager
def _marked(runs: list[Run]) -> Iterator[Path]:
    """A file beside the run directories: whoever sees it shares the disk."""
    folder = Path(os.path.commonpath([run.path.absolute().parent for run in runs]))
    marker = folder / f".seen-{uuid.uuid4().hex}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        marker.touch()
    except OSError as error:
        raise UserError(f"cannot write into {folder}: {error.strerror}") from None
    try:
        yield marker
    finally:
        marker.unlink(missing_ok=True)
