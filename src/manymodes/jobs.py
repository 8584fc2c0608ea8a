"""Several runs at the same time, each in a process of its own: one that dies takes no other with it."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any, NamedTuple

from manymodes.errors import TrainingDiverged, UserError
from manymodes.interrupts import Interrupted, Stop

POLL = 0.2  # seconds between looks at whether to stop


class Outcome(NamedTuple):
    """What became of a job: its result, or one line about why there is none."""

    number: int
    result: Any
    error: str | None = None
    interrupted: bool = False
    diverged: bool = False


def answer(work: Callable[..., Any], *arguments: Any) -> tuple[str, Any]:
    """How a job ended, and its result or one line about why there is none: what its process tells."""
    try:
        return "done", work(*arguments)
    except Interrupted as error:
        return "interrupted", str(error)
    except TrainingDiverged as error:
        return "diverged", str(error)
    except UserError as error:
        return "failed", str(error)


def outcome_of(number: int, kind: str, value: Any) -> Outcome:
    """The same as an Outcome."""
    if kind == "done":
        return Outcome(number, value)
    return Outcome(number, None, value, kind == "interrupted", kind == "diverged")


def in_processes(
    work: Callable[..., Any],
    jobs: Sequence[tuple[Any, ...]],
    *,
    at_once: int,
    stop: Stop,
    on_end: Callable[[Outcome], None],
    on_tick: Callable[[list[int]], None] = lambda running: None,
) -> None:
    """on_end(outcome) for work(*job, stop) of each job, `at_once` of them at the same time.

    While some run, on_tick(their numbers) is called a few times a second. When `stop` is asked, none is
    started any more and those under way are asked to stop; when that is interrupted too, they are killed.
    """
    context: Any = multiprocessing.get_context("forkserver" if hasattr(os, "fork") else "spawn")
    if hasattr(os, "fork"):
        # Imported once for all; torch._dynamo is what the first optimiser of a process imports, slowly.
        context.set_forkserver_preload(["manymodes.grid", "torch._dynamo"])
    flag = context.Event()
    waiting = list(enumerate(jobs))
    running: dict[Connection, tuple[int, BaseProcess]] = {}
    try:
        while running or (waiting and not stop.asked):
            while waiting and len(running) < at_once and not stop.asked:
                number, job = waiting.pop(0)
                ours, theirs = context.Pipe()
                process = context.Process(target=_child, args=(theirs, flag, work, job), name=f"job {number}")
                process.start()
                theirs.close()
                running[ours] = number, process
            if stop.asked:
                flag.set()
            for ready in wait(list(running), POLL):
                assert isinstance(ready, Connection)
                number, process = running.pop(ready)
                on_end(_outcome(number, process, ready))
            on_tick([number for number, _ in running.values()])
    finally:
        for _, process in running.values():
            process.kill()


def _outcome(number: int, process: BaseProcess, ours: Connection) -> Outcome:
    try:
        kind, value = ours.recv()
    except (EOFError, OSError):
        process.join()
        return Outcome(number, None, _death(process.exitcode))
    finally:
        ours.close()
    process.join()
    return outcome_of(number, kind, value)


def _death(code: int | None) -> str:
    if code is not None and code < 0:
        name = signal.Signals(-code).name
        why = ", often for want of memory: use fewer --jobs" if -code == signal.SIGKILL else ""
        return f"its process died of {name}{why}"
    return f"its process ended with code {code}; what it said is above"


def _child(theirs: Connection, flag: Any, work: Callable[..., Any], job: tuple[Any, ...]) -> None:
    """A job leaves Ctrl-C to its parent, stops when that says so, and does not outlive it."""
    stop = Stop(flag)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda number, frame: stop.ask())
    parent = multiprocessing.parent_process()
    if parent is not None:
        threading.Thread(target=_follow, args=(parent,), daemon=True).start()
    theirs.send(answer(work, *job, stop))


def _follow(parent: Any) -> None:
    parent.join()
    os._exit(1)  # what it wrote is whole; another process may want to go on with it
