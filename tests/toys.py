"""Small networks and tasks that learn in milliseconds."""

import torch
from torch import nn

from manymodes.task import Stream, Task, TensorData


def net(inputs=6, hidden=5, outputs=4, *, seed=0, norm=False, dtype=torch.float32):
    """Two layers, with BatchNorm between them if asked."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        middle = [nn.BatchNorm1d(hidden)] if norm else []
        return nn.Sequential(nn.Linear(inputs, hidden), *middle, nn.Tanh(), nn.Linear(hidden, outputs)).to(
            dtype
        )


def blobs(classes, samples=30, features=6, *, seed=0, dtype=torch.float32, spread=0.7):
    """Labelled clouds around one random centre per class: (inputs, targets)."""
    generator = torch.Generator().manual_seed(1000 * seed + min(classes))
    targets = torch.tensor(classes).repeat(-(-samples // len(classes)))[:samples]
    centres = torch.randn(max(classes) + 1, features, generator=torch.Generator().manual_seed(7), dtype=dtype)
    noise = torch.randn(samples, features, generator=generator, dtype=dtype)
    return centres[targets] + spread * noise, targets


def task(classes, samples=30, *, name="", valid=None, seed=0, dtype=torch.float32, augment=None, val=12):
    """A Task of blobs; `valid` are its valid outputs where they are not the classes."""
    train = blobs(classes, samples, seed=seed, dtype=dtype)
    return Task(
        name or f"classes {classes}",
        TensorData(*train, augment=augment),
        TensorData(*blobs(classes, val, seed=seed + 50, dtype=dtype)) if val else None,
        TensorData(*blobs(classes, 20, seed=seed + 90, dtype=dtype)),
        tuple(valid or classes),
    )


def stream(tasks=2, *, scenario="task", samples=30, outputs=None):
    """A Stream of `tasks` tasks with two classes each."""
    groups = [(2 * t, 2 * t + 1) for t in range(tasks)]
    seen = [tuple(range(2 * t + 2)) for t in range(tasks)] if scenario == "class" else groups
    builders = [lambda g=g, v=v: task(g, samples, valid=v) for g, v in zip(groups, seen, strict=True)]
    return Stream("toys", scenario, outputs or 2 * tasks, (6,), tuple(builders))


def flat(tasks: int = 2):
    """A stream of no choice of scenario, for the command line: `--stream tests.toys:flat`."""
    return stream(tasks)
