"""How cost grows: a model of time and traffic, its constants fitted on measurements, to 64 devices.

    python benchmarks/scaling_model.py [--measured PATH | --measure] [--draw PATH.svg] [--gpu-flops F] ...

F: FLOPs of a forward pass of one image (counted), P: parameters, S: samples of a task, B: batch, N: modes,
K: devices, R: FLOP/s a device keeps up, W: bytes/s and L: seconds of latency of an all-reduce, M: bytes/s of
memory.

    step(K)         = 3 F B / (K R) + 28 P / M + [K > 1] (4 P * 2 (K - 1) / K / W + (2 + 2 norms) L)
    epoch, data     = N (S / B * step(K) + F S / (K R))                    every mode in turn on K devices
    epoch, modes    = ceil(N / K) (S / B * step(1) + F S / R) + 4 N S / W   K <= N devices own modes
    task            = epochs * epoch + N * 5.4 F S / (K R)                  the Fisher: 1.8 training passes

28 bytes per parameter is what AdamW reads and writes; BatchNorm exchanges two small messages a layer and
step. The backtracking search never runs a model and is left out, as is reading data. R, W, L and M of this
machine come from `scaling_measure.py`; those of a GPU are assumptions, to be replaced by your own.
"""

from __future__ import annotations

import argparse
import json
import math
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from manymodes.models import resnet18, resnet50, resnet152

NETWORKS = {"resnet18": resnet18, "resnet50": resnet50, "resnet152": resnet152}
MEASURED = Path(__file__).parent / "results" / "scaling.json"
DEVICES = (1, 2, 4, 8, 16, 32, 64)
FISHER = 1.8 * 3  # of a forward pass: per-sample squares cost 1.8 times a training pass


@dataclass(frozen=True)
class Network:
    """What is counted of it."""

    name: str
    size: int
    parameters: int
    flops: int  # of one image, forward
    norms: int


@dataclass(frozen=True)
class Machine:
    """R, W, L and M."""

    name: str
    flops: float
    bandwidth: float
    latency: float
    memory: float


@dataclass(frozen=True)
class Stream:
    """What is to be learnt."""

    network: Network
    modes: int
    tasks: int
    samples: int
    epochs: int
    batch: int


def counted(name: str, size: int) -> Network:
    with torch.device("meta"):
        module = NETWORKS[name](outputs=10)
        image = torch.empty(1, 3, size, size)
    counter = FlopCounterMode(display=False)
    with counter, torch.no_grad():
        module.eval()(image)
    norms = sum(isinstance(part, nn.BatchNorm2d) for part in module.modules())
    return Network(name, size, sum(p.numel() for p in module.parameters()), counter.get_total_flops(), norms)


# ---- the model ---------------------------------------------------------------------------------------------


def step(machine: Machine, network: Network, batch: int, devices: int) -> float:
    """Seconds of one training step."""
    seconds = 3 * network.flops * batch / (devices * machine.flops) + 28 * network.parameters / machine.memory
    if devices > 1:
        moved = 4 * network.parameters * 2 * (devices - 1) / devices
        seconds += moved / machine.bandwidth + (2 + 2 * network.norms) * machine.latency
    return seconds


def task(machine: Machine, stream: Stream, devices: int, way: str) -> float:
    """Seconds of one task after the first, by data ("data") or mode parallelism ("modes")."""
    network, samples, modes = stream.network, stream.samples, stream.modes
    look = network.flops * samples / machine.flops
    steps = math.ceil(samples / stream.batch)
    if way == "modes":
        epoch = math.ceil(modes / devices) * (steps * step(machine, network, stream.batch, 1) + look)
        epoch += 4 * modes * samples / machine.bandwidth + machine.latency
    else:
        epoch = modes * (steps * step(machine, network, stream.batch, devices) + look / devices)
    return stream.epochs * epoch + modes * FISHER * look / devices


def traffic(stream: Stream, devices: int, way: str) -> float:
    """Bytes that a device sends in an epoch."""
    if devices == 1:
        return 0.0
    if way == "modes":
        return 4.0 * stream.samples * math.ceil(stream.modes / devices)
    steps = math.ceil(stream.samples / stream.batch)
    return stream.modes * steps * 4 * stream.network.parameters * 2 * (devices - 1) / devices


def state(stream: Stream) -> float:
    """Bytes of modes, optimisers, anchors, importances and the modes before the task: constant in tasks."""
    return 4.0 * stream.network.parameters * stream.modes * 6


# ---- its constants -----------------------------------------------------------------------------------------


def fitted(found: dict[str, Any]) -> Machine:
    """Of this machine, R and M from one process, W by least squares over the sizes that were added up."""
    network, batch = counted("resnet18", found["size"]), found["batch"]
    seconds = batch / found["same_batch"]["1"] - found["optimiser"]
    points = [(4.0 * int(size), took) for size, took in found["reduce"].items()]
    mean_x, mean_y = (sum(p[axis] for p in points) / len(points) for axis in (0, 1))
    slope = sum((x - mean_x) * (y - mean_y) for x, y in points) / sum((x - mean_x) ** 2 for x, _ in points)
    latency = max(2e-5, min(took for _, took in points))
    memory = 28 * network.parameters / found["optimiser"]
    return Machine("this machine", 3 * network.flops * batch / seconds, 1 / slope, latency, memory)


