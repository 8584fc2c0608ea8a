"""The errors a person can cause: each is one line that says what to do about it."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches


class UserError(ValueError):
    """A mistake in what was asked or given; its text is one line for the person.

    The command line prints it and exits with `code`; library users may catch it as a ValueError.
    """

    code = 2


class DamagedFile(UserError):
    """A file that is truncated, altered or not what its name says."""


class TrainingDiverged(UserError):
    """The loss stopped being a finite number."""


class PastDataError(RuntimeError):
    """A strategy that promised not to rehearse asked for an earlier task's data."""


def one_line(error: object, most: int = 200) -> str:
    r"""What an error says, in one line of bearable length that a terminal can show.

    >>> one_line(ValueError("no\n  \x1b[31mgood")), one_line(KeyError())
    ('no \\x1b[31mgood', 'KeyError')
    """
    words = " ".join(str(error).split()) or type(error).__name__
    text = "".join(c if c.isprintable() else repr(c)[1:-1] for c in words)
    return text if len(text) <= most else text[:most] + "..."


def unknown(kind: str, value: object, valid: Iterable[str], way_out: str = "") -> UserError:
    """The error for a name that is not in a list.

    >>> print(unknown("strategy", "ewk", ["ewc", "mota"]))
    unknown strategy 'ewk'; did you mean 'ewc'? Valid: ewc, mota
    """
    names = sorted(valid)
    near = get_close_matches(str(value), names, n=1)
    hint = f"; did you mean {near[0]!r}?" if near else "."
    tail = f". {way_out}" if way_out else ""
    return UserError(f"unknown {kind} {str(value)!r}{hint} Valid: {', '.join(names)}{tail}")


def require(condition: bool, message: str) -> None:
    """Raise UserError(message) unless the condition holds."""
    if not condition:
        raise UserError(message)
