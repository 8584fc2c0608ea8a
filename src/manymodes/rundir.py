"""A run directory: configuration, environment, events, checkpoints, final weights, metrics."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple

import yaml

from manymodes import environment, files, locks, streamfacts
from manymodes.config import Config, differences, plain
from manymodes.errors import DamagedFile, UserError
from manymodes.runfiles import LOCK, RunFiles
from manymodes.version import __version__

if TYPE_CHECKING:
    from manymodes.run import Record
    from manymodes.strategies.base import Event, Strategy
    from manymodes.task import Stream

SHARE = 0.005  # of a run's time at most goes into checkpoints, unless their distance is given
PATIENCE = 2.0  # seconds to wait for the lock: a killed run's helpers need a moment to go
BETWEEN = "-000000"  # how the name of a checkpoint ends that was written between two tasks
GROWING = ("events.jsonl", "log.csv")  # cut back to the checkpoint on resuming: nothing twice, nothing lost


class _Checkpoint(NamedTuple):
    """What a checkpoint's file holds."""

    path: Path
    state: Any
    record: Record
    positions: dict[str, int]


class RunDir(RunFiles):
    """The files of one run, written. Nothing in it is ever half-written; one process writes at a time.

    Args:
        path: The directory.
        checkpoint_every: Seconds from one checkpoint to the next at least. None: after each epoch, or as
            often as it costs at most 0.5 % of the time.
    """

    def __init__(self, path: Path, checkpoint_every: float | None = None) -> None:
        super().__init__(path)
        self.checkpoint_every = checkpoint_every
        self.pool = path / "pool"  # what checkpoints refer to
        self._config: Config
        self._events: BinaryIO | None = None
        self._saved, self._cost = time.monotonic(), 0.0

    # ---- configuration and lock -----------------------------------------------------------------

    def check(self, config: Config) -> None:
        """A directory that holds a run holds this one."""
        if (self.path / "config.yaml").exists():
            found = differences(self.config(), config)
            if found:
                raise UserError(
                    f"{self.path} holds a run with another configuration ({'; '.join(found)}): "
                    "give another --out, or delete that run"
                )

    def begin(self, config: Config) -> None:
        """Write down what is about to run, or on what else it goes on."""
        for left in self.path.rglob(".*.tmp"):  # of a killed process: the lock is ours, so nobody writes them
            left.unlink(missing_ok=True)
        (self.path / "failure.json").unlink(missing_ok=True)
        self._config, now = config, environment.environment()
        if not (self.path / "config.yaml").exists():
            text = yaml.safe_dump(plain(config.as_dict()), sort_keys=False, allow_unicode=True)
            files.write_text(self.path / "config.yaml", text)
        before = self.environment()
        if before is None:
            files.write_json(self.path / "environment.json", now)
        elif found := environment.changes(before, now):
            _say(f"{self.path} was started elsewhere ({'; '.join(found)}): the last bits may differ")

    def keep(self, stream: Stream) -> None:
        """Write down the order of the classes and what each task holds, or see that it is still the same."""
        path, now, before = self.path / "stream.json", streamfacts.facts(stream), None
        if path.exists() and self.checkpoints():
            with suppress(DamagedFile):
                before = files.read_json(path)
        if before is None:
            files.write_json(path, now)
        elif found := streamfacts.difference(before, now):
            raise UserError(
                f"the data of {self.path} is not what it was ({found}): put it back, or start a new run with "
                "another --out"
            )

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the directory for writing; a second writer gets one clear line."""
        lock = self.path / LOCK
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            descriptor = locks.claim(lock, PATIENCE)
            os.truncate(descriptor, 0)
            os.write(descriptor, str(os.getpid()).encode())
        except BlockingIOError:
            holder = files.read_text(lock) or "unknown"
            raise UserError(f"{self.path} is in use by another process ({holder}): wait, or end it") from None
        except OSError as error:
            raise UserError(f"cannot write into {self.path}: {files.reason(error)}") from None
        try:
            yield
        except OSError as error:
            raise self.explained(error) from None
        finally:
            self.close()
            if [entry.name for entry in self.path.iterdir()] == [lock.name]:  # it never began
                lock.unlink()
                with suppress(OSError):
                    self.path.rmdir()
            os.close(descriptor)

    # ---- events and checkpoints -----------------------------------------------------------------

    def event(self, event: Event) -> None:
        """One line in events.jsonl."""
        assert self._events is not None
        self._events.write(json.dumps(files.finite(asdict(event))).encode() + b"\n")
        self._events.flush()

    def due(self) -> bool:
        """Whether the last checkpoint is old enough for another one."""
        age = time.monotonic() - self._saved
        return age >= (self._cost / SHARE if self.checkpoint_every is None else self.checkpoint_every)

    def checkpoint(self, learner: Strategy, record: Record) -> None:
        """Save the learner and the record together."""
        from manymodes import store

        started = time.monotonic()
        meta = {
            "record": asdict(record), "config": plain(self._config.as_dict()), "version": __version__,
            "positions": self._positions(), "epochs": learner.epochs,
        }  # fmt: skip
        # Within a task epochs_done counts from 1; between tasks it is None, before all epochs of the next.
        name = f"checkpoint-{learner.tasks_learnt:04d}-{learner.epochs_done or 0:06d}.safetensors"
        store.save_state(self.path / name, learner.state_dict(), meta, self.pool)
        self._prune()
        self._saved = time.monotonic()
        self._cost = self._saved - started

    def restore(self, learner: Strategy) -> Record | None:
        """Load the newest checkpoint that is sound; None if there is none. Events go on from there."""
        from manymodes import saving

        learner.workspace = self.pool
        found = self._newest()
        self._cut(dict.fromkeys(GROWING, 0) if found is None else found.positions)
        self._clear_pool()  # before the learner takes its state: it may write into the pool at once
        if found is None:
            return None
        saving.give_state(learner, found.state, found.path)
        return found.record

    def _newest(self) -> _Checkpoint | None:
        """The newest sound checkpoint; damaged ones are put aside."""
        for path in reversed(self.checkpoints()):
            try:
                return self._read(path)
            except DamagedFile as error:
                damaged = path.with_suffix(".damaged")
                os.replace(path, damaged)
                _say(f"{error}; kept as {damaged.name}, going on from the checkpoint before it")
        return None

    def _read(self, path: Path) -> _Checkpoint:
        from manymodes import store
        from manymodes.run import Record

        state, meta = store.load_state(path, self.pool)
        try:
            record, positions = Record(**meta["record"]), dict(meta["positions"])
        except (KeyError, TypeError, ValueError) as error:
            raise DamagedFile(f"{path} is damaged: {type(error).__name__} {error}") from None
        if found := differences(meta.get("config"), self._config):
            raise UserError(
                f"{self.path / 'config.yaml'} was edited since {path.name} was written ({'; '.join(found)}): "
                "put it back, or start a new run with another --out"
            )
        return _Checkpoint(path, state, record, positions)

    def _positions(self) -> dict[str, int]:
        """How long the growing files are; what they hold is flushed to disk before a checkpoint says so."""
        if self._events is not None:
            os.fsync(self._events.fileno())
        sizes = {name: self.path / name for name in GROWING}
        return {name: path.stat().st_size if path.exists() else 0 for name, path in sizes.items()}

    def _cut(self, positions: dict[str, int]) -> None:
        """Shorten the growing files to what they were when the checkpoint was written."""
        self.close()
        flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | getattr(os, "O_NOFOLLOW", 0)
        for name in GROWING:
            path, size = self.path / name, int(positions.get(name, 0))
            if size == 0:
                path.unlink(missing_ok=True)
            if name == "events.jsonl" or path.exists():
                file = os.fdopen(os.open(path, flags, 0o666), "ab")
                if os.fstat(file.fileno()).st_size < size:
                    _say(f"{path} is shorter than it was: lines of it are lost, numbers and weights are not")
                else:
                    file.truncate(size)
                if name == "events.jsonl":
                    self._events = file
                else:
                    file.close()

    def _prune(self) -> None:
        """Keep the last two checkpoints, and the last that was written between tasks.

        That one needs nothing of the pool, where one damaged file can spoil all checkpoints of a task.
        """
        found = self.checkpoints()
        between = [path for path in found if path.stem.endswith(BETWEEN)][-1:]
        for old in found[:-2]:
            if old not in between:
                old.unlink(missing_ok=True)
        self._clear_pool()

    def _clear_pool(self) -> None:
        """Remove what no readable checkpoint refers to any more."""
        if self.pool.is_dir():
            from manymodes import store

            needed: set[str] = set()
            for path in self.checkpoints():
                with suppress(DamagedFile):  # an older one, which nobody has needed yet
                    needed.update(store.read_meta(path)[1])
            for blob in self.pool.iterdir():
                if blob.name not in needed:
                    blob.unlink()

    # ---- the end --------------------------------------------------------------------------------

    def finish(
        self, learner: Strategy, record: Record, config: Config, about: dict[str, Any]
    ) -> dict[str, Any]:
        """Final weights and metrics.json (written last: its presence means that the run is done)."""
        from manymodes import saving

        learner.save(self.path / "learner.safetensors")
        saving.export_weights(learner, self.path / "weights")
        result = record.metrics() | about | {"seed": config.seed, "command": config.command()}
        result |= {"label": config.label, "modes": len(learner.modes)}
        files.write_json(self.path / "metrics.json", result)
        for old in self.checkpoints():
            old.unlink(missing_ok=True)
        self._clear_pool()
        with suppress(OSError):
            self.pool.rmdir()
        written: dict[str, Any] = files.finite(result)
        return written

    def fail(self, message: str) -> None:
        """Write down why the run stopped."""
        with suppress(UserError):  # what it has to tell counts more
            files.write_json(self.path / "failure.json", {"message": message})

    def explained(self, error: OSError) -> UserError:
        """What a file that cannot be read or written means for the run."""
        where = f" ({error.filename})" if error.filename else ""
        return UserError(
            f"the run in {self.path} stopped: {files.reason(error)}{where}; the same command goes on "
            "from its last checkpoint"
        )

    def close(self) -> None:
        """Close the event file."""
        if self._events is not None:
            self._events.close()
            self._events = None


def _say(text: str) -> None:
    print(f"manymodes: {text}", flush=True)
