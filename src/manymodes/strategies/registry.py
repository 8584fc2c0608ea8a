"""The strategies by name. Importing this does not import torch, so that `--help` is quick."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, NamedTuple

from manymodes.errors import UserError, unknown

if TYPE_CHECKING:
    from manymodes.strategies.base import Strategy


class Entry(NamedTuple):
    """Where a strategy is, and what it is in a line."""

    where: str
    about: str


REGISTRY: dict[str, Entry] = {
    "finetune": Entry("finetune:Finetune", "plain training on each task in turn: the lower bound"),
    "multitask": Entry("multitask:Multitask", "all seen tasks at once, keeps all data: the upper bound"),
    "ewc": Entry("ewc:EWC", "elastic weight consolidation: important parameters are held"),
    "si": Entry("si:SI", "synaptic intelligence: parameters are held by what they did for the loss"),
    "lwf": Entry("lwf:LwF", "learning without forgetting: the old outputs are kept on new inputs"),
    "lwf-ewc": Entry("lwf_ewc:LwFEWC", "LwF and EWC together: the strongest single network without data"),
    "er": Entry("er:ER", "experience replay: half of each step is from a small memory"),
    "agem": Entry("agem:AGEM", "A-GEM: no step against the gradient of a small memory"),
    "ensemble": Entry("ensemble:Ensemble", "N independent networks, started apart or from seeds"),
    "mota": Entry("mota:MOTA", "several modes; each task moves only those that need to move"),
}

# What `--strategies all` compares: everything, and the paper's second ensemble.
ALL = [row for name in REGISTRY for row in ([name, "ensemble:init=seeds"] if name == "ensemble" else [name])]


def strategy_class(name: str) -> type[Strategy]:
    """The class of a registered name or of an import path `package.module:Class`."""
    from manymodes.strategies.base import Strategy

    if ":" not in name:
        key = name.lower().replace("_", "-")
        if key not in REGISTRY:
            raise unknown("strategy", name, REGISTRY, "Your own: --strategy package.module:Class.")
        name = f"manymodes.strategies.{REGISTRY[key].where}"
    module_name, class_name = name.split(":", 1)
    try:
        found = getattr(importlib.import_module(module_name), class_name)
    except (ImportError, AttributeError) as error:
        raise UserError(f"strategy {name!r} cannot be imported: {error}") from None
    if not (isinstance(found, type) and issubclass(found, Strategy)):
        raise UserError(f"strategy {name!r} is not a subclass of manymodes.Strategy")
    return found


def name_of(cls: type[Strategy]) -> str:
    """The registered name of a class, or its import path."""
    path = f"{cls.__module__}:{cls.__qualname__}"
    return next((n for n, e in REGISTRY.items() if path == f"manymodes.strategies.{e.where}"), path)
