"""`manymodes run`: one strategy on one stream."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from manymodes.commands.options import Request, parse
from manymodes.commands.resume import command, resumed
from manymodes.config import Config, plain
from manymodes.errors import require
from manymodes.runfiles import RunFiles

if TYPE_CHECKING:
    from manymodes.grid import SomeFailed


def main(argv: Sequence[str]) -> int:
    """Learn, then print the table and where the results are."""
    if any(word.partition("=")[0] == "--resume" for word in argv):
        config, request, folder = resumed(argv)
        if RunFiles(folder).metrics() is not None:
            print(f"{folder} is done:")
        execute_and_show([config], request, command(folder, config), [folder])
        return 0
    config, request = parse(argv)
    if request.print_config:
        print(yaml.safe_dump(plain(config.as_dict()), sort_keys=False), end="")
        return 0
    configs = [replace(config, seed=seed) for seed in request.seeds]
    again = shlex.join(["manymodes", "run", *argv])
    if len(configs) == 1:
        again = command(request.out / configs[0].slug, configs[0])
    execute_and_show(configs, request, again)
    return 0


def execute_and_show(
    configs: list[Config], request: Request, again: str = "the same command", paths: list[Path] | None = None
) -> list[dict[str, Any]]:
    """Do the runs, print the table, say where everything is; `again` goes on after an interruption."""
    from manymodes.grid import SomeFailed, execute_all
    from manymodes.interrupts import Interrupted

    several = request.cluster is not None or (request.jobs or 1) > 1
    if request.tune_loop is not None:
        from manymodes.loop import fastest

        require(request.cluster is None, "--tune-loop measures this machine: leave it out with --engine ray")
        folders = [request.out / config.slug for config in configs]
        configs = fastest(configs, request.tune_loop, folders, request.jobs or 1)

    def on_result(config: Config, result: dict[str, object]) -> None:
        if several:
            print(f"{config.label} seed {config.seed}: average accuracy {result['average_accuracy']:.3f}",
                  file=sys.stderr, flush=True)  # fmt: skip

    try:
        results = execute_all(
            configs, request.out, paths=paths, jobs=request.jobs, cluster=request.cluster,
            checkpoint_every=request.checkpoint_every, record_trajectory=request.record_trajectory,
            log=request.log, on_result=on_result,
        )  # fmt: skip
    except Interrupted as error:
        raise Interrupted(f"{error}. To go on: {again}") from None
    except SomeFailed as error:
        _show_rest(configs, error, again)
        raise
    _show(configs, results)
    place = paths[0] if paths else request.out
    print(f"Results: {place.resolve()}")
    print(f"To look at them: {shlex.join(['manymodes', 'report', str(place)])}")
    return results


def _show(configs: list[Config], results: list[dict[str, Any]]) -> None:
    from rich.console import Console

    from manymodes.table import rows_of, show

    stream, scenarios = configs[0].stream, {config.stream.get("scenario") for config in configs}
    title = " ".join([stream["name"], *(str(s) for s in scenarios if s and len(scenarios) == 1)])
    show(rows_of(configs, results), Console(width=None if sys.stdout.isatty() else 400), title)


def _show_rest(configs: list[Config], error: SomeFailed, again: str) -> None:
    """The runs that are done, and those that are not."""
    done = sorted(error.results)
    if done:
        _show([configs[n] for n in done], [error.results[n] for n in done])
    for line in error.failures.values():
        print(f"failed: {line}")
    print(f"To try these again, and nothing else: {again}")
