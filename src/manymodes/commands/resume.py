"""`manymodes run --resume DIR`: go on with a run as it was configured."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from manymodes.commands.options import Request, flattened, full_name, parse, split, with_config_file
from manymodes.commands.trust import check_typed, own_code
from manymodes.config import PARTS, Config, canonical, differences, options_for, plain
from manymodes.errors import UserError
from manymodes.runfiles import RunFiles

FREE = (
    "jobs",
    "engine",
    "address",
    "gpus_per_run",
    "checkpoint_every",
    "record_trajectory",
    "log",
    "print_config",
)  # no part of a run's identity


def resumed(argv: Sequence[str]) -> tuple[Config, Request, Path]:
    """The saved configuration, the request and the directory of `--resume DIR ...`.

    Other options may be given if they say what the saved configuration says.
    """
    pairs = [(name, value) for name, value in split(with_config_file(argv)) if name != "resume"]
    folder = Path(next(value for name, value in reversed(split(argv)) if name == "resume"))
    saved = RunFiles(folder).config()
    _agreed(saved, pairs, folder)
    for name in ("out", "profile", "tune_loop"):
        if name in dict(pairs):
            raise UserError(f"--{name} does not go with --resume: the run stays what it is, where it is")
    config = _typed(saved, folder)
    names = {part: getattr(config, part)["name"] for part in PARTS}
    given, request = parse([*(f"--{p}={n}" for p, n in names.items()), *(f"--{n}={v}" for n, v in pairs)])
    found = differences(plain(config.as_dict()), _with(config, given, pairs))
    if request.seeds != [config.seed] and {"seed", "seeds"} & set(dict(pairs)):
        found.append(f"seeds are {[config.seed]} there, {request.seeds} here")
    if found:
        raise UserError(
            f"{folder} was begun with other options ({'; '.join(found)}): leave them out to go on with it, "
            "or begin another run with another --out"
        )
    return config, request, folder


def command(folder: Path, config: Config) -> str:
    """What goes on with a run."""
    words = ["manymodes", "run", "--resume", str(folder)]
    for part in PARTS:
        name = getattr(config, part)["name"]
        words += [f"--{part}", name] if own_code(name) else []
    return shlex.join(words)


def _agreed(saved: dict[str, Any], pairs: list[tuple[str, str]], folder: Path) -> None:
    """The run is of what was typed, if anything was; what it imports was typed."""
    for part in PARTS:
        name = saved[part].get("name")
        if not isinstance(name, str):
            raise UserError(f"{folder / 'config.yaml'} does not name a {part}")
        told = [value for option, value in pairs if option in (part, f"{part}.name")]
        if told and canonical(part, told[-1]) != name:
            raise UserError(f"{folder} was begun with --{part} {name}, not {told[-1]}")
    check_typed(str(folder), [(part, saved[part]["name"]) for part in PARTS], pairs)


def _typed(saved: dict[str, Any], folder: Path) -> Config:
    """The saved configuration with values of the types that the options have."""
    try:
        config, _ = parse(flattened(saved))
    except UserError as error:
        raise UserError(f"{folder / 'config.yaml'}: {error}") from None
    parts = {}
    for part in PARTS:
        read, kept = getattr(config, part), saved[part]
        # Text may read back as something else (0:50 is a number in YAML): what is saved counts.
        parts[part] = {k: v if k not in kept or plain(v) == kept[k] else kept[k] for k, v in read.items()}
    return Config(**parts, seed=config.seed, threads=config.threads, deterministic=config.deterministic)


def _with(config: Config, given: Config, pairs: list[tuple[str, str]]) -> Config:
    """The saved configuration with those options changed that were given."""
    tables = {part: options_for(part, getattr(config, part)["name"]) for part in PARTS}
    wanted, values = plain(config.as_dict()), plain(given.as_dict())
    for option in (full_name(name, tables) for name, _ in pairs):
        part, dot, rest = option.partition(".")
        if dot:
            wanted[part][rest] = values[part][rest]
        elif option not in FREE and option in wanted:
            wanted[option] = values[option]
    return Config(**wanted)
