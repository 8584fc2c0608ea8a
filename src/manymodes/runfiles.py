"""A run directory as it lies there: for whoever wants to know, and reading only. Imports no torch."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from manymodes import files, locks
from manymodes.config import PARTS
from manymodes.errors import DamagedFile, UserError

LOCK = ".lock"
LINE_BYTES = 2**16  # an event is shorter


class RunFiles:
    """What a run directory says about its run."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def config(self) -> dict[str, Any]:
        """The saved configuration, as it is in the file."""
        path = self.path / "config.yaml"
        if not path.exists():
            raise UserError(f"{self.path} is not a run directory: it has no config.yaml")
        content = files.read_yaml(path)
        if not isinstance(content, dict) or not all(isinstance(content.get(part), dict) for part in PARTS):
            raise UserError(f"{path} is not the configuration of a run")
        return content

    def environment(self) -> dict[str, Any] | None:
        """What environment.json says, if it is there."""
        path = self.path / "environment.json"
        if not path.exists():
            return None
        content = files.read_json(path)
        return content if isinstance(content, dict) else {}

    def threads(self) -> int | None:
        """With how many threads it was started: as many are needed for the same bits."""
        count = (self.environment() or {}).get("threads")
        return count if isinstance(count, int) and 1 <= count <= (os.cpu_count() or 1) else None

    def metrics(self) -> dict[str, Any] | None:
        """The metrics of a finished run."""
        path = self.path / "metrics.json"
        if not path.exists():
            return None
        found = files.read_json(path)
        if not isinstance(found, dict):
            raise DamagedFile(f"{path} does not hold the metrics of a run")
        return found

    def checkpoints(self) -> list[Path]:
        """The checkpoints, oldest first."""
        return sorted(self.path.glob("checkpoint-*.safetensors"))

    def failure(self) -> str | None:
        """Why the run stopped, if it did not go well."""
        path = self.path / "failure.json"
        content = files.read_json(path) if path.exists() else None
        return str(content.get("message")) if isinstance(content, dict) else None

    def status(self) -> str:
        """Whether it is "done", "running", "failed" or "interrupted"."""
        if (self.path / "metrics.json").exists():
            return "done"
        if locks.held(self.path / LOCK):
            return "running"
        return "failed" if (self.path / "failure.json").exists() else "interrupted"

    def last_event(self) -> dict[str, Any]:
        """The newest whole line of events.jsonl."""
        path = self.path / "events.jsonl"
        if not path.is_file():
            return {}
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - LINE_BYTES))
            lines = file.read().split(b"\n")
        for line in reversed(lines[:-1]):
            try:
                event = json.loads(line)
            except (ValueError, RecursionError):
                continue
            if isinstance(event, dict):
                return event
        return {}
