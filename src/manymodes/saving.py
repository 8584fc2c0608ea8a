"""Learners in files: one safetensors file that can be shipped, read without running anything in it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from torch import nn

from manymodes import store
from manymodes.errors import UserError, require
from manymodes.signature import options_of
from manymodes.strategies.base import Strategy
from manymodes.strategies.registry import REGISTRY, name_of, strategy_class


def save(learner: Strategy, path: str | Path) -> None:
    """Write a learner, whatever it is in the middle of, so that `load` gives the same learner."""
    meta = {
        "strategy": name_of(type(learner)),
        "options": learner.options,
        "model": getattr(learner.model.module, "recipe", None),
    }
    store.save_state(Path(path), learner.state_dict(), meta)


def load(
    path: str | Path,
    *,
    model: nn.Module | None = None,
    strategy: type[Strategy] | None = None,
    **options: Any,
) -> Strategy:
    """The learner of a file that `save` wrote.

    Networks of `manymodes.models` and registered strategies are rebuilt from the file; for your own, give
    `model` (any weights) and `strategy` (the class). A file never makes this import or run other code.
    `options` change settings of the saved learner, e.g. `device="cpu"`.
    """
    state, meta = store.load_state(Path(path))
    if strategy is None:
        require(
            meta["strategy"] in REGISTRY,
            f"{path} was saved by {meta['strategy']!r}: give that class as load(..., strategy=...)",
        )
        strategy = strategy_class(meta["strategy"])
    known = options_of(strategy, skip=("model",))
    given = {k: v for k, v in (meta["options"] | options).items() if k in known}
    learner = strategy(model or _rebuilt(meta["model"], path), **given)
    learner.load_state_dict(state)
    return learner


def _rebuilt(recipe: Any, path: str | Path) -> nn.Module:
    from manymodes.models import REGISTRY as MODELS
    from manymodes.models import find_model

    if not isinstance(recipe, dict) or recipe.get("name") not in MODELS:
        raise UserError(f"{path} holds a network that is not one of ours: give it as load(..., model=...)")
    module: nn.Module = find_model(recipe["name"])(**recipe["options"])
    return module
