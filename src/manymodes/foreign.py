"""A saved learner whose network or strategy is not one of ours: made again by the names a person types.

A file alone never makes this import anything. A run directory's configuration is believed where it names a
network of timm, torchvision or transformers, which is rebuilt without its published weights.
"""

from __future__ import annotations

import shlex
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any

from manymodes import store
from manymodes.config import options_for
from manymodes.errors import UserError, require
from manymodes.runfiles import RunFiles
from manymodes.strategies.registry import REGISTRY, name_of, strategy_class
from manymodes.task import Stream, Task

if TYPE_CHECKING:
    from torch import nn


def given(path: Path, model: str | None = None, strategy: str | None = None) -> dict[str, Any]:
    """What `load` needs beside a learner's file: nothing where strategy and network are ours."""
    meta, _ = store.read_meta(path)
    found: dict[str, Any] = {}
    saved = str(meta.get("strategy"))
    if saved not in REGISTRY:
        if strategy is None:
            raise UserError(f"{path} was learnt by {saved}: say so by adding --strategy {shlex.quote(saved)}")
        found["strategy"] = strategy_class(strategy)
        require(name_of(found["strategy"]) == saved, f"{path} was learnt by {saved}, not {strategy}")
    from manymodes.models import REGISTRY as MODELS

    recipe = meta.get("model")
    if not isinstance(recipe, dict) or recipe.get("name") not in MODELS:
        found["model"] = _network(path, model)
    return found


def _network(path: Path, typed: str | None) -> nn.Module:
    from manymodes.models import build_model
    from manymodes.models.elsewhere import LIBRARIES

    saved = _saved(path)
    known = str(saved.get("name", ""))
    name = typed or (known if known.partition(":")[0] in LIBRARIES else None)
    if name is None:
        raise UserError(
            f"{path} holds a network of your own: say which by adding --model "
            f"{shlex.quote(known) if ':' in known else 'my.module:make'}"
        )
    options = {}
    if name == known:
        table = options_for("model", name)
        options = {k: v for k, v in saved.items() if k in table and k not in ("weights", "head")}
        options |= {"pretrained": False} if "pretrained" in table else {}
    state, meta = store.load_state(path)
    try:
        shape, outputs = tuple(meta["about"]["input"]["shape"]), int(state["num_outputs"])
        assert all(isinstance(size, int) and size > 0 for size in shape)
        assert prod(shape) < 10**9
    except (KeyError, TypeError, ValueError, AssertionError):
        raise UserError(f"{path} does not say which inputs its network takes: use it from Python") from None
    stream = Stream(path.name, "task", outputs, shape, (_no_task,))
    return build_model(name, stream, **options)


def _saved(path: Path) -> dict[str, Any]:
    """The network of the run that the file lies in, with its options."""
    try:
        found = RunFiles(path.parent).config()["model"]
    except UserError:
        return {}
    return found if isinstance(found, dict) else {}


def _no_task() -> Task:
    raise NotImplementedError
