"""States in files: nested Python values with tensors as one safetensors file, checksummed.

A state is made of dicts, lists, strings, numbers, None, tensors and blobs. The file (format 1) is an ordinary
safetensors file: the tensors by their path in the state, and as metadata `manymodes` (the format's number),
`body` (JSON: the state with {"$tensor": path} in the tensors' places, what is told about it, the names of the
blobs it refers to) and `sha256` over the body and all tensors. `docs/design/0005-run-directories.md` has all.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from manymodes.errors import DamagedFile, UserError, one_line
from manymodes.files import read_header, read_json, write_atomically, write_json, write_text

__all__ = [
    "Blob",
    "load_state",
    "read_json",
    "read_meta",
    "save_blob",
    "save_state",
    "save_tensors",
    "write_atomically",
    "write_json",
    "write_text",
]

FORMAT = 1
# How the body of an older format becomes the next one's: {1: body of 1 -> body of 2, ...}.
MIGRATIONS: dict[int, Callable[[dict[str, Any]], dict[str, Any]]] = {}

_TYPES = {
    torch.float64: "F64", torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16",
    torch.int64: "I64", torch.int32: "I32", torch.int16: "I16", torch.int8: "I8",
    torch.uint8: "U8", torch.bool: "BOOL",
}  # fmt: skip
_BLOB = re.compile(r"[0-9a-f]{64}\.safetensors")


@dataclass(frozen=True)
class Blob:
    """Tensors in a file of their own, named by its checksum: states refer to it instead of holding them."""

    path: Path

    def load(self) -> dict[str, Tensor]:
        """Its tensors, if they are what the name says."""
        if not self.path.is_file():
            raise DamagedFile(f"{self.path} is not there")
        tensors, header = _read(self.path)
        if self.path.name != f"{_checksum(tensors, header['body'])}.safetensors":
            raise DamagedFile(f"{self.path} is damaged: its content does not match its name")
        return tensors


def save_blob(folder: Path, tensors: dict[str, Tensor]) -> Blob:
    """Write tensors under the name that their content gives them; the same content is written once."""
    body = json.dumps({"state": {n: {"$tensor": n} for n in tensors}, "meta": {}, "files": []})
    digest = _checksum(tensors, body)
    path = folder / f"{digest}.safetensors"
    if not path.exists():
        _write(path, tensors, body, digest)
    return Blob(path)


def save_state(path: Path, state: Any, meta: dict[str, Any], folder: Path | None = None) -> None:
    """Write a state and what is to be told about it; blobs in `folder` are referred to, others included."""
    tensors, plain, files = flatten(state, folder)
    try:
        body = json.dumps({"state": plain, "meta": meta, "files": files})
    except (TypeError, ValueError, RecursionError) as error:
        raise UserError(f"cannot save {path}: {error} (options must be plain values)") from None
    _write(path, tensors, body)


def load_state(path: Path, folder: Path | None = None) -> tuple[Any, dict[str, Any]]:
    """(state, meta) of a file that `save_state` wrote; anything else is one clear line."""
    tensors, header = _read(path)
    body = _body(path, header)
    try:
        return unflatten(tensors, body["state"], folder), dict(body["meta"])
    except DamagedFile:
        raise
    except (KeyError, TypeError, ValueError, RecursionError) as error:
        raise DamagedFile(f"{path} is damaged: {type(error).__name__} {one_line(error)}") from None


def read_meta(path: Path) -> tuple[dict[str, Any], list[str]]:
    """(meta, names of the blobs it refers to) of a state's file; its tensors are neither read nor checked."""
    body = _body(path, read_header(path))
    files = body.get("files", [])
    if not isinstance(files, list):
        raise DamagedFile(f"{path} is damaged: it names its blobs as {type(files).__name__}")
    return dict(body["meta"]), [str(name) for name in files]


def flatten(state: Any, folder: Path | None = None) -> tuple[dict[str, Tensor], Any, list[str]]:
    """Split a nested state into its tensors, by path, the rest as JSON, and the names of blobs.

    >>> tensors, plain, _ = flatten({"a": [torch.ones(1), 2], "b": None})
    >>> list(tensors), plain
    (['a.0'], {'a': [{'$tensor': 'a.0'}, 2], 'b': None})
    """
    tensors: dict[str, Tensor] = {}
    files: list[str] = []

    def walk(value: Any, path: str) -> Any:
        if isinstance(value, Tensor):
            while path in tensors:  # {"a.b": t, "a": {"b": t}}
                path += "'"
            tensors[path] = value.detach().cpu().contiguous()
            return {"$tensor": path}
        if isinstance(value, Blob):
            if value.path.parent != folder:
                return walk(value.load(), path)
            files.append(value.path.name)
            return {"$file": value.path.name}
        if isinstance(value, dict):
            assert all(isinstance(key, str) for key in value), f"{path}: keys of a state are strings"
            return {_escaped(k): walk(v, f"{path}.{k}" if path else k) for k, v in value.items()}
        if isinstance(value, list | tuple):
            return [walk(v, f"{path}.{i}" if path else str(i)) for i, v in enumerate(value)]
        assert value is None or isinstance(value, bool | int | float | str), f"{path}: {type(value)}"
        return value

    return tensors, walk(state, ""), files


