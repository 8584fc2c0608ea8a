"""Run directories as a run leaves them, with plausible numbers and no training."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from safetensors.numpy import save_file


def write_run(
    folder: Path,
    strategy: str = "mota",
    *,
    seed: int = 0,
    tasks: int = 4,
    modes: int = 1,
    epochs: int = 5,
    label: str | None = None,
    scenario: str = "task",
    stream: str = "digits",
    level: float = 0.9,
    parameters: int = 40,
    model: dict[str, Any] | None = None,
    trajectory: bool = False,
    landscape: int = 0,
    **changes: Any,
) -> Path:
    """One finished run; `changes` replace entries of metrics.json."""
    draw = np.random.default_rng([seed, modes, len(strategy)])
    label = label if label is not None else strategy + (f":modes={modes}" if modes > 1 else "")
    slug = "".join(c if c.isalnum() or c in "=.,-" else "-" for c in label)
    path = folder / f"{slug}-{stream}-{scenario}-seed{seed}"
    path.mkdir(parents=True, exist_ok=True)
    config = {
        "strategy": {"name": strategy, "epochs": epochs} | ({"modes": modes} if modes > 1 else {}),
        "stream": {"name": stream, "scenario": scenario},
        "model": model or {"name": "auto", "width": 1.0},
        "seed": seed,
        "threads": 0,
    }
    metrics = _metrics(draw, strategy, tasks, modes, epochs, level, parameters)
    metrics |= {"strategy": strategy, "stream": stream, "scenario": scenario, "seed": seed, "label": label}
    metrics |= {"command": f"manymodes run --strategy {strategy} --stream {stream} --seeds {seed}"} | changes
    (path / "config.yaml").write_text(yaml.safe_dump(config, sort_keys=False))
    (path / "metrics.json").write_text(json.dumps(metrics))
    machine = {"manymodes": "0.1.0", "torch": "2.13.0", "machine": "x86_64", "cores": 2, "cuda": None}
    (path / "environment.json").write_text(json.dumps(machine))
    (path / "events.jsonl").write_text(
        "".join(json.dumps(e) + "\n" for e in _events(draw, tasks, modes, epochs))
    )
    if trajectory:
        write_trajectory(path, draw.normal(size=(tasks + 1, modes, parameters)).astype(np.float32))
    for mode in range(modes if landscape else 0):
        (path / "landscape").mkdir(exist_ok=True)
        (path / "landscape" / f"mode-{mode}.json").write_text(
            json.dumps(_landscape(draw, mode, tasks, landscape))
        )
    return path


def write_trajectory(path: Path, theta_KNP: np.ndarray) -> None:
    """The modes before task 1 and after each."""
    (path / "trajectory").mkdir(exist_ok=True)
    for task, theta in enumerate(theta_KNP):
        save_file(
            {"theta": theta, "buffers": np.zeros((len(theta), 0), np.float32)},
            path / "trajectory" / f"task-{task:04d}.safetensors",
        )


def _metrics(
    draw: np.random.Generator,
    strategy: str,
    tasks: int,
    modes: int,
    epochs: int,
    level: float,
    parameters: int,
) -> dict[str, Any]:
    accuracy = 0.5 + 0.05 * draw.normal(size=(tasks + 1, tasks))
    for row in range(1, tasks + 1):
        accuracy[row, :row] = level - 0.02 * np.arange(row)[::-1] + 0.02 * draw.normal(size=row)
    accuracy = accuracy.clip(0, 1)
    share = draw.dirichlet(np.ones(modes), size=(tasks + 1, tasks))
    drift = draw.exponential(1e-4, size=(tasks, modes))
    backtracked = strategy == "mota"
    cosine = np.full((tasks, modes, modes), 0.4) + 0.6 * np.eye(modes)
    return {
        "average_accuracy": float(accuracy[tasks].mean()),
        "accuracy": accuracy.tolist(),
        "nll": (1 - accuracy).tolist(),
        "calibration": (0.1 * accuracy).tolist(),
        "final_nll": float((1 - accuracy[tasks]).mean()),
        "final_calibration_error": 0.05,
        "responsibility": share.tolist(),
        "drift": drift.tolist(),
        "layers": ["body.0", "body.2", "fc"],
        "layer_drift": draw.exponential(1e-4, size=(tasks, 3, modes)).tolist(),
        "cosine": cosine.tolist(),
        "chosen": [[epochs] * modes if backtracked and t else None for t in range(tasks)],
        "surfaces": [_surface(draw, modes, epochs) if backtracked and t else None for t in range(tasks)],
        "seconds_per_task": draw.uniform(1, 2, tasks).tolist(),
        "seconds": 5.0,
        "storage": {
            "parameters": modes * parameters,
            "importances": modes * parameters * (strategy in ("ewc", "mota")),
            "replay_samples": 100 * (strategy in ("er", "agem")),
        },
        "capacity": modes * parameters,
        "modes": modes,
    }


def _surface(draw: np.random.Generator, modes: int, epochs: int) -> dict[str, Any]:
    falling = np.linspace(1, 0.2, epochs + 1)
    found = {
        "weight": 0.1,
        "chosen": [epochs] * modes,
        "value": 0.3,
        "lower_bound": 0.3,
        "epochs": [list(range(epochs + 1))] * modes,
        "drift": [np.linspace(0, 1, epochs + 1).tolist()] * modes,
        "nll": [falling.tolist()] * modes,
    }
    if modes == 2:
        found["joint"] = (
            (falling[:, None] + falling) / 2 + 0.01 * draw.random((epochs + 1, epochs + 1))
        ).tolist()
    return found


def _events(draw: np.random.Generator, tasks: int, modes: int, epochs: int) -> list[dict[str, Any]]:
    return [
        {
            "task": task, "name": f"task {task + 1}", "epoch": epoch, "epochs": epochs, "mode": mode,
            "modes": modes, "loss": float(draw.exponential(1 / epoch)), "penalty": 0.0, "drift": 1e-4,
            "seconds": 0.1,
        }
        for task in range(tasks)
        for epoch in range(1, epochs + 1)
        for mode in range(modes)
    ]  # fmt: skip


def _landscape(draw: np.random.Generator, mode: int, tasks: int, points: int) -> dict[str, Any]:
    axis = np.linspace(-1, 1, points)
    bowl = (axis[:, None] ** 2 + axis**2)[..., None] * draw.uniform(1, 2, tasks)
    return {
        "key": "made up",
        "mode": mode,
        "settings": {"points": points, "samples": 10, "batchnorm": "keep"},
        "x": axis.tolist(),
        "y": axis.tolist(),
        "path": [*draw.uniform(-0.8, 0.8, (tasks, 2)).tolist(), [0.0, 0.0]],
        "explained": [0.8, 0.1],
        "final": [0.1] * tasks,
        "sharpness": draw.uniform(0, 1, tasks).tolist(),
        "loss": bowl.tolist(),
    }


def comparison(folder: Path, *, seeds: int = 2, tasks: int = 4, **options: Any) -> Path:
    """Finetune, EWC, ER, MOTA with two and three modes, multitask: ten runs with two seeds."""
    levels = {"finetune": 0.75, "ewc": 0.85, "er": 0.93, "multitask": 0.97}
    for seed in range(seeds):
        for strategy, level in levels.items():
            write_run(folder, strategy, seed=seed, tasks=tasks, level=level, **options)
        write_run(folder, "mota", seed=seed, tasks=tasks, modes=2, label="mota", level=0.9, **options)
    write_run(folder, "mota", seed=0, tasks=tasks, modes=3, level=0.88, **options)
    return folder
