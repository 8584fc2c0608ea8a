"""More outputs for a learner: new classes arrive that its network has no output for."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from manymodes.errors import UserError, require
from manymodes.flat import FlatModel
from manymodes.models import REGISTRY as MODELS
from manymodes.models import find_model
from manymodes.strategies.base import Strategy
from manymodes.train import randomness

VECTORS = ("theta", "anchor")  # of a state: what is as long as the parameters, and starts like them
ZEROS = ("importance",)  # and what starts at zero: nothing is known about a new output


def grow(learner: Strategy, outputs: int) -> Strategy:
    """The same learner with `outputs` outputs: what it predicts over the old ones stays as it is.

    New parameters start as a fresh network's, the same in every mode; no spring holds them. The network
    must be one of `manymodes.models`, and no task may be under way.

    >>> import manymodes as mm
    >>> x, y = torch.randn(20, 4), torch.arange(20) % 2
    >>> small = mm.EWC(mm.models.mlp(4, [8], outputs=2), epochs=1).learn(x, y)
    >>> grown = grow(small, 3)
    >>> bool(torch.allclose(grown.predict(x)[:, :2], small.predict(x))), grown.predict(x).shape[1]
    (True, 3)
    """
    recipe = getattr(learner.model.module, "recipe", None)
    if not isinstance(recipe, dict) or recipe.get("name") not in MODELS:
        raise UserError(
            f"new classes need {outputs} outputs, and a network that is not one of ours cannot grow: build "
            "it with more outputs from the start"
        )
    require(learner.epochs_done is None, "a learner cannot grow within a task: finish the task first")
    before = int(recipe["options"]["outputs"])
    require(outputs > before, f"the network has {before} outputs: it cannot grow to {outputs}")
    with randomness(learner.seed, "grow", outputs):
        module = find_model(recipe["name"])(**recipe["options"] | {"outputs": outputs})
    _take_frozen(module, learner)
    grown = type(learner)(module, **learner.options)
    state = _grown(learner.state_dict(), "", _places(learner.model, grown.model), grown.modes.theta[0])
    grown.load_state_dict(state | {"num_outputs": outputs})
    grown.about = dict(learner.about)
    return grown


@torch.no_grad()
def _take_frozen(module: torch.nn.Module, learner: Strategy) -> None:
    for name, parameter in learner.model.module.named_parameters():
        if not parameter.requires_grad:
            own = module.get_parameter(name)
            require(
                own.shape == parameter.shape, f"the frozen layer {name!r} depends on the number of outputs"
            )
            own.requires_grad_(False).copy_(parameter)


def _places(old: FlatModel, new: FlatModel) -> Tensor:
    """Where each old parameter lies in the new vector: rows of outputs are added at the end."""
    segments = {segment.name: segment for segment in new.segments}
    places = []
    for segment in old.segments:
        target = segments[segment.name]
        lies = torch.arange(target.slice.start, target.slice.stop).view(target.shape)
        if target.shape != segment.shape:
            assert target.shape[1:] == segment.shape[1:]
            lies = lies[: segment.shape[0]]
        places.append(lies.reshape(-1))
    return torch.cat(places)


def _grown(value: Any, key: str, places: Tensor, fresh: Tensor) -> Any:
    """A state with every vector of parameters in its new places."""
    if isinstance(value, dict):
        return {name: _grown(entry, name, places, fresh) for name, entry in value.items()}
    if isinstance(value, list):
        return [_grown(entry, key, places, fresh) for entry in value]
    if not isinstance(value, Tensor):
        return value
    if key in VECTORS or key in ZEROS:
        start = fresh if key in VECTORS else torch.zeros_like(fresh)
        wide = start.expand(*value.shape[:-1], -1).clone()
        wide[..., places.to(wide.device)] = value.to(wide)
        return wide
    require(
        value.dim() == 0 or value.shape[-1] != len(places),
        f"this strategy keeps {key!r} as long as its parameters, and nothing is known of how that grows",
    )
    return value
