"""Runs as tasks of a Ray cluster: each in its directory, gone on with elsewhere when its machine is lost."""

from __future__ import annotations

import os
import secrets
import shutil
import socket
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from manymodes.config import Config
from manymodes.errors import UserError, one_line
from manymodes.interrupts import Stop
from manymodes.jobs import POLL, Outcome, answer, outcome_of
from manymodes.overview import Overview
from manymodes.parcels import Known, Parcel, Posted, packed, unpack
from manymodes.rundir import RunDir
from manymodes.runfiles import RunFiles

TRIES = 4  # how often a run is begun or gone on with before it counts as failed
BEAT = 0.5  # seconds from one message of a run to the next
LOOPBACK = "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"  # at 0, a Ray that is started here listens on loopback only
REACH = 10.0  # seconds to wait for a cluster's first answer
STORE = 128 * 2**20  # bytes of shared memory for such a Ray: what travels here is small


@dataclass(frozen=True)
class Cluster:
    """Which Ray cluster, and what share of a GPU each run gets.

    Args:
        address: HOST:PORT, "auto" (the one on this machine); None: RAY_ADDRESS, or one of its own that
            lives as long as the command.
        gpus_per_run: 0.5 puts two runs on each GPU; 0 is the processor alone; None: 1 where there are any.
    """

    address: str | None = None
    gpus_per_run: float | None = None


class Run(NamedTuple):
    """A configuration, its directory and how it is executed (keyword arguments of `execute`)."""

    config: Config
    path: Path
    options: dict[str, Any]


class Desk:
    """Lives in the cluster: runs and whoever started them leave each other messages here."""

    def __init__(self) -> None:
        self.stop = False
        self.admitted: set[tuple[int, int]] = set()
        self.begun: dict[int, tuple[str, bool]] = {}  # where, and whether it sees the directory
        self.events: dict[int, dict[str, Any]] = {}
        self.parcels: list[tuple[int, int, Parcel]] = []
        self.given: dict[tuple[int, int], Parcel | str] = {}

    def begin(self, number: int, attempt: int, where: str, sees: bool) -> bool:
        """A run is about to begin; whether it shall."""
        if not self.stop:
            self.admitted.add((number, attempt))
            self.begun[number] = where, sees
        return not self.stop

    def tell(self, number: int, event: dict[str, Any]) -> bool:
        """How far a run is; whether it shall stop."""
        self.events[number] = event
        return self.stop

    def post(self, number: int, attempt: int, parcel: Parcel) -> None:
        """Files of a run."""
        self.parcels.append((number, attempt, parcel))

    def give(self, number: int, attempt: int, parcel: Parcel | str) -> None:
        """The files that a run needs to go on, or why it cannot have them."""
        self.given[number, attempt] = parcel

    def take(self, number: int, attempt: int) -> Parcel | str | None:
        """The same for the run, once they are there."""
        return self.given.pop((number, attempt), None)

    def ask(self) -> set[tuple[int, int]]:
        """All are to stop; those that have not begun, and are not among these, never will."""
        self.stop = True
        return self.admitted

    def heard(
        self,
    ) -> tuple[dict[int, tuple[str, bool]], dict[int, dict[str, Any]], list[tuple[int, int, Parcel]]]:
        """What is new since the last time."""
        news = self.begun, self.events, self.parcels
        self.begun, self.events, self.parcels = {}, {}, []
        return news


# ---- in the cluster -------------------------------------------------------------------------------------


class Home(NamedTuple):
    """What a task needs to know about whoever started it."""

    folder: str  # the current one
    imports: list[str]  # sys.path
    marker: str  # a file that is seen where the run directories are


def _task(desk: Any, home: Home, run: Run, number: int, attempt: int, threads: int) -> tuple[str, Any]:
    """One run, in a process of the cluster."""
    import ray
    import torch

    # Relative paths and a person's own files are found as they were there, if the disk is shared.
    with suppress(OSError):
        os.chdir(home.folder)
    sys.path += [entry for entry in home.imports if entry not in sys.path]
    torch.set_num_threads(threads)
    sees = Path(home.marker).exists()
    if not ray.get(
        desk.begin.remote(number, attempt, f"{socket.gethostname()}, process {os.getpid()}", sees)
    ):
        return "interrupted", "not begun"
    flag = threading.Event()
    with ExitStack() as stack:
        path = run.path if sees else Path(stack.enter_context(tempfile.TemporaryDirectory())) / run.path.name
        stack.enter_context(_beating(desk, number, path, flag))
        kind, value = answer(_execute, desk, run, path, number, attempt, Stop(flag))
    return kind, value.replace(str(path), str(run.path)) if isinstance(value, str) else value


