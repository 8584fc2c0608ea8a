"""Names that make Python import code: taken from what a person types, never from a file alone."""

from __future__ import annotations

import shlex
from collections.abc import Iterable

from manymodes.config import PARTS
from manymodes.errors import UserError

LIBRARIES = ("huggingface", "timm", "torchvision", "hf")  # names with a colon that are nobody's own code

Pairs = Iterable[tuple[str, str]]


def own_code(name: str) -> bool:
    """Whether a strategy, stream or model is named by an import path.

    >>> own_code("my.module:Learner"), own_code("mota"), own_code("timm:vit_tiny")
    (True, False, False)
    """
    return ":" in name and name.partition(":")[0] not in LIBRARIES


def check_typed(where: str, written: Pairs, typed: Pairs) -> None:
    """Every import path that `where` has written must be typed too: the file may come from anybody."""
    agreed = {name for _, name in _names(typed)}
    for option, name in _names(written):
        if own_code(name) and name not in agreed:
            raise UserError(
                f"{where} imports {option} {name!r}: if that is yours, say so by adding "
                f"--{option} {shlex.quote(name)}"
            )


def _names(pairs: Pairs) -> list[tuple[str, str]]:
    """(option, name) of all strategies, streams and models that options name."""
    found = []
    for option, value in pairs:
        part = option.removesuffix(".name")
        if part in PARTS:
            found.append((part, value))
        elif option == "strategies":  # mota:modes=4,my.module:Class:lr=1
            items = [item.strip().split(":") for item in value.split(",")]
            found += [(option, ":".join(piece for piece in item if "=" not in piece)) for item in items]
    return found
