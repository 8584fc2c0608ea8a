"""Our methods against Avalanche's: what they reach on real digits, and what they cost beside a bare loop.

    python benchmarks/peers.py [--what accuracy|time|all] [--seeds N] [--rounds N] [--threads N]
        [--clock wall|cpu] [--json PATH]

Accuracy: the same network, initial weights, samples, order of samples and hyper-parameters, on the digits in
task-IL and instance-IL; each row says whether the two definitions are one. Time: all of the training of five
tasks of random numbers by a small network, in turns with a bare loop, the median of the rounds' ratios.
Avalanche is optional (benchmarks/peers.txt): without it our side of the times is measured alone.
What was measured, and each known difference: benchmarks/PEERS.md.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from pathlib import Path
from statistics import mean, median, stdev
from typing import Any

import torch
from scipy import stats
from step import CLOCKS, Clock
from torch import Tensor, nn

import manymodes as mm
from manymodes.models import mlp
from manymodes.strategies.base import Strategy

try:
    from rivals import avalanche_side as theirs
except (ImportError, RuntimeError) as error:
    theirs = None
    print(f"Avalanche is not here ({error}): pip install -r benchmarks/peers.txt")

# ---- what is compared ----------------------------------------------------------------------------------

TRAINING: dict[str, Any] = {
    "lr": 1e-3, "epochs": 10, "batch_size": 16, "optimiser": "adamw", "schedule": "constant", "device": "cpu",
}  # fmt: skip
# Our class, its settings, and whether Avalanche's definition is the same once factors are translated.
METHODS: dict[str, tuple[type[Strategy], dict[str, Any], bool]] = {
    "finetune": (mm.Finetune, {}, True),
    "ewc": (mm.EWC, {"strength": 100.0}, True),
    "ewc, one spring a task": (mm.EWC, {"strength": 100.0, "anchor": "merged"}, True),
    "ewc, as it comes": (mm.EWC, {"strength": 100.0, "anchor": "merged"}, False),
    "si": (mm.SI, {"strength": 10.0, "damping": 0.1}, False),
    "lwf": (mm.LwF, {"distillation": 1.0, "temperature": 2.0}, True),
    "er": (mm.ER, {"budget": 20}, True),
    "agem": (mm.AGEM, {"budget": 20}, True),
}
DIFFERENCES = {
    "all": [
        "Avalanche keeps Adam's moments from one task to the next, ours start afresh; aligned here by "
        "reset_optimizer_state=True.",
        "Avalanche restricts a task's outputs by one head per task; here both have one output layer, and the "
        "other tasks' outputs are masked (the same numbers).",
    ],
    "ewc": [
        "Avalanche's penalty is lambda F d^2, ours strength/2 F d^2; aligned by lambda = strength / 2.",
        "Avalanche squares the mean gradient of a batch, which shrinks the Fisher by up to the batch size; "
        'ours squares single samples. Aligned by a batch of one, except in the row "as it comes".',
        'Avalanche\'s "separate" is our anchor="merged" (one spring per task, exactly); its "online" with '
        'decay 1 is our anchor="previous", the paper\'s formula.',
    ],
    "si": [
        "Avalanche's path integral is of the gradient with the penalty in it, ours of the task's loss alone. "
        "Not aligned.",
        "Avalanche silently clips importances at 0.001, ours not at all. Not aligned.",
        "Avalanche lets a task lower an importance, even below zero; ours counts no task below zero. "
        "Not aligned.",
        "Avalanche leaves BatchNorm's parameters out, ours holds them (no effect here: no BatchNorm).",
        "Avalanche's penalty is lambda/2 Omega d^2, ours c Omega d^2; aligned by lambda = 2 c.",
    ],
    "lwf": [
        "Avalanche does not multiply the distillation by T^2; aligned by alpha = T^2.",
        "Avalanche's teacher is copied in train mode (dropout, BatchNorm); ours is in eval mode (no effect "
        "here: neither is in the network).",
        "Avalanche runs the teacher on every batch and the student once more per head; ours looks the "
        "teacher up (the same numbers, less time).",
    ],
    "er": [
        "Avalanche's default memory is balanced over experiences; aligned by its ClassBalancedBuffer with "
        "our budget per class.",
        "Avalanche averages over all samples of a step, ours the two halves' means: another weight in the "
        "last, shorter batch of an epoch and while the memory is smaller than a batch. Not aligned.",
        "Which samples are kept, and in which order they are replayed, is drawn by each library; while it "
        "replays, Avalanche also draws the task's order itself. Not aligned.",
    ],
    "agem": [
        "Avalanche keeps a number of samples per experience, whatever their classes; ours an exact number of "
        "each class. The totals are the same at the end of the stream.",
        "Avalanche takes as many samples of every experience for the reference gradient (fewer than a batch "
        "where that does not divide), ours a uniform draw from the memory. Not aligned.",
        "Avalanche has no epsilon: a zero reference gradient gives NaN; ours adds 1e-7.",
    ],
}

# ---- accuracy ------------------------------------------------------------------------------------------


def ours(
    cls: type[Strategy], net: nn.Module, options: dict[str, Any], stream: mm.Stream, seed: int
) -> Strategy:
    learner = cls(net, seed=seed, **options)
    for task in stream:
        learner.learn(task)
    return learner


def parts(stream: mm.Stream) -> list[tuple[Tensor, Tensor, tuple[int, ...]]]:
    """What Avalanche gets: the training samples as the network sees them."""
    found = []
    for task in stream:
        batch = next(task.train.batches([torch.arange(len(task.train))]))
        found.append((batch.inputs, batch.targets, task.classes))
    return found


@torch.no_grad()
def average_accuracy(net: nn.Module, stream: mm.Stream) -> float:
    """Mean over tasks of the accuracy on its test part, among the task's own classes."""
    found = []
    for task in stream:
        assert task.test is not None
        batch = next(task.test.batches([torch.arange(len(task.test))]))
        classes = torch.tensor(task.classes)
        guess = classes[net(batch.inputs)[:, classes].argmax(dim=1)]
        found.append(float((guess == batch.targets).float().mean()))
    return 100 * mean(found)


