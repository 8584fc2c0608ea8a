"""Runs from configurations: one, or many after another or at the same time."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from typing import Any

import torch

from manymodes.config import Config, build_learner, build_stream
from manymodes.logs import Logs
from manymodes.progress import Progress
from manymodes.run import Record, describe, run
from manymodes.rundir import RunDir
from manymodes.strategies.base import Strategy
from manymodes.trajectory import Trajectory

SMALL = 300_000  # networks up to this many parameters are faster on one thread


def execute(
    config: Config,
    path: Path,
    *,
    checkpoint_every: float = 30.0,
    record_trajectory: str = "auto",
    log: Sequence[str] = (),
    progress: Progress | None = None,
) -> dict[str, Any]:
    """Do one run in its directory, go on with it, or return its metrics if it is done."""
    directory = RunDir(path, checkpoint_every)
    with directory.locked():
        directory.prepare(config)
        done = directory.metrics()
        if done is not None:
            return done
        stream = build_stream(config)
        learner = build_learner(config, stream)
        torch.set_num_threads(config.threads or _threads(learner.model.theta.numel()))
        progress = progress or Progress.silent()
        record = directory.restore(learner)
        trajectory = Trajectory(path, record_trajectory, len(stream))
        if learner.tasks_learnt == 0:
            start = learner.before or learner.modes
            trajectory.add(0, start.theta, start.buffers)
        logs = Logs(log, path, config.as_dict())
        with progress.of(config, stream, learner):

            def on_event(event: Any) -> None:
                directory.event(event)
                progress.event(event)
                logs.event(event)

            def on_task(learner: Strategy, record: Record) -> None:
                trajectory.add(learner.tasks_learnt, learner.modes.theta, learner.modes.buffers)
                directory.checkpoint(learner, record)
                logs.task(record)

            try:
                record = run(
                    learner, stream, record=record, on_event=on_event,
                    on_epoch=directory.epoch, on_task=on_task,
                )  # fmt: skip
            finally:
                directory.close()
                logs.close()
        return directory.finish(learner, record, config, describe(learner, stream))


def _threads(parameters: int) -> int:
    return 1 if parameters <= SMALL else torch.get_num_threads()


def execute_all(
    configs: Sequence[Config],
    out: Path,
    *,
    jobs: int = 1,
    checkpoint_every: float = 30.0,
    record_trajectory: str = "auto",
    log: Sequence[str] = (),
    on_result: Callable[[Config, dict[str, Any]], None] = lambda config, result: None,
) -> list[dict[str, Any]]:
    """Every run, in order of the configurations; with several jobs, each in its own process."""
    options: dict[str, Any] = {
        "checkpoint_every": checkpoint_every,
        "record_trajectory": record_trajectory,
        "log": log,
    }
    results: dict[int, dict[str, Any]] = {}
    if jobs <= 1 or len(configs) == 1:
        for number, config in enumerate(configs):
            progress = Progress.for_terminal(number + 1, len(configs))
            results[number] = execute(config, out / config.slug, progress=progress, **options)
            on_result(config, results[number])
        return list(results.values())
    with ProcessPoolExecutor(jobs, mp_context=multiprocessing.get_context("spawn")) as pool:
        futures = {
            pool.submit(_in_process, config, out / config.slug, options, jobs): number
            for number, config in enumerate(configs)
        }
        try:
            for future in as_completed(futures):
                number = futures[future]
                results[number] = future.result()
                on_result(configs[number], results[number])
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    return [results[number] for number in range(len(configs))]


def _in_process(config: Config, path: Path, options: dict[str, Any], jobs: int) -> dict[str, Any]:
    # Jobs share the cores; without this each would start a thread per core and they would fight.
    torch.set_num_threads(max(1, torch.get_num_threads() // jobs))
    return execute(config, path, **options)
