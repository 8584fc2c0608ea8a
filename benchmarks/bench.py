"""Everything that has a bound, in one table: run the scripts, print it, save it, draw it (`make bench`).

    python benchmarks/bench.py [NAME ...] [--quick] [--show] [--out DIR] [--threads N] [--clock wall|cpu]

NAME is a script of this folder (step, peers, modes, fisher, backtracking, memory, start; all of them by
default). Each leaves NAME.json in DIR; the table and the picture are made of what lies there, so that scripts
may run one at a time. `--show` runs none. The result is DIR/bench.json and DIR/bench.svg.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

HERE = Path(__file__).parent
QUICK = ("step", "modes", "memory", "start")  # those that have --quick
TIMED = ("step", "peers", "modes", "fisher")  # those that have --clock
THREADED = ("step", "peers", "modes", "fisher", "memory")


class Row(NamedTuple):
    """One figure: what was measured, and what it must reach and may aim for."""

    what: str
    where: str
    value: float
    must: float
    aim: float | None = None
    unit: str = ""
    more: bool = False  # whether more is better

    @property
    def reached(self) -> bool:
        """Whether the bound is kept."""
        return self.value >= self.must if self.more else self.value <= self.must

    @property
    def share(self) -> float:
        """Below 1 is within the bound, whichever way the figure goes."""
        return max(0.01, self.must / max(self.value, 1e-9) if self.more else self.value / self.must)


def step(found: dict[str, Any]) -> Iterator[Row]:
    for setting, numbers in found["settings"].items():
        for rival, must in numbers["must"].items():
            yield Row(f"step of {rival} / bare step", setting, numbers["ratio"][rival], must, 1.0)


def peers(found: dict[str, Any]) -> Iterator[Row]:
    for name, must in found["must"].items():
        yield Row("training / bare training", f"{name}, MLP, 2 epochs", found["ratios"][name], must, 1.0)


def modes(found: dict[str, Any]) -> Iterator[Row]:
    for setting, numbers in found["settings"].items():
        for rival, (value, *_) in numbers["ratio"].items():
            if rival.startswith("mota"):
                yield Row("epoch of N modes / N epochs of finetune", f"{setting}, {rival}", value, 1.35, 1.2)


def fisher(found: dict[str, Any]) -> Iterator[Row]:
    rows, where = found["rows"], "resnet18 32x32 batch 128"
    own = rows["manymodes, empirical"]
    yield Row("Fisher samples/s / training samples/s", where, own["ratio_to_training"], 0.6, 1.0, more=True)
    if "BackPACK" in rows:
        faster = own["samples_per_second"] / rows["BackPACK"]["samples_per_second"]
        yield Row("Fisher samples/s / BackPACK's", where, faster, 1.0, more=True)


BACKTRACKING = {(2, 201): (1.0, 0.2), (4, 51): (3.0, 0.5), (6, 51): (10.0, 0.0)}  # seconds: must, aim


def backtracking(found: dict[str, Any]) -> Iterator[Row]:
    for line in found["search"]:
        size = line["modes"], line["checkpoints"]
        if size not in BACKTRACKING:
            continue
        where = f"{size[0]} modes x {size[1]} x {line['samples']:,}, {line['curves']}"
        must, aim = BACKTRACKING[size]
        if size[0] == 6:
            yield Row("backtracking, certified gap after 10 s", where, max(0.0, line["gap_worst"]), 0.1)
        else:  # nothing but a proven optimum counts
            seconds = line["seconds_worst"] if line["proven"] == line["seeds"] else float("inf")
            yield Row("backtracking, proven, worst seed", where, seconds, must, aim, "s")


def memory(found: dict[str, Any]) -> Iterator[Row]:
    where = f"2 x resnet18, {found['epochs']} epochs"
    yield Row("memory above training", where, found["memory_more"], 1.0, 0.2, "GB")
    yield Row("disk for checkpoints", where, found["disk"], 6.0, 1.0, "GB")


def start(found: dict[str, Any]) -> Iterator[Row]:
    yield Row("start", "manymodes --help", found["manymodes --help"], 0.3, 0.15, "s")


SCRIPTS: dict[str, Callable[[dict[str, Any]], Iterator[Row]]] = {
    "step": step, "peers": peers, "modes": modes, "fisher": fisher, "backtracking": backtracking,
    "memory": memory, "start": start,
}  # fmt: skip


def execute(name: str, given: argparse.Namespace) -> None:
    """Run a script; what it prints is for the person too."""
    words = [sys.executable, str(HERE / f"{name}.py"), "--json", str(given.out / f"{name}.json")]
    words += ["--quick"] if given.quick and name in QUICK else []
    words += ["--clock", given.clock] if name in TIMED else []
    words += ["--threads", str(given.threads)] if given.threads and name in THREADED else []
    print(f"== {name}", flush=True)
    subprocess.run(words, check=True)


def collect(folder: Path) -> list[Row]:
    """The rows of all results that lie there."""
    rows: list[Row] = []
    for name, read in SCRIPTS.items():
        path = folder / f"{name}.json"
        if path.exists():
            rows += read(json.loads(path.read_text()))
    return rows


def show(rows: list[Row]) -> None:
    width, wide = max(len(r.what) for r in rows), max(len(r.where) for r in rows)
    print(f"\n{'':{width}}  {'':{wide}}{'measured':>12}{'must':>10}{'aim':>10}")
    for row in rows:
        value, must, aim = (_number(row, v) for v in (row.value, row.must, row.aim))
        verdict = "" if row.reached else "  NOT reached"
        print(f"{row.what:{width}}  {row.where:{wide}}{value:>12}{must:>10}{aim:>10}{verdict}")
    print(f"{sum(r.reached for r in rows)} of {len(rows)} bounds reached")


def _number(row: Row, value: float | None) -> str:
    if value is None:
        return ""
    if "gap" in row.what:
        return f"{value:.2%}"
    return f"{value:.3g}{' ' + row.unit if row.unit else ''}"


def draw(rows: list[Row], path: Path) -> None:
    """Each figure over its bound, on a logarithmic axis: left of the line is within."""
    import altair

    names = [f"{row.what}: {row.where}" for row in rows]
    points = [
        {"name": name, "share": row.share, "kept": "kept" if row.reached else "not kept"}
        for name, row in zip(names, rows, strict=True)
    ]
    aims = [
        {"name": name, "share": max(0.01, row.must / row.aim if row.more else row.aim / row.must)}
        for name, row in zip(names, rows, strict=True)
        if row.aim
    ]
    x = altair.X("share:Q", scale=altair.Scale(type="log"), title="measured / bound (logarithmic)")
    y = altair.Y("name:N", sort=names, title=None, axis=altair.Axis(labelLimit=700))
    kept = altair.Scale(domain=["kept", "not kept"], range=["#2a7f9e", "#d1495b"])
    colour = altair.Color("kept:N", title="bound", scale=kept)
    chart = altair.layer(
        altair.Chart(altair.Data(values=[{"one": 1}])).mark_rule(color="#666").encode(x="one:Q"),
        altair.Chart(altair.Data(values=aims)).mark_tick(color="#999", thickness=2).encode(x=x, y=y),
        altair.Chart(altair.Data(values=points)).mark_point(filled=True, size=60).encode(x, y, colour),
    )
    chart.properties(width=360, title="Speed and memory beside their bounds; grey ticks: the aim").save(path)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", choices=[[], *SCRIPTS], default=[], metavar="NAME")
    parser.add_argument("--quick", action="store_true", help="fewer rounds, smaller sizes")
    parser.add_argument("--show", action="store_true", help="run nothing")
    parser.add_argument("--out", type=Path, default=HERE / "results")
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--clock", choices=("wall", "cpu"), default="wall")
    given = parser.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    for name in () if given.show else given.names or SCRIPTS:
        execute(name, given)
    rows = collect(given.out)
    if not rows:
        parser.exit(2, f"there is no result in {given.out}\n")
    show(rows)
    table = [row._asdict() | {"reached": row.reached} for row in rows]
    (given.out / "bench.json").write_text(json.dumps(table, indent=1) + "\n")
    draw(rows, given.out / "bench.svg")
    print(f"saved: {given.out / 'bench.json'}, {given.out / 'bench.svg'}")


if __name__ == "__main__":
    main()
