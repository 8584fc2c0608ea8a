"""Many runs: one after another, at the same time on this machine, or on the machines of a Ray cluster."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import torch

from manymodes import distributed
from manymodes.cluster import on_cluster
from manymodes.config import Config
from manymodes.connection import Cluster
from manymodes.errors import UserError, require
from manymodes.interrupts import Interrupted, Stop
from manymodes.jobs import Outcome, in_processes
from manymodes.overview import Overview
from manymodes.progress import Progress
from manymodes.runfiles import RunFiles
from manymodes.sweep import Run, execute, finished

OnResult = Callable[[Config, dict[str, Any]], None]


class SomeFailed(UserError):
    """Some runs of several failed; the others are done."""

    code = 1

    def __init__(self, results: dict[int, dict[str, Any]], failures: dict[int, str], message: str) -> None:
        super().__init__(message)
        self.results, self.failures = results, failures


def execute_all(
    configs: Sequence[Config],
    out: Path,
    *,
    jobs: int | None = None,
    cluster: Cluster | None = None,
    checkpoint_every: float | None = None,
    record_trajectory: str = "auto",
    log: Sequence[str] = (),
    paths: Sequence[Path] | None = None,
    on_result: OnResult = lambda config, result: None,
) -> list[dict[str, Any]]:
    """Every run in a directory of `out` (or its path), in order.

    With several jobs each run is a process of its own; with a cluster each is a task there, as many at the
    same time as it has room for, or `jobs`. A run that fails does not keep the others from being done: then
    SomeFailed is raised at the end, or the error itself if there is no other run.
    """
    paths = [out / config.slug for config in configs] if paths is None else paths
    options = {"checkpoint_every": checkpoint_every, "record_trajectory": record_trajectory, "log": log}
    runs = [Run(config, path, options) for config, path in zip(configs, paths, strict=True)]
    results: dict[int, dict[str, Any]] = {}
    failures: dict[int, str] = {}

    def on_end(outcome: Outcome) -> None:
        config = configs[outcome.number]
        if outcome.error is None:
            results[outcome.number] = outcome.result
            on_result(config, outcome.result)
        elif not outcome.interrupted:
            failures[outcome.number] = f"{config.slug}: {outcome.error}"
            print(f"manymodes: {failures[outcome.number]}", flush=True)

    with no_empty(out):
        do_all(runs, on_end, jobs=jobs, cluster=cluster)
    if len(results) + len(failures) < len(configs):
        raise Interrupted(f"stopped with {len(results)} of {len(configs)} runs done; everything is saved")
    if failures:
        reasons = {line.partition(": ")[2] for line in failures.values()}
        if not results and len(reasons) == 1:
            raise UserError(reasons.pop())
        raise SomeFailed(results, failures, f"{len(failures)} of {len(configs)} runs failed")
    return [results[number] for number in range(len(configs))]


def do_all(
    runs: Sequence[Run], on_end: Callable[[Outcome], None], *, jobs: int | None, cluster: Cluster | None
) -> None:
    """on_end(outcome) for each run that ended; fewer than all if it was interrupted."""
    stop = Stop()
    require(
        distributed.count() == 1 or (cluster is None and jobs in (None, 1)),
        f"{f'--jobs {jobs}' if cluster is None else '--engine ray'}: torchrun has one run at a time",
    )
    with stop.listening():
        if cluster is None and (jobs in (None, 1) or len(runs) == 1):
            _one_after_another(runs, stop, on_end)
            return
        rest = _not_done(runs, on_end)
        names = {number: f"{runs[number].config.label} seed {runs[number].config.seed}" for number in rest}
        with Overview(names, len(runs)) as overview, stop.patient():

            def ended(outcome: Outcome) -> None:
                overview.ended(outcome)
                on_end(outcome)

            if cluster is not None:
                on_cluster({n: runs[n] for n in rest}, cluster, jobs, stop, ended, overview)
            else:
                _in_processes({n: runs[n] for n in rest}, jobs or 1, stop, ended, overview)


def _not_done(runs: Sequence[Run], on_end: Callable[[Outcome], None]) -> list[int]:
    """Those that are still to be done; nobody needs to be started for the others."""
    rest = []
    for number, run in enumerate(runs):
        try:
            result = finished(run.config, run.path)
        except UserError as error:
            on_end(Outcome(number, None, str(error)))
            continue
        if result is None:
            rest.append(number)
        else:
            on_end(Outcome(number, result))
    return rest


@contextmanager
def no_empty(out: Path) -> Iterator[None]:
    """Folders that are made for runs of which none begins are not left behind."""
    made = [folder for folder in (out, *out.parents) if not folder.exists()]
    try:
        yield
    finally:
        for folder in made:
            with suppress(OSError):  # something is in it, or it was never made
                folder.rmdir()


def _one_after_another(runs: Sequence[Run], stop: Stop, on_end: Callable[[Outcome], None]) -> None:
    for number, run in enumerate(runs):
        if stop.asked:
            return
        seen = distributed.first()
        progress = Progress.for_terminal(number + 1, len(runs)) if seen else Progress.silent()
        try:
            result = execute(run.config, run.path, progress=progress, stop=stop, **run.options)
        except UserError as error:
            if len(runs) == 1 or distributed.count() > 1:  # the others wait for this one
                raise
            on_end(Outcome(number, None, str(error)))
        else:
            on_end(Outcome(number, result))


def _in_processes(
    runs: dict[int, Run], jobs: int, stop: Stop, on_end: Callable[[Outcome], None], overview: Overview
) -> None:
    numbers = list(runs)

    def on_tick(running: list[int]) -> None:
        for position in running:
            overview.news(numbers[position], RunFiles(runs[numbers[position]].path).last_event())

    in_processes(
        _in_process, [(run, jobs) for run in runs.values()], at_once=jobs, stop=stop,
        on_end=lambda outcome: on_end(outcome._replace(number=numbers[outcome.number])), on_tick=on_tick,
    )  # fmt: skip


def _in_process(run: Run, jobs: int, stop: Stop) -> dict[str, Any]:
    # Jobs share the cores; without this each would start a thread per core and they would fight.
    torch.set_num_threads(max(1, torch.get_num_threads() // jobs))
    return execute(run.config, run.path, stop=stop, **run.options)
