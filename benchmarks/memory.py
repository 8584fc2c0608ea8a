"""Peak memory and disk of a MOTA task with many checkpoints: 2 x ResNet-18 at 32x32, 200 epochs.

    python benchmarks/memory.py [--json PATH] [--quick] [--epochs N] [--train N] [--held-out N] [--threads N]

Real handwritten digits, enlarged to 32x32: task 1 has the classes 0 to 4, task 2 the others. Two processes:
one learns task 2 without backtracking (what training needs), the other with it. Memory is the greatest
resident set of the process (VmHWM) over task 2, disk the greatest length of the file of checkpoints.
Backtracking is lossless: a checkpoint is dropped only if no choice of the other modes' could make it part of
an optimum (tests/strategies/test_mota.py compares with keeping everything).
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import torch
from sklearn.datasets import load_digits

from manymodes import MOTA, Task
from manymodes.models import resnet18
from manymodes.strategies.base import Strategy
from manymodes.task import TensorData

GB = 1e9
BOUNDS = {"memory": (1.0, 0.2), "disk": (6.0, 1.0)}  # GB above training, GB: must, aim


def task(classes: tuple[int, ...], train: int, held_out: int) -> Task:
    """Digits as (3, 32, 32), shuffled, so many to learn from and so many held out."""
    digits = load_digits()
    where = torch.from_numpy(digits.target)
    mine = torch.isin(where, torch.tensor(classes)).nonzero().flatten()
    mine = mine[torch.randperm(len(mine), generator=torch.Generator().manual_seed(0))]
    images = torch.from_numpy(digits.images).float()[mine] / 16
    inputs = torch.nn.functional.interpolate(images[:, None].expand(-1, 3, -1, -1), size=32, mode="bilinear")
    parts = [slice(0, train), slice(train, train + held_out)]
    data = [TensorData(inputs[part].clone(), where[mine][part]) for part in parts]
    return Task(f"digits {classes}", data[0], data[1], None, classes)


def peak(reset: bool = False) -> float:
    """The greatest resident set so far in GB, or since it was reset."""
    if reset:
        Path("/proc/self/clear_refs").write_text("5")
    line = next(s for s in Path("/proc/self/status").read_text().splitlines() if s.startswith("VmHWM"))
    return int(line.split()[1]) * 1024 / GB


def learn(given: argparse.Namespace) -> dict[str, Any]:
    """Both tasks in this process; what task 2 took."""
    torch.manual_seed(0)
    learner = MOTA(
        resnet18(outputs=10), modes=2, epochs=1, batch_size=64, lr=1e-3, device="cpu",
        backtracking=not given.without,
    )  # fmt: skip
    learner.learn(task((0, 1, 2, 3, 4), given.train, given.held_out))
    learner.epochs, disk, kept = given.epochs, [0.0], []
    parameters = learner.modes.theta[0].numel()

    def watch(learner: Strategy) -> None:
        checkpoints = learner._checkpoints  # type: ignore[attr-defined]
        if checkpoints is None:
            return
        kept.append([len(rows) for rows in checkpoints.kept])
        scratch = checkpoints._scratch
        disk.append(0.0 if scratch is None else scratch.size / GB)

    before, started = peak(reset=True), time.perf_counter()
    learner.learn(task((5, 6, 7, 8, 9), given.train, given.held_out), on_epoch=watch)
    return {
        "memory_before": before,
        "memory": peak(),
        "disk": max(disk),
        "seconds": time.perf_counter() - started,
        "everything": 2 * (given.epochs + 1) * parameters * 4 / GB,
        "kept": kept[-1] if kept else None,
        "kept_by_epoch": kept[:: max(1, len(kept) // 20)],
        "chosen": None if learner.choice is None else list(learner.choice.epochs),
    }


def in_a_process(given: argparse.Namespace, *words: str) -> dict[str, Any]:
    numbers = [f"--train={given.train}", f"--held-out={given.held_out}", f"--threads={given.threads}"]
    command = [sys.executable, __file__, "--here", *numbers, *words]
    return json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", type=Path)
    parser.add_argument("--quick", action="store_true", help="30 epochs")
    parser.add_argument("--epochs", type=int, default=0)
    parser.add_argument("--train", type=int, default=256)
    parser.add_argument("--held-out", type=int, default=500)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--here", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--without", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    given.epochs = given.epochs or (30 if given.quick else 200)
    if given.here:
        torch.set_num_threads(given.threads)
        print(json.dumps(learn(given)))
        return
    training = in_a_process(given, "--without", "--epochs=3")
    found = in_a_process(given, f"--epochs={given.epochs}")
    found["memory_training"] = training["memory"]
    found["memory_more"] = found["memory"] - training["memory"]
    print(
        f"2 x ResNet-18, {given.epochs} epochs, {given.held_out} held-out samples: {found['seconds']:.0f} s"
    )
    print(f"all checkpoints together      {found['everything']:6.2f} GB")
    print(f"memory of training            {training['memory']:6.2f} GB")
    print(f"memory with backtracking      {found['memory_more']:+6.2f} GB (bound +1, aim +0.2)")
    print(f"disk for checkpoints          {found['disk']:6.2f} GB (bound 6, aim 1)")
    print(f"checkpoints that can still win {found['kept']} of {given.epochs + 1}, chosen {found['chosen']}")
    if given.json:
        given.json.write_text(json.dumps(found | {"epochs": given.epochs}, indent=1) + "\n")


if __name__ == "__main__":
    main()
