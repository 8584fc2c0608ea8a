"""What a run remembers of its stream: the order of the classes, and what each task holds."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from manymodes.config import plain
from manymodes.errors import one_line

if TYPE_CHECKING:
    from manymodes.task import Stream


def facts(stream: Stream) -> dict[str, Any]:
    """What must be the same when a run goes on, as plain values; where the files lie is free."""
    names = "name", "scenario", "num_outputs", "input_shape", "class_names"
    info = {key: value for key, value in stream.info.items() if key != "source"}
    found: dict[str, Any] = plain({name: getattr(stream, name) for name in names} | {"info": info})
    return found


def difference(before: Any, now: Any, path: str = "") -> str:
    """The first difference of two plain values, in words.

    >>> difference({"a": [1, {"b": 2}]}, {"a": [1, {"b": 3}]})
    'a.1.b was 2, is 3'
    """
    if isinstance(before, list) and isinstance(now, list) and len(before) == len(now):
        before, now = (dict(enumerate(values)) for values in (before, now))
    if isinstance(before, dict) and isinstance(now, dict):
        keys = dict.fromkeys([*before, *now])
        found = (difference(before.get(key), now.get(key), f"{path}.{key}") for key in keys)
        return next(filter(None, found), "")
    return "" if before == now else f"{path[1:]} was {one_line(before, 40)}, is {one_line(now, 40)}"
