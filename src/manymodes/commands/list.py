"""`manymodes list`: what there is, without importing torch."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.table import Table

from manymodes.errors import unknown

KINDS = ("strategies", "streams", "models", "recipes")


def main(argv: Sequence[str]) -> int:
    """Print one kind of thing, or all of them."""
    if argv and argv[0] in ("-h", "--help"):
        print(f"usage: manymodes list [{'|'.join(KINDS)}]\n\nWithout a kind, everything is listed.")
        return 0
    for kind in argv or KINDS:
        if kind not in KINDS:
            raise unknown("kind of thing", kind, KINDS)
    for kind in argv or KINDS:
        Console().print(_table(kind))
    return 0


def _table(kind: str) -> Table:
    table = Table(title=kind, title_justify="left", header_style="bold", box=None, pad_edge=False)
    headers: tuple[str, ...] = ("name", "what it is")
    rows: list[tuple[str, ...]]
    if kind == "strategies":
        from manymodes.strategies.registry import REGISTRY as STRATEGIES

        rows = [(name, entry.about) for name, entry in STRATEGIES.items()]
        rows.append(("my.module:Class", "your own"))
    elif kind == "streams":
        from manymodes.streams.registry import STREAMS

        headers = (*headers, "size", "licence", "download")
        rows = [(n, e.about, e.size, e.licence, e.download) for n, e in STREAMS.items()]
    elif kind == "models":
        from manymodes.models.registry import REGISTRY as MODELS

        rows = [(name, entry.about) for name, entry in MODELS.items()]
        rows.append(("my.module:make", "your own; also timm:NAME, torchvision:NAME, hf:NAME"))
    else:
        from manymodes.reproduce import recipes

        rows = list(recipes().items())
    for header in headers:
        table.add_column(header, overflow="fold")
    for row in rows:
        table.add_row(*row)
    return table
