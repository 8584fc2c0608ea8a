"""`manymodes data fetch|check NAME`: get a stream's data, or see whether what is there is right."""

from __future__ import annotations

from collections.abc import Sequence

from manymodes.commands.options import split
from manymodes.errors import UserError, unknown

ACTIONS = ("fetch", "check")
USAGE = "usage: manymodes data fetch|check NAME [--data-dir DIR]"


def main(argv: Sequence[str]) -> int:
    """Fetch or check."""
    if not argv or argv[0] in ("-h", "--help"):
        print(USAGE)
        return 0
    if argv[0] not in ACTIONS:
        raise unknown("action", argv[0], ACTIONS, USAGE)
    if len(argv) < 2 or argv[1].startswith("--"):
        raise UserError(f"which stream? {USAGE}")
    options = dict(split(argv[2:]))
    data_dir = options.pop("data_dir", None)
    if options:
        raise unknown("option", f"--{next(iter(options))}", ["--data-dir"])
    from manymodes.streams import manage

    action = manage.fetch_stream if argv[0] == "fetch" else manage.check_stream
    for line in action(argv[1], data_dir):
        print(line)
    return 0
