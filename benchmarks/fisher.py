"""How fast the exact per-sample Fisher is: samples per second over training images per second, in one run.

python benchmarks/fisher.py [--json PATH] [--threads N] [--rounds N] [--samples N] [--clock wall|cpu]

ResNet-18 at 32x32, batch 128. The rivals take turns within every round, because a machine's speed drifts;
what counts is the median of the rounds' ratios to the faster of the two bare loops. BackPACK is measured
if it is installed (pip install backpack-for-pytorch).
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from pathlib import Path
from statistics import median

import torch
from step import CLOCKS, Clock
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from manymodes import fisher
from manymodes.flat import FlatModel
from manymodes.models import resnet18

BATCH, OUTPUTS, FEW = 128, 10, 8
Data = tuple[Tensor, Tensor]


def training(channels_last: bool) -> Callable[[Data], object]:
    """The bare loop: forward, backward, AdamW."""
    model = resnet18(outputs=OUTPUTS)
    layout = torch.channels_last if channels_last else torch.contiguous_format
    model = model.to(memory_format=layout)
    optimiser = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=channels_last)

    def run(data: Data) -> None:
        for x, y in zip(*(t.split(BATCH) for t in data), strict=True):
            optimiser.zero_grad()
            nn.functional.cross_entropy(model(x.contiguous(memory_format=layout)), y).backward()
            optimiser.step()

    return run


def ours(model: nn.Module, kind: str) -> Callable[[Data], Tensor]:
    flat = FlatModel(model)
    return lambda data: fisher.diagonal(flat, *data, kind, batch_size=BATCH)


def by_loop(model: nn.Module) -> Callable[[Data], Tensor]:
    """One backward per sample."""
    parameters = list(model.parameters())

    def run(data: Data) -> Tensor:
        total = torch.zeros(sum(p.numel() for p in parameters))
        for x, y in zip(*(t.split(1) for t in data), strict=True):
            grads = torch.autograd.grad(nn.functional.cross_entropy(model(x), y), parameters)
            total += torch.cat([g.reshape(-1) for g in grads]).square_()
        return total / len(data[0])

    return run


def by_vmap(model: nn.Module) -> Callable[[Data], Tensor]:
    """torch.func: per-sample gradients of a few samples at once."""
    parameters = {n: p.detach() for n, p in model.named_parameters()}

    def loss(values: dict[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
        return nn.functional.cross_entropy(functional_call(model, values, (x[None],)), y[None])

    def run(data: Data) -> Tensor:
        grads = vmap(grad(loss), in_dims=(None, 0, 0))(parameters, *data)
        return torch.cat([g.square().mean(0).reshape(-1) for g in grads.values()])

    return run


def by_backpack(model: nn.Module) -> Callable[[Data], Tensor] | None:
    """BackPACK's SumGradSquared."""
    try:
        from backpack import backpack, extend
        from backpack.extensions import SumGradSquared
    except ImportError:
        return None
    model = extend(model)
    loss = extend(nn.CrossEntropyLoss(reduction="sum"))

    def run(data: Data) -> Tensor:
        total: Tensor | float = 0.0
        for x, y in zip(*(t.split(BATCH) for t in data), strict=True):
            model.zero_grad()
            with backpack(SumGradSquared()):
                loss(model(x), y).backward()
            total = total + torch.cat([p.sum_grad_squared.reshape(-1) for p in model.parameters()])
        return total / len(data[0])

    return run


def measure(samples: int, rounds: int, clock: Clock) -> dict[str, list[float]]:
    """Samples per second of everyone, round by round; the first round only warms up."""
    torch.manual_seed(0)
    data = torch.randn(samples, 3, 32, 32), torch.randint(OUTPUTS, (samples,))
    few = data[0][:FEW], data[1][:FEW]
    model = resnet18(outputs=OUTPUTS)
    state = model.state_dict()

    def copy() -> nn.Module:
        other = resnet18(outputs=OUTPUTS).eval()
        other.load_state_dict(state)
        return other

    rivals: dict[str, tuple[Callable[[Data], object] | None, Data]] = {
        "training, bare loop": (training(channels_last=False), data),
        "training, channels last, fused AdamW": (training(channels_last=True), data),
        "manymodes, empirical": (ours(copy(), "empirical"), data),
        "manymodes, sampled": (ours(copy(), "sampled"), data),
        "BackPACK": (by_backpack(copy()), data),
        "loop over samples": (by_loop(copy()), few),
        "vmap(grad)": (by_vmap(copy()), few),
    }
    present = {name: (run, given) for name, (run, given) in rivals.items() if run is not None}
    agree({n: run(few) for n, (run, _) in present.items() if n[0] not in "t" and "sampled" not in n})
    speeds: dict[str, list[float]] = {name: [] for name in present}
    for turn in range(rounds + 1):
        for name, (run, given) in present.items():
            start = clock()
            run(given)
            if turn:
                speeds[name].append(len(given[0]) / (clock() - start))
    return speeds


def agree(results: dict[str, object]) -> None:
    """Everyone computes the same thing, or the race means nothing."""
    reference = results["loop over samples"]
    for name, result in results.items():
        assert isinstance(reference, Tensor)
        assert isinstance(result, Tensor)
        error = float((result - reference).norm() / reference.norm())
        print(f"{name}: relative difference to the loop {error:.1e}")
        assert error < 1e-3, name


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", type=Path, help="write the numbers here too")
    parser.add_argument(
        "--threads", type=int, default=1, help="threads of torch (1: steady on a busy machine)"
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--samples", type=int, default=1024)
    parser.add_argument("--clock", choices=CLOCKS, default="wall")
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    speeds = measure(given.samples, given.rounds, CLOCKS[given.clock])
    bare = [
        max(pair) for pair in zip(*[s for n, s in speeds.items() if n.startswith("training")], strict=True)
    ]
    rows = {
        name: {
            "samples_per_second": median(values),
            "ratio_to_training": median(v / b for v, b in zip(values, bare, strict=True)),
        }
        for name, values in speeds.items()
    }
    print(f"\nResNet-18 at 32x32, {given.samples} samples, batch {BATCH}, threads {given.threads}")
    print(f"{'':38}{'samples/s':>10}{'ratio':>8}")
    for name, row in rows.items():
        print(f"{name:38}{row['samples_per_second']:10.0f}{row['ratio_to_training']:8.2f}")
    if "BackPACK" not in rows:
        print("BackPACK is not installed: skipped")
    if given.json:
        given.json.write_text(json.dumps({"threads": given.threads, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
