"""New initial values for a network that already exists."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from manymodes.errors import UserError, require


def find_head(module: nn.Module, name: str | None = None) -> tuple[str, nn.Module]:
    """The name and module of the layer that gives the logits: the last Linear, or the one called `name`.

    >>> find_head(nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2)))
    ('2', Linear(in_features=3, out_features=2, bias=True))
    """
    layers = dict(module.named_modules())
    if name is not None:
        require(
            name in layers and any(True for _ in layers[name].parameters(recurse=False)),
            f"the model has no layer {name!r} with parameters of its own to be its head",
        )
        return name, layers[name]
    linear = [name for name, layer in layers.items() if isinstance(layer, nn.Linear)]
    require(bool(linear), "the model has no Linear layer that could be its head: name one with head=...")
    return linear[-1], layers[linear[-1]]


def reset_head(module: nn.Module, seed: int, *, head: str | None = None) -> None:
    """Draw the head's parameters anew under a seed; the global random state is left as it was.

    >>> net = nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 2))
    >>> first, second = net[0].weight.clone(), net[1].weight.clone()
    >>> reset_head(net, seed=1)
    >>> bool((net[0].weight == first).all()), bool((net[1].weight == second).any())
    (True, False)
    """
    reset_parameters(find_head(module, head)[1], seed)


def reset_parameters(module: nn.Module, generator_seed: int) -> None:
    """Draw every trainable parameter anew under a seed; the global random state is left as it was.

    Every submodule's own `reset_parameters` is called, inner ones first as in construction, so an outer
    one has the last word. Frozen parameters keep their values. What no reset reaches is an error, and
    then nothing has changed: parameters are filled with NaN before and looked at afterwards.

    >>> net = nn.Linear(2, 1)
    >>> reset_parameters(net, 0)
    >>> once = net.weight.clone()
    >>> reset_parameters(net, 0)
    >>> torch.equal(once, net.weight)
    True
    """
    named = list(module.named_parameters())
    lazy = [name for name, parameter in named if is_lazy(parameter)]
    require(
        not lazy,
        f"parameter {', '.join(lazy)} is lazy (no shape yet): run one batch through the module first",
    )
    before = {name: tensor.detach().clone() for name, tensor in module.state_dict(keep_vars=True).items()}
    with torch.no_grad(), _seeded(generator_seed):
        for _, parameter in named:
            if parameter.requires_grad:
                parameter.fill_(torch.nan)
        for reset in _resets(module):
            reset()
        missed = [name for name, parameter in named if bool(parameter.isnan().any())]
        for name, tensor in module.state_dict(keep_vars=True).items():
            if missed or (isinstance(tensor, nn.Parameter) and not tensor.requires_grad):
                tensor.copy_(before[name])
    if missed:
        raise UserError(
            f"parameter {', '.join(missed)} cannot be drawn anew: give the module that owns it "
            "a method reset_parameters() that fills it in place"
        )


def _resets(module: nn.Module) -> Iterator[Callable[[], object]]:
    """Every submodule's reset method, innermost first, where there is something to train."""
    for child in module.children():
        yield from _resets(child)
    if any(parameter.requires_grad for parameter in module.parameters()):
        # PyTorch's attention calls its own `_reset_parameters`
        reset = getattr(module, "reset_parameters", None) or getattr(module, "_reset_parameters", None)
        if callable(reset):
            yield reset


@contextmanager
def _seeded(seed: int) -> Iterator[None]:
    with torch.random.fork_rng(devices=range(torch.cuda.device_count())):
        torch.manual_seed(seed)
        yield
