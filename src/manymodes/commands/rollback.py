"""`manymodes rollback RUN TASK`: back to the version after that task."""

from __future__ import annotations

from collections.abc import Sequence

from manymodes.commands.options import Parser


def main(argv: Sequence[str]) -> int:
    """Put an earlier (or later) version in use."""
    parser = Parser(
        prog="manymodes rollback",
        description="Put the version after TASK tasks in use again; the others stay where they are.",
        exit_on_error=False,
    )
    parser.add_argument("run", type=str, help="A run directory, or a learner.safetensors.")
    parser.add_argument("task", type=int, help="How many tasks that version had learnt.")
    values = parser.parse_args(list(argv))
    from manymodes import versions
    from manymodes.using import learner_file

    path = learner_file(values.run)
    versions.rollback(path, values.task)
    print(f"In use: the version after task {values.task} ({path.resolve()})")
    return 0
