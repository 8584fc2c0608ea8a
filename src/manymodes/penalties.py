"""What holds a vector near its past: quadratics in parameters, distillation in outputs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor
from torch.nn.functional import log_softmax

from manymodes.known import known

BLOCK = 2**18  # on a CPU: what is between two operations stays in the cache, no large memory is asked for


class Quadratic:
    """strength / 2 * sum_d importance_d (theta_d - anchor_d)^2.

    A sum of such terms is one such term plus a constant, so any number of past tasks costs as much as
    one: `merge` adds a term exactly (same gradient everywhere).

    >>> penalty = Quadratic(torch.zeros(2), torch.tensor([1.0, 2.0]), strength=10.0)
    >>> penalty.value(torch.tensor([1.0, 1.0])).item()
    15.0
    >>> penalty.merge(torch.ones(2), torch.tensor([1.0, 0.0]))
    >>> penalty.anchor.tolist(), penalty.importance.tolist()
    ([0.5, 0.0], [2.0, 2.0])
    """

    def __init__(self, anchor: Tensor, importance: Tensor, strength: float) -> None:
        self.anchor, self.importance, self.strength = anchor, importance, strength
        self._room: Tensor | None = None  # for theta - anchor: asking for memory at each step costs more

    def value(self, theta: Tensor) -> Tensor:
        """The penalty at theta, as a scalar tensor."""
        return 0.5 * self.strength * squared_distance(theta, self.anchor, self.importance)

    def add_gradient(self, theta: Tensor, gradient: Tensor) -> None:
        """gradient += strength * importance * (theta - anchor), in place."""
        size = min(BLOCK, theta.numel()) if theta.device.type == "cpu" else theta.numel()
        if self._room is None:
            self._room = torch.empty_like(theta[:size])
        if size == theta.numel():  # a small network's step is so short that cutting up would be seen in it
            apart = torch.sub(theta, self.anchor, out=self._room)
            gradient.addcmul_(self.importance, apart, value=self.strength)
            return
        vectors = (gradient, self.importance, theta, self.anchor)
        for part, importance, here, anchor in zip(*(v.split(size) for v in vectors), strict=True):
            apart = torch.sub(here, anchor, out=self._room[: len(here)])
            part.addcmul_(importance, apart, value=self.strength)

    def merge(self, anchor: Tensor, importance: Tensor) -> None:
        """Add importance / 2 * (theta - anchor)^2; where both importances are zero the anchor moves along."""
        total = self.importance + importance
        share = torch.where(total > 0, importance / total.clamp_min(1e-38), torch.ones_like(total))
        self.anchor = torch.lerp(self.anchor, anchor, share)
        self.importance = total

    def accumulate(self, anchor: Tensor, importance: Tensor) -> None:
        """Add the importance and move the anchor here: the paper's lambda/2 F (theta - theta_prev)^2."""
        self.anchor = anchor.clone()
        self.importance = self.importance + importance

    def state_dict(self) -> dict[str, Tensor]:
        """The two vectors; the strength is a setting."""
        return {"anchor": self.anchor, "importance": self.importance}

    @classmethod
    def from_state(
        cls, state: dict[str, Tensor] | None, strength: float, device: torch.device
    ) -> Quadratic | None:
        """The penalty of a saved state, or None for none."""
        if state is None:
            return None
        return cls(state["anchor"].to(device), state["importance"].to(device), strength)


@torch.no_grad()
def squared_distance(one: Tensor, other: Tensor, weights: Tensor | None = None) -> Tensor:
    """sum_d weights_d (one_d - other_d)^2 of two vectors, as a scalar tensor.

    >>> squared_distance(torch.tensor([1.0, 2.0]), torch.tensor([0.0, 0.0]), torch.tensor([3.0, 1.0])).item()
    7.0
    """
    size = min(BLOCK, one.numel()) if one.device.type == "cpu" else one.numel()
    total = one.new_zeros(())
    for number, (a, b) in enumerate(zip(one.split(size), other.split(size), strict=True)):
        apart = a - b
        if weights is not None:
            total = total + torch.dot(apart.square(), weights[number * size :][:size])
        else:
            total = total + torch.dot(apart, apart)
    return total


def distances(
    logits: Tensor, teacher_log_probs: Sequence[Tensor], groups: Sequence[Tensor], temperature: float
) -> Tensor:
    """T^2 * sum_g KL(teacher_g || student_g) of each sample (S,), both softened by the temperature T.

    A group is a set of old outputs that share a softmax: one per old task in a multi-head stream, one for
    everything seen otherwise. Its teacher is (S, |group|) log-probabilities at the same temperature.
    """
    if not groups:
        return logits.new_zeros(len(logits))
    rows = []
    for group, teacher in zip(groups, teacher_log_probs, strict=True):
        whole = len(group) == logits.shape[1]  # a gather of everything would cost as much as the rest
        own = logits if whole else logits.index_select(1, group)
        student = log_softmax(own / temperature, dim=1)
        rows.append((teacher.exp() * (teacher - student)).sum(dim=1))
    return sum(rows[1:], rows[0]) * temperature**2


def distillation(
    logits: Tensor, teacher_log_probs: Sequence[Tensor], groups: Sequence[Tensor], temperature: float
) -> Tensor:
    """The mean of `distances` over the samples."""
    mean, gradient = distillation_with_gradient(logits, teacher_log_probs, groups, temperature)
    return known(logits, mean, gradient)


@torch.no_grad()
def distillation_with_gradient(
    logits: Tensor, teacher_log_probs: Sequence[Tensor], groups: Sequence[Tensor], temperature: float
) -> tuple[Tensor, Tensor]:
    """The mean of `distances` over the samples, and its gradient on the logits (S, C).

    On a group that is T (student - teacher) / S, the softened distributions.
    """
    if not groups:
        return logits.new_zeros(()), torch.zeros_like(logits)
    whole = [len(group) == logits.shape[1] for group in groups]  # a gather of everything would cost as much
    parts, totals = [], []
    for group, teacher, everything in zip(groups, teacher_log_probs, whole, strict=True):
        own = logits if everything else logits.index_select(1, group)
        student, wanted = log_softmax(own / temperature, dim=1), teacher.exp()
        totals.append(torch.dot(wanted.view(-1), (teacher - student).view(-1)))
        parts.append(student.exp_().sub_(wanted))
    mean = sum(totals[1:], totals[0]) * (temperature**2 / len(logits))
    if whole == [True]:
        return mean, parts[0].mul_(temperature / len(logits))
    gradient = torch.zeros_like(logits)
    for group, part in zip(groups, parts, strict=True):
        gradient.index_add_(1, group, part, alpha=temperature / len(logits))
    return mean, gradient


def old_groups(seen: Iterable[Sequence[int]], device: torch.device | None = None) -> list[Tensor]:
    """The output groups to distil: each earlier task's valid outputs, without those inside another's.

    >>> [g.tolist() for g in old_groups([(0, 1), (2, 3)])]
    [[0, 1], [2, 3]]
    >>> [g.tolist() for g in old_groups([(0, 1), (0, 1, 2, 3)])]
    [[0, 1, 2, 3]]
    """
    sets = list(dict.fromkeys(tuple(sorted(classes)) for classes in seen))
    kept = [a for a in sets if not any(set(a) < set(b) for b in sets)]
    return [torch.tensor(group, device=device) for group in kept]
