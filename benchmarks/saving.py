"""What it costs to save a run: seconds spent writing, as a share of the rest of the same run.

python benchmarks/saving.py [--json PATH] [--images N] [--epochs N] [--only STRATEGY]

ResNet-18 learns two tasks of images of CIFAR-100's size in a run directory, with the defaults of
`manymodes run` (so many images and epochs a task are the least that is realistic: the more, the smaller
the share). Counted as saving are the event log, everything between the end of an epoch and the renamed
checkpoint (gathering the state, checksums, writing, flushing to the disk), and the checkpoints of MOTA that
wait for backtracking, read back included. What is written once, at the end of a run, is shown apart.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Callable
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np

from manymodes import checkpoints, store
from manymodes.config import Config
from manymodes.rundir import RunDir
from manymodes.sweep import execute

TARGET = 0.02


class Clock:
    """Seconds within some functions, each counted under the outermost one."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._inside = False

    def around(self, owner: Any, name: str) -> None:
        """Time every call of owner.name from now on."""
        function: Callable[..., Any] = getattr(owner, name)

        def timed(*arguments: Any, **options: Any) -> Any:
            if self._inside:
                return function(*arguments, **options)
            self._inside, start = True, perf_counter()
            try:
                return function(*arguments, **options)
            finally:
                self._inside = False
                self.seconds[name] = self.seconds.get(name, 0.0) + perf_counter() - start

        setattr(owner, name, timed)


def images(folder: Path, count: int) -> Path:
    """Two tasks of ten classes; a fifth of the images is for testing."""
    number = np.arange(2 * count)
    np.savez(
        folder / "images.npz",
        x=np.random.default_rng(0).integers(0, 256, (2 * count, 32, 32, 3), dtype=np.uint8),
        y=number // count * 10 + number % 10,
        task=number // count,
        split=np.where(number // 10 % 5, "train", "test"),
    )
    return folder / "images.npz"


def measure(strategy: str, epochs: int, folder: Path, clock: Clock) -> dict[str, Any]:
    """One run, and what of its time went into saving."""
    config = Config(
        {"name": strategy, "epochs": epochs, "batch_size": 128},
        {"name": "arrays", "path": str(folder / "images.npz")},
        {"name": "resnet18"},
    )
    clock.seconds = dict.fromkeys(("event", "epoch", "checkpoint", "save_blob", "load", "finish"), 0.0)
    start = perf_counter()
    execute(config, folder / strategy)
    end = clock.seconds.pop("finish")
    saving = sum(clock.seconds.values())
    learning = perf_counter() - start - saving - end
    return {"strategy": strategy, "learning": learning, "saving": saving, "share": saving / learning,
            "end": end, "parts": dict(clock.seconds)}  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", type=Path)
    parser.add_argument("--images", type=int, default=6000, help="images a task")
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--only", default="", help="one of the strategies")
    given = parser.parse_args()
    clock = Clock()
    for name in ("event", "epoch", "checkpoint", "finish"):
        clock.around(RunDir, name)
    clock.around(checkpoints, "save_blob")
    clock.around(store.Blob, "load")
    lines = []
    print(f"ResNet-18, 2 tasks x {given.images:,} images of 32x32, {given.epochs} epochs, float32")
    print("strategy  learning s  saving s  share  target  at the end, once s")
    for strategy in [given.only] if given.only else ["finetune", "ewc", "mota"]:
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            images(folder, given.images)
            line = measure(strategy, given.epochs, folder, clock)
        lines.append(line)
        print("{strategy:8}  {learning:10.1f}  {saving:8.2f}  {share:5.2%}  ".format(**line), end="")
        print(f"{TARGET:6.0%}  {line['end']:18.2f}", flush=True)
        print("          " + ", ".join(f"{k} {v:.2f}" for k, v in line["parts"].items() if v), flush=True)
    if given.json:
        given.json.write_text(json.dumps(lines, indent=1) + "\n")


if __name__ == "__main__":
    main()
