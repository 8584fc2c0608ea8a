"""`manymodes evaluate RUN --stream NAME`: accuracy, NLL and calibration error on every task's test data."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from manymodes.commands.options import Parser, split
from manymodes.errors import UserError, require, unknown

OWN = ("stream", "out", "device", "model", "strategy", "help", "h")
USAGE = """usage: manymodes evaluate RUN [--stream NAME] [--OPTION VALUE ...] [--out FILE.json] [--device cpu]

Accuracy, NLL and calibration error of a finished learner on the test data of every task.

  RUN            a run directory, or a learner.safetensors
  --stream NAME  which stream (default: the run's own, with its options)
  --OPTION       the stream's options, e.g. --scenario class --seed 1 (--stream.seed 1 is the same)
  --out FILE     write the numbers as JSON too
  --device       auto, cpu, cuda
  --model, --strategy  your own, where it was: my.module:make, my.module:Class"""


def main(argv: Sequence[str]) -> int:
    """Evaluate, print a table."""
    if not argv or argv[0].startswith("-"):
        print(USAGE)
        if not argv or argv[0] not in ("-h", "--help"):
            raise UserError("evaluate needs a run: manymodes evaluate RUN --stream NAME")
        return 0
    pairs = [(name.removeprefix("stream."), value) for name, value in split(argv[1:])]
    if any(name in ("help", "h") for name, _ in pairs):
        print(USAGE)
        return 0
    given = dict(pairs)
    from manymodes import files
    from manymodes.using import evaluate_stream, open_learner

    learner, _ = open_learner(
        argv[0], model=given.get("model"), strategy=given.get("strategy"), device=given.get("device", "auto")
    )
    name, options = _stream_of(argv[0], given)
    from manymodes.streams import make_stream

    rows = evaluate_stream(learner, make_stream(name, **options))
    _show(rows, name)
    if "out" in given:
        files.write_json(
            Path(given["out"]), {"run": str(argv[0]), "stream": {"name": name, **options}, "tasks": rows}
        )
        print(f"Results: {Path(given['out']).resolve()}", file=sys.stderr)
    return 0


def _stream_of(run: str, given: dict[str, str]) -> tuple[str, dict[str, Any]]:
    """The stream's name and options: the run's own, changed by what is given."""
    from manymodes.config import options_for

    name, own = given.get("stream"), _own_stream(run)
    if name is None:
        require(own is not None, f"{run} does not say which stream it was: give --stream NAME")
    if own is not None and name in (None, own["name"]):
        name, start = own["name"], {k: v for k, v in own.items() if k != "name" and v is not None}
    else:
        start = {}
    assert name is not None
    table = options_for("stream", name)
    words = {k: v for k, v in given.items() if k not in OWN}
    for word in words:
        if word not in table:
            raise unknown(
                "option", f"--{word}", [*(f"--{o}" for o in table), "--stream", "--out", "--device"]
            )
    parser = Parser(prog="manymodes evaluate", exit_on_error=False)
    for word in words:
        kind = table[word].type
        parser.add_argument(f"--{word}", type=kind | None if table[word].default is None else kind)
    values = parser.parse_args([f"--{word}={value}" for word, value in words.items()])
    return name, start | {word: values[word] for word in words}


def _own_stream(run: str) -> dict[str, Any] | None:
    from manymodes.runfiles import RunFiles

    folder = Path(run).expanduser()
    if not (folder / "config.yaml").exists():
        return None
    config = RunFiles(folder).config()
    seed = config["stream"].get("seed")
    return dict(config["stream"]) | {"seed": config["seed"] if seed is None else seed}


def _show(rows: list[dict[str, Any]], title: str) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(title=title, title_justify="left", header_style="bold", box=None, pad_edge=False)
    for header in ("task", "samples", "accuracy", "NLL", "ECE"):
        table.add_column(header, justify="left" if header == "task" else "right")
    for row in rows:
        numbers = (
            f"{100 * row['accuracy']:.1f}",
            f"{row['nll']:.3f}",
            f"{100 * row['calibration_error']:.1f}",
        )
        table.add_row(row["task"], str(row["samples"]), *numbers)
    means = [sum(row[key] for row in rows) / len(rows) for key in ("accuracy", "nll", "calibration_error")]
    total = str(sum(row["samples"] for row in rows))
    table.add_row(
        "mean", total, f"{100 * means[0]:.1f}", f"{means[1]:.3f}", f"{100 * means[2]:.1f}", style="bold"
    )
    Console(width=None if sys.stdout.isatty() else 120).print(table)
