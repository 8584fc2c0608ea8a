"""What it costs to save a run of ResNet-18: seconds spent writing beside seconds spent learning, in one run.

python benchmarks/saving.py [--json PATH] [--images N] [--only STRATEGY] [--threads N] [--clock wall|cpu]

Two tasks of images of CIFAR-100's size are learnt for two epochs each in a run directory. Timed are
everything between the end of an epoch and the renamed checkpoint (gathering the state, checksum, writing,
flushing to the disk), the event log, and the weights of MOTA that wait for backtracking, read back included.
Half of a run this short is between two tasks, where a checkpoint is always written; so what counts is the
share at the size of the paper's tasks (4,200 images, 50 epochs), by the rule of the run directory: after each
epoch, or as often as it costs at most `rundir.SHARE` of the time. On a busy machine `--threads 1 --clock cpu`
counts the processor's time instead of the wall's (waiting for the disk is left out then).
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from manymodes import checkpoints, store
from manymodes.config import Config
from manymodes.rundir import SHARE, RunDir
from manymodes.strategies.registry import strategy_class
from manymodes.sweep import execute

TARGET = 0.02
IMAGES, EPOCHS = 4200, 50  # the paper's tasks
CLOCKS: dict[str, Callable[[], float]] = {"wall": time.perf_counter, "cpu": time.process_time}


class Timer:
    """Seconds of each call of some functions; what one of them calls is counted under the outermost."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self.clock, self.calls, self._inside = clock, dict[str, list[float]](), False

    def around(self, owner: Any, name: str) -> None:
        """Time every call of owner.name from now on."""
        function: Callable[..., Any] = getattr(owner, name)
        calls = self.calls.setdefault(name, [])

        def timed(*arguments: Any, **options: Any) -> Any:
            if self._inside:
                return function(*arguments, **options)
            self._inside, start = True, self.clock()
            try:
                return function(*arguments, **options)
            finally:
                self._inside = False
                calls.append(self.clock() - start)

        setattr(owner, name, timed)


def images(folder: Path, count: int) -> Path:
    """Two tasks of ten classes; a twentieth of the images is for testing."""
    number = np.arange(2 * count)
    np.savez(
        folder / "images.npz",
        x=np.random.default_rng(0).integers(0, 256, (2 * count, 32, 32, 3), dtype=np.uint8),
        y=number // count * 10 + number % 10,
        task=number // count,
        split=np.where(number // 10 % 20, "train", "test"),
    )
    return folder / "images.npz"


def measure(strategy: str, count: int, threads: int, clock: Callable[[], float]) -> dict[str, float]:
    """Seconds of the last epoch without its saving, of one checkpoint, and of what else an epoch saves."""
    learning, saving = Timer(clock), Timer(clock)
    learning.around(strategy_class(strategy), "epoch")
    saving.around(RunDir, "checkpoint")
    saving.around(RunDir, "event")
    saving.around(checkpoints, "save_blob")
    saving.around(store.Blob, "load")
    with tempfile.TemporaryDirectory() as name:
        config = Config(
            {"name": strategy, "epochs": 2, "batch_size": 128},
            {"name": "arrays", "path": str(images(Path(name), count))},
            {"name": "resnet18"},
            threads=threads,
        )
        result = execute(config, Path(name) / "run", checkpoint_every=0)
    calls = saving.calls
    modes = result["modes"]
    waiting = modes * (median(calls["save_blob"]) if calls["save_blob"] else 0.0)
    return {
        "epoch": learning.calls["epoch"][-1] - waiting,
        "checkpoint": max(calls["checkpoint"]),
        "waiting": waiting,
        "events": modes * max(calls["event"]),
        "reading": sum(calls["load"]),  # once a task
    }


def share(seconds: dict[str, float], count: int) -> float:
    """What saving costs at the paper's size, by the rule of the run directory."""
    epoch = seconds["epoch"] * IMAGES / (0.95 * count)
    within = min(SHARE, seconds["checkpoint"] / epoch)
    between = (seconds["checkpoint"] + seconds["reading"]) / (EPOCHS * epoch)
    return within + between + (seconds["waiting"] + seconds["events"]) / epoch


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", type=Path)
    parser.add_argument("--images", type=int, default=1000, help="images a task")
    parser.add_argument("--only", default="", help="one of the strategies")
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--clock", choices=CLOCKS, default="wall")
    given = parser.parse_args()
    found = {}
    print(
        f"ResNet-18 at 32x32, {given.clock} clock: seconds an epoch of {given.images} images, seconds to save"
    )
    print("strategy   epoch  checkpoint  waiting weights  share at the paper's size  target")
    for strategy in [given.only] if given.only else ["finetune", "ewc", "mota"]:
        seconds = measure(strategy, given.images, given.threads, CLOCKS[given.clock])
        found[strategy] = seconds | {"share": share(seconds, given.images)}
        print(
            "{0:8}  {epoch:6.1f}  {checkpoint:10.2f}  {waiting:15.2f}  {share:25.2%}  {1:6.0%}".format(
                strategy, TARGET, **found[strategy]
            ),
            flush=True,
        )
    if given.json:
        given.json.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
