"""`manymodes reproduce`: a table or figure of the paper, our numbers beside the published ones."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from rich.console import Console
from rich.table import Table

from manymodes import reproduce
from manymodes.commands.compare import at_equal_capacity, plan, print_configs
from manymodes.commands.options import Request, flattened, split
from manymodes.commands.run import execute_and_show
from manymodes.config import Config
from manymodes.errors import UserError

USAGE = "usage: manymodes reproduce TARGET [--profile paper|small|frozen|smoke] [options of compare]"


def main(argv: Sequence[str]) -> int:
    """Do everything the target needs, resuming what is there; print the tables."""
    if not argv or argv[0] in ("-h", "--help"):
        print(f"{USAGE}\n\ntargets:")
        for name, about in reproduce.recipes().items():
            if name != "demo":
                print(f"  {name:<8} {about}")
        return 0
    if argv[0].startswith("--"):
        raise UserError(f"which table or figure? {USAGE}")
    pairs = split(argv[1:])
    profile = next((value for name, value in reversed(pairs) if name == "profile"), "small")
    given = [f"--{name}={value}" for name, value in pairs if name != "profile"]
    recipe = reproduce.load(argv[0], profile)
    out = [] if any(name == "out" for name, _ in pairs) else [f"--out=runs/{argv[0]}-{profile}"]
    configs, request, equal = plan([*flattened(reproduce.options(recipe)), *given, *out])
    configs = reproduce.with_backbones(configs, recipe)
    if equal:
        configs = at_equal_capacity(configs)
    if request.print_config:
        return print_configs(configs)
    if "pretrain" in recipe:
        configs = [_pretrained(config, recipe, request) for config in configs]
    whole = [replace(config, seed=seed) for config in configs for seed in request.seeds]
    results = execute_and_show(whole, request)
    _show_beside(recipe, whole, results)
    return 0


def _pretrained(config: Config, recipe: dict[str, Any], request: Request) -> Config:
    """The same configuration, its network pretrained (once for each width, kept beside the runs)."""
    from manymodes.grid import execute_all

    first = reproduce.pretraining(config, recipe)
    folder = request.out / f"pretrained-{first.model['name']}-{first.model['width']:g}"
    execute_all([first], request.out, paths=[folder], cluster=request.cluster)
    weights = folder / "weights" / "mode0.safetensors"
    return replace(config, model=config.model | {"weights": str(weights)})


def _show_beside(
    recipe: dict[str, Any], configs: Sequence[Config], results: Sequence[dict[str, Any]]
) -> None:
    grouped: dict[str, list[dict[str, Any]]] = {}
    for config, result in zip(configs, results, strict=True):
        grouped.setdefault(config.label, []).append(result)
    rows = reproduce.beside(recipe, grouped)
    if not rows:
        return
    table = Table(title="beside the paper", title_justify="left", header_style="bold")
    for header in ("method", "metric", "ours", "published", "difference"):
        table.add_column(header, justify="left" if header in ("method", "metric") else "right")
    for row in rows:
        table.add_row(*row)
    Console().print(table)
