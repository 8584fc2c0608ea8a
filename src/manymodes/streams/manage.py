"""`manymodes data fetch|check NAME`: get a stream's data, and look at what is there."""

from __future__ import annotations

import inspect
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

from manymodes.errors import UserError, require
from manymodes.streams import find_stream, make_stream
from manymodes.streams.fetch import Remote, damage
from manymodes.streams.places import data_root
from manymodes.task import Stream

OWN = {"folder": "path", "arrays": "path", "huggingface": "dataset"}


def fetch_stream(name: str, data_dir: str | Path | None = None) -> list[str]:
    """Download what the stream needs and has not; lines that say where it is now."""
    module = _module(name)
    if not hasattr(module, "fetch"):
        theirs = "data_dir" in inspect.signature(find_stream(name)).parameters
        require(
            not theirs,
            f"{name} has no official direct link: get it yourself, and see with manymodes data check {name} "
            "--data-dir DIR whether it is all there",
        )
        return [f"{name}: nothing to fetch"]
    root = data_root(data_dir)
    return [f"{name}: its data is in {module.fetch(root)}", *_use(name, data_dir)]


def check_stream(name: str, data_dir: str | Path | None = None, **options: Any) -> list[str]:
    """Read the downloaded files again, load the stream, say what it holds; a UserError where it is wrong."""
    key = name.replace("_", "-")
    if key in OWN:
        if data_dir is not None:
            options.setdefault(OWN[key], str(data_dir))
        option = OWN[key]
        require(option in options, f"which data? manymodes data check {name} --{option} ...")
    elif "data_dir" in inspect.signature(find_stream(name)).parameters:
        options["data_dir"] = data_dir
    lines = _files(_module(name), data_root(data_dir))
    return [*lines, *_contents(make_stream(name, **options))]


def _module(name: str) -> ModuleType:
    return sys.modules[find_stream(name).__module__]


def _files(module: ModuleType, root: Path) -> list[str]:
    """One line for each official file below `root`; a damaged one is an error."""
    lines: list[str] = []
    remotes: list[Remote] = module.remotes() if hasattr(module, "remotes") else []
    for remote in remotes:
        basis = "the published checksum" if remote.checksum else "the checksum recorded when it came"
        for file in _below(root, remote.filename):
            problem = damage(remote, file, again=True)
            if problem:
                raise UserError(f"{problem}; delete it to fetch it again")
            lines.append(f"{file}: sound, by {basis}")
        lines += [
            f"{part}: {part.stat().st_size / 1e6:,.1f} MB so far; fetch goes on from there"
            for part in _below(root, f"{remote.filename}.part")
        ]
    return lines


def _below(root: Path, name: str) -> list[Path]:
    """The files of that name in a directory and in its own directories, no deeper: there may be millions."""
    return sorted([*root.glob(name), *root.glob(f"*/{name}")])


def _contents(stream: Stream) -> list[str]:
    shape = "x".join(map(str, stream.input_shape))
    lines = [
        f"{stream.name}: loads; scenario {stream.scenario!r}, {len(stream)} tasks, "
        f"{stream.num_outputs} outputs, inputs {shape}"
    ]
    for task in stream:
        sizes = [0 if part is None else len(part) for part in (task.train, task.val, task.test)]
        counts = ", ".join(
            f"{size:,} {part}" for size, part in zip(sizes, ("train", "val", "test"), strict=True)
        )
        lines.append(f"  {task.name}: {len(task.classes)} valid outputs; {counts}")
    return lines


def _use(name: str, data_dir: str | Path | None) -> list[str]:
    place = "" if data_dir is None else f" --data-dir {data_dir}"
    return [f"use it: manymodes run --stream {name}{place}"]
