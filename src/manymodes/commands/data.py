"""`manymodes data fetch|check NAME`: get a stream's data, or see whether what is there is right."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from manymodes.commands.options import parse, split
from manymodes.errors import UserError, unknown

ACTIONS = ("fetch", "check")
USAGE = "usage: manymodes data fetch|check NAME [--data-dir DIR] [--OPTION VALUE ...]"
ABOUT = """
fetch  download what the stream NAME needs; what is there is kept, what was cut off goes on
check  read it again, load the stream and say what it holds; takes the stream's own options, as `run` does:
       manymodes data check folder --path photos/ --scenario class

manymodes list streams shows the names."""


def main(argv: Sequence[str]) -> int:
    """Fetch or check."""
    if not argv or {"-h", "--help"} & set(argv):
        print(USAGE + "\n" + ABOUT)
        return 0
    if argv[0] not in ACTIONS:
        raise unknown("action", argv[0], ACTIONS, USAGE)
    if len(argv) < 2 or argv[1].startswith("--"):
        raise UserError(f"which stream? {USAGE}")
    name, pairs = argv[1], split(argv[2:])
    data_dir = next((value for option, value in reversed(pairs) if option == "data_dir"), None)
    pairs = [(option.removeprefix("stream."), value) for option, value in pairs if option != "data_dir"]
    from manymodes.streams import manage

    if argv[0] == "check":
        lines = manage.check_stream(name, data_dir, **_options(name, pairs))
    elif pairs:
        raise unknown("option", f"--{pairs[0][0]}", ["--data-dir"])
    else:
        lines = manage.fetch_stream(name, data_dir)
    print("\n".join(lines))
    return 0


def _options(name: str, pairs: Sequence[tuple[str, str]]) -> dict[str, Any]:
    """The stream's own options, with the types that its signature says."""
    from manymodes.config import options_for

    valid = options_for("stream", name)
    for option, _ in pairs:
        if option not in valid:
            raise unknown("option", f"--{option}", {f"--{n.replace('_', '-')}" for n in {*valid, "data_dir"}})
    words = [f"--stream.{option}={value}" for option, value in pairs]
    config, _ = parse([f"--stream={name}", *words])
    return {option: config.stream[option] for option, _ in pairs}
