"""Real processes started by torchrun, on loopback only."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def torchrun(folder: Path, *words: str, processes: int = 2) -> Iterator[subprocess.Popen[str]]:
    """torchrun WORDS, meeting by a file in the folder; killed with all it started when the block is left."""
    meeting = folder / f"meeting-{os.urandom(4).hex()}"
    command = [
        sys.executable, "-m", "torch.distributed.run", "--nnodes", "1", "--nproc-per-node", str(processes),
        "--rdzv-backend", "c10d", "--rdzv-endpoint", str(meeting), "--rdzv-conf", "store_type=file",
        "--rdzv-id", meeting.name, "--local-addr", "127.0.0.1", *words,
    ]  # fmt: skip
    environment = os.environ | {
        "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1", "OMP_NUM_THREADS": "1",
        "PYTHONPATH": os.pathsep.join(sys.path),
    }  # fmt: skip
    process = subprocess.Popen(
        command, env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        start_new_session=True,
    )  # fmt: skip
    started: list[int] = []
    try:
        yield process
    finally:
        started = [*ranks(process.pid).values(), process.pid] if process.poll() is None else []
        for pid in started:
            os.kill(pid, signal.SIGKILL)
        process.wait()


def finished(folder: Path, *words: str, processes: int = 2) -> tuple[int, str]:
    """(exit code, output) of torchrun WORDS."""
    with torchrun(folder, *words, processes=processes) as process:
        output, _ = process.communicate(timeout=300)
        return process.returncode, output


def ranks(parent: int) -> dict[int, int]:
    """The process of each rank that a torchrun has started."""
    found = {}
    for entry in Path("/proc").iterdir():
        try:
            if int((entry / "stat").read_text().rpartition(")")[2].split()[1]) != parent:
                continue
            pairs = (word.partition("=") for word in (entry / "environ").read_text().split("\0"))
            rank = {name: value for name, _, value in pairs}.get("RANK")
        except (OSError, ValueError, IndexError):
            continue
        if rank is not None:
            found[int(rank)] = int(entry.name)
    return found
