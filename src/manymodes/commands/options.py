"""From words on the command line (and a YAML file) to a Config; every option comes from a signature."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from jsonargparse import ArgumentParser, Namespace

from manymodes.config import Config, options_for
from manymodes.errors import UserError, unknown
from manymodes.files import read_yaml
from manymodes.logs import parse_loggers
from manymodes.reproduce import recipe_file
from manymodes.signature import Option
from manymodes.trajectory import WHEN

PARTS = ("strategy", "stream", "model")
PROFILES = ("default", "paper")


class Parser(ArgumentParser):
    """A parser whose complaints are one UserError."""

    def error(self, message: str, ex: Exception | None = None) -> NoReturn:
        """Raise instead of printing usage and leaving."""
        text = " ".join(str(message).split())
        raise UserError(text.replace("Parser key ", "option ").replace("<class ", "").replace(">.", "."))


@dataclass(frozen=True)
class Request:
    """What `run` and `compare` share beside the configuration."""

    out: Path
    seeds: list[int]
    jobs: int
    checkpoint_every: float | None
    record_trajectory: str
    log: tuple[str, ...]
    resume: Path | None
    print_config: bool


def with_config_file(words: Sequence[str]) -> list[str]:
    """Replace `--config FILE` by the file's options; what is given explicitly comes later and wins."""
    words, plain, from_file = list(words), [], []
    while words:
        word = words.pop(0)
        name, _, value = word.partition("=")
        if name != "--config":
            plain.append(word)
            continue
        if not value:
            if not words:
                raise UserError("--config needs a YAML file")
            value = words.pop(0)
        from_file += flattened(_read_yaml(_config_path(value)))
    return from_file + plain


def _config_path(value: str) -> Path:
    """A file, or a recipe by its name."""
    recipe = recipe_file(value)
    return recipe if recipe.exists() and not Path(value).exists() else Path(value)


def _read_yaml(path: Path) -> dict[str, Any]:
    try:
        content = read_yaml(path)
    except UserError as error:
        raise UserError(f"--config: {error}") from None
    if not isinstance(content, dict):
        raise UserError(f"--config {path} must hold options by name (strategy:, stream:, ...)")
    return content


def flattened(content: dict[str, Any]) -> list[str]:
    """Nested options as words of the command line."""
    words = []
    for key, value in content.items():
        if isinstance(value, dict):
            words += [f"--{key}.{k}={_text(v)}" for k, v in value.items()]
        else:
            words.append(f"--{key}={_text(value)}")
    return words


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, default=str)


def split(words: Sequence[str]) -> list[tuple[str, str]]:
    """Options as (name, value) pairs with underscores; a flag has the value "true"."""
    pairs, rest = [], list(words)
    while rest:
        word = rest.pop(0)
        if not word.startswith("--"):
            raise UserError(f"unexpected word {word!r}: options start with --, e.g. --strategy mota")
        name, equals, value = word[2:].partition("=")
        if not equals:
            value = rest.pop(0) if rest and not rest[0].startswith("--") else "true"
        pairs.append((name.replace("-", "_"), value))
    return pairs


def parse(words: Sequence[str], command: str = "run") -> tuple[Config, Request]:
    """The configuration and request of one strategy (seeds apart)."""
    pairs = split(with_config_file(words))
    default = {"strategy": "mota", "stream": "digits", "model": "auto"}
    names = {part: _last(pairs, (part, f"{part}.name")) or default[part] for part in PARTS}
    profile = _last(pairs, ("profile",)) or "default"
    if profile not in PROFILES:
        raise unknown("profile", profile, PROFILES)
    tables = {part: options_for(part, name) for part, name in names.items()}
    parser = _parser(command, names, tables, profile)
    values = parser.parse_args([f"--{full_name(name, tables)}={value}" for name, value in pairs])
    parts = {part: {"name": names[part], **_values(values, part, tables[part])} for part in PARTS}
    seeds = _seeds(values.seeds if values.seed is None else str(values.seed))
    request = Request(
        Path(values.out), seeds, values.jobs, values.checkpoint_every,
        _trajectory(values.record_trajectory), parse_loggers(values.log),
        None if values.resume is None else Path(values.resume), values.print_config,
    )  # fmt: skip
    fixed = {"seed": seeds[0], "threads": values.threads, "deterministic": values.deterministic}
    return Config(parts["strategy"], parts["stream"], parts["model"], **fixed), request


