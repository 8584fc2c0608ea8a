"""A constructor's keyword arguments, with types, defaults and help: the one source of every option."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import lru_cache, partial
from typing import Any, NamedTuple, get_type_hints

import docstring_parser

from manymodes.errors import unknown


class Option(NamedTuple):
    """One keyword argument."""

    name: str
    type: Any
    default: Any
    help: str

    @property
    def required(self) -> bool:
        """Whether it has no default."""
        return self.default is inspect.Parameter.empty


def options_of(target: Callable[..., Any], skip: tuple[str, ...] = ()) -> dict[str, Option]:
    r"""The options of a function, or of a class with those its base classes add through **kwargs.

    >>> def make(inputs: int, *, width: float = 1.0): "Make.\n\nArgs:\n    width: How wide."
    >>> options_of(make, skip=("inputs",))
    {'width': Option(name='width', type=<class 'float'>, default=1.0, help='How wide.')}
    """
    return dict(_options_of(target, skip))


@lru_cache(
    maxsize=256
)  # a run asks for the same ones twenty times, and parsing docstrings takes milliseconds
def _options_of(target: Callable[..., Any], skip: tuple[str, ...]) -> dict[str, Option]:
    classes = target.__mro__[:-1] if isinstance(target, type) else ()
    functions = [vars(c)["__init__"] for c in classes if "__init__" in vars(c)] or [target]
    docs = [c.__doc__ for c in classes] or [_whole(target).__doc__]
    helps: dict[str, str] = {}
    for doc in docs:
        for entry in docstring_parser.parse(doc or "").params:
            helps.setdefault(entry.arg_name, " ".join((entry.description or "").split()))
    found: dict[str, Option] = {}
    for function in functions:
        hints = get_type_hints(_whole(function))
        for name, parameter in inspect.signature(function).parameters.items():
            named = parameter.kind in (parameter.KEYWORD_ONLY, parameter.POSITIONAL_OR_KEYWORD)
            if named and name not in ("self", *skip) and name not in found:
                found[name] = Option(name, hints.get(name, Any), parameter.default, helps.get(name, ""))
    return found


def _whole(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function of which a partial gives some arguments: it has the types and the docstring."""
    return _whole(function.func) if isinstance(function, partial) else function


def check_names(kind: str, given: dict[str, Any], options: dict[str, Option]) -> None:
    """Raise on a keyword that the target does not have."""
    for name in given:
        if name not in options:
            raise unknown(f"option of {kind}", name, options)
