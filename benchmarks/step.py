"""What a training step costs: the library's own loop over a hand-written one, in one run.

python benchmarks/step.py [--json PATH] [--quick] [--rounds N] [--threads N] [--clock wall|cpu] [--only NAME]

The rivals learn the same tensors with the same network, batch size and optimiser (fused AdamW). They take
turns within every round, because a machine's speed drifts; what counts is the median of the rounds' ratios
to the faster of the bare loops. The first epoch is a warm-up and not timed; neither is what happens once a
task (the Fisher of EWC). The bare loop has a constant learning rate, ours the 1cycle schedule. On a busy
machine `--threads 1 --clock cpu` counts the processor's time instead of the wall's.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import torch
from torch import Tensor, nn

from manymodes import EWC, Finetune
from manymodes.models import mlp, resnet18
from manymodes.penalties import Quadratic
from manymodes.strategies.base import Strategy

Data = tuple[Tensor, Tensor]
Clock = Callable[[], float]
CLOCKS: dict[str, Clock] = {"wall": time.perf_counter, "cpu": time.process_time}
OUTPUTS = 10
LR = 1e-4


@dataclass(frozen=True)
class Setting:
    """A network, its inputs, and the ratio that must be reached."""

    make: Callable[[], nn.Module]
    shape: tuple[int, ...]
    batch: int
    samples: int
    epochs: int
    target: float


SETTINGS = {
    "mlp-784-100-100 batch 64": Setting(
        lambda: mlp(784, (100, 100), outputs=OUTPUTS), (784,), 64, 3520, 6, 1.15
    ),
    "resnet18 32x32 batch 128": Setting(lambda: resnet18(outputs=OUTPUTS), (3, 32, 32), 128, 512, 3, 1.05),
    "resnet18 32x32 batch 512": Setting(lambda: resnet18(outputs=OUTPUTS), (3, 32, 32), 512, 1024, 3, 1.05),
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


def ours(setting: Setting, data: Data, clock: Clock, cls: type[Strategy]) -> float:
    """Seconds per step of `learn`, with springs of ten past tasks where the strategy has any."""
    options = {"epochs": setting.epochs, "batch_size": setting.batch, "lr": LR, "device": "cpu"}
    learner, ends = cls(setting.make(), **options), []
    if isinstance(learner, EWC):
        theta = learner.modes.theta[0]
        learner.springs = Quadratic(theta.clone(), torch.rand_like(theta), learner.strength)
        for _ in range(9):
            learner.springs.merge(theta + 0.01 * torch.randn_like(theta), torch.rand_like(theta))
        learner.end = lambda task: None  # the Fisher is once a task, not a part of the step
    learner.learn(*data, classes=range(OUTPUTS), on_epoch=lambda _: ends.append(clock()))
    return per_step(setting, ends[-1] - ends[0])


RIVALS: dict[str, Callable[[Setting, Data, Clock], float]] = {
    "bare": bare,
    "bare, channels last": lambda *given: bare(*given, channels_last=True),
    "finetune": lambda *given: ours(*given, Finetune),
    "ewc over 10 past tasks": lambda *given: ours(*given, EWC),
}


def measure(setting: Setting, rounds: int, clock: Clock) -> dict[str, list[float]]:
    """Seconds per step of every rival in every round."""
    generator = torch.Generator().manual_seed(0)
    data = (
        torch.randn(setting.samples, *setting.shape, generator=generator),
        torch.randint(OUTPUTS, (setting.samples,), generator=generator),
    )
    rivals = {n: r for n, r in RIVALS.items() if "channels" not in n or len(setting.shape) == 3}
    found: dict[str, list[float]] = {name: [] for name in rivals}
    for number in range(rounds):
        names = list(rivals)
        for name in names[number % len(names) :] + names[: number % len(names)]:
            found[name].append(rivals[name](setting, data, clock))
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
        seconds = measure(setting, rounds, CLOCKS[given.clock])
        found = ratios(seconds)
        print(f"\n{name} ({rounds} rounds)\n{'':26}{'ms a step':>10}{'ratio':>8}{'target':>8}")
        for rival, times in seconds.items():
            target = "" if rival.startswith("bare") else f"{setting.target:.2f}"
            print(f"{rival:26}{1e3 * median(times):10.3f}{found[rival]:8.3f}{target:>8}")
        result["settings"][name] = {"ratio": found, "seconds": seconds, "target": setting.target}
    if given.json:
        given.json.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
