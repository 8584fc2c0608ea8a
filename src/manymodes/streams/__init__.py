"""Streams of tasks by name, one function each; a function's file is imported when it is first asked for."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from importlib import import_module
from typing import TYPE_CHECKING, Any

from manymodes.errors import UserError, require, unknown
from manymodes.streams.registry import STREAMS

if TYPE_CHECKING:
    from manymodes.streams.cifar100 import split_cifar100 as split_cifar100
    from manymodes.streams.digits8x8 import digits as digits
    from manymodes.streams.domain_net import domainnet as domainnet
    from manymodes.streams.hub import huggingface as huggingface
    from manymodes.streams.own_arrays import arrays as arrays
    from manymodes.streams.own_folder import folder as folder
    from manymodes.streams.pacs_domains import pacs as pacs
    from manymodes.streams.tiny_imagenet import split_tiny_imagenet as split_tiny_imagenet
    from manymodes.task import Stream

_FUNCTIONS = {entry.function: entry.where for entry in STREAMS.values()}

__all__ = ["STREAMS", "find_stream", "make_stream", *_FUNCTIONS]


def __getattr__(name: str) -> Any:
    if name not in _FUNCTIONS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return _load(_FUNCTIONS[name])


def __dir__() -> list[str]:
    return sorted(__all__)


def make_stream(name: str, **options: Any) -> Stream:
    """The stream called `name`: a registered one, `huggingface:DATASET`, or `my.module:function`.

    >>> len(make_stream("digits", tasks=2))
    2
    """
    if name.startswith("huggingface:"):
        dataset = name.partition(":")[2]
        require(bool(dataset), "stream 'huggingface:' needs a name, e.g. huggingface:cifar100")
        options = {"dataset": dataset, **options}
    function = find_stream(name)
    parameters = inspect.signature(function).parameters
    if not any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters.values()):
        for option in options:
            if option not in parameters:
                raise unknown(f"option of stream {name!r}", option, parameters)
    missing = [p.name for p in parameters.values() if _needed(p) and p.name not in options]
    if missing:
        raise UserError(f"stream {name!r} needs {' and '.join(f'{option}=...' for option in missing)}")
    return function(**options)


def find_stream(name: str) -> Callable[..., Stream]:
    """The function behind a stream's name, dashes and underscores alike, or behind an import path."""
    if name.startswith("huggingface:"):
        name = "huggingface"
    if ":" in name:
        return _load(name)
    known = {key.replace("-", "_"): entry for key, entry in STREAMS.items()}
    entry = known.get(name.replace("-", "_"))
    if entry is None:
        raise unknown("stream", name, STREAMS, "Or an import path: my.module:function")
    return _load(entry.where)


def _load(where: str) -> Callable[..., Stream]:
    module_name, _, attribute = where.partition(":")
    try:
        found: Callable[..., Stream] = getattr(import_module(module_name), attribute)
    except ImportError as error:
        raise UserError(f"cannot import the stream {where!r}: {error}") from error
    except AttributeError:
        raise UserError(f"module {module_name!r} has no function {attribute!r}") from None
    if not callable(found):
        raise UserError(f"{where!r} is not a function that makes a Stream")
    return found


def _needed(parameter: inspect.Parameter) -> bool:
    variable = (inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL)
    return parameter.default is inspect.Parameter.empty and parameter.kind not in variable
