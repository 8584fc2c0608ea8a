"""Versions of a learner: learner-0005.safetensors is how it was after five tasks; one of them is in use."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from manymodes import files, locks
from manymodes.errors import UserError

if TYPE_CHECKING:
    from manymodes.strategies.base import Strategy


def version_path(path: Path, tasks: int) -> Path:
    """The file of the version after so many tasks.

    >>> version_path(Path("run/learner.safetensors"), 5).name
    'learner-0005.safetensors'
    """
    return path.with_name(f"{path.stem}-{tasks:04d}{path.suffix}")


def versions(path: Path) -> dict[int, Path]:
    """The versions beside a learner's file, by the number of tasks learnt."""
    pattern = re.compile(re.escape(path.stem) + r"-(\d{4,})" + re.escape(path.suffix))
    found = ((pattern.fullmatch(entry.name), entry) for entry in path.parent.iterdir())
    return dict(sorted((int(match[1]), entry) for match, entry in found if match))


def keep(path: Path, tasks: int) -> None:
    """Keep the file in use as the version after `tasks` tasks."""
    _copy(path, version_path(path, tasks))


def put(learner: Strategy, path: Path) -> Path:
    """Write a learner as a version of its own, then put that one in use; at no moment is there none."""
    version = version_path(path, learner.tasks_learnt)
    learner.save(version)
    _copy(version, path)
    return version


def rollback(path: Path, tasks: int) -> None:
    """Put the version after `tasks` tasks in use, if its file is sound; later versions stay."""
    from manymodes import store

    found = versions(path)
    if tasks not in found:
        there = ", ".join(map(str, found)) or "none (nothing was learnt on top of this run)"
        raise UserError(f"there is no version after task {tasks} of {path}; versions: {there}")
    store.load_state(found[tasks])
    with changing(path):
        _copy(found[tasks], path)


@contextmanager
def changing(path: Path) -> Iterator[None]:
    """Hold a learner's file for changing; a second who tries gets one clear line."""
    lock = path.with_name(f".{path.name}.lock")
    try:
        descriptor = locks.claim(lock)
    except BlockingIOError:
        raise UserError(f"{path} is being changed by another process: wait until it has ended") from None
    except OSError as error:
        raise UserError(f"cannot write into {path.parent}: {files.reason(error)}") from None
    try:
        yield
    finally:
        lock.unlink(missing_ok=True)
        os.close(descriptor)


def _copy(source: Path, target: Path) -> None:
    def write(temporary: Path) -> None:
        shutil.copyfile(source, temporary)

    files.write_atomically(target, write)
