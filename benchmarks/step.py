"""What a training step costs: the library's own loop over a hand-written one, in one run.

    python benchmarks/step.py [--json PATH] [--quick] [--rounds N] [--threads N] [--clock wall|cpu]
                              [--only NAME] [--bf16]

The rivals learn the same tensors with the same network, batch size and optimiser (fused AdamW). They take
turns within every round, because a machine's speed drifts; what counts is the median of the rounds' ratios
to the faster of the bare loops. The first epoch is a warm-up and not timed; neither is what happens once a
task (the Fisher of EWC). The bare loop has a constant learning rate, ours the 1cycle schedule. For images
our layout is the one that `--tune-loop` measures as the faster, before the first round; the bare loop has an
entry for each. Avalanche takes part where it is installed (peers.txt). On a busy machine `--threads 1 --clock
cpu` counts the processor's time instead of the wall's.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import torch
from rivals import avalanche_steps as peers
from torch import Tensor, nn

from manymodes import EWC, Finetune, Task, loop
from manymodes.models import mlp, resnet18
from manymodes.penalties import Quadratic
from manymodes.strategies.base import Strategy
from manymodes.task import TensorData

Data = tuple[Tensor, Tensor]
Clock = Callable[[], float]
CLOCKS: dict[str, Clock] = {"wall": time.perf_counter, "cpu": time.process_time}
OUTPUTS = 10
LR = 1e-4


@dataclass(frozen=True)
class Setting:
    """A network, its inputs, and the ratios that must be reached by fine-tuning and by EWC."""

    make: Callable[[], nn.Module]
    shape: tuple[int, ...]
    batch: int
    samples: int
    epochs: int
    finetune: float
    ewc: float


SETTINGS = {
    "mlp-784-100-100 batch 64": Setting(
        lambda: mlp(784, (100, 100), outputs=OUTPUTS), (784,), 64, 3520, 6, 1.10, 1.20
    ),
    "resnet18 32x32 batch 128": Setting(
        lambda: resnet18(outputs=OUTPUTS), (3, 32, 32), 128, 512, 3, 1.03, 1.05
    ),
    "resnet18 32x32 batch 512": Setting(
        lambda: resnet18(outputs=OUTPUTS), (3, 32, 32), 512, 1024, 3, 1.03, 1.05
    ),
}


def bare(setting: Setting, data: Data, clock: Clock, *, channels_last: bool = False) -> float:
    """Seconds per step of a loop over tensors, as a person writes it."""
    inputs, targets = data
    model = setting.make()
    layout = torch.channels_last if channels_last else torch.contiguous_format
    model = model.to(memory_format=layout)
    optimiser = torch.optim.AdamW(model.parameters(), lr=LR, weight_decay=0.0, fused=True)
    model.train()
    for epoch in range(setting.epochs):
        if epoch == 1:
            started = clock()
        for index in torch.randperm(len(inputs)).split(setting.batch):
            x, y = inputs[index], targets[index]
            if channels_last:
                x = x.contiguous(memory_format=layout)
            optimiser.zero_grad()
            nn.functional.cross_entropy(model(x), y).backward()
            optimiser.step()
    return per_step(setting, clock() - started)


def per_step(setting: Setting, seconds: float) -> float:
    return seconds / ((setting.epochs - 1) * (setting.samples // setting.batch))


def options_of(setting: Setting) -> dict[str, Any]:
    return {"epochs": setting.epochs, "batch_size": setting.batch, "lr": LR, "device": "cpu"}


def tuned(setting: Setting, data: Data, allow: Sequence[str] = ()) -> dict[str, Any]:
    """What --tune-loop chooses."""
    learner = Finetune(setting.make(), **options_of(setting))
    task = Task("probe", TensorData(*data), None, None, tuple(range(OUTPUTS)))
    batch = loop.first_batch(learner, task)
    entry = loop.measured(learner, task, batch, loop.candidates(learner, batch, allow))
    print(f"loop: {loop.name_of(entry['loop'])} of {entry['milliseconds']}")
    return dict(entry["loop"])


def ours(setting: Setting, data: Data, clock: Clock, cls: type[Strategy], chosen: dict[str, Any]) -> float:
    """Seconds per step of `learn`, with springs of ten past tasks where the strategy has any."""
    learner, ends = cls(setting.make(), **options_of(setting), **chosen), []
    if isinstance(learner, EWC):
        theta = learner.modes.theta[0]
        learner.springs = Quadratic(theta.clone(), torch.rand_like(theta), learner.strength)
        for _ in range(9):
            learner.springs.merge(theta + 0.01 * torch.randn_like(theta), torch.rand_like(theta))
        learner.end = lambda task: None  # the Fisher is once a task, not a part of the step
    learner.learn(*data, classes=range(OUTPUTS), on_epoch=lambda _: ends.append(clock()))
    return per_step(setting, ends[-1] - ends[0])


def avalanche(setting: Setting, data: Data, clock: Clock, past: int) -> float:
    """Seconds per step of Avalanche's Naive, or of its EWC with springs of past tasks."""
    model = setting.make()
    ends = peers.epochs(model, data, setting.batch, setting.epochs, LR, clock, past)
    return per_step(setting, ends[-1] - ends[0])


