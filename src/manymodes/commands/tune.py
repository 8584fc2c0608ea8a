"""`manymodes tune`: search hyper-parameters on validation data."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from manymodes.commands.options import PARTS, Request, full_name, parse, split, with_config_file
from manymodes.config import Config, options_for
from manymodes.errors import UserError, require
from manymodes.spaces import WAY_OUT, Space, read_space

if TYPE_CHECKING:
    from manymodes.tune import Trial

HELP = """usage: manymodes tune --space NAME=VALUES [--space ...] [options of manymodes run]

Search hyper-parameters on validation data (Optuna); the test part of the stream is never looked at.

  --space NAME=VALUES   what to search, once per option: strength=1e0..1e6:log, epochs=5..20,
                        anchor=previous,merged, model.width=0.5..1
  --trials N            how many settings to try (default 20); the first is the given or default one
  --capacity N          all modes together have at most N parameters: the width that fits is taken
  --first-tasks K       judge on the first K tasks only (default: all)
  --seeds 0,1           judge by the mean over these seeds (default 0)
  --jobs K              try K settings at the same time; they are proposed from the same trials before them
  --engine ray          on a Ray cluster (--address, --gpus-per-run as for manymodes compare)
  --out DIR             where the search is kept; the same command goes on where it was stopped

It leaves DIR/trials.csv and DIR/best.yaml: manymodes run --config DIR/best.yaml
Strategy, stream, network and all their options as for manymodes run (see manymodes run --help)."""


def main(argv: Sequence[str]) -> int:
    """Search, then print the winner and how to use it."""
    if {"-h", "--help"} & set(argv):
        print(HELP)
        return 0
    own: dict[str, list[str]] = {"space": [], "trials": [], "first_tasks": [], "capacity": []}
    rest = []
    for name, value in split(with_config_file(argv)):
        if name in own:
            own[name].append(value)
        else:
            rest.append(f"--{name}={value}")
    config, request = parse(rest, "tune")
    require(
        request.cluster is None or request.jobs is not None,
        "with --engine ray say how many settings to try at the same time, e.g. --jobs 8",
    )
    require(request.tune_loop is None, "tune searches hyper-parameters: --tune-loop is for run and compare")
    require(request.resume is None, "the same command with the same --out goes on: leave --resume out")
    spaces = [_space(text, config) for text in own["space"]]
    trials, tasks = _whole("trials", own["trials"], 20), _whole("first-tasks", own["first_tasks"], 0)
    capacity = _whole("capacity", own["capacity"], 0)
    _search(config, spaces, request, trials, tasks, capacity, argv)
    return 0


def _search(
    config: Config,
    spaces: list[Space],
    request: Request,
    trials: int,
    tasks: int,
    capacity: int,
    argv: Sequence[str],
) -> None:
    from manymodes.interrupts import Interrupted
    from manymodes.tune import Search

    out = request.out
    search = Search(
        config, spaces, out, seeds=request.seeds, tasks=tasks, jobs=request.jobs or 1,
        cluster=request.cluster, capacity=capacity,
    )  # fmt: skip

    def on_trial(trial: Trial, best: Trial) -> None:
        settings = " ".join(f"{name}={_short(value)}" for name, value in trial.settings.items())
        value = "diverged" if trial.diverged else f"{trial.value:.4f}"
        print(f"trial {trial.number + 1}/{trials}  {value}  {settings}  "
              f"({trial.seconds:.1f} s)  best {best.value:.4f}", file=sys.stderr, flush=True)  # fmt: skip

    try:
        best = search.run(trials, on_trial)
    except KeyboardInterrupt:
        again = shlex.join(["manymodes", "tune", *argv])
        raise Interrupted(f"stopped; the finished trials are kept. To go on: {again}") from None
    print(f"Best of {len(search.trials)} trials: validation accuracy {best.value:.4f} with")
    for name, setting in best.settings.items():
        print(f"  {name} = {_short(setting)}")
    print(f"To use it: manymodes run --config {shlex.quote(str(out / 'best.yaml'))}")
    print(f"All trials: {out / 'trials.csv'}. Test data was not looked at.")


def _space(text: str, config: Config) -> Space:
    name, equals, _ = text.partition("=")
    require(bool(name and equals), f"--space {text!r}: {WAY_OUT}")
    tables = {part: options_for(part, getattr(config, part)["name"]) for part in PARTS}
    part, dot, option = full_name(name.replace("-", "_"), tables).partition(".")
    require(
        bool(dot) and part in ("strategy", "model") and option in tables[part],
        f"--space {text}: only options of the strategy and the network can be searched, {name} is not one",
    )
    return read_space(text, part, tables[part][option])


def _whole(option: str, given: list[str], default: int) -> int:
    if not given:
        return default
    if not given[-1].isdecimal() or int(given[-1]) < 1:
        raise UserError(f"--{option} must be a whole number from 1, not {given[-1]!r}")
    return int(given[-1])


def _short(value: object) -> str:
    return f"{value:.5g}" if isinstance(value, float) else str(value)
