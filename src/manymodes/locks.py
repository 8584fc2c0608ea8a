"""Locks on files: held by a process, released by the system however that process ends. Imports no torch."""

from __future__ import annotations

import errno
import os
import time
from pathlib import Path

try:
    import fcntl
except ImportError:  # no such locks on Windows: there two writers are not told of each other
    fcntl = None  # type: ignore[assignment]

NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)  # file systems that have none
PAUSE = 0.05


def claim(path: Path, wait: float = 0.0) -> int:
    """Open a file (made if absent, never through a symbolic link) and lock it; returns its descriptor.

    Closing the descriptor releases it. Raises BlockingIOError if somebody holds it for longer than `wait`
    seconds.
    """
    until = time.monotonic() + wait
    flags = os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0)
    while True:
        descriptor = os.open(path, flags, 0o666)
        try:
            _lock(descriptor)
            if _names(path, descriptor):
                return descriptor
        except BlockingIOError:
            if time.monotonic() >= until:
                os.close(descriptor)
                raise
            time.sleep(PAUSE)
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)  # its holder renamed or removed it meanwhile: this is another file


def held(path: Path) -> bool:
    """Whether some process holds the lock at this moment."""
    if fcntl is None:
        return False
    try:
        descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0))
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)  # a moment: writers wait longer than that
    except BlockingIOError:
        return True
    except OSError:
        return False
    finally:
        os.close(descriptor)
    return False


def _lock(descriptor: int) -> None:
    if fcntl is None:
        return
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno not in NO_LOCKS:
            raise


def _names(path: Path, descriptor: int) -> bool:
    """Whether the path is (still) the name of the open file."""
    try:
        return os.path.samestat(os.stat(path, follow_symlinks=False), os.fstat(descriptor))
    except FileNotFoundError:
        return False
