"""`manymodes runs DIR`: what runs a folder holds; `manymodes runs show RUN`: one of them."""

from __future__ import annotations

import json
import shlex
import sys
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from manymodes import files
from manymodes.errors import UserError
from manymodes.runfiles import RunFiles

USAGE = "manymodes runs DIR [--json], or manymodes runs show RUN [--json]"
DEPTH = 3  # how many folders deep runs are looked for


class State(NamedTuple):
    """One run in a line."""

    path: Path
    status: str
    progress: str
    accuracy: float | None  # over the tasks learnt so far
    seconds: float | None
    note: str = ""


def main(argv: Sequence[str]) -> int:
    """List runs, or show one."""
    flags, words = [w for w in argv if w.startswith("--")], [w for w in argv if not w.startswith("--")]
    if {"-h", "--help"} & set(argv):
        print(f"usage: {USAGE}")
        return 0
    strange = next((flag for flag in flags if flag != "--json"), None)
    one = words[:1] == ["show"]
    if strange or len(words) != (2 if one else 1):
        raise UserError(f"{f'unknown option {strange}' if strange else 'give one folder'}: {USAGE}")
    folder = Path(words[-1])
    if not folder.is_dir():
        raise UserError(f"there is no folder {folder}")
    if one:
        details = show(RunFiles(folder))
        print(json.dumps(files.finite(details), indent=1)) if flags else _print_one(details)
        return 0
    states = [state_of(path) for path in runs_in(folder)]
    if flags:
        rows = [s._asdict() | {"path": str(s.path)} for s in states]
        print(json.dumps(files.finite(rows), indent=1))
    elif states:
        _print_all(states, folder)
    else:
        print(f"no runs in {folder}")
    return 0


def runs_in(folder: Path) -> list[Path]:
    """The run directories in a folder (or the folder itself), by name."""
    if (folder / "config.yaml").is_file():
        return [folder]
    patterns = ["/".join(["*"] * depth + ["config.yaml"]) for depth in range(1, DEPTH + 1)]
    return sorted({found.parent for pattern in patterns for found in folder.glob(pattern)})


def state_of(path: Path) -> State:
    """What a run directory says of itself; one that is damaged says that."""
    try:
        run = RunFiles(path)
        run.config()
        status, accuracy, seconds = run.status(), *_numbers(run)
        return State(path, status, _progress(run), accuracy, seconds, run.failure() or "")
    except (UserError, OSError) as error:
        return State(path, "damaged", "-", None, None, str(error))


def show(run: RunFiles) -> dict[str, Any]:
    """Everything about one run that its files tell."""
    config, state = run.config(), state_of(run.path)
    record = run.metrics() or _newest(run).get("record", {})
    return {
        "path": str(run.path), "status": state.status, "progress": state.progress, "why": state.note,
        "average accuracy": state.accuracy, "seconds": state.seconds,
        "accuracy": record.get("accuracy", []) if isinstance(record, dict) else [],
        "checkpoints": [path.name for path in run.checkpoints()],
        "environment": run.environment() or {},
        "configuration": config,
        "to go on": "" if state.status == "done" else f"manymodes run --resume {shlex.quote(str(run.path))}",
    }  # fmt: skip


def _newest(run: RunFiles) -> dict[str, Any]:
    """What the newest readable checkpoint says about itself."""
    for path in reversed(run.checkpoints()):
        try:
            body = json.loads(files.read_header(path)["body"])
            return dict(body["meta"])
        except (UserError, ValueError, KeyError, TypeError, RecursionError):
            continue
    return {}


def _numbers(run: RunFiles) -> tuple[float | None, float | None]:
    metrics = run.metrics()
    if metrics is not None:
        return _number(metrics.get("average_accuracy")), _number(metrics.get("seconds"))
    try:
        record = _newest(run)["record"]
        done = len(record["seconds"])
        row = record["accuracy"][done][:done]
        return (sum(row) / done if done else None), sum(record["seconds"]) + record.get("elapsed", 0.0)
    except (KeyError, TypeError, IndexError):
        return None, None


def _number(value: Any) -> float | None:
    return float(value) if isinstance(value, int | float) else None


def _progress(run: RunFiles) -> str:
    metrics, event = run.metrics(), run.last_event()
    rows = (metrics or _newest(run).get("record") or {}).get("accuracy") or [[]]
    tasks = len(rows[0]) if isinstance(rows, list) and isinstance(rows[0], list) else 0
    if metrics is not None:
        return f"{tasks} tasks"
    if not {"task", "epoch", "epochs"} <= set(event):
        return "not begun"
    of = f"/{tasks}" if tasks else ""
    return f"task {int(event['task']) + 1}{of}, epoch {event['epoch']}/{event['epochs']}"


def _print_all(states: list[State], folder: Path) -> None:
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    colours = {"done": "green", "running": "cyan", "failed": "red", "damaged": "red", "interrupted": "yellow"}
    table = Table(header_style="bold", box=SIMPLE_HEAD, pad_edge=False, collapse_padding=True)
    for name, justify in (("run", "left"), ("status", "left"), ("progress", "left"), ("accuracy", "right")):
        table.add_column(name, justify=justify, overflow="fold")  # type: ignore[arg-type]
    table.add_column("seconds", justify="right")
    told = any(state.note for state in states)
    if told:
        table.add_column("why", overflow="fold")
    for state in states:
        name = str(state.path.relative_to(folder)) if state.path != folder else state.path.name
        accuracy = "-" if state.accuracy is None else f"{state.accuracy * 100:.1f}"
        seconds = "-" if state.seconds is None else f"{state.seconds:.1f}"
        status = Text(state.status, style=colours[state.status])
        # Text, not markup: a directory may be called [red]
        why = [Text(state.note)] if told else []
        table.add_row(Text(name), status, state.progress, accuracy, seconds, *why)
    Console(width=None if sys.stdout.isatty() else 170).print(table)
    left = sum(state.status in ("interrupted", "failed") for state in states)
    if left:
        print(f"{left} to go on with: the same command again, or manymodes run --resume RUN")


def _print_one(details: dict[str, Any]) -> None:
    for key, value in details.items():
        if key == "accuracy":
            _print_matrix(value)
        elif isinstance(value, dict):
            print(f"{key}:")
            _print_mapping(value)
        elif value not in ("", None, []):
            shown = {"average accuracy": "{:.1%}", "seconds": "{:.1f}"}.get(key, "{}").format(value)
            print(f"{key}: {', '.join(value) if isinstance(value, list) else shown}")


def _print_mapping(value: dict[str, Any]) -> None:
    """Numbers and words in one paragraph, each part of a configuration in one of its own."""
    plain = {name: entry for name, entry in value.items() if not isinstance(entry, dict)}
    parts = {name: entry for name, entry in value.items() if isinstance(entry, dict)}
    for name, part in [*parts.items(), ("", plain)]:
        told = ", ".join(f"{option} {entry}" for option, entry in part.items() if option != "name")
        text = f"{name} {part.get('name', '')}: {told}" if name else told
        if part:
            print(textwrap.fill(text, 100, initial_indent="  ", subsequent_indent="    "))


def _print_matrix(rows: Any) -> None:
    if isinstance(rows, list) and rows:
        print("accuracy on each task (columns), before any and after each (rows):")
        for number, row in enumerate(rows):
            cells = " ".join(f"{v * 100:6.1f}" if isinstance(v, int | float) else "     -" for v in row)
            print(f"  {number}: {cells}")
