"""How far a download is: a bar in a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

Advance = Callable[[int, int | None], None]  # bytes so far, bytes in all if known


@contextmanager
def download_bar(name: str) -> Iterator[Advance]:
    """A function to call with (bytes so far, bytes in all); without a terminal, a line at every tenth."""
    if not sys.stderr.isatty():
        yield _lines(name)
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn
    from rich.progress import TransferSpeedColumn as Speed

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(),
        Speed(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True)) as progress:
        bar = progress.add_task(name, total=None)
        yield lambda done, total: progress.update(bar, completed=done, total=total)


def _lines(name: str) -> Advance:
    told = -1

    def advance(done: int, total: int | None) -> None:
        nonlocal told
        tenth = 10 * done // total if total else done // 100_000_000
        if tenth > told:
            told = tenth
            whole = f" of {total / 1e6:,.1f}" if total else ""
            print(f"{name}: {done / 1e6:,.1f}{whole} MB", file=sys.stderr, flush=True)

    return advance
