"""Where data lies: a person's directory, the default one, and the cache of decoded arrays."""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from manymodes.errors import UserError

Arrays = dict[str, NDArray[Any]]


def cache_dir() -> Path:
    """MANYMODES_CACHE, or manymodes in the user's cache directory."""
    if chosen := os.environ.get("MANYMODES_CACHE"):
        return Path(chosen).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "manymodes"


def data_root(data_dir: str | os.PathLike[str] | None) -> Path:
    """The directory to look for data in and to download to."""
    return cache_dir() / "data" if data_dir is None else Path(data_dir).expanduser()


def find(root: Path, layouts: Mapping[str, Sequence[str]], folders: Sequence[str]) -> tuple[str, Path] | None:
    """The first layout whose files (glob patterns) all lie in `root` or in one of its `folders`.

    Returns the layout's name and the directory that holds it.
    """
    for directory in (root, *(root / folder for folder in folders)):
        for layout, patterns in layouts.items():
            if directory.is_dir() and all(any(directory.glob(pattern)) for pattern in patterns):
                return layout, directory
    return None


def not_found(name: str, root: Path, wanted: str, *, can_download: bool = True) -> UserError:
    """The error for data that is not there, with the ways out."""
    state = "has none of it" if root.is_dir() else "does not exist"
    ways = f"; or fetch it: manymodes data fetch {name} (in Python: download=True)" if can_download else ""
    return UserError(f"the data of {name!r}: {root} {state}. Give data_dir with {wanted}{ways}")


def cached_arrays(
    name: str, sources: Sequence[Path], make: Callable[[], Arrays], options: object = ""
) -> Arrays:
    """make()'s arrays, kept on disk between runs and memory-mapped; made anew once a source changes.

    The key holds every source's path, size and time of change. Writing is atomic: a directory is filled
    under a temporary name, then renamed. Where the cache cannot be written the arrays stay in memory.
    """
    stats = [(str(path.resolve()), path.stat().st_size, path.stat().st_mtime_ns) for path in sources]
    key = hashlib.sha256(repr((stats, options)).encode()).hexdigest()[:20]
    folder = cache_dir() / "arrays" / f"{name}-{key}"
    try:
        return _load(folder)
    except (OSError, ValueError, EOFError):
        shutil.rmtree(folder, ignore_errors=True)  # absent, or damaged
    arrays = make()
    try:
        _store(folder, arrays)
        return _load(folder)
    except (OSError, ValueError):
        return arrays


def _load(folder: Path) -> Arrays:
    files = sorted(folder.glob("*.npy"))
    if not files:
        raise FileNotFoundError(folder)
    # mode "c": pages are shared until written to, and nobody's write reaches the file
    return {file.stem: np.load(file, mmap_mode="c", allow_pickle=False) for file in files}


def _store(folder: Path, arrays: Arrays) -> None:
    folder.parent.mkdir(parents=True, exist_ok=True)
    temporary = Path(tempfile.mkdtemp(prefix=folder.name, dir=folder.parent))
    try:
        for stem, array in arrays.items():
            with (temporary / f"{stem}.npy").open("wb") as file:
                np.save(file, array, allow_pickle=False)
                file.flush()
                os.fsync(file.fileno())
        with suppress(OSError):  # another process was quicker: its arrays are as good
            temporary.rename(folder)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
