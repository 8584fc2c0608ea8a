"""Learners in files: one safetensors file that can be shipped, read without running anything in it."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from manymodes import store
from manymodes.errors import DamagedFile, UserError, one_line, require
from manymodes.signature import options_of
from manymodes.strategies.base import Strategy
from manymodes.strategies.registry import REGISTRY, name_of, strategy_class

# What wrong values in a file with a right checksum can raise in honest code.
ODD = (
    KeyError,
    TypeError,
    ValueError,
    AttributeError,
    IndexError,
    RuntimeError,
    OverflowError,
    AssertionError,
)


def save(learner: Strategy, path: str | Path) -> None:
    """Write a learner, whatever it is in the middle of, so that `load` gives the same learner.

    Frozen parameters are not part of its modes and are written too.
    """
    meta = {
        "strategy": name_of(type(learner)),
        "options": learner.options,
        "model": getattr(learner.model.module, "recipe", None),
        "about": learner.about,
    }
    named = learner.model.module.named_parameters()
    frozen = {name: parameter for name, parameter in named if not parameter.requires_grad}
    store.save_state(Path(path), learner.state_dict() | {"frozen": frozen}, meta)


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
    theta, frozen, given = _checked(state, meta, path)
    if strategy is None:
        require(
            meta["strategy"] in REGISTRY,
            f"{path} was saved by {meta['strategy']!r}: give that class as load(..., strategy=...)",
        )
        strategy = strategy_class(meta["strategy"])
    known = options_of(strategy, skip=("model",))
    given = {k: v for k, v in (given | options).items() if k in known}
    modes = given.get("modes", known["modes"].default) if "modes" in known else 1
    require(modes == len(theta), f"{path} holds {len(theta)} modes, the learner would have {modes}")
    sizes = theta.shape[1], sum(tensor.numel() for tensor in frozen.values())
    module = copy.deepcopy(model) if model is not None else _rebuilt(meta.get("model"), path, sum(sizes))
    try:
        _freeze(module, frozen)
        learner = strategy(module, **given)
    except UserError:
        raise
    except ODD as error:
        raise DamagedFile(f"{path} is damaged: {one_line(error)}") from None
    give_state(learner, state, path)
    found = meta.get("about", {})
    learner.about = found if isinstance(found, dict) else {}
    return learner


def give_state(learner: Strategy, state: Any, path: str | Path) -> None:
    """learner.load_state_dict(state), where a state that does not fit is one line about its file."""
    try:
        learner.load_state_dict(state)
    except UserError as error:
        raise UserError(f"{path}: {error}") from None
    except ODD as error:
        raise UserError(
            f"{path} does not fit this learner ({one_line(error)}): it is of another strategy, network "
            "or version"
        ) from None


def export_weights(learner: Strategy, folder: Path) -> None:
    """Each mode's weights under the network's own names: any tool can load them, `--model.weights` too."""
    for mode in range(len(learner.modes)):
        learner.use(mode)
        state = {name: t.detach().cpu().clone() for name, t in learner.model.module.state_dict().items()}
        store.save_tensors(folder / f"mode{mode}.safetensors", state)
    learner.use(0)


class _Saved(NamedTuple):
    theta: Tensor
    frozen: dict[str, Tensor]
    options: dict[str, Any]


def _checked(state: Any, meta: dict[str, Any], path: str | Path) -> _Saved:
    """The modes, the frozen parameters and the options of a saved learner, if they can be ones."""
    try:
        theta, heads, outputs = state["theta"], state["heads"], state["num_outputs"]
        frozen, options = state.get("frozen", {}), meta["options"]
        assert isinstance(theta, Tensor)
        assert theta.dim() == 2
        assert isinstance(options, dict)
        assert isinstance(meta["strategy"], str)
        assert all(isinstance(tensor, Tensor) for tensor in frozen.values())
        most = theta.numel() + sum(tensor.numel() for tensor in frozen.values())
        assert outputs is None or (type(outputs) is int and 0 < outputs <= most)
        assert all(type(c) is int and 0 <= c < (outputs or 0) for head in heads for c in head)
    except ODD as error:
        raise DamagedFile(f"{path} does not hold a learner ({one_line(error)})") from None
    return _Saved(theta, frozen, options)


def _rebuilt(recipe: Any, path: str | Path, parameters: int) -> nn.Module:
    from manymodes.models import REGISTRY as MODELS
    from manymodes.models import find_model

    name = recipe.get("name") if isinstance(recipe, dict) else None
    if not isinstance(name, str) or name not in MODELS:
        raise UserError(f"{path} holds a network that is not one of ours: give it as load(..., model=...)")
    make = find_model(name)
    try:
        with torch.device("meta"):  # costs no memory: first see whether it is the network of these weights
            count = sum(p.numel() for p in make(**recipe["options"]).parameters())
        require(count == parameters, f"the network has {count} parameters, the weights {parameters}")
        module: nn.Module = make(**recipe["options"])
    except ODD as error:
        raise DamagedFile(f"{path} is damaged: its network cannot be rebuilt ({one_line(error)})") from None
    return module


@torch.no_grad()
def _freeze(module: nn.Module, frozen: dict[str, Tensor]) -> None:
    for name, tensor in frozen.items():
        parameter = module.get_parameter(name).requires_grad_(False)
        require(parameter.shape == tensor.shape, f"the network's {name!r} is not the one that was saved")
        parameter.copy_(tensor)
