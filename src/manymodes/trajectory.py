"""The path of the weights: the modes as they were before the first task and after each, one file each."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from manymodes.errors import UserError, unknown

if TYPE_CHECKING:
    from torch import Tensor

FOLDER = "trajectory"
WHEN = ("auto", "true", "false")
AUTO_BYTES = 64 * 2**20  # "auto" records a run whose path fits into this


class Trajectory:
    """Writes DIR/trajectory/task-0000.safetensors (before task 1), task-0001 (after it), ...

    Whole vectors in float32: the loss landscape around the last one is exact only with the true path.

    Args:
        run: The run directory.
        when: "true", "false", or "auto": if all of it stays below 64 MB.
        tasks: How many tasks the stream has.
    """

    def __init__(self, run: Path, when: str = "auto", tasks: int = 1) -> None:
        if when not in WHEN:
            raise unknown("record_trajectory", when, WHEN)
        self.folder, self.when, self.tasks = run / FOLDER, when, tasks

    def add(self, task: int, theta_NP: Tensor, buffers_NB: Tensor) -> None:
        """The modes after `task` tasks."""
        size = (theta_NP.numel() + buffers_NB.numel()) * 4 * (self.tasks + 1)
        if self.when == "false" or (self.when == "auto" and size > AUTO_BYTES):
            return
        from manymodes import store

        path = self.folder / f"task-{task:04d}.safetensors"
        if not path.exists():
            store.save_state(path, {"theta": theta_NP.float(), "buffers": buffers_NB.float()}, {"task": task})


def recorded(run: Path) -> list[Path]:
    """The files of a run's trajectory, in order, as far as they follow each other from task 0 on."""
    found = sorted((run / FOLDER).glob("task-*.safetensors"))
    return [path for number, path in enumerate(found) if path.name == f"task-{number:04d}.safetensors"]


def load_mode(path: Path, mode: int) -> tuple[Tensor, Tensor]:
    """One mode's vector (P,) and buffers (B,) of one file; the other modes are not read."""
    import torch
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="pt") as file:
            theta, buffers = (file.get_slice(name)[mode] for name in ("theta", "buffers"))
    except (OSError, SafetensorError, ValueError, IndexError) as error:
        raise UserError(f"cannot read mode {mode} of {path}: {error}") from None
    return torch.as_tensor(theta), torch.as_tensor(buffers)


def count_modes(path: Path) -> int:
    """How many modes a file holds."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="pt") as file:
            return int(file.get_slice("theta").get_shape()[0])
    except (OSError, SafetensorError, ValueError) as error:
        raise UserError(f"cannot read {path}: {error}") from None