def _parser(
    command: str, names: dict[str, str], tables: dict[str, dict[str, Option]], profile: str
) -> Parser:
    about = f"Options of strategy {names['strategy']}, stream {names['stream']}, model {names['model']}."
    parser = Parser(prog=f"manymodes {command}", description=about, exit_on_error=False)
    parser.add_argument("--out", type=str, default="runs", help="Folder for the run directories.")
    parser.add_argument("--seeds", type=str, default="0", help="Seeds, e.g. 0,1,2 or 0..4.")
    parser.add_argument("--seed", type=int | None, default=None, help="One seed.")
    parser.add_argument("--jobs", type=int, default=1, help="How many runs at the same time.")
    parser.add_argument("--threads", type=int, default=0, help="Threads per run (0: chosen by model size).")
    parser.add_argument("--deterministic", type=bool, default=False, help="The same bits on this machine.")
    parser.add_argument("--checkpoint_every", type=float | None, default=None,
                        help="Seconds between checkpoints (default: 1.5 % of the time).")  # fmt: skip
    parser.add_argument("--record_trajectory", type=str, default="auto",
                        help="Keep weights after each task: true, false, auto (below 64 MB).")  # fmt: skip
    parser.add_argument("--log", type=str, default="", help="Also log to csv, tensorboard, wandb, mlflow.")
    parser.add_argument("--resume", type=str | None, default=None, help="Go on with this run directory.")
    parser.add_argument("--profile", type=str, default="default", help="default, or paper (Appendix A.1).")
    parser.add_argument("--print_config", type=bool, default=False, help="Print the configuration and stop.")
    for part, options in tables.items():
        parser.add_argument(f"--{part}.name", type=str, default=names[part], help=f"Which {part}.")
        paper = _paper(names["strategy"]) if part == "strategy" and profile == "paper" else {}
        for option in options.values():
            default = paper.get(option.name, None if option.required else option.default)
            if (part, option.name) == ("stream", "seed"):
                default = None  # the run's seed
            parser.add_argument(
                f"--{part}.{option.name}",
                type=_type(option, default),
                default=default,
                help=option.help or " ",
            )
    return parser


def _trajectory(when: str) -> str:
    if when not in WHEN:
        raise unknown("record_trajectory", when, WHEN)
    return when


def _type(option: Option, default: Any) -> Any:
    return option.type | None if default is None else option.type


def _paper(strategy: str) -> dict[str, Any]:
    from manymodes.strategies.registry import strategy_class

    return strategy_class(strategy).paper


def full_name(name: str, tables: dict[str, dict[str, Option]]) -> str:
    """The dotted name of an option: `epochs` is `strategy.epochs` if only the strategy has it."""
    if name in PARTS:
        return f"{name}.name"
    owners = [part for part in PARTS if name in tables[part]]
    known = (
        "out",
        "seeds",
        "seed",
        "jobs",
        "threads",
        "deterministic",
        "checkpoint_every",
        "record_trajectory",
        "log",
        "resume",
        "profile",
        "print_config",
    )
    if name in known or name in ("help", "h"):
        return name
    if len(owners) == 1:
        return f"{owners[0]}.{name}"
    if len(owners) > 1:
        raise UserError(f"--{name} is ambiguous: say --" + " or --".join(f"{o}.{name}" for o in owners))
    part, dot, rest = name.partition(".")
    if dot and part in PARTS and (rest == "name" or rest in tables[part]):
        return name
    everything = [*known, *PARTS, *(f"{p}.{o}" for p in PARTS for o in tables[p])]
    if dot and part in PARTS:
        raise unknown(f"option of {part}", rest, tables[part])
    raise unknown("option", f"--{name}", [f"--{o}" for o in everything])


def _values(values: Namespace, part: str, options: dict[str, Option]) -> dict[str, Any]:
    return {name: values[f"{part}.{name}"] for name in options}


def _last(pairs: list[tuple[str, str]], names: tuple[str, ...]) -> str | None:
    return next((value for name, value in reversed(pairs) if name in names), None)


def _seeds(text: str) -> list[int]:
    try:
        found: list[int] = []
        for piece in text.strip("[]").replace(" ", "").split(","):
            first, dots, last = piece.partition("..")
            found += range(int(first), int(last) + 1) if dots else [int(first)]
    except ValueError:
        raise UserError(f"seeds must be whole numbers like 0,1,2 or 0..4, not {text!r}") from None
    if not found or min(found) < 0:
        raise UserError(f"seeds must be whole numbers from 0, not {text!r}")
    return list(dict.fromkeys(found))