# ---- what is shown -----------------------------------------------------------------------------------------


def check(machine: Machine, found: dict[str, Any]) -> None:
    """The model beside what two processes did: not fitted on that."""
    network, batch = counted("resnet18", found["size"]), found["batch"]
    print(
        f"this machine keeps up {machine.flops / 1e9:.0f} GFLOP/s a thread; an all-reduce over two processes "
        f"moves {machine.bandwidth / 1e9:.2f} GB/s after {machine.latency * 1e6:.0f} us; AdamW "
        f"{machine.memory / 1e9:.0f} GB/s"
    )
    print(f"two processes, ResNet-18, {network.size}x{network.size}")
    for way, share in (("same_batch", batch // 2), ("same_share", batch)):
        ratio = 2 * share / batch * step(machine, network, batch, 1) / step(machine, network, 2 * share, 2)
        print(
            f"  batch {batch} by one, {share} each by two: {ratio:.2f} x by the model, "
            f"{found[way]['ratio']:.2f} x measured"
        )
    print(f"  two modes on two processes: {found['modes']['ratio']:.2f} x measured")
    one = found["apart"].get("1")
    for count, rate in found["apart"].items():
        print(f"{count} runs at a time: {rate:.0f} images per second together, {rate / one:.2f} x one run")


def table(machine: Machine, streams: list[Stream]) -> list[dict[str, Any]]:
    rows = []
    print(f"\n{machine.name}: hours of the whole stream, bytes each device sends in an epoch")
    for stream in streams:
        network = stream.network
        print(
            f"{network.name} at {network.size}x{network.size}, {stream.modes} modes, {stream.tasks} tasks of "
            f"{stream.samples} images, {stream.epochs} epochs, batch {stream.batch}: "
            f"{state(stream) / 1e9:.1f} GB of state, however many tasks"
        )
        for way in ("data", "modes"):
            even = [count for count in range(1, stream.modes + 1) if stream.modes % count == 0]
            for devices in DEVICES if way == "data" else even:
                hours = stream.tasks * task(machine, stream, devices, way) / 3600
                sent = traffic(stream, devices, way)
                print(f"  {way:>5} parallel, {devices:>2} devices: {hours:10.2f} h  {sent / 1e6:12.2f} MB")
                name = f"{network.name} x {stream.modes}"
                rows.append({"stream": name, "way": f"{way} parallel", "devices": devices, "hours": hours})
        alone = stream.tasks * task(machine, stream, 1, "data") / 3600
        print(f"  {max(DEVICES)} runs, each on a device of its own: {alone:.2f} h for all of them")
    return rows


def draw(rows: list[dict[str, Any]], path: Path) -> None:
    import altair as alt

    scale = alt.Scale(type="log")
    devices = alt.X("devices:Q", scale=alt.Scale(type="log", base=2), axis=alt.Axis(values=list(DEVICES)))
    lines = alt.Chart(alt.Data(values=rows)).mark_line(point=True).encode(
        devices, alt.Y("hours:Q", scale=scale, title="hours of the whole stream"),
        color=alt.Color("stream:N", title=None), strokeDash=alt.StrokeDash("way:N", title=None),
    )  # fmt: skip
    path.parent.mkdir(parents=True, exist_ok=True)
    lines.properties(width=460, height=300).save(path)
    print(f"drawn: {path}")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--measured", type=Path, default=MEASURED)
    parser.add_argument("--measure", action="store_true", help="measure now (minutes) and keep it there")
    parser.add_argument("--draw", type=Path)
    parser.add_argument("--samples", type=int, default=5000)
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--batch", type=int, default=512)
    parser.add_argument("--gpu-flops", type=float, default=7e13, help="what a GPU keeps up")
    parser.add_argument("--gpu-bandwidth", type=float, default=2e10, help="bytes/s of an all-reduce")
    parser.add_argument("--gpu-latency", type=float, default=3e-5)
    parser.add_argument("--gpu-memory", type=float, default=1.5e12, help="bytes/s of its memory")
    words = parser.parse_args()
    if words.measure:
        script = Path(__file__).with_name("scaling_measure.py")
        subprocess.run([sys.executable, script, "--json", words.measured], check=True)
    if words.measured.exists():
        found = json.loads(words.measured.read_text())
        machine = fitted(found)
        check(machine, found)
        table(machine, [Stream(counted("resnet18", 32), 2, 10, words.samples, words.epochs, words.batch)])
    else:
        print(f"nothing measured at {words.measured}: --measure does it; the rest is on paper")
    gpu = Machine(
        "a GPU (assumed)", words.gpu_flops, words.gpu_bandwidth, words.gpu_latency, words.gpu_memory
    )
    grid = [("resnet18", 32, 2, 1000), ("resnet50", 224, 2, 100), ("resnet152", 224, 6, 1000)]
    streams = [
        Stream(counted(name, size), modes, tasks, words.samples, words.epochs, words.batch)
        for name, size, modes, tasks in grid
    ]
    rows = table(gpu, streams)
    if words.draw:
        draw(rows, words.draw)


if __name__ == "__main__":
    main()
