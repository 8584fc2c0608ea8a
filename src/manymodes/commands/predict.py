"""`manymodes predict RUN INPUT`: a label for every image, row of an npz file or line of a CSV."""

from __future__ import annotations

import csv
import json
import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from manymodes.commands.options import Parser
from manymodes.errors import unknown

if TYPE_CHECKING:
    from manymodes.using import Prediction

FORMATS = ("csv", "jsonl")


def main(argv: Sequence[str]) -> int:
    """Predict, a batch at a time, to the screen or into a file."""
    parser = Parser(
        prog="manymodes predict",
        description="Label, probability and agreement of the modes for every sample.",
        exit_on_error=False,
    )
    parser.add_argument("run", type=str, help="A run directory, or a learner.safetensors.")
    parser.add_argument(
        "input", type=str, help="A folder of images, an npz file with x, or a CSV of numbers."
    )
    parser.add_argument(
        "--out", type=str, default="", help="Write here (whole or not at all), not to stdout."
    )
    parser.add_argument("--format", type=str, default="", help="csv or jsonl (default: as --out ends; csv).")
    parser.add_argument("--classes", type=str, default="", help="Only these labels, e.g. cat,dog.")
    parser.add_argument("--batch", type=int, default=256, help="Samples at a time.")
    parser.add_argument("--device", type=str, default="auto", help="auto, cpu, cuda.")
    parser.add_argument("--model", type=str | None, default=None, help="Your own network: my.module:make.")
    parser.add_argument("--strategy", type=str | None, default=None, help="Your own: my.module:Class.")
    parser.add_argument("--skip_unreadable", "--skip-unreadable", type=bool, default=False,
                        help="Leave out images that cannot be read.")  # fmt: skip
    given = ["--skip-unreadable=true" if word == "--skip-unreadable" else word for word in argv]
    values = parser.parse_args(given)
    kind = values.format or ("jsonl" if values.out.endswith((".jsonl", ".json")) else "csv")
    if kind not in FORMATS:
        raise unknown("--format", kind, FORMATS)
    from manymodes import files
    from manymodes.reading import readable, samples_of
    from manymodes.using import open_learner, predictions, preparation_for

    learner, path = open_learner(
        values.run, model=values.model, strategy=values.strategy, device=values.device
    )
    samples = samples_of(values.input, preparation_for(learner, path))
    if values.skip_unreadable:
        samples, wrong = readable(samples)
        if wrong:
            print(f"manymodes: {len(wrong)} images skipped, such as {wrong[0]}", file=sys.stderr)
    classes = [name.strip() for name in values.classes.split(",") if name.strip()]
    found = predictions(learner, samples, classes, values.batch)
    if not values.out:
        return _to_screen(found, kind)

    def put(temporary: Path) -> None:
        with temporary.open("w", encoding="utf-8", newline="") as file:
            write(found, kind, file)

    files.write_atomically(Path(values.out), put)
    print(f"{len(samples)} predictions: {Path(values.out).resolve()}", file=sys.stderr)
    return 0


def write(found: Iterable[Prediction], kind: str, file: TextIO) -> None:
    """The predictions as CSV or JSON lines."""
    if kind == "jsonl":
        for one in found:
            file.write(json.dumps(one._asdict(), ensure_ascii=False) + "\n")
        return
    table = csv.writer(file, lineterminator="\n")
    for number, one in enumerate(found):
        if number == 0:
            table.writerow(one._fields)
        table.writerow([one.input, one.label, f"{one.probability:.6f}", f"{one.agreement:.4f}"])


def _to_screen(found: Iterator[Prediction], kind: str) -> int:
    try:
        write(found, kind, sys.stdout)
        sys.stdout.flush()
    except BrokenPipeError:  # `| head`: what follows would only complain
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 0
