"""Checksums of files, and the ledger of those that were found sound."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import Any

LEDGER = "checksums.json"


def checksum(path: Path, kind: str = "sha256") -> str:
    """The file's checksum as "kind:hex"."""
    digest = hashlib.new(kind, usedforsecurity=kind != "md5")
    with path.open("rb") as file:
        while chunk := file.read(1 << 20):
            digest.update(chunk)
    return f"{kind}:{digest.hexdigest()}"


def recorded(path: Path) -> str | None:
    """The checksum that the file had when it was last found sound."""
    found = _ledger(path.parent).get(path.name, {}).get("checksum")
    return found if isinstance(found, str) else None


def unchanged(path: Path) -> bool:
    """Whether size and time of change are those of the file that was found sound."""
    entry, stat = _ledger(path.parent).get(path.name, {}), path.stat()
    return bool((entry.get("size"), entry.get("mtime_ns")) == (stat.st_size, stat.st_mtime_ns))


def record(path: Path, digest: str, url: str) -> None:
    """Enter a sound file into its directory's ledger."""
    stat = path.stat()
    entry = {"checksum": digest, "size": stat.st_size, "mtime_ns": stat.st_mtime_ns, "url": url}
    temporary = path.with_name(f"{LEDGER}.{os.getpid()}")
    temporary.write_text(json.dumps(_ledger(path.parent) | {path.name: entry}, indent=1))
    os.replace(temporary, path.parent / LEDGER)


def _ledger(folder: Path) -> dict[str, dict[str, Any]]:
    try:
        ledger = json.loads((folder / LEDGER).read_text())
    except (OSError, ValueError):
        return {}
    if not isinstance(ledger, dict):
        return {}
    return {name: entry for name, entry in ledger.items() if isinstance(entry, dict)}
