"""How MOTA's margin moves with the size of the network, the epochs of a task and the number of tasks.

    python benchmarks/margin.py --data-dir CIFAR --weights FILE [--seeds 0,1,2] [--draw PATH.svg]

Split-CIFAR-100, instance-IL, on a frozen backbone (`reproduce table1a --profile frozen`), one setting changed
at a time, with the options that were tuned at the middle of each range. Finished runs are not repeated.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path

import yaml

from manymodes import reproduce
from manymodes.metrics import mean_interval

METHODS = {"mota": "MOTA", "lwf-ewc": "LwF + EWC", "ewc": "EWC", "multitask": "multi-task (keeps all data)"}
SWEEPS = {
    "units of a layer": ("--model.hidden", (128, 256, 768)),
    "epochs a task": ("--epochs", (2, 6, 20)),
    "tasks, a mode each": ("--tasks", (2, 3, 5)),
}
USUAL = {"--model.hidden": 256, "--epochs": 6, "--tasks": 5}


def rows(tasks: int) -> str:
    """The tuned rows of the table that this is about, with a mode for each task."""
    tuned = reproduce.load("table1a", "frozen")["strategies"].split(",")
    wanted = [row for row in tuned if row.split(":")[0] in METHODS and row != "mota"]
    kept = {row.split(":")[0]: row for row in reversed(wanted)}  # of several rows of a method the first
    return ",".join(kept.values()).replace("modes=5", f"modes={tasks}")


def measure(setting: dict[str, int], args: argparse.Namespace) -> list[dict[str, object]]:
    """One comparison: a row for each method, {method, mean, half}."""
    out = args.out / "-".join(f"{name.strip('-').split('.')[-1]}{value}" for name, value in setting.items())
    words = [f"{name}={value}" for name, value in setting.items()]
    command = [
        sys.executable, "-m", "manymodes", "reproduce", "table1a", "--profile", "frozen", *words,
        f"--strategies={rows(setting['--tasks'])}", f"--seeds={args.seeds}", f"--out={out}", "--threads=1",
        "--stream.normalise=half", f"--data-dir={args.data_dir}", f"--model.weights={args.weights}",
    ]  # fmt: skip
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    found: dict[str, list[float]] = {}
    for path in sorted(out.glob("*/metrics.json")):
        method = yaml.safe_load((path.parent / "config.yaml").read_text())["strategy"]["name"]
        found.setdefault(method, []).append(100 * json.loads(path.read_text())["average_accuracy"])
    return [
        {"method": METHODS[method], "mean": mean, "half": half}
        for method, (mean, half) in ((m, mean_interval(values)) for m, values in found.items())
    ]


def draw(measured: list[dict[str, object]], path: Path) -> None:
    """A panel for each sweep."""
    import altair as alt

    panels = []
    for sweep in SWEEPS:
        base = alt.Chart(alt.Data(values=[row for row in measured if row["sweep"] == sweep])).encode(
            x=alt.X("x:O", title=sweep, axis=alt.Axis(labelAngle=0)),
            color=alt.Color("method:N", title=None, sort=list(METHODS.values())),
        )
        accuracy = alt.Y("mean:Q", title="average accuracy, %", scale=alt.Scale(zero=False))
        bars = base.transform_calculate(low="datum.mean - datum.half", high="datum.mean + datum.half")
        panels.append(
            (base.mark_line(point=True).encode(y=accuracy)
             + bars.mark_rule(opacity=0.4).encode(y="low:Q", y2="high:Q")).properties(width=190, height=220)
        )  # fmt: skip
    alt.hconcat(*panels).resolve_scale(y="shared").save(path)


def main() -> None:
    """Measure, print a table, draw."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--data-dir", required=True)
    parser.add_argument("--weights", required=True)
    parser.add_argument("--seeds", default="0,1,2")
    parser.add_argument("--out", type=Path, default=Path("runs/margin"))
    parser.add_argument("--draw", type=Path)
    args = parser.parse_args()
    measured = []
    for sweep, (option, values) in SWEEPS.items():
        print(f"| {sweep} | {' | '.join(METHODS.values())} |\n|---|{'---|' * len(METHODS)}")
        for value in values:
            found = measure(USUAL | {option: value}, args)
            measured += [{"sweep": sweep, "x": value} | row for row in found]
            cells = {row["method"]: f"{row['mean']:.1f} ± {row['half']:.1f}" for row in found}
            print(f"| {value} | {' | '.join(cells[method] for method in METHODS.values())} |", flush=True)
        print()
    if args.draw:
        draw(measured, args.draw)


if __name__ == "__main__":
    main()
