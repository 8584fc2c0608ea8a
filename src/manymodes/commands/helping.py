"""How --help looks: short names, defaults where there are any, and no types that a reader has to decode."""

from __future__ import annotations

from argparse import SUPPRESS, Action
from collections.abc import Iterable
from typing import Any, ClassVar

from jsonargparse import DefaultHelpFormatter

WITHOUT = (None, "", SUPPRESS)  # defaults that say nothing, like False


class Help(DefaultHelpFormatter):
    """`--modes MODES  N, how many modes. (default: 2)`."""

    shown: ClassVar[
        dict[str, str]
    ] = {}  # the name under which an option is shown, where it has a shorter one

    def _get_help_string(self, action: Action) -> str:
        text = action.help or ""
        told = action.default in WITHOUT or action.default is False or "default" in text
        if action.option_strings and not told:
            text += " (default: %(default)s)"
        return text

    def add_usage(self, usage: str | None, actions: Iterable[Action], *args: Any, **kwargs: Any) -> None:
        """What has to be given, then that there are options: they are listed below."""
        actions = list(actions)
        words = [a.dest.upper() + (" ..." if a.nargs == "+" else "") for a in actions if not a.option_strings]
        super().add_usage(usage or " ".join(["%(prog)s", *words, "[options]"]), actions, *args, **kwargs)

    def _format_action_invocation(self, action: Action) -> str:
        if not action.option_strings:
            return action.dest.upper()
        names = list(dict.fromkeys(self.shown.get(n, n.replace("_", "-")) for n in action.option_strings))
        text = ", ".join(names)
        if action.nargs == 0 or (action.default is False and "." not in names[0]):
            return text
        metavar = action.metavar or self._get_default_metavar_for_optional(action)
        return f"{text} {metavar}"


def short_names(full: dict[str, list[str]], reserved: tuple[str, ...]) -> dict[str, str]:
    """--strategy.modes is shown as --modes where no other part has that option.

    >>> short_names({"strategy": ["name", "modes", "seed"], "model": ["name", "head"]}, ("seed",))
    {'--strategy.name': '--strategy', '--strategy.modes': '--modes', '--strategy.seed': '--strategy.seed', \
'--model.name': '--model', '--model.head': '--head'}
    """
    every = [option for options in full.values() for option in options] + list(reserved)
    found = {}
    for part, options in full.items():
        for option in options:
            short = part if option == "name" else option if every.count(option) == 1 else f"{part}.{option}"
            found[f"--{part}.{option}"] = f"--{short}".replace("_", "-")
    return found