def unflatten(tensors: dict[str, Tensor], plain: Any, folder: Path | None = None) -> Any:
    """The nested state again (tuples have become lists); blobs are checked to be there and sound."""
    if isinstance(plain, dict):
        if set(plain) == {"$tensor"}:
            return tensors[plain["$tensor"]]
        if set(plain) == {"$file"}:
            name = str(plain["$file"])
            if folder is None or not _BLOB.fullmatch(name):
                raise DamagedFile(f"a state refers to a file {name!r} that it may not refer to")
            Blob(folder / name).load()
            return Blob(folder / name)
        return {_unescaped(k): unflatten(tensors, v, folder) for k, v in plain.items()}
    return [unflatten(tensors, v, folder) for v in plain] if isinstance(plain, list) else plain


def _escaped(key: str) -> str:
    return f"${key}" if key.startswith("$") else key


def _unescaped(key: str) -> str:
    return key[1:] if key.startswith("$$") else key


# ---- one safetensors file ---------------------------------------------------------------------------


def _write(path: Path, tensors: dict[str, Tensor], body: str, digest: str = "") -> None:
    digest = digest or _checksum(tensors, body)
    metadata = {"manymodes": str(FORMAT), "body": body, "sha256": digest}
    save_tensors(path, tensors, metadata)


def save_tensors(path: Path, tensors: dict[str, Tensor], metadata: dict[str, str] | None = None) -> None:
    """A plain safetensors file, whole or not at all."""
    header: dict[str, Any] = {} if metadata is None else {"__metadata__": metadata}
    # Large items first: every tensor then lies at a multiple of its item's size, as readers need it.
    order = sorted(tensors, key=lambda name: (-tensors[name].element_size(), name))
    start = 0
    for name in order:
        tensor = tensors[name]
        if tensor.dtype not in _TYPES:
            raise UserError(f"cannot save {path}: {name} is {tensor.dtype}, which safetensors does not have")
        end = start + tensor.numel() * tensor.element_size()
        header[name] = {
            "dtype": _TYPES[tensor.dtype],
            "shape": list(tensor.shape),
            "data_offsets": [start, end],
        }
        start = end
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 64)

    def write(temporary: Path) -> None:
        with temporary.open("wb") as file:
            file.write(len(text).to_bytes(8, "little") + text)
            for name in order:
                file.write(_bytes(tensors[name]))

    write_atomically(path, write)


def _read(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Tensors in memory of their own and the header, if the checksum holds."""
    header = read_header(path)
    if "manymodes" not in header or "body" not in header:
        raise DamagedFile(f"{path} is a safetensors file, but not one that manymodes wrote")
    version = header["manymodes"]
    if version != str(FORMAT) and version not in map(str, MIGRATIONS):
        raise UserError(
            f"{path} has format {version[:20]}, this version reads up to {FORMAT}: update manymodes"
        )
    try:
        with safe_open(path, framework="pt") as file:
            # Clones: the mapped file may be replaced, and fast kernels round by a vector's alignment.
            tensors = {name: file.get_tensor(name).clone() for name in file.keys()}  # noqa: SIM118
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror or error}") from None
    except (SafetensorError, ValueError, RuntimeError, KeyError, TypeError, AttributeError) as error:
        raise DamagedFile(f"{path} is damaged: {one_line(error)}") from None
    if header.get("sha256") != _checksum(tensors, header["body"]):
        raise DamagedFile(f"{path} is damaged: its checksum does not match")
    return tensors, header


def _body(path: Path, header: dict[str, str]) -> dict[str, Any]:
    try:
        body = json.loads(header["body"])
        for version in range(int(header["manymodes"]), FORMAT):
            body = MIGRATIONS[version](body)
        if not {"state", "meta"} <= set(body) or not isinstance(body["meta"], dict):
            raise KeyError("state")
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise DamagedFile(f"{path} is damaged: {type(error).__name__} {one_line(error)}") from None
    return dict(body)


def _checksum(tensors: dict[str, Tensor], body: str) -> str:
    digest = hashlib.sha256(body.encode())
    for name in sorted(tensors):
        tensor = tensors[name]
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        digest.update(_bytes(tensor))
    return digest.hexdigest()


def _bytes(tensor: Tensor) -> memoryview:
    return tensor.contiguous().view(-1).view(torch.uint8).numpy().data
