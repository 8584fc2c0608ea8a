"""Which training loop is fastest here: a short measurement before the first run (`--tune-loop`).

The best memory layout depends on the network, the batch, the precision and the processor: on the machines
measured, channels-last is up to four times faster than contiguous, and elsewhere a tenth slower. So a few
steps of each are timed. The choice goes into the run's configuration, so that a resumed run computes as it
began, and into a file of this machine, so that the next run measures nothing.

What may change is the layout alone, unless bf16 or compile are allowed by name.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import platform
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from manymodes import distributed, files
from manymodes.config import Config, build_model, build_stream
from manymodes.environment import pinned
from manymodes.errors import UserError
from manymodes.runfiles import RunFiles
from manymodes.strategies.base import LAYOUTS, Strategy, Training
from manymodes.streams.places import cache_dir
from manymodes.sweep import threads_for
from manymodes.task import Batch, Task
from manymodes.train import shuffled, to_device, training_batches

SECONDS, ROUNDS = 3.0, 15  # the measuring ends after either,
LEAST = 3  # but not before so many rounds: a single step tells more of what else the machine does
WORTH = 0.95  # another loop is taken if its step takes at most this share of the present one's

Loop = dict[str, Any]  # the options layout, precision and compile


def fastest(
    configs: Sequence[Config], allow: Sequence[str], folders: Sequence[Path], jobs: int = 1
) -> list[Config]:
    """The same runs, each with the loop that is fastest for it; one that was begun keeps its own."""
    found, known = [], dict[str, Loop]()
    for config, folder in zip(configs, folders, strict=True):
        loop = distributed.agreed(_begun(folder))
        if loop is None:
            training = _training(config)
            key = json.dumps([training, config.stream, config.model, config.threads], default=str)
            if key not in known:
                known[key] = _measured_or_known(config, training, allow, jobs)
            loop = known[key]
        found.append(replace(config, strategy=config.strategy | loop))
    return found


def _begun(folder: Path) -> Loop | None:
    """What the run in this directory was begun with."""
    if not (folder / "config.yaml").is_file():
        return None
    saved = RunFiles(folder).config()["strategy"]
    return {name: saved[name] for name in ("layout", "precision", "compile") if name in saved}


def _training(config: Config) -> dict[str, Any]:
    """What every strategy has: a step of another kind than fine-tuning's prefers the same loop."""
    names = Training.__annotations__.keys() - {"seed"}
    return {name: value for name, value in config.strategy.items() if name in names}


