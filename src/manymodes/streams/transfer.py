"""One file over HTTP: asked for again after every interruption, and only for what is missing."""

from __future__ import annotations

import errno
import http.client
import os
import shutil
import time
import urllib.error
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from manymodes.errors import UserError
from manymodes.streams.progress import Advance

CHUNK = 1 << 18


@dataclass(frozen=True)
class Patience:
    """How long a server may be silent, and how often in a row it may fail without sending anything."""

    timeout: float = 30.0
    tries: int = 6
    first_wait: float = 1.0


def download(url: str, part: Path, patience: Patience, advance: Advance) -> None:
    """Fill `part`, going on after every interruption; failures in a row, without a byte, are counted."""
    failures = 0
    while True:
        before = _size(part)
        try:
            if _attempt(url, part, patience.timeout, advance):
                return
            reason = "the connection was closed early"
        except urllib.error.HTTPError as error:
            if error.code not in (408, 429) and error.code < 500:
                raise UserError(f"{url}: the server says {error.code} {error.reason}") from None
            reason = f"{error.code} {error.reason}"
        except (urllib.error.URLError, http.client.HTTPException, TimeoutError, ConnectionError) as error:
            reason = str(getattr(error, "reason", "") or error or type(error).__name__)
        failures = 1 if _size(part) > before else failures + 1
        if failures >= patience.tries:
            raise UserError(
                f"{url}: gave up after {failures} tries ({reason}); what came is kept in {part}, so the same "
                "command goes on from there"
            )
        time.sleep(patience.first_wait * 2 ** (failures - 1))


def mark_of(part: Path) -> Path:
    """Where the server's mark of the file that `part` began with is kept."""
    return part.with_name(part.name + ".version")


def _attempt(url: str, part: Path, timeout: float, advance: Advance) -> bool:
    """One request, for what is missing; True once everything is there."""
    have = _size(part)
    version = mark_of(part)
    headers = {"User-Agent": "manymodes", "Accept-Encoding": "identity"}
    if have and version.exists():
        headers |= {"Range": f"bytes={have}-", "If-Range": version.read_text().strip()}
    else:
        have = 0
    try:
        response = urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=timeout)
    except urllib.error.HTTPError as error:
        if error.code != 416:  # 416: nothing beyond what we have
            raise
        complete = error.headers.get("Content-Range", "").rpartition("/")[2] == str(have)
        if not complete:
            part.unlink()
        return complete
    with response:
        goes_on = response.status == 206
        if goes_on and not response.headers.get("Content-Range", "").startswith(f"bytes {have}-"):
            part.unlink(missing_ok=True)  # another range than asked for: begin anew
            return False
        start = have if goes_on else 0
        if not goes_on:
            part.unlink(missing_ok=True)
        _note_version(version, response.headers)
        length = response.headers.get("Content-Length")
        total = None if length is None else start + int(length)
        _room(part, total, start)
        advance(start, total)
        with part.open("ab") as file:
            while chunk := response.read1(CHUNK):
                file.write(chunk)
                start += len(chunk)
                advance(start, total)
            file.flush()
            os.fsync(file.fileno())
    return total is None or start >= total


def _note_version(version: Path, headers: Any) -> None:
    """Without a mark there is no telling whether the rest belongs to the same file: then no resuming."""
    tag = headers.get("ETag")
    mark = tag if tag and not tag.startswith("W/") else headers.get("Last-Modified")
    if mark:
        version.write_text(mark)
    else:
        version.unlink(missing_ok=True)


def _room(part: Path, total: int | None, have: int) -> None:
    if total is not None and shutil.disk_usage(part.parent).free < total - have:
        raise OSError(errno.ENOSPC, f"{(total - have) / 1e6:,.0f} MB are still to come")


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0
