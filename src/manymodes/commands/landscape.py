"""`manymodes landscape`: evaluate the loss around the final weights of finished runs."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from rich.console import Console
from rich.markup import escape
from rich.progress import Progress, TaskID

from manymodes.commands.options import Parser


def main(argv: Sequence[str]) -> int:
    """Evaluate what is not evaluated yet; `manymodes report` draws it."""
    parser = Parser(
        prog="manymodes landscape",
        description="The loss of every task in the plane of the weights' path, around the final weights.",
        exit_on_error=False,
    )
    parser.add_argument("folders", type=str, nargs="+", help="Run directories, or folders of them.")
    parser.add_argument("--points", type=int, default=25, help="Points along each direction.")
    parser.add_argument("--samples", type=int, default=500, help="Test samples of each task at most.")
    parser.add_argument(
        "--batchnorm", type=str, default="keep",
        help="keep: the final mode's running statistics; reestimate: those of the evaluated samples.",
    )  # fmt: skip
    parser.add_argument("--radius", type=float, default=0.2, help="Length of the steps that sharpness takes.")
    parser.add_argument("--trust", type=bool, default=False, help="Let runs import the code that they name.")
    parser.add_argument("--seeds", type=str, default="first", help="first (of each method), or all.")
    values = parser.parse_args(list(argv))
    from manymodes.errors import unknown
    from manymodes.landscape import Settings, landscape
    from manymodes.report.groups import experiments
    from manymodes.report.runs import read_runs

    if values.seeds not in ("first", "all"):
        raise unknown("seeds", values.seeds, ("first", "all"))
    settings = Settings(values.points, values.samples, values.batchnorm, values.radius, trusted=values.trust)
    groups = experiments(read_runs([Path(folder) for folder in values.folders]).runs)
    methods = [method for group in groups for method in group.methods]
    paths = [run.path for m in methods for run in (m.runs[:1] if values.seeds == "first" else m.runs)]
    with Progress(console=Console(file=sys.stderr), transient=True) as bar:
        for number, path in enumerate(paths):
            task = bar.add_task(f"[{number + 1}/{len(paths)}] {escape(path.name)}")
            landscape(path, settings, partial(_show, bar, task))
            bar.remove_task(task)
            print(f"{path.name}: done", file=sys.stderr)
    print(f"Evaluated {len(paths)} run{'s' if len(paths) > 1 else ''}; draw them with: manymodes report "
          f"{' '.join(values.folders)}")  # fmt: skip
    return 0


def _show(bar: Progress, task: TaskID, done: int, total: int) -> None:
    bar.update(task, completed=done, total=total)
