"""Files of the present format, for later versions to read: python -m tests.golden.write

Once a version is released its folder never changes; whoever raises `store.FORMAT` adds a migration and, with
this script, another folder.
"""

from __future__ import annotations

import json
import shutil
from contextlib import suppress
from pathlib import Path

import torch

import manymodes as mm
from manymodes import store
from manymodes.config import Config
from manymodes.interrupts import Interrupted, Stop
from manymodes.strategies.registry import REGISTRY, strategy_class
from manymodes.sweep import execute

HERE = Path(__file__).parent
CONFIG = Config(
    {"name": "mota", "epochs": 3, "batch_size": 8},
    {"name": "digits", "tasks": 2, "limit": 8, "scenario": "task"},
    {"name": "mlp", "hidden": [4]},
)


def samples(task: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Sixteen points of two classes, the same on every machine."""
    x = torch.arange(64.0).view(16, 4).sin() + task
    return x, 2 * task + torch.arange(16) % 2


class Later:
    """Asks to stop in the middle of task 2."""

    looks = 0

    def is_set(self) -> bool:
        self.looks += 1
        return self.looks > 5


def main() -> None:
    """Every strategy in the middle of its second task, its predictions; and a run that was interrupted."""
    folder = HERE / f"format{store.FORMAT}"
    shutil.rmtree(folder, ignore_errors=True)
    expected = {}
    for name in REGISTRY:
        torch.manual_seed(0)
        learner = strategy_class(name)(mm.models.mlp(4, (3,), outputs=4), epochs=2, batch_size=8)
        learner.learn(*samples(0))
        path = folder / f"{name}.safetensors"
        learner.learn(
            *samples(1), on_epoch=lambda one, path=path: one.save(path) if one.epochs_done == 1 else 0
        )
        expected[name] = mm.load(path).predict(samples(0)[0], classes=range(4)).tolist()
    (folder / "predictions.json").write_text(json.dumps(expected))
    with suppress(Interrupted):
        execute(CONFIG, folder / "run", checkpoint_every=0, stop=Stop(Later()))
    (folder / "run" / ".lock").unlink()


if __name__ == "__main__":
    main()
