"""`manymodes compare`: several strategies on the same stream."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import replace
from itertools import groupby

import yaml

from manymodes.commands.complaints import Flag
from manymodes.commands.options import Request, parse, split, with_config_file
from manymodes.commands.request import COMPARE
from manymodes.commands.run import execute_and_show
from manymodes.config import Config, build_model, build_stream, canonical, fitted, options_for, plain
from manymodes.errors import UserError, unknown
from manymodes.strategies.registry import ALL, REGISTRY


def main(argv: Sequence[str]) -> int:
    """Compare, then print the table and where the results are."""
    configs, request, equal = plan(argv)
    if request.resume is not None:
        raise UserError("--resume is for `manymodes run`: to go on with a comparison give its command again")
    if equal:
        configs = at_equal_capacity(configs)
    if request.print_config:
        return print_configs(configs)
    whole = [replace(config, seed=seed) for config in configs for seed in request.seeds]
    execute_and_show(whole, request, shlex.join(["manymodes", "compare", *argv]))
    return 0


def print_configs(configs: Sequence[Config]) -> int:
    """What would be run, a document a row."""
    print(yaml.safe_dump_all([plain(config.as_dict()) for config in configs], sort_keys=False), end="")
    return 0


def plan(argv: Sequence[str]) -> tuple[list[Config], Request, bool]:
    """One configuration per row of `--strategies a,b:option=value,...`, in each of the `--scenarios`.

    An option goes to every row whose strategy has it; `--ewc.strength 3` goes to rows of that strategy, and
    `ewc:model.depth=1` gives a row a network of its own.
    """
    pairs = split(with_config_file(argv))
    own = {name: value for name, value in pairs if name in COMPARE}
    one = next((value for name, value in pairs if name in ("strategy", "strategy.name")), None)
    if one is not None:
        raise UserError(
            f"--strategy {one} (or a run's --config) is for `manymodes run`; compare takes several: "
            f"--strategies {one},..."
        )
    if isinstance(own.get("strategies"), Flag):
        raise UserError("--strategies needs a value, e.g. finetune,ewc,mota:modes=4")
    rows = _rows(own.get("strategies", "all"))
    equal = own.get("equal_capacity", "false")
    if equal not in ("true", "false"):
        raise UserError(f"equal_capacity must be true or false, not {equal!r}")
    pairs = [(n, v) for n, v in pairs if n not in COMPARE]
    names = [row[0] for row in rows]
    options = {name: set(options_for("strategy", name)) for name in names}
    configs, request = [], None
    for name, extra in rows:
        mine = [("strategy", name)]
        for option, value in pairs:
            owner, dot, rest = option.partition(".")
            owner = canonical("strategy", owner)
            if dot and owner in names:
                mine += [(f"strategy.{rest}", value)] if owner == name else []
            elif option in options[name] or not any(option in other for other in options.values()):
                mine.append((option, value))
        everything = [*mine, *((n if n.startswith("model.") else f"strategy.{n}", v) for n, v in extra)]
        words = [f"--{n}" if isinstance(v, Flag) else f"--{n}={v}" for n, v in everything]
        config, request = parse(words, "compare")
        configs.append(config)
    assert request is not None
    labels = [config.label for config in configs]
    twice = next((label for label in labels if labels.count(label) > 1), None)
    if twice:
        raise UserError(f"--strategies names {twice!r} twice: rows must differ, e.g. mota,mota:modes=4")
    return _in_scenarios(configs, own.get("scenarios")), request, equal == "true"


def _rows(text: str) -> list[tuple[str, list[tuple[str, str]]]]:
    rows = []
    items = [row for item in text.split(",") for row in (ALL if item.strip() == "all" else [item.strip()])]
    for item in filter(None, items):
        # an import path has a colon too: my.module:Class:option=value
        pieces = item.split(":")
        named = [p for p in pieces if "=" not in p]
        own = [p.partition("=") for p in pieces if "=" in p]
        rows.append((canonical("strategy", ":".join(named)), [(k.replace("-", "_"), v) for k, _, v in own]))
    if not rows:
        raise UserError(f"--strategies needs at least one of {', '.join(REGISTRY)} (or all)")
    return rows


def _in_scenarios(configs: list[Config], text: str | None) -> list[Config]:
    """Every row in each of these scenarios, one scenario after the other."""
    from manymodes.task import SCENARIOS

    if text is None:
        return configs
    if "scenario" not in options_for("stream", configs[0].stream["name"]):
        raise UserError(f"stream {configs[0].stream['name']!r} has one scenario only: leave --scenarios out")
    wanted = list(dict.fromkeys(SCENARIOS if text == "all" else text.replace(" ", "").split(",")))
    for scenario in wanted:
        if scenario not in SCENARIOS:
            raise unknown("scenario in --scenarios", scenario, (*SCENARIOS, "all"))
    return [
        replace(config, stream=config.stream | {"scenario": scenario})
        for scenario in wanted
        for config in configs
    ]


def at_equal_capacity(configs: list[Config]) -> list[Config]:
    """Narrower networks for strategies with several modes: together no larger than the largest single."""
    from manymodes.models import count_parameters

    found: list[Config] = []
    for _, group in groupby(configs, lambda config: config.stream):  # other scenarios may have other heads
        rows = list(group)
        stream = build_stream(rows[0])
        alone = [config for config in rows if config.strategy.get("modes", 1) == 1] or rows
        budget = max(count_parameters(build_model(config, stream)) for config in alone)
        found += [fitted(config, stream, budget) for config in rows]
    return found
