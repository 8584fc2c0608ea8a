"""`manymodes run`: one strategy on one stream."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import yaml

from manymodes.commands.options import parse
from manymodes.config import Config
from manymodes.errors import UserError


def main(argv: Sequence[str]) -> int:
    """Learn, then print the table and where the results are."""
    config, request = parse(argv)
    if request.print_config:
        print(yaml.safe_dump(config.as_dict(), sort_keys=False), end="")
        return 0
    configs = [replace(config, seed=seed) for seed in request.seeds]
    execute_and_show(configs, request)
    return 0


def execute_and_show(configs: list[Config], request: object) -> list[dict[str, Any]]:
    """Do the runs, print the table, say where everything is."""
    from rich.console import Console

    from manymodes.commands.options import Request
    from manymodes.sweep import execute_all
    from manymodes.table import rows_of, show

    assert isinstance(request, Request)
    if request.jobs < 1:
        raise UserError(f"jobs must be a whole number from 1, not {request.jobs}")
    several = request.jobs > 1

    def on_result(config: Config, result: dict[str, object]) -> None:
        if several:
            print(f"{config.label} seed {config.seed}: average accuracy {result['average_accuracy']:.3f}",
                  file=sys.stderr, flush=True)  # fmt: skip

    results = execute_all(
        configs,
        request.out,
        jobs=request.jobs,
        checkpoint_every=request.checkpoint_every,
        record_trajectory=request.record_trajectory,
        log=request.log,
        on_result=on_result,
    )
    stream = configs[0].stream
    title = " ".join(str(v) for v in (stream["name"], stream.get("scenario")) if v)
    wide = None if sys.stdout.isatty() else 170
    show(rows_of(configs, results), Console(width=wide), title)
    print(f"Results: {request.out.resolve()}")
    return results