def reached(scenario: str, seeds: int) -> dict[str, list[tuple[float, float]]]:
    """By method, for every seed: (ours, Avalanche's) average accuracy after the last task."""
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in METHODS}
    for seed in range(seeds):
        stream = mm.streams.digits(scenario, seed=seed)
        torch.manual_seed(seed)
        net = nn.Sequential(nn.Flatten(), *mlp(64, (100, 100), outputs=10).children())
        for name, (cls, settings, _) in METHODS.items():
            options = TRAINING | settings
            learner = ours(cls, net, options, stream, seed)
            other = theirs.learnt(name, net, options, parts(stream), 10, heads=scenario == "task", seed=seed)
            found[name].append(
                (average_accuracy(learner.model.module, stream), average_accuracy(other, stream))
            )
    return found


def interval(values: list[float]) -> float:
    """Half of the 95 % interval of the mean."""
    return float(stats.t.ppf(0.975, len(values) - 1)) * stdev(values) / len(values) ** 0.5


def show_accuracy(scenario: str, found: dict[str, list[tuple[float, float]]]) -> None:
    print(f"\ndigits, {scenario}-IL: average accuracy after five tasks, {len(found['finetune'])} seeds")
    print(f"{'':26}{'ours':>14}{'Avalanche':>14}{'difference':>16}  definition  within")
    for name, pairs in found.items():
        a, b = ([pair[side] for pair in pairs] for side in (0, 1))
        apart = [x - y for x, y in pairs]
        same = METHODS[name][2]
        within = abs(mean(apart)) <= max(interval(a), interval(b), interval(apart))
        print(
            f"{name:26}{mean(a):7.2f} ± {interval(a):4.2f}{mean(b):7.2f} ± {interval(b):4.2f}"
            f"{mean(apart):+9.2f} ± {interval(apart):4.2f}  {'the same' if same else 'differs':10}"
            f"  {'yes' if within else 'no'}"
        )


# ---- time ----------------------------------------------------------------------------------------------

TASKS, SAMPLES, EPOCHS, BATCH = 5, 3500, 2, 64
# At most this many times the bare loop, by method.
TARGETS = {"finetune": 1.1, "ewc": 1.3, "si": 1.4, "lwf": 1.3, "er": 2.2, "agem": 2.5}
TIMED = TRAINING | {"epochs": EPOCHS, "batch_size": BATCH}


