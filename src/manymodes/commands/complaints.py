"""jsonargparse's complaints as one line that names the option, what it takes and what was given."""

from __future__ import annotations

import re
from typing import Any, NoReturn

from jsonargparse import ArgumentParser

from manymodes.commands.helping import Help
from manymodes.errors import UserError

KINDS = {
    "int": "a whole number", "float": "a number", "bool": "true or false", "str": "text", "list": "a list",
    "Sequence": "a list", "dict": "a mapping", "NoneType": "null",
}  # fmt: skip


class Flag(str):
    """The value "true" of an option that stands alone."""


class Parser(ArgumentParser):
    """A parser whose complaints are one UserError."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**{"formatter_class": Help} | options)

    def error(self, message: str, ex: Exception | None = None) -> NoReturn:
        """Raise instead of printing usage and leaving."""
        raise UserError(explained(message))


def explained(message: str) -> str:
    r"""A message about a value of the wrong type, in words; any other as it is, in one line.

    >>> explained("Parser key \"strategy.modes\":\n  Expected a <class 'int'>. Got value: two")
    "modes must be a whole number, not 'two'"
    """
    text = " ".join(str(message).split())
    key = re.search(r'[Kk]ey "([^"]+)"', text)
    value = re.search(r"(?:Got value|Given value): (.*)$", text)
    kinds = re.findall(r"Expected a <class '(?:[\w.]+\.)?(\w+)'>", text)
    if key is None or value is None or not kinds:
        return text
    words = [KINDS.get(kind, kind) for kind in dict.fromkeys(kinds)]
    given = "nothing" if value[1] == "" else repr(value[1])
    return f"{key[1].rpartition('.')[2]} must be {' or '.join(words)}, not {given}"
