"""The checkpoints that backtracking chooses from: few in memory, the rest on disk, losers dropped."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from manymodes.backtracking import Choice, backtrack, can_still_win

MEMORY_BYTES = 64 * 2**20  # above this, checkpoints go to disk


@dataclass
class Checkpoint:
    """One mode at the end of one epoch: its weights (in memory or in a file), and what the search needs."""

    epoch: int
    probabilities_S: Tensor
    drift: float
    theta: Tensor | None
    buffers: Tensor | None
    path: Path | None = None

    def load(self) -> tuple[Tensor, Tensor]:
        """The weights and buffers."""
        if self.path is None:
            assert self.theta is not None
            assert self.buffers is not None
            return self.theta, self.buffers
        tensors = load_file(self.path)
        return tensors["theta"], tensors["buffers"]


class Checkpoints:
    """For each mode, the checkpoints of this task that can still win.

    The search only needs one row of true-class probabilities per checkpoint; the weights are written once
    and read at most once. `add` drops what cannot be part of any optimum, whatever is still to come.
    """

    def __init__(self, modes: int, drift_weight: float) -> None:
        self.drift_weight = drift_weight
        self.kept: list[list[Checkpoint]] = [[] for _ in range(modes)]
        self._folder: tempfile.TemporaryDirectory[str] | None = None

    def add(
        self, mode: int, epoch: int, theta: Tensor, buffers: Tensor, probabilities_S: Tensor, drift: float
    ) -> None:
        """Keep this checkpoint and drop those of the same mode that it rules out (or itself)."""
        row = Checkpoint(epoch, probabilities_S.cpu(), drift, None, None)
        rows = [*self.kept[mode], row]
        wins = can_still_win(
            torch.stack([r.probabilities_S for r in rows]),
            torch.tensor([r.drift for r in rows], dtype=torch.float64),
            len(self.kept),
            self.drift_weight,
        ).tolist()
        for old, winning in zip(rows[:-1], wins[:-1], strict=True):
            if not winning and old.path is not None:
                old.path.unlink(missing_ok=True)
        self.kept[mode] = [r for r, winning in zip(rows, wins, strict=True) if winning]
        if wins[-1]:
            self._store(row, mode, theta, buffers)

    def choose(self, time_limit: float) -> Choice:
        """The best checkpoint of every mode; `epochs` of the result are epochs, not positions."""
        choice = backtrack(
            [torch.stack([r.probabilities_S for r in rows]) for rows in self.kept],
            [torch.tensor([r.drift for r in rows], dtype=torch.float64) for rows in self.kept],
            self.drift_weight,
            time_limit=time_limit,
        )
        epochs = tuple(rows[e].epoch for rows, e in zip(self.kept, choice.epochs, strict=True))
        return Choice(epochs=epochs, value=choice.value, lower_bound=choice.lower_bound)

    def load(self, mode: int, epoch: int) -> tuple[Tensor, Tensor]:
        """The weights and buffers of a kept checkpoint."""
        return next(r for r in self.kept[mode] if r.epoch == epoch).load()

    def _store(self, row: Checkpoint, mode: int, theta: Tensor, buffers: Tensor) -> None:
        in_memory = sum(1 for rows in self.kept for r in rows if r.theta is not None)
        if (in_memory + 1) * theta.numel() * theta.element_size() <= MEMORY_BYTES:
            row.theta, row.buffers = theta.clone(), buffers.clone()
            return
        if self._folder is None:
            self._folder = tempfile.TemporaryDirectory(prefix="manymodes-")
        row.path = Path(self._folder.name) / f"mode{mode}-epoch{row.epoch}.safetensors"
        save_file({"theta": theta.cpu().contiguous(), "buffers": buffers.cpu().contiguous()}, row.path)

    def state_dict(self) -> list[list[dict[str, Any]]]:
        """Everything, weights included, for a learner saved within a task."""
        return [[self._row_state(row) for row in rows] for rows in self.kept]

    @staticmethod
    def _row_state(row: Checkpoint) -> dict[str, Any]:
        theta, buffers = row.load()
        return {
            "epoch": row.epoch,
            "probabilities": row.probabilities_S,
            "drift": row.drift,
            "theta": theta,
            "buffers": buffers,
        }

    def load_state_dict(self, state: Sequence[Sequence[dict[str, Any]]]) -> None:
        """Take back what `state_dict` gave."""
        self.kept = [[] for _ in state]
        for mode, rows in enumerate(state):
            for saved in rows:
                row = Checkpoint(saved["epoch"], saved["probabilities"], saved["drift"], None, None)
                self.kept[mode].append(row)
                self._store(row, mode, saved["theta"], saved["buffers"])