def bare(net: nn.Module, data: list[tuple[Tensor, Tensor]]) -> None:
    """The same training as a person writes it."""
    for inputs, targets in data:
        optimiser = torch.optim.AdamW(net.parameters(), lr=TIMED["lr"], weight_decay=0.0, fused=True)
        for _ in range(EPOCHS):
            for index in torch.randperm(len(inputs)).split(BATCH):
                optimiser.zero_grad()
                nn.functional.cross_entropy(net(inputs[index]), targets[index]).backward()
                optimiser.step()


def our_training(name: str) -> Callable[[nn.Module, list[tuple[Tensor, Tensor]]], None]:
    def run(net: nn.Module, data: list[tuple[Tensor, Tensor]]) -> None:
        cls, settings, _ = METHODS[name]
        learner = cls(net, **TIMED | settings)
        for x, y in data:
            learner.learn(x, y, classes=(0, 1))

    return run


def their_training(name: str) -> Callable[[nn.Module, list[tuple[Tensor, Tensor]]], None]:
    def run(net: nn.Module, data: list[tuple[Tensor, Tensor]]) -> None:
        learner = theirs.strategy(name, net, TIMED | METHODS[name][1], 2, TASKS, ours=False)
        for experience in theirs.experiences([(x, y, (0, 1)) for x, y in data], [0] * TASKS):
            learner.train(experience)

    return run


def timed(rounds: int, clock: Clock) -> dict[str, list[float]]:
    """Seconds of the whole training, round by round; a first round warms up."""
    rivals = {"bare loop": bare} | {name: our_training(name) for name in TARGETS}
    if theirs is not None:
        names = [n for n in TARGETS if n != "ewc"] + ["ewc, as it comes"]
        rivals |= {f"Avalanche {name}": their_training(name) for name in sorted(names)}
    generator = torch.Generator().manual_seed(0)
    data = [
        (torch.randn(SAMPLES, 784, generator=generator), torch.randint(2, (SAMPLES,), generator=generator))
        for _ in range(TASKS)
    ]
    seconds: dict[str, list[float]] = {name: [] for name in rivals}
    for number in range(rounds + 1):
        names = list(rivals)
        for name in names[number % len(names) :] + names[: number % len(names)]:
            torch.manual_seed(0)
            net = mlp(784, (100, 100), outputs=2)
            started = clock()
            rivals[name](net, data)
            if number:
                seconds[name].append(clock() - started)
    return seconds


def show_time(seconds: dict[str, list[float]]) -> dict[str, float]:
    floor = seconds["bare loop"]
    print(
        f"\n784-100-100-2, batch {BATCH}, {TASKS} tasks x {SAMPLES:,}, {EPOCHS} epochs ({len(floor)} rounds)"
    )
    print(f"{'':30}{'seconds':>9}{'ratio':>8}{'least':>8}{'most':>8}{'target':>8}")
    ratios = {}
    for name, times in seconds.items():
        found = [a / b for a, b in zip(times, floor, strict=True)]
        ratios[name] = median(found)
        target = f"{TARGETS[name]:.1f}" if name in TARGETS else ""
        print(
            f"{name:30}{median(times):9.3f}{ratios[name]:8.2f}{min(found):8.2f}{max(found):8.2f}{target:>8}"
        )
    return ratios


# ---- all -----------------------------------------------------------------------------------------------


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--what", choices=("accuracy", "time", "all"), default="all")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--clock", choices=CLOCKS, default="wall")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    print(f"torch {torch.__version__}, {given.threads} threads")
    result: dict[str, Any] = {"torch": torch.__version__, "threads": given.threads}
    if given.what != "accuracy":
        result["seconds"] = timed(given.rounds, CLOCKS[given.clock])
        result["ratios"] = show_time(result["seconds"])
    if given.what != "time" and theirs is not None:
        for scenario in ("task", "instance"):
            result[scenario] = reached(scenario, given.seeds)
            show_accuracy(scenario, result[scenario])
        print("\nKnown differences of definition (ours against Avalanche 0.6)")
        for name, known in DIFFERENCES.items():
            print("\n".join(f"{name + ':':10}{difference}" for difference in known))
    if given.json:
        given.json.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
