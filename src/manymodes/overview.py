"""What a person sees while several runs are under way: a live table in a terminal, a few lines elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from manymodes.jobs import Outcome

MOST = 20  # lines of the table: the runs under way, the longest first


class Overview:
    """Told when a run begins, gets on, loses its machine, ends; `names` are the runs still to be done."""

    def __init__(self, names: Mapping[int, str], total: int, console: Console | None = None) -> None:
        self.names, self.total = names, total
        self.console = console or Console(file=sys.stderr)
        self._under_way: dict[int, tuple[float, str, dict[str, Any]]] = {}  # since when, where, last event
        self._done, self._failed, self._interrupted = total - len(names), 0, 0
        self._open = ExitStack()

    def __enter__(self) -> Overview:
        if self.console.is_terminal:
            live = Live(get_renderable=self.table, console=self.console, refresh_per_second=4, transient=True)
            self._open.enter_context(live)
        return self

    def __exit__(self, *error: object) -> None:
        self._open.close()

    def begun(self, number: int, where: str) -> None:
        """A run has begun (or gone on) on some machine."""
        self._under_way[number] = time.monotonic(), where, {}
        self._line(f"{self.names[number]}: on {where}")

    def news(self, number: int, event: Mapping[str, Any]) -> None:
        """How far a run is."""
        since, where, _ = self._under_way.get(number, (time.monotonic(), "", {}))
        self._under_way[number] = since, where, dict(event)

    def lost(self, number: int, why: str) -> None:
        """The machine or process of a run is gone; it will go on elsewhere."""
        self._under_way.pop(number, None)
        self.console.print(Text(f"manymodes: {self.names[number]}: {why}"), soft_wrap=True)

    def said(self, number: int, line: str) -> None:
        """A line that a run printed where nobody sees it."""
        self.console.print(Text(f"{self.names[number]}: {line}"), soft_wrap=True)

    def ended(self, outcome: Outcome) -> None:
        """A run is over."""
        self._under_way.pop(outcome.number, None)
        self._done += outcome.error is None
        self._interrupted += outcome.interrupted
        self._failed += outcome.error is not None and not outcome.interrupted

    def table(self) -> Group:
        """The runs under way, and how many there are of the others."""
        table = Table(header_style="bold", box=None, pad_edge=False)
        for name in ("run", "where", "task", "epoch", "loss", "seconds"):
            table.add_column(name, justify="left" if name in ("run", "where") else "right")
        now, under_way = time.monotonic(), sorted(self._under_way.items(), key=lambda item: item[1][0])
        for number, (since, where, event) in under_way[:MOST]:
            cells = [self.names[number], where, *_cells(event), f"{now - since:.0f}"]
            table.add_row(*(Text(cell) for cell in cells))
        over = self._done + self._failed + self._interrupted
        counts = {"done": self._done, "failed": self._failed, "stopped": self._interrupted,
                  "under way": len(under_way), "waiting": self.total - over - len(under_way)}  # fmt: skip
        told = ", ".join(f"{count} {what}" for what, count in counts.items() if count)
        return Group(table, Text(f"{self.total} runs: {told}"))

    def _line(self, text: str) -> None:
        if not self.console.is_terminal:
            print(text, file=sys.stderr, flush=True)


def _cells(event: Mapping[str, Any]) -> tuple[str, str, str]:
    """Task, epoch and loss of an event, as far as there is one."""
    if not {"task", "epoch", "epochs", "loss"} <= event.keys():
        return "", "", ""
    loss = event["loss"]
    shown = f"{loss:.3f}" if isinstance(loss, int | float) else "-"
    return str(event["task"] + 1), f"{event['epoch']}/{event['epochs']}", shown
