"""Work done ahead by processes: answers in the order of the jobs, a bounded number of them waiting."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from typing import Any, TypeVar

import torch

from manymodes.errors import UserError

J = TypeVar("J")
R = TypeVar("R")

_work: Callable[[Any], Any]  # in a worker process: what it was started for


def work_ahead(work: Callable[[J], R], jobs: Sequence[J], *, workers: int, prefetch: int) -> Iterator[R]:
    """work(job) for every job, in order, computed by `workers` processes.

    At most workers * prefetch answers are under way or waiting: a job is begun only after the answer of the
    job so many before it has been used. With 0 workers the caller does the work.
    An exception raised by `work` is raised here; a process that dies is a UserError.

    >>> list(work_ahead(abs, [-1, -2], workers=0, prefetch=1))
    [1, 2]

    """
    workers = min(workers, len(jobs))
    if workers == 0:
        yield from map(work, jobs)
        return
    # fork: nothing is pickled, and starting costs milliseconds; where there is no fork, the default
    method = "fork" if "fork" in multiprocessing.get_all_start_methods() else None
    pool = ProcessPoolExecutor(
        workers, multiprocessing.get_context(method), initializer=_start, initargs=(work, os.getpid())
    )
    waiting: deque[Future[R]] = deque()
    try:
        for job in jobs:
            waiting.append(pool.submit(_do, job))
            if len(waiting) >= workers * prefetch:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    except BrokenProcessPool:
        raise UserError(
            f"one of {workers} processes that read data died, often for want of memory: use fewer workers, "
            "or workers=0"
        ) from None
    finally:
        pool.shutdown(wait=False, cancel_futures=True)


def _start(work: Callable[[Any], Any], parent: int) -> None:
    """A worker leaves Ctrl-C to its parent, and does not outlive it."""
    global _work
    _work = work
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    torch.set_num_threads(1)

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(1)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def _do(job: Any) -> Any:
    return _work(job)
