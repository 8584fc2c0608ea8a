"""The checkpoints that backtracking chooses from: few in memory, the rest on disk, losers dropped."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from manymodes import distributed
from manymodes.backtracking import Choice, backtrack, can_still_win
from manymodes.difference import packed, unpacked
from manymodes.errors import TrainingDiverged
from manymodes.scratch import Record, Scratch
from manymodes.store import Blob, save_blob

MEMORY_BYTES = 64 * 2**20  # above this, checkpoints go to disk

Weights = dict[str, Tensor]  # theta and buffers of one mode; on disk theta as its difference to the base


@dataclass
class Checkpoint:
    """One mode at the end of one epoch: what the search needs, and where its weights are.

    They are in memory, in a blob of the run directory, or a record of the scratch file. Of several
    processes only the holder has them.
    """

    epoch: int
    probabilities_S: Tensor
    drift: float
    weights: Weights | Blob | Record | None = None
    holder: int = 0


class Checkpoints:
    """For each mode, the checkpoints of this task that can still win.

    The search only needs one row of true-class probabilities per checkpoint; the weights are written once
    and read at most once. `add` drops what cannot be part of any optimum, whatever is still to come.

    Args:
        modes: N.
        drift_weight: How much drift counts in the search.
        folder: Where large weights are written so that a saved state can refer to them. Whoever owns the
            folder removes those that no state needs. Without it they go to scratch space.
        bases: For each mode a vector that stays as it is, such as the one it began the task with: on disk
            weights are their difference to it, which takes less room.
    """

    def __init__(
        self,
        modes: int,
        drift_weight: float,
        folder: Path | None = None,
        bases: Sequence[Tensor] | None = None,
    ) -> None:
        self.drift_weight, self.folder, self.bases = drift_weight, folder, bases
        self.kept: list[list[Checkpoint]] = [[] for _ in range(modes)]
        self._scratch: Scratch | None = None

    def add(
        self, mode: int, epoch: int, theta: Tensor, buffers: Tensor, probabilities_S: Tensor, drift: float,
        holder: int = 0,
    ) -> None:  # fmt: skip
        """Keep this checkpoint and drop those of the same mode that it rules out (or itself)."""
        if not (math.isfinite(drift) and bool(probabilities_S.isfinite().all())):
            raise TrainingDiverged(
                f"the drift of mode {mode} became {drift} in epoch {epoch}: "
                "try a lower lr or a smaller strength"
            )
        row = Checkpoint(epoch, probabilities_S.cpu(), drift, holder=holder)
        rows = [*self.kept[mode], row]
        wins = can_still_win(
            torch.stack([r.probabilities_S for r in rows]),
            torch.tensor([r.drift for r in rows], dtype=torch.float64),
            len(self.kept),
            self.drift_weight,
            only_last_is_new=True,
        ).tolist()
        for old, winning in zip(rows[:-1], wins[:-1], strict=True):
            if not winning and isinstance(old.weights, Record) and self._scratch is not None:
                self._scratch.drop(old.weights)
        self.kept[mode] = [r for r, winning in zip(rows, wins, strict=True) if winning]
        if wins[-1] and distributed.number() == holder:
            row.weights = self._stored(mode, {"theta": theta, "buffers": buffers})

    def choose(self, time_limit: float) -> Choice:
        """The best checkpoint of every mode; `epochs` of the result are epochs, not positions."""
        choice = backtrack(
            [torch.stack([r.probabilities_S for r in rows]) for rows in self.kept],
            [torch.tensor([r.drift for r in rows], dtype=torch.float64) for rows in self.kept],
            self.drift_weight,
            time_limit=time_limit,
        )
        epochs = tuple(rows[e].epoch for rows, e in zip(self.kept, choice.epochs, strict=True))
        # A search that ran out of time may end elsewhere in another process.
        return distributed.agreed(Choice(epochs, choice.value, choice.lower_bound))

    def load(self, mode: int, epoch: int, theta: Tensor, buffers: Tensor) -> None:
        """Put the weights and buffers of a kept checkpoint there, in all processes."""
        row = next(r for r in self.kept[mode] if r.epoch == epoch)
        if distributed.number() == row.holder:
            weights = self._loaded(mode, row.weights)
            theta.copy_(weights["theta"])
            buffers.copy_(weights["buffers"])
        distributed.same_(theta, buffers, source=row.holder)

    def collect(self) -> None:
        """From now on the first process holds all weights."""
        away = [(mode, row) for mode, rows in enumerate(self.kept) for row in rows if row.holder != 0]
        for mode, row in away:
            own = self._loaded(mode, row.weights) if distributed.number() == row.holder else None
            weights = distributed.agreed_state(own, row.holder)
            if own is not None and isinstance(row.weights, Record) and self._scratch is not None:
                self._scratch.drop(row.weights)
            row.weights = self._stored(mode, weights) if distributed.first() else None
            row.holder = 0

    def _stored(self, mode: int, weights: Weights) -> Weights | Blob | Record:
        theta = weights["theta"]
        in_memory = sum(isinstance(r.weights, dict) for rows in self.kept for r in rows)
        if (in_memory + 1) * theta.numel() * theta.element_size() <= MEMORY_BYTES:
            return {name: tensor.clone() for name, tensor in weights.items()}
        if self.bases is not None:
            weights = {"packed": packed(theta, self.bases[mode]), "buffers": weights["buffers"]}
        if self.folder is not None:
            return save_blob(
                self.folder, {name: t.detach().cpu().contiguous() for name, t in weights.items()}
            )
        self._scratch = Scratch() if self._scratch is None else self._scratch
        self._like = theta[:0], weights["buffers"]
        return self._scratch.put(weights.get("packed", theta), weights["buffers"])

    def _loaded(self, mode: int, weights: Weights | Blob | Record | None) -> Weights:
        """Theta and buffers, wherever they are."""
        if isinstance(weights, Record):
            assert self._scratch is not None
            theta, buffers = self._like
            together = self._scratch.get(weights)
            first, last = together.tensor_split([weights.size - buffers.numel() * buffers.element_size()])
            start = {"theta": first.view(theta.dtype)} if self.bases is None else {"packed": first}
            weights = start | {"buffers": last.clone().view(buffers.dtype)}
        weights = weights.load() if isinstance(weights, Blob) else weights
        assert weights is not None
        if "packed" in weights:
            assert self.bases is not None
            return {"theta": unpacked(weights["packed"], self.bases[mode]), "buffers": weights["buffers"]}
        return weights

    def state_dict(self) -> list[list[dict[str, Any]]]:
        """Everything, for a learner saved within a task; blobs as blobs."""
        return [[self._row_state(mode, row) for row in rows] for mode, rows in enumerate(self.kept)]

    def _row_state(self, mode: int, row: Checkpoint) -> dict[str, Any]:
        return {
            "epoch": row.epoch,
            "probabilities": row.probabilities_S,
            "drift": row.drift,
            "weights": row.weights
            if isinstance(row.weights, Blob | None)
            else self._loaded(mode, row.weights),
        }

    def load_state_dict(self, state: Sequence[Sequence[dict[str, Any]]]) -> None:
        """Take back what `state_dict` gave."""
        self.kept = [[] for _ in state]
        for mode, rows in enumerate(state):
            for saved in rows:
                row = Checkpoint(saved["epoch"], saved["probabilities"], saved["drift"])
                weights = saved["weights"]
                if distributed.first():
                    blob = isinstance(weights, Blob)
                    row.weights = weights if blob else self._stored(mode, self._loaded(mode, weights))
                self.kept[mode].append(row)
