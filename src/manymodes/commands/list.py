"""`manymodes list`: what there is, without importing torch."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from manymodes.errors import unknown

NOTES = {
    "models": "Sizes at ten outputs. --weights FILE or hf:ORG/NAME (downloaded) starts from trained weights."
}
Entry = tuple[str, str, str]  # name, what it is, and what a person should know before asking for it


def main(argv: Sequence[str]) -> int:
    """Print one kind of thing, or all of them."""
    if argv and argv[0] in ("-h", "--help"):
        print(f"usage: manymodes list [{'|'.join(KINDS)}]\n\nWithout a kind, everything is listed.")
        return 0
    for kind in argv or KINDS:
        if kind not in KINDS:
            raise unknown("kind of thing", kind, KINDS)
    console = Console(width=None if sys.stdout.isatty() else 120)
    for kind in argv or KINDS:
        console.print(_table(kind))
        if kind in NOTES:
            console.print(Text(f"{NOTES[kind]}\n", "dim"))
    return 0


def _table(kind: str) -> Table:
    """Names beside their texts: two columns are readable in a terminal of any width."""
    table = Table(title=kind, title_justify="left", header_style="bold", box=None, pad_edge=False)
    table.add_column("name", no_wrap=True)
    table.add_column("what it is")
    for name, about, facts in KINDS[kind]():
        table.add_row(Text(name), Text.assemble(about, *(("\n", (facts, "dim")) if facts else ())))
    return table


def _strategies() -> Iterator[Entry]:
    from manymodes.strategies.registry import REGISTRY

    for name, entry in REGISTRY.items():
        yield name, entry.about, ""
    yield "my.module:Class", "your own", ""


def _streams() -> Iterator[Entry]:
    from manymodes.streams.registry import STREAMS

    for name, entry in STREAMS.items():
        yield name, entry.about, f"{entry.size}; licence: {entry.licence}; download: {entry.download}"
    yield "my.module:function", "your own", ""


def _models() -> Iterator[Entry]:
    from manymodes.models.registry import LIBRARIES, REGISTRY

    for name, entry in REGISTRY.items():
        yield name, entry.about, f"{entry.size}; download: nothing"
    for name, library in LIBRARIES.items():
        yield name, library.about, f"licence: {library.licence}; download: {library.download}"
    yield "my.module:make", "your own", ""


def _recipes() -> Iterator[Entry]:
    from manymodes.reproduce import recipe_stream, recipes
    from manymodes.streams.registry import STREAMS

    for name, about in recipes().items():
        stream = recipe_stream(name)
        data = STREAMS[stream]
        yield name, about, f"{stream}: {data.size}; licence: {data.licence}; download: {data.download}"


KINDS: dict[str, Callable[[], Iterator[Entry]]] = {
    "strategies": _strategies,
    "streams": _streams,
    "models": _models,
    "recipes": _recipes,
}
