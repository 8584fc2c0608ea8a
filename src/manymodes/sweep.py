"""Runs from configurations: one, or many after another or at the same time."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from typing import Any

import torch

from manymodes.config import Config, build_learner, build_stream
from manymodes.progress import Progress
from manymodes.run import describe, run
from manymodes.rundir import RunDir

SMALL = 300_000  # networks up to this many parameters are faster on one thread


def execute(
    config: Config, path: Path, *, checkpoint_every: float = 30.0, progress: Progress | None = None
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
        with progress.of(config, stream, learner):

            def on_event(event: Any) -> None:
                directory.event(event)
                progress.event(event)

            try:
                record = run(
                    learner, stream, record=directory.restore(learner), on_event=on_event,
                    on_epoch=directory.epoch, on_task=directory.checkpoint,
                )  # fmt: skip
            finally:
                directory.close()
        return directory.finish(learner, record, config, describe(learner, stream))


def _threads(parameters: int) -> int:
    return 1 if parameters <= SMALL else torch.get_num_threads()


def execute_all(
    configs: Sequence[Config],
    out: Path,
    *,
    jobs: int = 1,
    checkpoint_every: float = 30.0,
    on_result: Callable[[Config, dict[str, Any]], None] = lambda config, result: None,
) -> list[dict[str, Any]]:
    """Every run, in order of the configurations; with several jobs, each in its own process."""
    results: dict[int, dict[str, Any]] = {}
    if jobs <= 1 or len(configs) == 1:
        for number, config in enumerate(configs):
            progress = Progress.for_terminal(number + 1, len(configs))
            results[number] = execute(
                config, out / config.slug, checkpoint_every=checkpoint_every, progress=progress
            )
            on_result(config, results[number])
        return list(results.values())
    with ProcessPoolExecutor(jobs, mp_context=multiprocessing.get_context("spawn")) as pool:
        futures = {
            pool.submit(_in_process, config, out / config.slug, checkpoint_every, jobs): number
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


def _in_process(config: Config, path: Path, checkpoint_every: float, jobs: int) -> dict[str, Any]:
    # Jobs share the cores; without this each would start a thread per core and they would fight.
    torch.set_num_threads(max(1, torch.get_num_threads() // jobs))
    return execute(config, path, checkpoint_every=checkpoint_every)