def _measured_or_known(config: Config, training: dict[str, Any], allow: Sequence[str], jobs: int) -> Loop:
    stream = build_stream(config)
    learner = Strategy(build_model(config, stream), **training | {"lr": 1e-6})
    task, cores = stream[0], max(1, torch.get_num_threads() // jobs)
    with pinned(config.threads or min(cores, threads_for(learner)), config.deterministic):
        batch = first_batch(learner, task)
        loops = candidates(learner, batch, allow)
        key, kept = _key(learner, batch, loops), _kept()
        entry: Any = distributed.agreed(kept.get(key))
        if not _fits(entry, loops):
            entry = measured(learner, task, batch, loops)
            if distributed.first():
                _keep(_kept() | {key: entry})
    _say(entry, len(loops))
    loop: Loop = entry["loop"]
    return loop


def first_batch(learner: Strategy, task: Task) -> Batch:
    """A batch as training has it."""
    data, draws = to_device(task.train, learner.model.device), torch.Generator().manual_seed(0)
    order = shuffled(len(data), learner.batch_size, draws)
    return next(iter(training_batches(data, order[:1], draws, learner.model.device)))


def candidates(learner: Strategy, batch: Batch, allow: Sequence[str]) -> list[Loop]:
    """The loops to try, the present one first."""
    layouts = LAYOUTS if batch.inputs.dim() == 4 else [learner.layout]
    choices = {
        "layout": dict.fromkeys([learner.layout, *layouts]),
        "precision": dict.fromkeys([learner.precision, *(["bf16"] if "bf16" in allow else [])]),
        "compile": dict.fromkeys([learner.compile, *([True] if "compile" in allow else [])]),
    }
    return [dict(zip(choices, values, strict=True)) for values in itertools.product(*choices.values())]


def _seconds(learner: Strategy, task: Task, batch: Batch, loops: list[Loop]) -> list[float]:
    """The least seconds of a step with each loop; they take turns, as a machine's speed drifts."""
    valid = learner.valid_for(task.train, task.classes)
    learner.begin(task)
    learner.train_mode()

    def step(loop: Loop) -> float:
        for name, value in loop.items():
            setattr(learner, name, value)
        started = time.perf_counter()
        float(learner.step(0, batch, lambda b: learner.loss(b, valid)))  # the number waits for a GPU
        return time.perf_counter() - started

    if len(loops) == 1:
        return [0.0]
    for loop in loops:
        step(loop)  # allocates, compiles
    started, least = time.perf_counter(), [float("inf")] * len(loops)
    for number in range(ROUNDS):
        least = [min(known, step(loop)) for known, loop in zip(least, loops, strict=True)]
        if number + 1 >= LEAST and distributed.agreed(time.perf_counter() - started) > SECONDS:
            break
    return least


def measured(learner: Strategy, task: Task, batch: Batch, loops: list[Loop]) -> dict[str, Any]:
    """The loop to take, and what a step takes with each."""
    seconds = distributed.agreed(_seconds(learner, task, batch, loops))
    best = min(range(len(loops)), key=seconds.__getitem__)
    loop = loops[best] if seconds[best] <= WORTH * seconds[0] else loops[0]
    steps = {name_of(each): round(1e3 * s, 3) for each, s in zip(loops, seconds, strict=True)}
    return {"loop": loop, "milliseconds": steps}


# ---- the file of this machine -----------------------------------------------------------------------


def _path() -> Path:
    return cache_dir() / "loops.json"


def _kept() -> dict[str, Any]:
    try:
        content = files.read_json(_path())
    except (UserError, OSError):  # not there, or damaged: measure again
        return {}
    return content if isinstance(content, dict) else {}


def _keep(entries: dict[str, Any]) -> None:
    try:
        _path().parent.mkdir(parents=True, exist_ok=True)
        files.write_json(_path(), entries)
    except OSError as error:
        print(f"manymodes: the choice of the loop cannot be kept: {files.reason(error)}", flush=True)


def _key(learner: Strategy, batch: Batch, loops: list[Loop]) -> str:
    """Everything the speed depends on: machine, versions, threads, network, batch, what there is to try."""
    device = learner.model.device
    machine = torch.cuda.get_device_name(device) if device.type == "cuda" else _processor()
    what = [
        machine, torch.__version__, torch.get_num_threads(), distributed.count(), str(learner.model.module),
        list(batch.inputs.shape), str(batch.inputs.dtype), learner.optimiser, learner.batchnorm, loops,
    ]  # fmt: skip
    return hashlib.sha256(json.dumps(what).encode()).hexdigest()[:16]


def _processor() -> str:
    """The processor's model, so far as the system tells."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next(line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return f"{platform.machine()} {torch.backends.cpu.get_cpu_capability()}"


def _fits(entry: Any, loops: list[Loop]) -> bool:
    return (
        isinstance(entry, dict) and entry.get("loop") in loops and isinstance(entry.get("milliseconds"), dict)
    )


def name_of(loop: Loop) -> str:
    """In words."""
    return " ".join([loop["layout"], loop["precision"], *(["compiled"] if loop["compile"] else [])])


def _say(entry: dict[str, Any], count: int) -> None:
    if count == 1:
        print(
            f"loop: {name_of(entry['loop'])}; there is nothing to choose from (--tune-loop bf16,compile may)",
            flush=True,
        )
        return
    steps = ", ".join(f"{name} {ms} ms" for name, ms in entry["milliseconds"].items())
    print(f"loop: {name_of(entry['loop'])} (a step: {steps}; kept in {_path()})", flush=True)
