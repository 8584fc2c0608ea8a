"""Files that are whole or not there: states as safetensors, run directories."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from manymodes.errors import UserError

FORMAT = 1


def write_atomically(path: Path, write: Callable[[Path], None]) -> None:
    """Let `write` fill a temporary file beside `path`, flush it to disk and rename it."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write(temporary)
        with open(temporary, "rb+") as file:
            os.fsync(file.fileno())
        os.replace(temporary, path)
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
    except OSError as error:
        raise UserError(f"cannot write {path}: {error.strerror or error}") from None
    finally:
        temporary.unlink(missing_ok=True)


def write_text(path: Path, text: str) -> None:
    """A text file, whole or not at all."""
    write_atomically(path, lambda temporary: _write_plain(temporary, text))


def _write_plain(path: Path, text: str) -> None:
    path.write_text(text, encoding="utf-8")


def write_json(path: Path, value: Any) -> None:
    """A JSON file, whole or not at all; NaN is not allowed in it."""
    write_text(path, json.dumps(value, indent=1, allow_nan=False) + "\n")


def read_json(path: Path) -> Any:
    """The value of a JSON file, or one line that says what is wrong with it."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror or error}") from None
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise UserError(f"{path} is not valid JSON: {error}") from None


def flatten(state: Any) -> tuple[dict[str, Tensor], Any]:
    """Split a nested state into its tensors, by path, and the rest as JSON.

    >>> tensors, plain = flatten({"a": [torch.ones(1), 2], "b": None})
    >>> list(tensors), plain
    (['a.0'], {'a': [{'$tensor': 'a.0'}, 2], 'b': None})
    """
    tensors: dict[str, Tensor] = {}

    def walk(value: Any, path: str) -> Any:
        if isinstance(value, Tensor):
            # A clone: safetensors refuses tensors that share storage.
            tensors[path] = value.detach().cpu().clone().contiguous()
            return {"$tensor": path}
        if isinstance(value, dict):
            return {str(k): walk(v, f"{path}.{k}" if path else str(k)) for k, v in value.items()}
        if isinstance(value, list | tuple):
            return [walk(v, f"{path}.{i}" if path else str(i)) for i, v in enumerate(value)]
        assert value is None or isinstance(value, bool | int | float | str), f"{path}: {type(value)}"
        return value

    plain = walk(state, "")
    return tensors, plain


def unflatten(tensors: dict[str, Tensor], plain: Any) -> Any:
    """The nested state again."""
    if isinstance(plain, dict):
        if set(plain) == {"$tensor"}:
            return tensors[plain["$tensor"]]
        return {k: unflatten(tensors, v) for k, v in plain.items()}
    if isinstance(plain, list):
        return [unflatten(tensors, v) for v in plain]
    return plain


def save_state(path: Path, state: Any, meta: dict[str, Any]) -> None:
    """One safetensors file: the tensors, and the rest as JSON in its header with a checksum of it all."""
    tensors, plain = flatten(state)
    body = json.dumps({"state": plain, "meta": meta})
    header = {"manymodes": str(FORMAT), "body": body, "sha256": _checksum(tensors, body)}
    write_atomically(path, lambda temporary: save_file(tensors, temporary, metadata=header))


def save_tensors(path: Path, tensors: dict[str, Tensor]) -> None:
    """A plain safetensors file, whole or not at all."""
    write_atomically(path, lambda temporary: save_file(tensors, temporary))


def load_state(path: Path) -> tuple[Any, dict[str, Any]]:
    """(state, meta) of a file that `save_state` wrote; anything else is one clear line."""
    try:
        with safe_open(path, framework="pt") as file:
            header = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (OSError, SafetensorError, ValueError) as error:
        raise UserError(f"cannot read {path}: {error}") from None
    if "manymodes" not in header or "body" not in header:
        raise UserError(f"{path} is a safetensors file, but not one that manymodes wrote")
    if header["manymodes"] != str(FORMAT):
        raise UserError(
            f"{path} has format {header['manymodes']}, this version reads {FORMAT}: update manymodes"
        )
    if header.get("sha256") != _checksum(tensors, header["body"]):
        raise UserError(f"{path} is damaged: its checksum does not match")
    try:
        body = json.loads(header["body"])
        return unflatten(tensors, body["state"]), body["meta"]
    except (json.JSONDecodeError, KeyError, TypeError) as error:
        raise UserError(f"{path} is damaged: {type(error).__name__} {error}") from None


def _checksum(tensors: dict[str, Tensor], body: str) -> str:
    digest = hashlib.sha256(body.encode())
    for name in sorted(tensors):
        tensor = tensors[name]
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        digest.update(tensor.contiguous().view(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()
