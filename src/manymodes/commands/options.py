"""From words on the command line (and a YAML file) to a Config; every option comes from a signature."""

from __future__ import annotations

import json
from argparse import SUPPRESS
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from jsonargparse import Namespace

from manymodes.commands.complaints import Flag
from manymodes.commands.complaints import Parser as Parser
from manymodes.commands.helping import Help, short_names
from manymodes.commands.request import FLAGS, NAMES, add_arguments, add_compare_arguments, request_of
from manymodes.commands.request import Request as Request
from manymodes.commands.trust import check_typed
from manymodes.config import Config, canonical, options_for
from manymodes.errors import UserError, unknown
from manymodes.files import read_yaml
from manymodes.reproduce import recipe_file
from manymodes.signature import Option

PARTS = ("strategy", "stream", "model")
LISTED = {"strategy": "strategies", "stream": "streams", "model": "models"}
PROFILES = ("default", "paper")
ABOUT = {
    "run": "Learn a stream with one strategy. Below are the options of the strategy, stream and network that "
    "are named (or the default ones): name others and ask again to see theirs. --config FILE takes options "
    "from YAML.",
    "compare": "Several strategies on one stream, in one table. Below are the options that all strategies "
    "share; each has its own too: manymodes run --strategy mota --help. Give them to a row (--strategies "
    "ewc,mota:modes=4:drift=both) or to all rows of a strategy (--ewc.strength 3).",
}


def with_config_file(words: Sequence[str]) -> list[str]:
    """Replace `--config FILE` by the file's options; what is given explicitly comes later and wins."""
    words, plain, from_file, files = list(words), [], [], []
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
        files.append(value)
        from_file += flattened(_read_yaml(_config_path(value)))
    if from_file:
        check_typed(f"--config {', '.join(files)}", split(from_file), split(plain))
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
            value = rest.pop(0) if rest and not rest[0].startswith("--") else Flag("true")
        pairs.append((name.replace("-", "_"), value))
    return pairs


def parse(words: Sequence[str], command: str = "run") -> tuple[Config, Request]:
    """The configuration and request of one strategy (seeds apart)."""
    pairs = split(with_config_file(words))
    default = {"strategy": "mota", "stream": "digits", "model": "auto"}
    given = {part: _last(pairs, (part, f"{part}.name")) or default[part] for part in PARTS}
    names = {part: canonical(part, name) for part, name in given.items()}
    profile = _last(pairs, ("profile",)) or "default"
    if profile not in PROFILES:
        raise unknown("profile", profile, PROFILES)
    tables = {part: options_for(part, name) for part, name in names.items()}
    parser = _parser(command, names, tables, profile)
    values = parser.parse_args([_word(full_name(name, tables), value, tables) for name, value in pairs])
    parts = {part: {"name": names[part], **_values(values, part, tables[part])} for part in PARTS}
    request = request_of(values, _last_name(pairs, ("seed", "seeds")) == "seed")
    fixed = {"seed": request.seeds[0], "threads": values.threads, "deterministic": values.deterministic}
    return Config(parts["strategy"], parts["stream"], parts["model"], **fixed), request


def _parser(
    command: str, names: dict[str, str], tables: dict[str, dict[str, Option]], profile: str
) -> Parser:
    rows = "[--strategies NAMES]" if command == "compare" else "[--strategy NAME]"
    parser = Parser(
        prog=f"manymodes {command}",
        usage=f"manymodes {command} {rows} [--stream NAME] [--model NAME] [--OPTION VALUE ...]",
        description=ABOUT.get(command),
        exit_on_error=False,
        formatter_class=type("Help", (Help,), {"shown": _shown(tables)}),
    )
    if command == "compare":
        add_compare_arguments(parser)
    paper = _paper(names["strategy"]) if profile == "paper" else {}
    add_arguments(parser, str(paper.get("seed", 0)))
    for part, options in tables.items():
        title = "every strategy" if (command, part) == ("compare", "strategy") else f"{part} {names[part]}"
        group = parser.add_argument_group(title)
        which = f"Which {part}; manymodes list {LISTED[part]} shows them."
        which = SUPPRESS if (command, part) == ("compare", "strategy") else which
        group.add_argument(f"--{part}.name", type=str, default=names[part], help=which)
        for option in options.values():
            default = None if option.required else option.default
            if part == "strategy":
                default = paper.get(option.name, default)
            if (part, option.name) == ("stream", "seed"):
                default = None  # the run's seed
            group.add_argument(
                f"--{part}.{option.name}",
                type=_type(option, default),
                default=default,
                help=option.help or " ",
            )
    return parser


def _shown(tables: dict[str, dict[str, Option]]) -> dict[str, str]:
    return short_names({part: ["name", *options] for part, options in tables.items()}, NAMES)


def _word(name: str, value: str, tables: dict[str, dict[str, Option]]) -> str:
    """The word that argparse gets; an option that needs a value has one."""
    if name in ("help", "h"):
        return "--help"
    part, _, option = name.partition(".")
    alone = name in FLAGS or (option in tables.get(part, {}) and tables[part][option].type is bool)
    if isinstance(value, Flag) and not alone:
        raise UserError(f"--{option or part} needs a value")
    return f"--{name}={value}"


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
    if name in NAMES or name in ("help", "h"):
        return name
    if len(owners) == 1:
        return f"{owners[0]}.{name}"
    if len(owners) > 1:
        raise UserError(f"--{name} is ambiguous: say --" + " or --".join(f"{o}.{name}" for o in owners))
    part, dot, rest = name.partition(".")
    if dot and part in PARTS and (rest == "name" or rest in tables[part]):
        return name
    if dot and part in PARTS:
        raise unknown(f"option of {part}", rest, tables[part])
    every = [option for part in PARTS for option in tables[part]]
    short = [o if every.count(o) == 1 else f"{p}.{o}" for p in PARTS for o in tables[p]]
    raise unknown("option", f"--{name}", {f"--{o}" for o in (*NAMES, *PARTS, *short)})


def _values(values: Namespace, part: str, options: dict[str, Option]) -> dict[str, Any]:
    return {name: values[f"{part}.{name}"] for name in options}


def _last_name(pairs: list[tuple[str, str]], names: tuple[str, ...]) -> str | None:
    return next((name for name, _ in reversed(pairs) if name in names), None)


def _last(pairs: list[tuple[str, str]], names: tuple[str, ...]) -> str | None:
    value = next((value for name, value in reversed(pairs) if name in names), None)
    if isinstance(value, Flag):
        raise UserError(f"--{names[0]} needs a value")
    return value
