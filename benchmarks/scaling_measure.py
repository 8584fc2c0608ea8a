"""What one and two processes, and 1 to 8 runs at a time, get done here; every process on one thread.

    python benchmarks/scaling_measure.py [--json PATH] [--rounds N] [--seconds S] [--runs 1,2,4,8] [--batch N]
                                         [--size PIXELS] [--ways same_batch,same_share,modes]

ResNet-18, images trained on per second. `same_batch` (strong scaling) is a run on one process and on two,
data parallel, both with batches of --batch images in all: each of the two computes half of them. `same_share`
(throughput) has batches of twice as many with two, so that each computes as many as one does alone. `modes`
is an epoch of MOTA's second task with two modes, trained by one process and by two that own one each.
All are measured in the same two processes, which take turns: the first works alone while the second waits,
then both work together; what counts is the median of the rounds' ratios, of the wall's clock and, as a
machine that others use allows to say, of the processor time of the busier process, which knows nothing of
waiting. `reduce` is the time to add up numbers over two processes, `optimiser` that of a step of AdamW,
`apart` so many runs that know nothing of each other. scaling_model.py makes a model of it.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch import nn

from manymodes import MOTA, Finetune, Task, distributed
from manymodes.models import resnet18
from manymodes.modes import Modes
from manymodes.strategies.base import Strategy
from manymodes.task import TensorData

STEPS = 5  # in an epoch
WAYS = ("same_batch", "same_share", "modes")
SIZES = (100, 10_000, 100_000, 1_000_000, 4_000_000, 11_181_642)


# ---- in a process of its own ------------------------------------------------------------------------------


def task(samples: int, name: str = "one", size: int = 32) -> Task:
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(samples, 3, size, size, generator=generator)
    data = TensorData(inputs, torch.arange(samples) % 10)
    return Task(name, data, None, None, tuple(range(10)))


def network() -> nn.Module:
    torch.manual_seed(0)
    return resnet18(outputs=10)


def stepper(learner: Strategy, given: Task) -> Callable[[], None]:
    """Each call is an epoch in the middle of the task."""
    learner.before = Modes(learner.modes.theta.clone(), learner.modes.buffers.clone())
    learner._num_outputs, learner.epochs_done = 10, 0
    learner.begin(given)
    learner.prepare(given)

    def epoch() -> None:
        learner.epoch(given)
        learner.epochs_done = (learner.epochs_done or 0) + 1

    return epoch


def finetune(batch: int) -> Strategy:
    return Finetune(network(), epochs=100, batch_size=batch, device="cpu")


def mota(batch: int) -> Strategy:
    """After task 1; what an epoch costs beside training and looking up is left out."""
    options: dict[str, Any] = {"backtracking": False, "drift": "fisher", "strength": 0.0}
    learner = MOTA(network(), epochs=1, batch_size=batch, device="cpu", mode_parallel=True, **options)
    learner.learn(task(2 * batch, "zero"))
    learner.epochs = 100
    return learner


def in_turns(way: str, batch: int, rounds: int, size: int) -> list[list[float]]:
    """An epoch by one process and by both, round by round after one that warms up.

    Images per second alone and together, then seconds of the processor for an image, alone and together.
    """
    make = mota if way == "modes" else finetune
    larger, found = 2 * batch if way == "same_share" else batch, []
    learner, alone = make(larger), None
    both = stepper(learner, task(STEPS * larger, size=size))
    if distributed.first():
        with distributed.apart():
            alone = stepper(make(batch), task(STEPS * batch, size=size))
    images = [STEPS * each * len(learner.modes) for each in (batch, larger)]
    for _ in range(rounds + 1):
        started = time.perf_counter(), time.process_time()
        if alone is not None:
            with distributed.apart():
                alone()
        turn = time.perf_counter(), time.process_time()
        distributed.anyone(False)  # the second has waited here
        began = time.perf_counter(), time.process_time()
        both()
        ended = time.perf_counter(), time.process_time()
        busier = max(distributed.everyone(ended[1] - began[1]))
        rates = [images[0] / (turn[0] - started[0]), images[1] / (ended[0] - began[0])]
        found.append([*rates, (turn[1] - started[1]) / images[0], busier / images[1]])
    return found[1:]


def reduce() -> dict[int, float]:
    """Seconds to add up so many numbers."""
    return {size: seconds_of(partial(distributed.sum_, torch.zeros(size))) for size in SIZES}


def optimiser() -> float:
    """Seconds of a step of AdamW."""
    learner = finetune(1)
    learner.begin(task(1))
    return seconds_of(learner.optimisers[0].step)


def seconds_of(work: Callable[[], Any]) -> float:
    """The median of some calls, after some that warm up."""
    seconds = []
    for _ in range(13):
        started = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - started)
    return median(seconds[3:])


def apart(batch: int, seconds: float, folder: Path, number: int) -> float:
    """Images per second of a run beside others: all begin when all are ready."""
    learner, done = Finetune(network(), epochs=10**6, batch_size=batch, device="cpu"), [0.0, 0.0]

    class Over(Exception):
        pass

    def on_event(event: Any) -> None:
        now = time.perf_counter()
        if not done[0]:
            (folder / str(number)).touch()
            while not (folder / "go").exists():
                time.sleep(0.01)
            done[0] = time.perf_counter()
            return
        done[1] += batch
        if now - done[0] > seconds:
            raise Over(done[1] / (now - done[0]))

    try:
        learner.learn(task(batch), on_event=on_event)
    except Over as over:
        return float(over.args[0])
    raise AssertionError


def work(words: argparse.Namespace) -> None:
    torch.set_num_threads(1)
    with distributed.joined():
        if words.work == "apart":
            found: Any = apart(words.batch, words.seconds, Path(words.folder), words.number)
        elif words.work == "reduce":
            found = reduce()
        elif words.work == "optimiser":
            found = optimiser()
        else:
            found = in_turns(words.work, words.batch, words.rounds, words.size)
        if distributed.first():
            print(json.dumps(found))


# ---- who starts them --------------------------------------------------------------------------------------


def start(what: str, *more: object, rank: int = 0, world: int = 1, port: int = 0) -> subprocess.Popen[str]:
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    if world > 1:
        environment |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(world),
                        "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}  # fmt: skip
    command = [sys.executable, __file__, "--work", what, *map(str, more)]
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)


def answer(processes: list[subprocess.Popen[str]]) -> list[Any]:
    told = [process.communicate()[0] for process in processes]
    assert all(process.returncode == 0 for process in processes)
    return [json.loads(line) for line in told if line]


def with_processes(what: str, count: int, *more: object) -> Any:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    return answer([start(what, *more, rank=rank, world=count, port=port) for rank in range(count)])[0]


def side_by_side(count: int, batch: int, seconds: float) -> list[float]:
    with tempfile.TemporaryDirectory() as folder:
        more = ("--batch", batch, "--seconds", seconds, "--folder", folder)
        processes = [start("apart", *more, "--number", number) for number in range(count)]
        while len(list(Path(folder).iterdir())) < count:
            assert all(process.poll() is None for process in processes)
            time.sleep(0.01)
        (Path(folder) / "go").touch()
        return answer(processes)


def measured(words: argparse.Namespace) -> dict[str, Any]:
    found: dict[str, Any] = {"batch": words.batch, "size": words.size, "cores": os.cpu_count(), "apart": {}}
    for what in words.ways.split(","):
        turns = with_processes(
            what, 2, "--batch", words.batch, "--rounds", words.rounds, "--size", words.size
        )
        ratio = median(both / alone for alone, both, *_ in turns)
        cpu = median(alone / both for *_, alone, both in turns)
        best, most = (max(turn[which] for turn in turns) for which in (0, 1))
        found[what] = {"1": best, "2": most, "ratio": ratio, "cpu": cpu, "rounds": turns}
        shown = ", ".join(f"{both / alone:.2f}" for alone, both, *_ in turns)
        print(f"{what}: {best:.0f} images per second alone, two processes {ratio:.2f} x ({shown}); "
              f"by processor time {cpu:.2f} x", flush=True)  # fmt: skip
        keep(found, words.json)
    found["reduce"], found["optimiser"] = with_processes("reduce", 2), with_processes("optimiser", 1)
    keep(found, words.json)
    for count in map(int, filter(None, words.runs.split(","))):
        rates = side_by_side(count, 128, words.seconds)
        found["apart"][str(count)] = sum(rates)
        print(f"{count} runs at a time: {sum(rates):.0f} images per second together", flush=True)
    return found


def keep(found: dict[str, Any], path: Path | None) -> None:
    if path:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(found, indent=1) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", type=Path)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--ways", default=",".join(WAYS))
    parser.add_argument("--runs", default="1,2,4,8")
    parser.add_argument("--batch", type=int, default=512)
    parser.add_argument("--size", type=int, default=32, help="of the images; 64 is Tiny-ImageNet's")
    for hidden in ("--work", "--folder"):
        parser.add_argument(hidden, help=argparse.SUPPRESS)
    parser.add_argument("--number", type=int, help=argparse.SUPPRESS)
    words = parser.parse_args()
    if words.work:
        work(words)
        return
    keep(measured(words), words.json)


if __name__ == "__main__":
    main()
