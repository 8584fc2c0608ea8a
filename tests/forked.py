"""Command lines in processes of their own that start at once: forked from one that has imported torch.

Such a process can be killed, starved of disk space or given broken functions without harming the tests.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import random
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

# Imported by the process that all others are forked from. Nothing here may run a backward pass: autograd's
# threads would not survive the fork.
import rich.progress  # noqa: F401
import scipy.stats  # noqa: F401
import sklearn.datasets  # noqa: F401
import torch._dynamo  # noqa: F401  # the first optimiser imports it: three seconds

import manymodes.commands.compare
import manymodes.commands.runs
import manymodes.grid
from manymodes import cli, store
from manymodes.strategies.registry import REGISTRY, strategy_class

for _name in REGISTRY:
    strategy_class(_name)

CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(["tests.forked"])

Hook = Callable[..., None]
TINY = ("--stream", "digits", "--tasks", "3", "--limit", "24", "--model", "mlp", "--hidden", "[12]",
        "--epochs", "2", "--batch-size", "8", "--checkpoint-every", "0")  # fmt: skip


class Forked:
    """`manymodes WORDS` in a process of its own; `hook(*arguments)` runs in it first."""

    def __init__(
        self, output: Path, *words: str, hook: Hook | None = None, arguments: tuple[Any, ...] = ()
    ) -> None:
        self.output_file = output
        output.write_text("")
        self.process = CONTEXT.Process(target=_main, args=(words, str(output), hook, arguments))
        self.process.start()

    def wait(self, seconds: float = 120.0) -> int:
        """Its exit code (minus the signal's number if it was killed)."""
        self.process.join(seconds)
        if self.process.exitcode is None:
            self.process.kill()
            raise AssertionError(f"still running after {seconds} s: {self.output}")
        return self.process.exitcode

    @property
    def output(self) -> str:
        """What it has printed so far, on both channels."""
        return self.output_file.read_text()

    def send(self, number: int) -> None:
        """A signal."""
        assert self.process.pid is not None
        os.kill(self.process.pid, number)

    def until(self, there: Callable[[], bool], seconds: float = 60.0) -> None:
        """Wait for something to be true while it runs."""
        end = time.monotonic() + seconds
        while not there():
            assert time.monotonic() < end, f"in vain: {self.output}"
            assert self.process.is_alive(), f"ended too early: {self.output}"
            time.sleep(0.005)


def _main(words: tuple[str, ...], output: str, hook: Hook | None, arguments: tuple[Any, ...]) -> None:
    file = os.open(output, os.O_WRONLY | os.O_APPEND)
    os.dup2(file, 1)
    os.dup2(file, 2)
    sys.stdout = open(1, "w", buffering=1, closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", buffering=1, closefd=False)  # noqa: SIM115
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if hook is not None:
        hook(*arguments)
    sys.exit(cli.main(list(words)))


def manymodes(
    tmp: Path, *words: str, hook: Hook | None = None, arguments: tuple[Any, ...] = ()
) -> tuple[int, str]:
    """(exit code, output) of a command line."""
    forked = Forked(tmp / f"output-{random.getrandbits(32):08x}.txt", *words, hook=hook, arguments=arguments)
    return forked.wait(), forked.output


def outcome(run: Path) -> dict[str, Any]:
    """Everything a finished run leaves that must not depend on whether it was interrupted, to the bit."""
    timeless = {"seconds", "seconds_per_task"}
    metrics = json.loads((run / "metrics.json").read_text())
    events = [json.loads(line) for line in (run / "events.jsonl").read_text().splitlines()]
    files = [run / "learner.safetensors", *sorted((run / "weights").iterdir())]
    files += sorted((run / "trajectory").glob("*"))
    return {
        "metrics": {k: v for k, v in metrics.items() if k not in timeless},
        "events": [{k: v for k, v in event.items() if k not in timeless} for event in events],
        "config": (run / "config.yaml").read_text(),
    } | {str(path.relative_to(run)): path.read_bytes() for path in files}


def differing(one: dict[str, Any], other: dict[str, Any]) -> list[str]:
    """What is different (names only: the bytes of weights are no reading)."""
    return [key for key in dict.fromkeys([*one, *other]) if one.get(key) != other.get(key)]


def sound(run: Path) -> list[str]:
    """What is wrong with a run directory that a process was killed in: nothing may be."""
    wrong = []
    for path in run.glob("checkpoint-*.safetensors"):
        try:
            store.load_state(path, run / "pool")
        except ValueError as error:
            wrong.append(str(error))
    for name in ("metrics.json", "environment.json"):
        if (run / name).exists():
            json.loads((run / name).read_text())
    return wrong
