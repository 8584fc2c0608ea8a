"""A run on a machine that does not see its directory: the files travel after each checkpoint."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from manymodes.config import Config
from manymodes.errors import DamagedFile
from manymodes.files import write_atomically
from manymodes.rundir import RunDir
from manymodes.runfiles import LOCK

if TYPE_CHECKING:
    from manymodes.run import Record
    from manymodes.strategies.base import Strategy

Known = dict[str, tuple[int, int]]  # (size, time of the last change) of each file that the other side has


class Parcel(NamedTuple):
    """Files by their names in the run directory, and the names of those that are gone."""

    files: dict[str, bytes]
    gone: list[str]


def packed(path: Path, known: Known) -> Parcel:
    """What changed in a run directory since `known`, which is brought up to date."""
    found: Known = {}
    for file in sorted(path.rglob("*")):
        if file.is_file() and file.name != LOCK and not file.name.endswith(".tmp"):
            stat = file.stat()
            found[str(file.relative_to(path))] = stat.st_size, stat.st_mtime_ns
    changed = [name for name, stamp in found.items() if known.get(name) != stamp]
    parcel = Parcel(
        {name: (path / name).read_bytes() for name in changed}, sorted(known.keys() - found.keys())
    )
    known.clear()
    known.update(found)
    return parcel


def unpack(path: Path, parcel: Parcel) -> None:
    """Do the same to another copy of the directory; whoever is killed meanwhile leaves a sound one.

    What checkpoints refer to comes before them, metrics.json (the run is done) after everything else, and
    what is gone goes last.
    """
    for name in sorted(parcel.files, key=_last_of_all):
        write_atomically(_inside(path, name), partial(_put, content=parcel.files[name]))
    for name in parcel.gone:
        _inside(path, name).unlink(missing_ok=True)


def _last_of_all(name: str) -> tuple[bool, bool, str]:
    return name == "metrics.json", name.startswith("checkpoint-"), name


def _inside(path: Path, name: str) -> Path:
    if Path(name).is_absolute() or ".." in Path(name).parts:
        raise DamagedFile(f"a file called {name!r} does not belong into {path}")
    return path / name


def _put(path: Path, content: bytes) -> None:
    path.write_bytes(content)


class Posted(RunDir):
    """A run directory whose files are sent off whenever something in it must survive."""

    def __init__(
        self, path: Path, checkpoint_every: float | None, known: Known, send: Callable[[Parcel], None]
    ) -> None:
        super().__init__(path, checkpoint_every)
        self._known, self._send = known, send

    def checkpoint(self, learner: Strategy, record: Record) -> None:
        """Sending is part of what a checkpoint costs."""
        super().checkpoint(learner, record)
        started = time.monotonic()
        self._post()
        self._saved = time.monotonic()
        self._cost += self._saved - started

    def finish(
        self, learner: Strategy, record: Record, config: Config, about: dict[str, Any]
    ) -> dict[str, Any]:
        """The results, and what is not needed any more."""
        result = super().finish(learner, record, config, about)
        self._post()
        return result

    def fail(self, message: str) -> None:
        """Why it stopped."""
        super().fail(message)
        self._post()

    def _post(self) -> None:
        self._send(packed(self.path, self._known))
