"""What processes started by torchrun do together in a test: `together.py FILE`, results in the file."""

from __future__ import annotations

import copy
import os
import sys
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from manymodes import distributed, store
from manymodes.batchnorm import whole_batch
from manymodes.strategies.base import Event, Strategy
from tests.laws.cases import Case, Lab, all_cases, augmented, tasks


class Double(nn.Module):
    """In double precision rounding is far below anything an optimiser reacts to."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module.double()

    def forward(self, x: Tensor) -> Tensor:
        return self.module(x.double())


def fresh(case: Case) -> Strategy:
    module = Lab(case, "norm").module()
    module.drop.p = 0.0  # each process drops its own
    options = {"epochs": 2, "batch_size": 15, "lr": 5e-3, "device": "cpu"} | case.options
    return case.cls(Double(module), **options)


def learnt(case: Case, number: int) -> dict[str, Any]:
    """Everything a learner is after three tasks; batches of 15 have no equal halves."""
    learner, events = fresh(case), []
    given = [augmented(task) if number % 2 else task for task in tasks()]
    saved: dict[str, Any] = {}

    def on_event(event: Event) -> None:
        events.append([event.loss, event.drift])

    def on_epoch(learner: Strategy) -> None:
        if case.options.get("mode_parallel") and (learner.tasks_learnt, learner.epochs_done) == (2, 1):
            learner.assemble()
            saved.update(copy.deepcopy(distributed.agreed_state(learner.state_dict())))

    for task in given:
        learner.learn(task, on_event=on_event, on_epoch=on_epoch)
    probabilities = learner.predict(tasks()[0].test)
    told = {"events": torch.tensor(events), "probabilities": probabilities}
    if saved:  # what the first process would have written, gone on with
        again = fresh(case)
        again.load_state_dict(saved)
        told["gone on with"] = again.learn(given[2]).state_dict()
    return {"state": learner.state_dict(), "storage": learner.storage()} | told


def everything() -> dict[str, Any]:
    return {str(case): learnt(case, number) for number, case in enumerate(all_cases())}


def in_pieces(size: int) -> list[Any]:
    """Rehearsal adds up two means over samples of different numbers, here in pieces of `size` (0: whole)."""
    module = Lab(Case("er"), "mlp").module()
    options = {"epochs": 2, "batch_size": 15, "lr": 5e-3, "device": "cpu", "micro_batch": size}
    learner = Case("er").cls(Double(module), **options)
    for task in tasks():
        learner.learn(task)
    return [learner.modes.theta]


def normalised(inputs: Tensor, norm: nn.Module, weights: Tensor) -> list[Tensor]:
    """Output, gradients and statistics of a BatchNorm on this process's part of the inputs."""
    rows = distributed.part(torch.arange(len(inputs)))
    mine = inputs[rows].requires_grad_()
    with whole_batch(norm):
        outputs = norm(mine)
    (outputs * weights[rows]).sum().backward()
    parts = [distributed.gather(rows_of, len(inputs)) for rows_of in (outputs.detach(), mine.grad)]
    summed = [distributed.sum_(p.grad.clone()) for p in norm.parameters()]
    return [*parts, *summed, *norm.buffers()]


def norms() -> dict[str, list[Tensor]]:
    generator = torch.Generator().manual_seed(0)
    found = {}
    for name, norm, shape in (
        ("1d", nn.BatchNorm1d(3, dtype=torch.float64), (7, 3)),
        ("2d", nn.BatchNorm2d(3, momentum=None, dtype=torch.float64), (5, 3, 4, 4)),
        ("plain", nn.BatchNorm2d(3, affine=False, track_running_stats=False), (4, 3, 2, 2)),
    ):
        inputs = torch.randn(shape, generator=generator, dtype=torch.float64) + 3
        found[name] = normalised(inputs, norm, torch.randn(shape, generator=generator, dtype=torch.float64))
    return found


def between_machines() -> dict[str, Any]:
    """What processes do that share no memory."""
    with distributed._beside(None):
        return {
            "norms": norms(),
            "gathered": distributed.gather(distributed.part(torch.arange(5)), 5),
            "sum": distributed.sum_(torch.ones(2), torch.tensor(4.0)),
        }


def listening() -> list[str]:
    """The addresses at which this process or torchrun itself listens."""
    own = (f for p in (os.getpid(), os.getppid()) for f in Path(f"/proc/{p}/fd").iterdir())
    sockets = {os.readlink(f) for f in own if f.is_symlink()}
    tables = [Path(f"/proc/net/{name}").read_text().splitlines()[1:] for name in ("tcp", "tcp6")]
    lines = [line.split() for table in tables for line in table]
    return [words[1] for words in lines if words[3] == "0A" and f"socket:[{words[9]}]" in sockets]


def main() -> None:
    torch.set_num_threads(1)
    with distributed.joined():
        rank = distributed.number()
        told = {
            "learners": everything(),
            "norms": norms(),
            "in pieces": in_pieces(3),
            "few": distributed.part(torch.arange(1)),
            "gathered": distributed.gather(distributed.part(torch.arange(5)), 5),
            "balance": float(distributed.balance(3 - rank, 4, torch.device("cpu"))),
            "state": distributed.agreed_state({"a": [torch.tensor(rank), rank], "b": None}),
            "near": distributed._sharing(torch.zeros(1)) is not None,
            "between machines": between_machines(),
            "listens": listening(),
            "anyone": [distributed.anyone(rank == 1), distributed.anyone(False)],
        }
        store.save_state(Path(f"{sys.argv[1]}-{rank}"), told, {})


if __name__ == "__main__":
    main()
