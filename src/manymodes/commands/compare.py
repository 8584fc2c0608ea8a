"""`manymodes compare`: several strategies on the same stream."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import replace

from manymodes.commands.complaints import Flag
from manymodes.commands.options import Request, parse, split, with_config_file
from manymodes.commands.run import execute_and_show
from manymodes.config import Config, build_model, build_stream, canonical, fitted, options_for
from manymodes.errors import UserError
from manymodes.strategies.registry import REGISTRY

FLAGS = ("equal_capacity",)


def main(argv: Sequence[str]) -> int:
    """Compare, then print the table and where the results are."""
    configs, request, equal = plan(argv)
    if request.resume is not None:
        raise UserError("--resume is for `manymodes run`: to go on with a comparison give its command again")
    if equal:
        configs = at_equal_capacity(configs)
    whole = [replace(config, seed=seed) for config in configs for seed in request.seeds]
    execute_and_show(whole, request, shlex.join(["manymodes", "compare", *argv]))
    return 0


def plan(argv: Sequence[str]) -> tuple[list[Config], Request, bool]:
    """One configuration per row of `--strategies a,b:option=value,...`.

    An option goes to every row whose strategy has it; `--ewc.strength 3` goes to rows of that strategy.
    """
    pairs = split(with_config_file(argv))
    wanted = [value for name, value in pairs if name == "strategies"]
    if wanted and isinstance(wanted[-1], Flag):
        raise UserError("--strategies needs a value, e.g. finetune,ewc,mota:modes=4")
    rows = _rows(wanted[-1] if wanted else "all")
    equal = any(name in FLAGS and value == "true" for name, value in pairs)
    pairs = [(n, v) for n, v in pairs if n not in ("strategies", *FLAGS)]
    names = [row[0] for row in rows]
    options = {name: set(options_for("strategy", name)) for name in names}
    configs, request = [], None
    for name, own in rows:
        mine = [("strategy", name)]
        for option, value in pairs:
            owner, dot, rest = option.partition(".")
            owner = canonical("strategy", owner)
            if dot and owner in names:
                mine += [(f"strategy.{rest}", value)] if owner == name else []
            elif option in options[name] or not any(option in other for other in options.values()):
                mine.append((option, value))
        everything = [*mine, *((f"strategy.{n}", v) for n, v in own)]
        words = [f"--{n}" if isinstance(v, Flag) else f"--{n}={v}" for n, v in everything]
        config, request = parse(words, "compare")
        configs.append(config)
    assert request is not None
    labels = [config.label for config in configs]
    twice = next((label for label in labels if labels.count(label) > 1), None)
    if twice:
        raise UserError(f"--strategies names {twice!r} twice: rows must differ, e.g. mota,mota:modes=4")
    return configs, request, equal


def _rows(text: str) -> list[tuple[str, list[tuple[str, str]]]]:
    text = ",".join(REGISTRY) if text == "all" else text
    rows = []
    for item in filter(None, (piece.strip() for piece in text.split(","))):
        # an import path has a colon too: my.module:Class:option=value
        pieces = item.split(":")
        named = [p for p in pieces if "=" not in p]
        own = [p.partition("=") for p in pieces if "=" in p]
        rows.append((canonical("strategy", ":".join(named)), [(k.replace("-", "_"), v) for k, _, v in own]))
    if not rows:
        raise UserError(f"--strategies needs at least one of {', '.join(REGISTRY)} (or all)")
    return rows


def at_equal_capacity(configs: list[Config]) -> list[Config]:
    """Narrower networks for strategies with several modes: together they do not exceed the single one."""
    from manymodes.models import count_parameters

    stream = build_stream(configs[0])
    budget = count_parameters(build_model(configs[0], stream))
    return [fitted(config, stream, budget) for config in configs]
