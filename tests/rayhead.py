"""A real Ray cluster of one machine, on loopback only, as `ray start --head` makes it."""

from __future__ import annotations

import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from manymodes.connection import LOOPBACK

# The cluster and whoever connects to it in a test: a secret of their own, loopback only.
ENVIRONMENT = {
    LOOPBACK: "0", "RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32),
    "RAY_USAGE_STATS_ENABLED": "0", "OMP_NUM_THREADS": "1",
}  # fmt: skip


@contextmanager
def ray_head(processors: int = 2) -> Iterator[tuple[str, int]]:
    """(address, process id) of a cluster that is gone when the block is left."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    folder = tempfile.mkdtemp(prefix="ray-")  # short: it holds sockets
    command = [
        Path(sys.executable).parent / "ray", "start", "--head", "--block", "--node-ip-address=127.0.0.1",
        f"--port={port}", f"--num-cpus={processors}", "--include-dashboard=false", f"--temp-dir={folder}",
        f"--object-store-memory={100 * 2**20}", "--disable-usage-stats",
    ]  # fmt: skip
    environment = os.environ | ENVIRONMENT | {"PYTHONPATH": os.pathsep.join(sys.path)}
    with open(f"{folder}/said", "w+") as said:
        head = subprocess.Popen(command, env=environment, stdout=said, stderr=said, start_new_session=True)
        try:
            end = time.monotonic() + 60
            while not _answers(port):
                assert head.poll() is None, Path(said.name).read_text()
                assert time.monotonic() < end, Path(said.name).read_text()
                time.sleep(0.1)
            yield f"127.0.0.1:{port}", head.pid
        finally:
            family = [head.pid, *descendants(head.pid)]
            head.terminate()
            try:
                head.wait(15)
            except subprocess.TimeoutExpired:
                for pid in family:
                    _kill(pid)
            head.wait()
            shutil.rmtree(folder, ignore_errors=True)


def _answers(port: int) -> bool:
    with socket.socket() as one:
        return one.connect_ex(("127.0.0.1", port)) == 0


def _kill(pid: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def descendants(parent: int) -> list[int]:
    """The processes that a process has started, and those that they started."""
    parents = {}
    for entry in Path("/proc").iterdir():
        try:
            parents[int(entry.name)] = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
        except (OSError, ValueError, IndexError):
            continue
    found = [parent]
    for pid in found:
        found += [child for child, of in parents.items() if of == pid]
    return found[1:]


def listening(pids: list[int]) -> list[str]:
    """The addresses (as in /proc/net) at which some processes listen."""
    sockets = set()
    for pid in pids:
        try:
            sockets |= {os.readlink(file) for file in Path(f"/proc/{pid}/fd").iterdir()}
        except OSError:
            continue
    tables = [Path(f"/proc/net/{name}").read_text().splitlines()[1:] for name in ("tcp", "tcp6")]
    lines = [line.split() for table in tables for line in table]
    return [words[1] for words in lines if words[3] == "0A" and f"socket:[{words[9]}]" in sockets]