def rivals(setting: Setting, data: Data, clock: Clock, bf16: bool) -> dict[str, Callable[[], float]]:
    """By name, what measures the seconds of a step."""
    given, images = (setting, data, clock), len(setting.shape) == 3
    chosen = tuned(setting, data) if images else {}
    found: dict[str, Callable[[], float]] = {"bare": lambda: bare(*given)}
    if images:
        found["bare, channels last"] = lambda: bare(*given, channels_last=True)
    found["finetune"] = lambda: ours(*given, Finetune, chosen)
    found["ewc over 10 past tasks"] = lambda: ours(*given, EWC, chosen)
    if images and bf16:
        half = tuned(setting, data, ("bf16",))
        if half != chosen:
            found["finetune, bf16 allowed"] = lambda: ours(*given, Finetune, half)
    if peers.available():
        found["Avalanche Naive"] = lambda: avalanche(*given, 0)
        found["Avalanche EWC over 10 past tasks"] = lambda: avalanche(*given, 10)
    return found


def data_of(setting: Setting) -> Data:
    generator = torch.Generator().manual_seed(0)
    return (
        torch.randn(setting.samples, *setting.shape, generator=generator),
        torch.randint(OUTPUTS, (setting.samples,), generator=generator),
    )


def measure(setting: Setting, rounds: int, clock: Clock, bf16: bool) -> dict[str, list[float]]:
    """Seconds per step of every rival in every round."""
    present = rivals(setting, data_of(setting), clock, bf16)
    found: dict[str, list[float]] = {name: [] for name in present}
    for number in range(rounds):
        names = list(present)
        for name in names[number % len(names) :] + names[: number % len(names)]:
            found[name].append(present[name]())
    return found


def ratios(seconds: dict[str, list[float]]) -> dict[str, float]:
    """The median over rounds of each rival's time over that of the faster bare loop in the round."""
    floor = [
        min(times) for times in zip(*(t for n, t in seconds.items() if n.startswith("bare")), strict=True)
    ]
    return {n: median(a / b for a, b in zip(times, floor, strict=True)) for n, times in seconds.items()}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", type=Path)
    parser.add_argument("--quick", action="store_true", help="few rounds, no batch of 512")
    parser.add_argument("--rounds", type=int, default=0)
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--clock", choices=CLOCKS, default="wall")
    parser.add_argument(
        "--bf16", action="store_true", help="let --tune-loop choose bf16 as well, in its own line"
    )
    parser.add_argument("--only", default="", help="settings whose name contains this")
    given = parser.parse_args()
    if given.threads:
        torch.set_num_threads(given.threads)
    result = {
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "clock": given.clock,
        "settings": {},
    }
    print(f"torch {torch.__version__}, {torch.get_num_threads()} threads, {given.clock} clock")
    for name, setting in SETTINGS.items():
        if given.only not in name or (given.quick and setting.batch == 512):
            continue
        small = len(setting.shape) == 1
        rounds = given.rounds or (5 if given.quick else 15) * (3 if small else 1) // (1 if small else 2)
        print(f"\n{name} ({rounds} rounds)")
        seconds = measure(setting, rounds, CLOCKS[given.clock], given.bf16)
        found, must = ratios(seconds), {"finetune": setting.finetune, "ewc over 10 past tasks": setting.ewc}
        print(f"{'':34}{'ms a step':>10}{'ratio':>8}{'must':>8}")
        for rival, times in seconds.items():
            bound = f"{must[rival]:.2f}" if rival in must else ""
            print(f"{rival:34}{1e3 * median(times):10.3f}{found[rival]:8.3f}{bound:>8}", flush=True)
        result["settings"][name] = {"ratio": found, "seconds": seconds, "must": must}
    if given.json:
        given.json.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
