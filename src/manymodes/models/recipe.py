"""How a network was made, kept with it, so that a saved learner can rebuild it without running code."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar

from torch import nn

P = ParamSpec("P")
M = TypeVar("M", bound=nn.Module)


def recorded(name: str) -> Callable[[Callable[P, M]], Callable[P, M]]:
    """Give the modules that a function makes a `recipe`: the registered name and the arguments.

    >>> from manymodes.models import mlp
    >>> mlp(4, (3,), outputs=2).recipe
    {'name': 'mlp', 'options': {'inputs': 4, 'hidden': [3], 'outputs': 2, 'width': 1.0}}
    """

    def decorate(make: Callable[P, M]) -> Callable[P, M]:
        @wraps(make)
        def made(*args: P.args, **kwargs: P.kwargs) -> M:
            module = make(*args, **kwargs)
            bound = inspect.signature(make).bind(*args, **kwargs)
            bound.apply_defaults()
            # a saved learner brings its own weights, and reads no other file
            given = {k: v for k, v in bound.arguments.items() if k not in ("weights", "cache")}
            options = {k: list(v) if isinstance(v, tuple) else v for k, v in given.items()}
            module.recipe = {"name": name, "options": options}  # type: ignore[assignment]
            return module

        return made

    return decorate
