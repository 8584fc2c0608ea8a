"""Each method as a plain training loop: SGD with momentum by hand, one parameter tensor at a time.

All share one shape: `train(module, batches, lr, gradients)` where gradients(module, x, y) gives what a
step follows. `batches` are (x, y) pairs in the order in which the learner under test drew them.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Sequence

import torch
from torch import Tensor, nn

Named = dict[str, Tensor]


def loss(logits: Tensor, y: Tensor, classes: Sequence[int]) -> Tensor:
    """-1/S sum_s log softmax over the classes, at the true one."""
    total = logits.new_zeros(())
    for row, label in zip(logits, y.tolist(), strict=True):
        total = total - row[label] + torch.log(sum(torch.exp(row[c]) for c in classes))
    return total / len(y)


def gradients_of(module: nn.Module, value: Tensor) -> Named:
    names, parameters = zip(*module.named_parameters(), strict=True)
    return dict(zip(names, torch.autograd.grad(value, parameters), strict=True))


def values(module: nn.Module) -> Named:
    return {n: p.detach().clone() for n, p in module.named_parameters()}


def train(
    module: nn.Module,
    batches: Iterable[tuple[Tensor, Tensor]],
    lr: float,
    gradients: Callable[[nn.Module, Tensor, Tensor], Named],
    after: Callable[[Named, Named], None] = lambda before, now: None,
) -> None:
    module.train()
    velocity: Named = {}
    for x, y in batches:
        before, found = values(module), gradients(module, x, y)
        with torch.no_grad():
            for name, parameter in module.named_parameters():
                velocity[name] = 0.9 * velocity[name] + found[name] if name in velocity else found[name]
                parameter -= lr * velocity[name]
        after(before, values(module))


def finetune(classes: Sequence[int]) -> Callable[[nn.Module, Tensor, Tensor], Named]:
    return lambda module, x, y: gradients_of(module, loss(module(x), y, classes))


def ewc(
    classes: Sequence[int], strength: float, past: Sequence[tuple[Named, Named]]
) -> Callable[[nn.Module, Tensor, Tensor], Named]:
    """One spring per (anchor, importance) pair of the past, kept apart."""

    def gradients(module: nn.Module, x: Tensor, y: Tensor) -> Named:
        found, now = gradients_of(module, loss(module(x), y, classes)), values(module)
        for anchor, importance in past:
            for name in found:
                found[name] = found[name] + strength * importance[name] * (now[name] - anchor[name])
        return found

    return gradients


class SynapticIntelligence:
    """Zenke's c * sum Omega (theta - theta_prev)^2; the gradient of the square brings the factor 2."""

    def __init__(self, strength: float, damping: float) -> None:
        self.strength, self.damping = strength, damping
        self.omega: Named = {}
        self.anchor: Named = {}

    def learn(
        self, module: nn.Module, batches: Iterable[tuple[Tensor, Tensor]], lr: float, classes: Sequence[int]
    ) -> None:
        start, path, own = values(module), {}, {}

        def gradients(module: nn.Module, x: Tensor, y: Tensor) -> Named:
            own.update(gradients_of(module, loss(module(x), y, classes)))
            now = values(module)
            return {
                n: g + self.strength * 2 * self.omega[n] * (now[n] - self.anchor[n]) if self.omega else g
                for n, g in own.items()
            }

        def after(before: Named, now: Named) -> None:
            for n in now:
                path[n] = path.get(n, 0) - own[n] * (now[n] - before[n])

        train(module, batches, lr, gradients, after)
        self.anchor = values(module)
        for n, end in self.anchor.items():
            share = path[n] / ((end - start[n]) ** 2 + self.damping)
            share = torch.where(share > 0, share, torch.zeros_like(share))
            self.omega[n] = self.omega.get(n, 0) + share


def lwf(
    module: nn.Module, classes: Sequence[int], old: Sequence[Sequence[int]], weight: float, temperature: float
) -> Callable[[nn.Module, Tensor, Tensor], Named]:
    """Cross-entropy against the soft targets of a frozen copy, per old head, times T^2.

    Cross-entropy and KL differ by the teacher's entropy, a constant: the gradient is the same.
    """
    teacher = copy.deepcopy(module).eval().requires_grad_(False)

    def gradients(module: nn.Module, x: Tensor, y: Tensor) -> Named:
        logits, soft = module(x), teacher(x)
        value = loss(logits, y, classes)
        for head in old:
            p = torch.softmax(soft[:, list(head)] / temperature, dim=1)
            log_q = torch.log_softmax(logits[:, list(head)] / temperature, dim=1)
            value = value - weight * temperature**2 * (p * log_q).sum() / len(x)
        return gradients_of(module, value)

    return gradients


def memory_loss(logits: Tensor, labels: Tensor, outputs_of: Callable[[int], Sequence[int]]) -> Tensor:
    """The mean over samples, each over its own valid outputs."""
    total = logits.new_zeros(())
    for row, label in zip(logits, labels.tolist(), strict=True):
        valid = list(outputs_of(label))
        total = total - torch.log_softmax(row[valid], 0)[valid.index(label)] / len(labels)
    return total


def er(
    classes: Sequence[int],
    replays: Iterable[tuple[Tensor, Tensor]],
    outputs_of: Callable[[int], Sequence[int]],
) -> Callable[[nn.Module, Tensor, Tensor], Named]:
    """1/2 the task's loss and 1/2 the memory's, from one forward pass."""
    queue = iter(replays)

    def gradients(module: nn.Module, x: Tensor, y: Tensor) -> Named:
        old_x, old_y = next(queue)
        both = module(torch.cat([x, old_x]))
        task = memory_loss(both[: len(x)], y, lambda label: classes)
        return gradients_of(module, (task + memory_loss(both[len(x) :], old_y, outputs_of)) / 2)

    return gradients


def agem(
    classes: Sequence[int],
    replays: Iterable[tuple[Tensor, Tensor]],
    outputs_of: Callable[[int], Sequence[int]],
    epsilon: float,
    projected: list[bool],
) -> Callable[[nn.Module, Tensor, Tensor], Named]:
    """Dot products summed parameter by parameter; `projected` notes when there was something to remove."""
    queue = iter(replays)

    def gradients(module: nn.Module, x: Tensor, y: Tensor) -> Named:
        old_x, old_y = next(queue)
        r = gradients_of(module, memory_loss(module(old_x), old_y, outputs_of))
        g = gradients_of(module, loss(module(x), y, classes))
        along = sum(float((g[n] * r[n]).sum()) for n in g)
        projected.append(along < 0)
        if along >= 0:
            return g
        share = along / (sum(float(r[n].square().sum()) for n in r) + epsilon)
        return {n: g[n] - share * r[n] for n in g}

    return gradients
