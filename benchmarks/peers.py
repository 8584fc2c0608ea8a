"""Our methods against Avalanche's: what they reach on real digits, and what they cost beside a bare loop.

    python benchmarks/peers.py [--what time|accuracy|all] [--seeds N] [--rounds N] [--epochs N]
        [--threads N] [--clock wall|cpu] [--json PATH]

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
# Our class, its settings, and whether Avalanche's definition is the same once factors are translated
# (nearly: memories are drawn and weighted a little otherwise).
METHODS: dict[str, tuple[type[Strategy], dict[str, Any], str]] = {
    "finetune": (mm.Finetune, {}, "the same"),
    "ewc": (mm.EWC, {"strength": 100.0}, "the same"),
    "ewc, one spring a task": (mm.EWC, {"strength": 100.0, "anchor": "merged"}, "the same"),
    "ewc, as it comes": (mm.EWC, {"strength": 100.0, "anchor": "merged"}, "differs"),
    "si": (mm.SI, {"strength": 10.0, "damping": 0.1}, "differs"),
    "lwf": (mm.LwF, {"distillation": 1.0, "temperature": 2.0}, "the same"),
    "er": (mm.ER, {"budget": 20}, "nearly"),
    "agem": (mm.AGEM, {"budget": 20}, "nearly"),
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
        within = abs(mean(apart)) <= max(interval(a), interval(b), interval(apart))
        print(
            f"{name:26}{mean(a):7.2f} ± {interval(a):4.2f}{mean(b):7.2f} ± {interval(b):4.2f}"
            f"{mean(apart):+9.2f} ± {interval(apart):4.2f}  {METHODS[name][2]:10}"
            f"  {'yes' if within else 'no'}"
        )


# ---- time ----------------------------------------------------------------------------------------------

TASKS, SAMPLES, BATCH = 5, 3500, 64
# At most this many times the bare loop, by method.
TARGETS = {"finetune": 1.1, "ewc": 1.3, "si": 1.4, "lwf": 1.3, "er": 2.2, "agem": 2.5}
Tensors = list[tuple[Tensor, Tensor]]
Rival = Callable[[nn.Module, Tensors, int, Clock], float]  # trains; returns what was spent once a task


def timed_options(name: str, epochs: int) -> dict[str, Any]:
    return TRAINING | METHODS[name][1] | {"epochs": epochs, "batch_size": BATCH}


def bare(net: nn.Module, data: Tensors, epochs: int, clock: Clock) -> float:
    """The same training as a person writes it."""
    for inputs, targets in data:
        optimiser = torch.optim.AdamW(net.parameters(), lr=TRAINING["lr"], weight_decay=0.0, fused=True)
        for _ in range(epochs):
            for index in torch.randperm(len(inputs)).split(BATCH):
                optimiser.zero_grad()
                nn.functional.cross_entropy(net(inputs[index]), targets[index]).backward()
                optimiser.step()
    return 0.0


def our_training(name: str) -> Rival:
    def run(net: nn.Module, data: Tensors, epochs: int, clock: Clock) -> float:
        learner = METHODS[name][0](net, **timed_options(name, epochs))
        spent = [0.0]

        def watched(call: Callable[[Any], None]) -> Callable[[Any], None]:
            def run(task: Any) -> None:
                started = clock()
                call(task)
                spent[0] += clock() - started

            return run

        for moment in ("prepare", "end"):  # what EWC's Fisher and LwF's teacher cost, whatever the epochs
            setattr(learner, moment, watched(getattr(learner, moment)))
        for x, y in data:
            learner.learn(x, y, classes=(0, 1))
        return spent[0]

    return run


def their_training(name: str) -> Rival:
    def run(net: nn.Module, data: Tensors, epochs: int, clock: Clock) -> float:
        learner = theirs.strategy(name, net, timed_options(name, epochs), 2, TASKS, ours=False)
        for experience in theirs.experiences([(x, y, (0, 1)) for x, y in data], [0] * TASKS):
            learner.train(experience)
        return 0.0

    return run


def timed(rounds: int, epochs: int, clock: Clock) -> dict[str, list[list[float]]]:
    """By rival, for every round: seconds of all training, of that once a task, of a bare loop just before."""
    rivals = {"bare loop": bare} | {name: our_training(name) for name in TARGETS}
    if theirs is not None:
        names = [n if n != "ewc" else "ewc, as it comes" for n in TARGETS]
        rivals |= {f"Avalanche {name}": their_training(name) for name in names}
    generator = torch.Generator().manual_seed(0)
    data = [
        (torch.randn(SAMPLES, 784, generator=generator), torch.randint(2, (SAMPLES,), generator=generator))
        for _ in range(TASKS)
    ]

    def seconds(rival: Rival) -> tuple[float, float]:
        torch.manual_seed(0)
        net = mlp(784, (100, 100), outputs=2)
        started = clock()
        once = rival(net, data, epochs, clock)
        return clock() - started, once

    found: dict[str, list[list[float]]] = {name: [] for name in rivals}
    for number in range(rounds + 1):
        for name, rival in rivals.items():
            floor, _ = seconds(bare)
            if number:  # the first round warms up
                found[name].append([*seconds(rival), floor])
            else:
                seconds(rival)
    return found


def show_time(found: dict[str, list[list[float]]], epochs: int) -> dict[str, float]:
    rounds = len(found["bare loop"])
    print(f"\n784-100-100-2, batch {BATCH}, {TASKS} tasks x {SAMPLES:,}, {epochs} epochs, {rounds} rounds")
    print(f"{'':28}{'seconds':>9}{'ratio':>8}{'least':>8}{'most':>8}{'target':>8}{'once a task':>13}")
    result = {}
    for name, times in found.items():
        ratios = [whole / floor for whole, _, floor in times]
        result[name] = median(ratios)
        share = f"{median(once / floor for _, once, floor in times):.2f}" if name in TARGETS else ""
        print(
            f"{name:28}{median(whole for whole, _, _ in times):9.3f}{result[name]:8.2f}{min(ratios):8.2f}"
            f"{max(ratios):8.2f}{TARGETS.get(name, ''):>8}"
            f"{share:>13}"
        )
    print("Ratios to a bare loop just before; once a task: the share of a task's beginning and end (Fisher,")
    print("teacher's outputs, memory), which more epochs make smaller.")
    return result


# ---- all -----------------------------------------------------------------------------------------------


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--what", choices=("accuracy", "time", "all"), default="time")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--epochs", type=int, default=2, help="of the times")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--clock", choices=CLOCKS, default="wall")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    print(f"torch {torch.__version__}, {given.threads} threads")
    result: dict[str, Any] = {"torch": torch.__version__, "threads": given.threads, "must": TARGETS}
    if given.what != "accuracy":
        result["seconds"] = timed(given.rounds, given.epochs, CLOCKS[given.clock])
        result["ratios"] = show_time(result["seconds"], given.epochs)
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
