"""Downloads: resumed where they stopped, trusted only once their checksum holds."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from manymodes.errors import UserError, require
from manymodes.streams.checksums import LEDGER, checksum, record, recorded, unchanged
from manymodes.streams.progress import download_bar
from manymodes.streams.transfer import Patience, download, mark_of


@dataclass(frozen=True)
class Remote:
    """A file on a server; `checksum` is "md5:..." or "sha256:...", None where the publisher gives none.

    Without a published checksum the first download is trusted and its SHA-256 recorded; every later
    download and check is held to that.
    """

    url: str
    filename: str
    checksum: str | None = None


def fetch_file(
    remote: Remote,
    folder: Path,
    *,
    patience: Patience | None = None,
    say: Callable[[str], None] = print,
) -> Path:
    """The file in `folder`, downloaded unless it is already there and sound.

    While it comes it is called NAME.part; an interrupted download goes on from there if the server still
    has the same file. Only when the checksum holds does it get its name.
    """
    require(remote.url.startswith(("http://", "https://")), f"{remote.url!r} is not an http or https address")
    target = folder / remote.filename
    part = target.with_name(target.name + ".part")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with _alone(part.with_suffix(".lock")):
            if target.exists():
                problem = damage(remote, target)
                require(problem is None, f"{problem}; delete it to fetch it again")
                return target
            with download_bar(remote.filename) as advance:
                download(remote.url, part, patience or Patience(), advance)
            digest = _checked(remote, part, target, say)
            os.replace(part, target)
            mark_of(part).unlink(missing_ok=True)
            record(target, digest, remote.url)
    except OSError as error:
        raise _disk_error(error, folder, remote.filename) from None
    return target


def damage(remote: Remote, target: Path, *, again: bool = False) -> str | None:
    """What is wrong with a file that is there, or None; `again` reads it even if it is unchanged.

    A file without a known checksum is taken for what it is, and recorded.
    """
    if not again and unchanged(target):
        return None
    expected = remote.checksum or recorded(target)
    found = checksum(target, expected.partition(":")[0] if expected else "sha256")
    if expected not in (None, found):
        return f"{target} is damaged or another file ({found}, expected {expected})"
    with suppress(OSError):  # a directory that cannot be written to may hold good data all the same
        record(target, found, remote.url)
    return None


def _checked(remote: Remote, part: Path, target: Path, say: Callable[[str], None]) -> str:
    """The checksum of what came; a wrong file is deleted."""
    expected = remote.checksum or recorded(target)
    found = checksum(part, expected.partition(":")[0] if expected else "sha256")
    if expected is None:
        say(f"{remote.filename}: its publisher gives no checksum; recorded {found} in {part.parent / LEDGER}")
    elif found != expected:
        part.unlink()
        mark_of(part).unlink(missing_ok=True)
        raise UserError(
            f"{remote.url}: what came is damaged or another file ({found}, expected {expected}); it was "
            "deleted: try again"
        )
    return found


@contextmanager
def _alone(lock: Path) -> Iterator[None]:
    """Two processes that want the same file: the second waits, then finds it there."""
    try:
        import fcntl
    except ImportError:  # no such locks on Windows
        yield
        return
    with lock.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
        lock.unlink(missing_ok=True)


def _disk_error(error: OSError, folder: Path, filename: str) -> UserError:
    if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        return UserError(
            f"no room in {folder} for {filename} ({error.strerror}): free some or give another data_dir; "
            "what came is kept and the download goes on from there"
        )
    return UserError(f"cannot write {filename} to {folder}: {error.strerror or error}")
