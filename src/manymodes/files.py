"""Files that are whole or not there, and files that are read without trusting them. Imports no torch."""

from __future__ import annotations

import errno
import json
import math
import os
from collections.abc import Callable, Hashable
from pathlib import Path
from typing import Any

import yaml

from manymodes import locks
from manymodes.errors import DamagedFile, UserError, one_line, require

TEXT_BYTES = 64 * 2**20  # a larger JSON file is not one of ours
YAML_BYTES = 2**20  # nor a larger YAML file
HEADER_BYTES = 100_000_000  # what safetensors allows

WAYS_OUT = {
    errno.ENOSPC: "no space is left on the disk: free some and try again",
    errno.EDQUOT: "the disk quota is used up: free some space and try again",
    errno.EFBIG: "the file is larger than this process may write (ulimit -f): raise the limit",
    errno.EROFS: "the disk is read-only: choose another place",
    errno.EACCES: "permission denied: choose a place you may write to",
    errno.ELOOP: "it is a symbolic link, and those are not followed: remove it",
}


def reason(error: OSError) -> str:
    """What went wrong with a file, and the way out where there is one."""
    return WAYS_OUT.get(error.errno or 0) or error.strerror or str(error)


# ---- writing ----------------------------------------------------------------------------------------


def write_atomically(path: Path, write: Callable[[Path], None]) -> None:
    """Let `write` fill a temporary file beside `path`, flush it to disk and rename it.

    Whoever is killed at any moment leaves either the old file or the new one. The temporary file is locked
    while it is written and has a fixed name: what a killed process left is used again, not piled up.
    """
    temporary = path.with_name(f".{path.name}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = locks.claim(temporary)
        try:
            os.truncate(descriptor, 0)
            write(temporary)
            os.fsync(descriptor)
            os.replace(temporary, path)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
        finally:
            os.close(descriptor)
        sync_folder(path.parent)
    except BlockingIOError:
        raise UserError(f"cannot write {path}: another process is writing it") from None
    except OSError as error:
        raise UserError(f"cannot write {path}: {reason(error)}") from None


def sync_folder(folder: Path) -> None:
    """Flush the names in a folder to disk."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_text(path: Path, text: str) -> None:
    """A text file, whole or not at all."""
    write_atomically(path, lambda temporary: _put(temporary, text))


def _put(path: Path, text: str) -> None:
    path.write_text(text, encoding="utf-8")


def write_json(path: Path, value: Any) -> None:
    """A JSON file, whole or not at all; what is not a finite number becomes null."""
    write_text(path, json.dumps(finite(value), indent=1, allow_nan=False) + "\n")


def finite(value: Any) -> Any:
    """The same with None for NaN and infinities, which JSON does not have.

    >>> finite({"loss": [1.0, float("nan")]})
    {'loss': [1.0, None]}
    """
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {k: finite(v) for k, v in value.items()}
    return [finite(v) for v in value] if isinstance(value, list | tuple) else value


# ---- reading ----------------------------------------------------------------------------------------


def read_text(path: Path, most: int = TEXT_BYTES) -> str:
    """The text of an ordinary file of at most so many bytes (a pipe would block, a device never end)."""
    require(path.is_file(), f"cannot read {path}: {'it is no ordinary' if path.exists() else 'no such'} file")
    try:
        require(path.stat().st_size <= most, f"{path} is too large: over {most >> 20} MB of text")
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise DamagedFile(f"{path} is not text in UTF-8: {error.reason} at byte {error.start}") from None
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror or error}") from None


def read_json(path: Path) -> Any:
    """The value of a JSON file, or one line that says what is wrong with it."""
    try:
        return json.loads(read_text(path))
    except UserError:
        raise
    except (ValueError, RecursionError) as error:
        raise DamagedFile(f"{path} is not valid JSON: {one_line(error)}") from None


def read_yaml(path: Path, name: str | None = None) -> Any:
    """The value of a YAML file of plain values: no tags, no aliases (they can grow without bound)."""
    text, name = read_text(path, YAML_BYTES), name or str(path)
    try:
        return yaml.load(text, _Plain)
    except (yaml.YAMLError, ValueError, RecursionError, OverflowError) as error:
        raise UserError(f"{name} is not valid YAML: {one_line(error)}") from None


class _Plain(yaml.SafeLoader):  # type: ignore[misc]
    """Scalars, lists and mappings, each written out where it stands."""

    def compose_node(self, parent: Any, index: Any) -> Any:
        if self.check_event(yaml.AliasEvent):
            raise yaml.YAMLError(
                f"aliases (*{self.peek_event().anchor}) are not allowed: write the value out"
            )
        return super().compose_node(parent, index)

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Hashable, Any]:
        seen: set[str] = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode):
                if key.value in seen:
                    raise yaml.YAMLError(f"{key.value!r} is given twice")
                seen.add(key.value)
        mapping: dict[Hashable, Any] = super().construct_mapping(node, deep)
        return mapping


def read_header(path: Path) -> dict[str, str]:
    """The metadata of a safetensors file, without its tensors."""
    require(path.is_file(), f"cannot read {path}: {'it is no ordinary' if path.exists() else 'no such'} file")
    try:
        with path.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            if not 0 < length <= min(HEADER_BYTES, path.stat().st_size):
                raise DamagedFile(f"{path} is damaged: it is no safetensors file")
            header = json.loads(file.read(length))
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror or error}") from None
    except UserError:
        raise
    except (ValueError, RecursionError) as error:
        raise DamagedFile(f"{path} is damaged: its header is not valid JSON: {one_line(error)}") from None
    metadata = header.get("__metadata__", {}) if isinstance(header, dict) else None
    if not isinstance(metadata, dict) or not all(isinstance(v, str) for v in metadata.values()):
        raise DamagedFile(f"{path} is damaged: its header is not one of safetensors")
    return metadata
