"""Runs from configurations: one, or many after another or at the same time."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import torch

from manymodes import distributed
from manymodes.config import Config, build_learner, build_stream
from manymodes.environment import pinned
from manymodes.errors import TrainingDiverged, UserError, require
from manymodes.follower import Follower
from manymodes.interrupts import Interrupted, Stop
from manymodes.jobs import Outcome, in_processes
from manymodes.logs import Logs
from manymodes.progress import Progress
from manymodes.run import Record, describe, run
from manymodes.rundir import RunDir
from manymodes.strategies.base import Event, Strategy
from manymodes.task import Stream
from manymodes.trajectory import Trajectory

SMALL = 300_000  # networks up to this many parameters are faster on one thread


class SomeFailed(UserError):
    """Some runs of several failed; the others are done."""

    code = 1

    def __init__(self, results: dict[int, dict[str, Any]], failures: dict[int, str], message: str) -> None:
        super().__init__(message)
        self.results, self.failures = results, failures


def execute(
    config: Config,
    path: Path,
    *,
    checkpoint_every: float | None = None,
    record_trajectory: str = "auto",
    log: Sequence[str] = (),
    progress: Progress | None = None,
    stop: Stop | None = None,
) -> dict[str, Any]:
    """Do one run in its directory, go on with it, or return its metrics if it is done.

    Raises Interrupted, with everything saved, after the epoch in which `stop` is asked.
    """
    directory = (RunDir if distributed.first() else Follower)(path, checkpoint_every)
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
        stream, learner = _built(config)
        alone = distributed.count() == 1  # several processes share the cores: torchrun says how
        threads = directory.threads() if config.threads == 0 and alone else None
        with pinned(threads or config.threads or threads_for(learner), config.deterministic):
            directory.begin(config)
            one = _Run(config, directory, stream, stop, record_trajectory, log)
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


def _built(config: Config) -> tuple[Stream, Strategy]:
    stream = build_stream(config)
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
    ) -> None:
        self.config, self.directory, self.stream, self.stop = config, directory, stream, stop
        self.trajectory, self.log = trajectory, log
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
            directory.checkpoint(learner, record)  # last: it says how far all the others have come
            self._come_to(learner, record)

        def on_epoch(learner: Strategy, record: Record) -> None:
            directory.epoch(learner, record)
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

    def _come_to(self, learner: Strategy, record: Record) -> None:
        self.reached = learner.tasks_learnt, learner.epochs_done or 0
        if record.tasks_done == len(self.stream):
            return  # nothing is left to stop
        if distributed.anyone(self.stop.asked) or self.reached == self.halt:
            self.directory.checkpoint(learner, record)
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
                self.go(_built(self.config)[1], Progress.silent())
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


def execute_all(
    configs: Sequence[Config],
    out: Path,
    *,
    jobs: int = 1,
    checkpoint_every: float | None = None,
    record_trajectory: str = "auto",
    log: Sequence[str] = (),
    paths: Sequence[Path] | None = None,
    on_result: Callable[[Config, dict[str, Any]], None] = lambda config, result: None,
) -> list[dict[str, Any]]:
    """Every run in a directory of `out` (or its path), in order; with several jobs, each in its own process.

    A run that fails does not keep the others from being done: then SomeFailed is raised at the end, or the
    error itself if there is no other run.
    """
    options: dict[str, Any] = {
        "checkpoint_every": checkpoint_every,
        "record_trajectory": record_trajectory,
        "log": log,
    }
    paths = [out / config.slug for config in configs] if paths is None else paths
    results: dict[int, dict[str, Any]] = {}
    failures: dict[int, str] = {}
    stop = Stop()
    require(jobs == 1 or distributed.count() == 1, f"--jobs {jobs}: torchrun has one run at a time")

    def on_end(outcome: Outcome) -> None:
        config = configs[outcome.number]
        if outcome.error is None:
            results[outcome.number] = outcome.result
            on_result(config, outcome.result)
        elif not outcome.interrupted:
            failures[outcome.number] = f"{config.slug}: {outcome.error}"
            print(f"manymodes: {failures[outcome.number]}", flush=True)

    with _no_empty(out), stop.listening():
        if jobs <= 1 or len(configs) == 1:
            _one_after_another(configs, paths, options, stop, on_end)
        else:
            work = [(config, path, options, jobs) for config, path in zip(configs, paths, strict=True)]
            with stop.patient():
                in_processes(_in_process, work, at_once=jobs, stop=stop, on_end=on_end)
    if len(results) + len(failures) < len(configs):
        raise Interrupted(f"stopped with {len(results)} of {len(configs)} runs done; everything is saved")
    if failures:
        reasons = {line.partition(": ")[2] for line in failures.values()}
        if not results and len(reasons) == 1:
            raise UserError(reasons.pop())
        raise SomeFailed(results, failures, f"{len(failures)} of {len(configs)} runs failed")
    return [results[number] for number in range(len(configs))]


@contextmanager
def _no_empty(out: Path) -> Iterator[None]:
    """Folders that are made for runs of which none begins are not left behind."""
    made = [folder for folder in (out, *out.parents) if not folder.exists()]
    try:
        yield
    finally:
        for folder in made:
            with suppress(OSError):  # something is in it, or it was never made
                folder.rmdir()


def _one_after_another(
    configs: Sequence[Config],
    paths: Sequence[Path],
    options: dict[str, Any],
    stop: Stop,
    on_end: Callable[[Outcome], None],
) -> None:
    for number, (config, path) in enumerate(zip(configs, paths, strict=True)):
        if stop.asked:
            return
        seen = distributed.first()
        progress = Progress.for_terminal(number + 1, len(configs)) if seen else Progress.silent()
        try:
            result = execute(config, path, progress=progress, stop=stop, **options)
        except UserError as error:
            if len(configs) == 1 or distributed.count() > 1:  # the others wait for this one
                raise
            on_end(Outcome(number, None, str(error)))
        else:
            on_end(Outcome(number, result))


def _in_process(config: Config, path: Path, options: dict[str, Any], jobs: int, stop: Stop) -> dict[str, Any]:
    # Jobs share the cores; without this each would start a thread per core and they would fight.
    torch.set_num_threads(max(1, torch.get_num_threads() // jobs))
    return execute(config, path, stop=stop, **options)
