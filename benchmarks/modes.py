"""What an adaptation epoch of MOTA costs: over N epochs of fine-tuning, beside the algorithm as printed.

    python benchmarks/modes.py [--json PATH] [--quick] [--rounds N] [--threads N] [--clock wall|cpu]
                               [--only NAME] [--modes 2,4,6] [--samples N]

One epoch of task 2 with N modes: training, looking up what rests, the checkpoint and what it needs for the
search (a tenth of the samples is held out). "printed" is Algorithm 1 written down plainly, with ordinary
modules: every other mode is evaluated on every batch, so an epoch costs N^2 forwards. Everybody is made
once; a round is one epoch of each, in turns, because a machine's speed drifts. What counts is the median of
the rounds' ratios to N times the round's epoch of fine-tuning.
"""

from __future__ import annotations

import argparse
import copy
import json
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import torch
from step import CLOCKS, SETTINGS, Clock, Setting
from torch import Tensor, nn

from manymodes import MOTA, Finetune, Task
from manymodes.modes import Modes
from manymodes.strategies.base import Strategy
from manymodes.task import TensorData

COUNTS = (2, 4, 6)
TARGET, AIM = 1.35, 1.2
LR, STRENGTH = 1e-4, 100.0
PAPER = {"drift": "fisher", "joint_weight": 1.0, "search": "train", "strength": STRENGTH}
Epoch = Callable[[], object]


def learning(learner: Strategy, tasks: list[Task]) -> Epoch:
    """A learner that knows all tasks but the last and is in the middle of that: each call is one epoch."""
    *earlier, task = tasks
    epochs, learner.epochs = learner.epochs, 1
    for first in earlier:
        learner.learn(first)
    learner.epochs, learner.epochs_done = epochs, 0
    learner.before = Modes(learner.modes.theta.clone(), learner.modes.buffers.clone())
    learner._num_outputs = len(task.classes)
    learner.begin(task)
    learner.prepare(task)

    def epoch() -> None:
        learner.epoch(task)
        learner.epochs_done += 1

    return epoch


def printed(setting: Setting, count: int, data: TensorData) -> Epoch:
    """Algorithm 1 as it stands: -log of the average distribution plus springs, all other modes evaluated."""
    modules = [setting.make().to(memory_format=layout(setting)) for _ in range(count)]
    anchors = [[p.detach().clone() for p in m.parameters()] for m in modules]
    importances = [[torch.rand_like(p) * 1e-4 for p in m.parameters()] for m in modules]
    optimisers = [torch.optim.AdamW(m.parameters(), lr=LR, weight_decay=0.0, fused=True) for m in modules]

    def loss(i: int, x: Tensor, y: Tensor) -> Tensor:
        with torch.no_grad():
            others = [torch.softmax(m.eval()(x), dim=1) for m in modules if m is not modules[i]]
        own = torch.softmax(modules[i].train()(x), dim=1)
        joint = (own + torch.stack(others).sum(dim=0)) / count
        value = nn.functional.nll_loss(joint.log(), y)
        for p, a, f in zip(modules[i].parameters(), anchors[i], importances[i], strict=True):
            value = value + STRENGTH / 2 * (f * (p - a).square()).sum()
        return value

    def epoch() -> None:
        for i in range(count):
            for index in torch.randperm(len(data)).split(setting.batch):
                x = data.inputs[index]
                optimisers[i].zero_grad()
                loss(i, x.contiguous(memory_format=layout(setting)), data.targets[index]).backward()
                optimisers[i].step()
            copy.deepcopy(modules[i].state_dict())  # the checkpoint of this epoch

    return epoch


def layout(setting: Setting) -> torch.memory_format:
    return torch.channels_last if len(setting.shape) == 3 else torch.contiguous_format


def rivals(setting: Setting, samples: int, count: int) -> dict[str, Epoch]:
    """By name, what runs one epoch."""
    generator = torch.Generator().manual_seed(0)
    classes = tuple(range(10))

    def data(count: int) -> TensorData:
        inputs = torch.randn(count, *setting.shape, generator=generator)
        return TensorData(inputs, torch.randint(10, (count,), generator=generator))

    first = Task("first", data(64), data(8), None, classes)
    second = Task("second", data(samples), data(max(1, samples // 10)), None, classes)
    options: dict[str, Any] = {"epochs": 1000, "batch_size": setting.batch, "lr": LR, "device": "cpu"}
    found = {"finetune": learning(Finetune(setting.make(), **options), [first, second])}
    for name, more in (("mota", {}), ("mota, paper's settings", PAPER)):
        learner = MOTA(setting.make(), modes=count, **options, **more)
        found[f"{name}, {count} modes"] = learning(learner, [first, second])
    found[f"printed, {count} modes"] = printed(setting, count, second.train)
    return found


def measure(epochs: dict[str, Epoch], rounds: int, clock: Clock) -> dict[str, list[float]]:
    """Seconds of one epoch of everybody, round by round; the first round warms up."""
    seconds: dict[str, list[float]] = {name: [] for name in epochs}
    for number in range(rounds + 1):
        for name, epoch in epochs.items():
            started = clock()
            epoch()
            if number:
                seconds[name].append(clock() - started)
    return seconds


def ratio(name: str, seconds: dict[str, list[float]]) -> tuple[float, float, float]:
    """Median, least and greatest of an epoch over as many epochs of fine-tuning as it has modes."""
    count = int(name.split()[-2]) if name.endswith("modes") else 1
    found = [a / (count * b) for a, b in zip(seconds[name], seconds["finetune"], strict=True)]
    return median(found), min(found), max(found)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", type=Path)
    parser.add_argument("--quick", action="store_true", help="few rounds, few images")
    parser.add_argument("--rounds", type=int, default=0)
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--clock", choices=CLOCKS, default="wall")
    parser.add_argument("--only", default="", help="settings whose name contains this")
    parser.add_argument("--samples", type=int, default=0, help="of the task (CIFAR-100 in 10 tasks: 5,000)")
    parser.add_argument("--modes", default=",".join(map(str, COUNTS)), help="how many")
    given = parser.parse_args()
    if given.threads:
        torch.set_num_threads(given.threads)
    result: dict[str, Any] = {
        "threads": torch.get_num_threads(), "torch": torch.__version__, "clock": given.clock, "settings": {},
    }  # fmt: skip
    started = time.perf_counter()
    for name, setting in SETTINGS.items():
        if given.only not in name or setting.batch == 512:
            continue
        images = len(setting.shape) == 3
        samples = given.samples or (setting.batch * (4 if given.quick else 16) if images else setting.samples)
        rounds = given.rounds or (3 if given.quick or images else 7)
        print(f"\n{name}, {samples} samples ({rounds} rounds)")
        print(f"{'':32}{'s an epoch':>11}{'ratio':>8}{'least':>8}{'most':>8}{'bound':>8}")
        ratios, medians = {}, {}
        for count in map(int, given.modes.split(",")):
            torch.manual_seed(0)
            seconds = measure(rivals(setting, samples, count), rounds, CLOCKS[given.clock])
            for rival, times in seconds.items():
                ratios[rival], medians[rival] = ratio(rival, seconds), median(times)
                bound = f"{TARGET:.2f}" if rival.startswith("mota") else ""
                numbers = "".join(f"{r:8.3f}" for r in ratios[rival])
                print(f"{rival:32}{medians[rival]:11.3f}{numbers}{bound:>8}", flush=True)
        result["settings"][name] = {"ratio": ratios, "seconds": medians}
    result["took"] = time.perf_counter() - started
    if given.json:
        given.json.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