def _execute(desk: Any, run: Run, path: Path, number: int, attempt: int, stop: Stop) -> dict[str, Any]:
    from manymodes.sweep import execute

    if path == run.path:
        return execute(run.config, path, stop=stop, **run.options)
    import ray

    while (given := ray.get(desk.take.remote(number, attempt))) is None:
        time.sleep(POLL)
    if isinstance(given, str):
        raise UserError(given)
    unpack(path, given)
    known: Known = {}
    packed(path, known)

    def send(parcel: Parcel) -> None:
        ray.get(desk.post.remote(number, attempt, parcel))

    return execute(
        run.config, path, stop=stop, keep=lambda path, every: Posted(path, every, known, send), **run.options
    )


@contextmanager
def _beating(desk: Any, number: int, path: Path, flag: threading.Event) -> Iterator[None]:
    """Tell how far the run is, and hear whether to stop (also if nobody is there to hear)."""
    import ray

    over = threading.Event()

    def beat() -> None:
        while not over.wait(BEAT):
            try:
                stop = ray.get(desk.tell.remote(number, RunFiles(path).last_event()))
            except ray.exceptions.RayError:
                stop = True
            if stop:
                flag.set()

    thread = threading.Thread(target=beat, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


# ---- here -----------------------------------------------------------------------------------------------


def on_cluster(
    runs: dict[int, Run],
    cluster: Cluster,
    at_once: int | None,
    stop: Stop,
    on_end: Callable[[Outcome], None],
    overview: Overview,
) -> None:
    """on_end(outcome) for each run. When `stop` is asked, those under way save and stop; see Stop."""
    if not runs:
        return
    with _connected(cluster) as ray, _marked(list(runs.values())) as marker:
        _Driver(ray, cluster, runs, marker, on_end, overview).go(at_once or len(runs), stop)


class _Driver:
    """Starts tasks, hears of them, starts those again whose machine is gone."""

    def __init__(
        self, ray: Any, cluster: Cluster, runs: dict[int, Run], marker: Path,
        on_end: Callable[[Outcome], None], overview: Overview,
    ) -> None:  # fmt: skip
        self.ray, self.runs, self.on_end, self.overview = ray, runs, on_end, overview
        self.gpus = _gpus(ray, cluster)
        self.desk = ray.remote(Desk).options(num_cpus=0).remote()
        self.home = Home(os.getcwd(), [os.path.abspath(entry) for entry in sys.path], str(marker))
        self.waiting = list(runs)
        self.running: dict[Any, int] = {}
        self.attempts = dict.fromkeys(runs, 0)
        self.held: dict[int, ExitStack] = {}  # locks of directories that a task does not see

    def go(self, at_once: int, stop: Stop) -> None:
        """Until all are over."""
        asked = False
        try:
            while self.running or (self.waiting and not stop.asked):
                while self.waiting and len(self.running) < at_once and not stop.asked:
                    self._start(self.waiting.pop(0))
                if stop.asked and not asked:
                    asked = True
                    begun = self.ray.get(self.desk.ask.remote())
                    for task, number in self.running.items():
                        if (number, self.attempts[number]) not in begun:
                            self.ray.cancel(task)
                ready, _ = self.ray.wait(list(self.running), timeout=POLL)
                self._hear()
                for task in ready:
                    self._end(task, self.running.pop(task), stop)
        except self.ray.exceptions.RayActorError:
            raise UserError(
                "the Ray cluster is gone; what the runs saved is there: the same command goes on"
            ) from None
        finally:
            for task in self.running:
                with suppress(Exception):  # the cluster may be gone
                    self.ray.cancel(task, force=True)
            for lock in self.held.values():
                lock.close()

    def _start(self, number: int) -> None:
        run = self.runs[number]
        run = run._replace(path=run.path.absolute())
        threads = run.config.threads or 1
        self.attempts[number] += 1
        task = self.ray.remote(_task).options(
            num_cpus=threads, num_gpus=0 if run.config.strategy.get("device") == "cpu" else self.gpus,
            max_retries=0, name=run.path.name,
        )  # fmt: skip
        reference = task.remote(self.desk, self.home, run, number, self.attempts[number], threads)
        self.running[reference] = number

    def _hear(self) -> None:
        """Messages at the desk: who began, how far all are, files."""
        begun, events, parcels = self.ray.get(self.desk.heard.remote())
        for number, (where, sees) in begun.items():
            self.overview.begun(number, where)
            if not sees:
                self._give(number)
        for number, event in events.items():
            if number in self.running.values():
                self.overview.news(number, event)
        for number, attempt, parcel in parcels:
            if attempt == self.attempts[number] and number in self.held:
                unpack(self.runs[number].path, parcel)

    def _give(self, number: int) -> None:
        """The files of a run that is on a machine without them; until it ends nobody else writes them."""
        path = self.runs[number].path
        try:
            if number not in self.held:
                lock = ExitStack()
                lock.enter_context(RunDir(path).locked())
                self.held[number] = lock
            told: Parcel | str = packed(path, {})
        except UserError as error:
            told = str(error)
        self.desk.give.remote(number, self.attempts[number], told)

    def _end(self, task: Any, number: int, stop: Stop) -> None:
        exceptions = self.ray.exceptions
        try:
            kind, value = self.ray.get(task)
        except exceptions.RayTaskError as error:
            print(error, file=sys.stderr, flush=True)
            kind, value = "failed", "its task failed; what it said is above"
        except exceptions.RayError as error:
            kind, value = "lost", f"its process died ({one_line(error, 80)})"
        self._hear()  # files that it sent before it ended
        if kind == "lost" and self.attempts[number] < TRIES and not stop.asked:
            self.overview.lost(number, f"{value}; it goes on from its last checkpoint")
            self.waiting.insert(0, number)
            return
        if number in self.held:
            self.held.pop(number).close()
        if kind == "lost" and stop.asked:
            kind = "interrupted"
        if kind == "lost":
            kind, value = "failed", f"{value} {TRIES} times: give it more memory, or fewer --jobs"
        self.on_end(outcome_of(number, kind, value))


def _gpus(ray: Any, cluster: Cluster) -> float:
    """The share of a GPU for each run."""
    there = float(ray.cluster_resources().get("GPU", 0))
    wanted = cluster.gpus_per_run
    if wanted is None:
        return 1.0 if there else 0.0
    if wanted > there and cluster.address is None and "RAY_ADDRESS" not in os.environ:
        raise UserError(
            f"--gpus-per-run {wanted:g}: this machine has {there:g} GPUs; give less, or the --address of a "
            "cluster with GPUs"
        )
    if wanted > there:
        print(
            f"manymodes: waiting for a machine with a GPU to join the cluster (it has {there:g})", flush=True
        )
    return wanted


@contextmanager
def _marked(runs: list[Run]) -> Iterator[Path]:
    """A file beside the run directories: whoever sees it shares the disk."""
    folder = Path(os.path.commonpath([run.path.absolute().parent for run in runs]))
    marker = folder / f".seen-{uuid.uuid4().hex}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        marker.touch()
    except OSError as error:
        raise UserError(f"cannot write into {folder}: {error.strerror}") from None
    try:
        yield marker
    finally:
        marker.unlink(missing_ok=True)


def _check(address: str | None) -> None:
    """Ray itself would try for minutes to reach somebody who is not there."""
    if address is None or address in ("auto", "local") or "://" in address:
        return
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal():
        raise UserError(f"--address must be HOST:PORT or auto, not {address!r}")
    try:
        socket.create_connection((host.strip("[]"), int(port)), REACH).close()
    except (OSError, OverflowError) as error:
        raise UserError(
            f"no Ray cluster answers at {address} ({error}): `ray start --head` starts one and says where"
        ) from None


@contextmanager
def _connected(cluster: Cluster) -> Iterator[Any]:
    """Ray, connected to the cluster, or to one of its own that ends with the block."""
    address = cluster.address or os.environ.get("RAY_ADDRESS")
    _check(address)
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # nothing is told to anybody outside
    if address is None:
        os.environ.setdefault(LOOPBACK, "0")
        if os.environ.setdefault("RAY_AUTH_MODE", "token") == "token":
            os.environ.setdefault("RAY_AUTH_TOKEN", secrets.token_hex(32))  # known to its processes only
    try:
        import ray
    except ImportError:
        raise UserError('--engine ray needs Ray: pip install "manymodes[ray]"') from None
    if ray.is_initialized():  # by whoever uses this as a library
        yield ray
        return
    with ExitStack() as stack:
        options: dict[str, Any] = {"address": address or "local", "logging_level": "ERROR"}
        if address is None:
            folder = tempfile.mkdtemp(prefix="ray-")
            stack.callback(shutil.rmtree, folder, ignore_errors=True)
            options |= {"include_dashboard": False, "object_store_memory": STORE, "_temp_dir": folder}
        stack.callback(ray.shutdown)
        try:
            ray.init(**options)
        except (ConnectionError, ValueError, RuntimeError, OSError) as error:
            what = f"--address {address}: no Ray cluster to work with" if address else "Ray does not start"
            raise UserError(f"{what} ({one_line(error, 150)})") from None
        yield ray
