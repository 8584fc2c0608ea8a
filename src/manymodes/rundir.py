"""A run directory: configuration, environment, events, checkpoints, final weights, metrics."""

from __future__ import annotations

import fcntl
import json
import os
import platform
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any, TextIO

import yaml

from manymodes import store
from manymodes.config import Config
from manymodes.errors import UserError
from manymodes.run import Record
from manymodes.strategies.base import Event, Strategy
from manymodes.version import __version__


class RunDir:
    """The files of one run. Nothing in it is ever half-written; one process writes at a time."""

    def __init__(self, path: Path, checkpoint_every: float = 30.0) -> None:
        self.path, self.checkpoint_every = path, checkpoint_every
        self._saved = time.monotonic()
        self._events: TextIO | None = None

    # ---- configuration and lock -----------------------------------------------------------------

    def prepare(self, config: Config) -> None:
        """Make the directory for this configuration, or check that it is for the same one."""
        target = self.path / "config.yaml"
        wanted = yaml.safe_dump(json.loads(json.dumps(config.as_dict())), sort_keys=False)
        if not target.exists():
            store.write_text(target, wanted)
            store.write_json(self.path / "environment.json", environment())
            return
        there = self.config()
        differences = _differences(there, yaml.safe_load(wanted))
        if differences:
            raise UserError(
                f"{self.path} holds a run with another configuration ({'; '.join(differences)}): "
                "give another --out, or delete that run"
            )

    def config(self) -> dict[str, Any]:
        """The saved configuration."""
        path = self.path / "config.yaml"
        try:
            content = yaml.safe_load(path.read_text(encoding="utf-8"))
        except OSError as error:
            raise UserError(
                f"{self.path} is not a run directory: {error.strerror or error} (config.yaml)"
            ) from None
        except (yaml.YAMLError, UnicodeDecodeError) as error:
            raise UserError(f"{path} is not valid YAML: {' '.join(str(error).split())}") from None
        if not isinstance(content, dict) or not {"strategy", "stream", "model", "seed"} <= set(content):
            raise UserError(f"{path} is not the configuration of a run")
        return content

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the directory for writing; a second writer gets one clear line."""
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            file = open(self.path / ".lock", "a+")  # noqa: SIM115
        except OSError as error:
            raise UserError(f"cannot write into --out {self.path}: {error.strerror or error}") from None
        with file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                raise UserError(f"{self.path} is in use by another process (its lock is held)") from None
            yield

    # ---- events and checkpoints -----------------------------------------------------------------

    def event(self, event: Event) -> None:
        """One line in events.jsonl."""
        if self._events is None:
            self._events = open(self.path / "events.jsonl", "a", encoding="utf-8")  # noqa: SIM115
        self._events.write(json.dumps(asdict(event)) + "\n")
        self._events.flush()

    def epoch(self, learner: Strategy, record: Record) -> None:
        """Save if the last checkpoint is old enough."""
        if time.monotonic() - self._saved >= self.checkpoint_every:
            self.checkpoint(learner, record)

    def checkpoint(self, learner: Strategy, record: Record) -> None:
        """Save the learner and the record together; the last two are kept."""
        name = f"checkpoint-{learner.tasks_learnt:04d}-{learner.epochs_done or 0:06d}.safetensors"
        store.save_state(
            self.path / name, learner.state_dict(), {"record": asdict(record), "version": __version__}
        )
        for old in self.checkpoints()[:-2]:
            old.unlink(missing_ok=True)
        self._saved = time.monotonic()

    def checkpoints(self) -> list[Path]:
        """The checkpoints, oldest first."""
        return sorted(self.path.glob("checkpoint-*.safetensors"))

    def restore(self, learner: Strategy) -> Record | None:
        """Load the newest checkpoint that is sound; None if there is none."""
        for path in reversed(self.checkpoints()):
            try:
                state, meta = store.load_state(path)
            except UserError as error:
                print(f"manymodes: {error}; using the checkpoint before it")
                continue
            learner.load_state_dict(state)
            return Record(**meta["record"])
        return None

    # ---- the end --------------------------------------------------------------------------------

    def finish(
        self, learner: Strategy, record: Record, config: Config, about: dict[str, Any]
    ) -> dict[str, Any]:
        """Final weights and metrics.json (written last: its presence means that the run is done)."""
        learner.save(self.path / "learner.safetensors")
        export_weights(learner, self.path / "weights")
        result = record.metrics() | about | {"seed": config.seed, "command": config.command()}
        result |= {"label": config.label, "modes": len(learner.modes)}
        store.write_json(self.path / "metrics.json", result)
        for old in self.checkpoints():
            old.unlink(missing_ok=True)
        self.close()
        return result

    def metrics(self) -> dict[str, Any] | None:
        """The metrics of a finished run."""
        path = self.path / "metrics.json"
        if not path.exists():
            return None
        found: dict[str, Any] = store.read_json(path)
        return found

    def close(self) -> None:
        """Close the event file."""
        if self._events is not None:
            self._events.close()
            self._events = None


def export_weights(learner: Strategy, folder: Path) -> None:
    """Each mode's weights under the network's own names: any tool can load them, `--model.weights` too."""
    for mode in range(len(learner.modes)):
        learner.use(mode)
        state = {name: t.detach().cpu().clone() for name, t in learner.model.module.state_dict().items()}
        store.save_tensors(folder / f"mode{mode}.safetensors", state)
    learner.use(0)


def environment() -> dict[str, Any]:
    """What the numbers of a run depend on beside its configuration."""
    import numpy
    import torch

    return {
        "manymodes": __version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": numpy.__version__,
        "machine": platform.machine(),
        "processor": torch.backends.cpu.get_cpu_capability(),
        "cuda": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
    }


def _differences(there: Any, wanted: Any, path: str = "") -> list[str]:
    if isinstance(there, dict) and isinstance(wanted, dict):
        keys = dict.fromkeys([*there, *wanted])
        return [
            d for k in keys for d in _differences(there.get(k), wanted.get(k), f"{path}.{k}" if path else k)
        ]
    return [] if there == wanted else [f"{path} is {there!r} there, {wanted!r} here"]
