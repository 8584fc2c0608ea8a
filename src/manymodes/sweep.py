"""One run from its configuration, in its directory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import torch

from manymodes import distributed
from manymodes.config import Config, build_learner, build_stream
from manymodes.environment import pinned
from manymodes.errors import TrainingDiverged, UserError
from manymodes.follower import Follower
from manymodes.interrupts import Interrupted, Stop
from manymodes.logs import Logs
from manymodes.progress import Progress
from manymodes.run import Record, describe, run
from manymodes.rundir import RunDir
from manymodes.strategies.base import Event, Strategy
from manymodes.task import Stream
from manymodes.trajectory import Trajectory

View = Callable[[Stream], Stream]
SMALL = 300_000  # networks up to this many parameters are faster on one thread


class Run(NamedTuple):
    """A configuration, its directory and how it is executed (keyword arguments of `execute`)."""

    config: Config
    path: Path
    options: dict[str, Any]


def execute(
    config: Config,
    path: Path,
    *,
    checkpoint_every: float | None = None,
    record_trajectory: str = "auto",
    log: Sequence[str] = (),
    progress: Progress | None = None,
    stop: Stop | None = None,
    view: View | None = None,
    keep: Callable[[Path, float | None], RunDir] | None = None,
) -> dict[str, Any]:
    """Do one run in its directory, go on with it, or return its metrics if it is done.

    `view` makes another stream of the configured one (one that is judged on validation data). Raises
    Interrupted, with everything saved, after the epoch in which `stop` is asked.
    """
    directory = (keep or RunDir if distributed.first() else Follower)(path, checkpoint_every)
    directory.check(config)
    done = distributed.agreed(directory.metrics())
    if done is not None:
        return done
    stop = stop or Stop()
    with stop.listening(), directory.locked():
        directory.check(config)
        done = distributed.agreed(directory.metrics())
        if done is not None:
            return done
        stream, learner = _built(config, view)
        alone = distributed.count() == 1  # several processes share the cores: torchrun says how
        threads = directory.threads() if config.threads == 0 and alone else None
        with pinned(threads or config.threads or threads_for(learner), config.deterministic):
            directory.begin(config)
            directory.keep(stream)
            one = _Run(config, directory, stream, stop, record_trajectory, log, view)
            try:
                record = one.go(learner, progress or Progress.silent())
            except TrainingDiverged as error:
                raise one.diverged(error) from None
            except UserError as error:
                if one.stop.asked:  # helpers may get the signal too, and die of it
                    raise Interrupted(f"interrupted ({error})") from None
                directory.fail(str(error))
                raise
            return distributed.agreed(directory.finish(learner, record, config, describe(learner, stream)))


def finished(config: Config, path: Path) -> dict[str, Any] | None:
    """The metrics of a run that is done."""
    directory = RunDir(path)
    directory.check(config)
    return directory.metrics()


def _built(config: Config, view: View | None) -> tuple[Stream, Strategy]:
    stream = build_stream(config) if view is None else view(build_stream(config))
    return stream, build_learner(config, stream)


def threads_for(learner: Strategy) -> int:
    """How many threads a run uses unless it is told: small networks are faster on one."""
    return 1 if learner.model.theta.numel() <= SMALL else torch.get_num_threads()


class _Run:
    """One run under way: who is told what, and what happens when it cannot go on."""

    def __init__(
        self,
        config: Config,
        directory: RunDir,
        stream: Stream,
        stop: Stop,
        trajectory: str,
        log: Sequence[str],
        view: View | None,
    ) -> None:
        self.config, self.directory, self.stream, self.stop = config, directory, stream, stop
        self.trajectory, self.log, self.view = trajectory, log, view
        self.reached: tuple[int, int] | None = None  # (tasks learnt, epochs of the present one) so far
        self.halt: tuple[int, int] | None = None  # where to stop

    def go(self, learner: Strategy, progress: Progress) -> Record:
        """From the last checkpoint, or the beginning, to the end of the stream."""
        directory = self.directory
        record = _shared(directory.restore(learner), learner)
        when, log = (self.trajectory, self.log) if distributed.first() else ("false", ())
        trajectory = Trajectory(directory.path, when, len(self.stream))
        if learner.tasks_learnt == 0:
            start = learner.before or learner.modes
            trajectory.add(0, start.theta, start.buffers)
        logs = Logs(log, directory.path, self.config.as_dict())

        def on_event(event: Event) -> None:
            directory.event(event)
            progress.event(event)
            logs.event(event)

        def on_task(learner: Strategy, record: Record) -> None:
            trajectory.add(learner.tasks_learnt, learner.modes.theta, learner.modes.buffers)
            logs.task(record)
            self._save(learner, record)  # last: it says how far all the others have come
            self._come_to(learner, record)

        def on_epoch(learner: Strategy, record: Record) -> None:
            if distributed.agreed(directory.due()):
                self._save(learner, record)
            self._come_to(learner, record)

        with progress.of(self.config, self.stream, learner), self.stop.patient():
            try:
                return run(
                    learner, self.stream, record=record,
                    on_event=on_event, on_epoch=on_epoch, on_task=on_task,
                )  # fmt: skip
            except OSError as error:  # data that is read in the middle of a task, too
                raise directory.explained(error) from None
            finally:
                logs.close()

    def _save(self, learner: Strategy, record: Record) -> None:
        learner.assemble()
        self.directory.checkpoint(learner, record)

    def _come_to(self, learner: Strategy, record: Record) -> None:
        self.reached = learner.tasks_learnt, learner.epochs_done or 0
        if record.tasks_done == len(self.stream):
            return  # nothing is left to stop
        if distributed.anyone(self.stop.asked) or self.reached == self.halt:
            self._save(learner, record)
            tasks, epochs = self.reached
            where = (
                f"in task {tasks + 1}, after epoch {epochs} of {learner.epochs}"
                if epochs
                else f"after task {tasks}"
            )
            raise Interrupted(f"stopped {where}; everything is saved")

    def diverged(self, error: TrainingDiverged) -> TrainingDiverged:
        """Leave the state of the last good epoch, which is repeated if it was not saved; say where it is."""
        message = f"{error}; no epoch went well"
        if self.reached is not None:
            self.halt = self.reached
            with suppress(Interrupted, TrainingDiverged):  # the first, or both if it was saved already
                self.go(_built(self.config, self.view)[1], Progress.silent())
            saved = self.directory.checkpoints()
            message = f"{error}; the last good epoch is in {saved[-1]}" if saved else message
        self.directory.fail(message)
        return TrainingDiverged(message)


def _shared(record: Record | None, learner: Strategy) -> Record | None:
    """What the first process restored, for all."""
    record = distributed.agreed(record)
    if record is not None and distributed.count() > 1:
        state = distributed.agreed_state(learner.state_dict())
        if not distributed.first():
            learner.load_state_dict(state)
    return record
