"""The space of a hyper-parameter search: what each option may be, from a few words. Imports no torch."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple, get_args

from manymodes.errors import UserError, require
from manymodes.signature import Option

WAY_OUT = "write NAME=LOW..HIGH, NAME=LOW..HIGH:log or NAME=A,B,C"


class Space(NamedTuple):
    """One option's values: `choices`, or all from `low` to `high`."""

    part: str  # "strategy" or "model"
    name: str
    low: float = 0
    high: float = 0
    log: bool = False
    whole: bool = False
    choices: tuple[Any, ...] = ()

    def __str__(self) -> str:
        if self.choices:
            return f"{self.part}.{self.name}=" + ",".join(map(str, self.choices))
        return f"{self.part}.{self.name}={self.low:.12g}..{self.high:.12g}" + (":log" if self.log else "")

    def rounded(self, value: Any) -> Any:
        """A proposed value with four digits: a recipe that can be read out."""
        if not isinstance(value, float) or self.choices:
            return value
        return min(max(float(f"{value:.4g}"), self.low), self.high)

    def holds(self, value: Any) -> bool:
        """Whether a value is in it."""
        if self.choices:
            return value in self.choices
        return isinstance(value, int | float) and self.low <= value <= self.high


def read_space(text: str, part: str, option: Option) -> Space:
    """The space that `NAME=...` describes for an option.

    >>> option = Option("strength", float, 100.0, "")
    >>> read_space("strength=1e0..1e6:log", "strategy", option)[2:5]
    (1.0, 1000000.0, True)
    >>> read_space("epochs=5..20", "strategy", Option("epochs", int, 20, "")).whole
    True
    >>> read_space("anchor=previous,merged", "strategy", Option("anchor", str, "previous", "")).choices
    ('previous', 'merged')
    """
    values = text.partition("=")[2]
    if ".." not in values:
        choices = tuple(_value(word, option, text) for word in values.split(",") if word)
        require(len(choices) > 0, f"--space {text} has no value: {WAY_OUT}")
        return Space(part, option.name, choices=tuple(dict.fromkeys(choices)))
    bounds, _, scale = values.partition(":")
    require(scale in ("", "log"), f"--space {text}: the scale is log or nothing, not {scale!r}")
    numeric = {int, float} & {option.type, *get_args(option.type)}
    require(bool(numeric), f"--space {text}: {option.name} is not a number; {WAY_OUT}")
    whole = int in numeric and float not in numeric
    low, high = (_number(word, whole, text) for word in bounds.split("..", 1))
    require(low < high, f"--space {text}: the range must go up")
    require(low > 0 or scale == "", f"--space {text}: a log scale begins above 0")
    return Space(part, option.name, low, high, log=scale == "log", whole=whole)


def _number(word: str, whole: bool, text: str) -> float:
    try:
        number = float(word)
    except ValueError:
        number = math.nan
    require(math.isfinite(number), f"--space {text}: {word!r} is not a number; {WAY_OUT}")
    require(not whole or number == int(number), f"--space {text}: {word} is not a whole number")
    return int(number) if whole else number


def _value(word: str, option: Option, text: str) -> Any:
    """A word as the option's type."""
    kinds: Sequence[Any] = get_args(option.type) or (option.type,)
    if type(None) in kinds and word in ("null", "None"):
        return None
    if bool in kinds:
        if word.lower() not in ("true", "false"):
            raise UserError(f"--space {text}: {option.name} is true or false, not {word!r}")
        return word.lower() == "true"
    for kind in (int, float):
        if kind in kinds:
            number = _number(word, kind is int and float not in kinds, text)
            return kind(number)
    return word
