"""One run as a task of a Ray cluster: what happens on the machine that has it."""

from __future__ import annotations

import io
import os
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, redirect_stderr, redirect_stdout, suppress
from pathlib import Path
from typing import Any, NamedTuple

from manymodes.errors import UserError
from manymodes.interrupts import Stop
from manymodes.jobs import POLL, answer
from manymodes.parcels import Known, Parcel, Posted, packed, unpack
from manymodes.runfiles import RunFiles
from manymodes.sweep import Run, execute

BEAT = 0.5  # seconds from one message of a run to the next


class Home(NamedTuple):
    """What a task needs to know about whoever started it."""

    folder: str  # the current one
    imports: list[str]  # sys.path
    marker: str  # a file that is seen where the run directories are


def run_there(desk: Any, home: Home, run: Run, number: int, attempt: int, threads: int) -> tuple[str, Any]:
    """One run, in a process of the cluster."""
    import torch

    # Relative paths and a person's own files are found as they were there, if the disk is shared.
    with suppress(OSError):
        os.chdir(home.folder)
    sys.path += [entry for entry in home.imports if entry not in sys.path]
    torch.set_num_threads(threads)
    sees = Path(home.marker).exists()
    if not _got(desk.begin.remote(number, attempt, f"{socket.gethostname()}, process {os.getpid()}", sees)):
        return "interrupted", "not begun"
    flag = threading.Event()
    with ExitStack() as stack:
        path = run.path if sees else Path(stack.enter_context(tempfile.TemporaryDirectory())) / run.path.name
        stack.enter_context(_beating(desk, number, path, flag))
        kind, value = answer(_execute, desk, run, path, number, attempt, Stop(flag))
    return kind, value.replace(str(path), str(run.path)) if isinstance(value, str) else value


def _execute(desk: Any, run: Run, path: Path, number: int, attempt: int, stop: Stop) -> dict[str, Any]:
    if path == run.path:
        return execute(run.config, path, stop=stop, **run.options)

    while (given := _got(desk.take.remote(number, attempt))) is None:
        time.sleep(POLL)
    if isinstance(given, str):
        raise UserError(given)
    unpack(path, given)
    known: Known = {}
    packed(path, known)

    def send(parcel: Parcel) -> None:
        _got(desk.post.remote(number, attempt, parcel))

    return execute(
        run.config, path, stop=stop, keep=lambda path, every: Posted(path, every, known, send), **run.options
    )


@contextmanager
def _beating(desk: Any, number: int, path: Path, flag: threading.Event) -> Iterator[None]:
    """Tell how far the run is and what it says; hear whether to stop, also if nobody is there to tell."""
    import ray

    over, printed = threading.Event(), Printed()

    def beat() -> None:
        ended = False
        while not ended:
            ended = over.wait(BEAT)
            try:
                stop = ray.get(desk.tell.remote(number, RunFiles(path).last_event(), printed.taken()))
            except ray.exceptions.RayError:
                stop = True
            if stop:
                flag.set()

    thread = threading.Thread(target=beat, daemon=True)
    thread.start()
    try:
        with redirect_stdout(printed), redirect_stderr(printed):
            yield
    finally:
        over.set()
        thread.join()


class Printed(io.TextIOBase):
    """Takes what is printed, for somebody elsewhere."""

    def __init__(self) -> None:
        self._text: list[str] = []
        self._lock = threading.Lock()

    def write(self, text: str) -> int:
        """Some more."""
        with self._lock:
            self._text.append(text)
        return len(text)

    def taken(self) -> list[str]:
        """The whole lines since the last time; each is told once."""
        with self._lock:
            *lines, rest = "".join(self._text).split("\n")
            self._text = [rest]
        return [line for line in lines if line]


def _got(reference: Any) -> Any:
    """ray.get, in a thread: a task that waits itself gives its processors to the next one."""
    import ray

    with ThreadPoolExecutor(1) as other:
        return other.submit(ray.get, reference).result()
