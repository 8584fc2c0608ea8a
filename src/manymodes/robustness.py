"""What a finished learner makes of inputs it was not made for: shifted ones, and classes it never saw."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from manymodes.metrics import auroc
from manymodes.modes import joint
from manymodes.outputs import Valid
from manymodes.resting import features_of
from manymodes.strategies.base import Strategy
from manymodes.task import Batch, Data
from manymodes.train import in_order, seed_of

NOISE = 1.0  # spread of the noise on shifted inputs, in spreads of the inputs: as strong as the signal


class Shifted:
    """The same data with Gaussian noise on its inputs; a sample's batch gets the same noise every time.

    >>> from manymodes.task import TensorData
    >>> data = Shifted(TensorData(torch.zeros(4, 2), torch.arange(4)), spread=1.0)
    >>> first, again = (next(data.batches([torch.arange(4)])).inputs for _ in range(2))
    >>> bool((first == again).all()), bool((first == 0).any())
    (True, False)
    """

    augments = False

    def __init__(self, data: Data, spread: float) -> None:
        self.data, self.spread = data, spread

    @property
    def targets(self) -> Tensor:
        """Those of the data."""
        return self.data.targets

    def __len__(self) -> int:
        return len(self.data)

    def batches(self, order: Sequence[Tensor], generator: torch.Generator | None = None) -> Iterator[Batch]:
        """The data's batches, noise added."""
        for batch in self.data.batches(order, generator):
            draw = torch.Generator().manual_seed(seed_of("shift", batch.index.tolist()))
            noise = torch.randn(batch.inputs.shape, generator=draw).to(batch.inputs)
            yield batch._replace(inputs=batch.inputs + self.spread * noise)


class Evaluated(Protocol):
    """Test data of a task, and the outputs that are valid for it."""

    @property
    def data(self) -> Data:
        """Its test data."""
        ...

    @property
    def classes(self) -> tuple[int, ...]:
        """The valid outputs."""
        ...


@dataclass(frozen=True)
class Robustness:
    """One value a task; empty where there is nothing to measure it on."""

    shifted: list[float]  # accuracy on inputs with noise
    confidence: list[float]  # AUROC of 1 - max_c rho(c|x) against classes that never arrived
    disagreement: list[float]  # AUROC of the modes' mutual information; empty for a single mode


@torch.no_grad()
def robustness(
    learner: Strategy, tests: Sequence[Evaluated], classes: Sequence[tuple[int, ...]], unseen: Data | None
) -> Robustness:
    """Measure the learner as it is, under each task's valid outputs."""
    found = Robustness([], [], [])
    for test, allowed in zip(tests, classes, strict=True):
        valid = learner.valid_for(test.data, allowed)
        first = next(iter(test.data.batches(in_order(len(test.data))[:1]))).inputs
        if first.is_floating_point():  # noise on the numbers of words means nothing
            shifted = Shifted(test.data, NOISE * float(first.std(correction=0)))
            right = _best(learner, shifted, valid) == valid.targets(
                test.data.targets.to(learner.model.device)
            )
            found.shifted.append(float(right.float().mean()))
        if unseen is not None:
            inside, outside = (
                uncertainty(learner.mode_log_probs(d, valid), learner.log_weights(d, valid))
                for d in (features_of(learner.model, test.data), features_of(learner.model, unseen))
            )
            found.confidence.append(auroc(inside[0], outside[0]))
            if len(learner.modes) > 1:
                found.disagreement.append(auroc(inside[1], outside[1]))
    return found


def _best(learner: Strategy, data: Data, valid: Valid) -> Tensor:
    data = features_of(learner.model, data)
    return joint(learner.mode_log_probs(data, valid), learner.log_weights(data, valid)).argmax(dim=1)


def uncertainty(log_probs_NSK: Tensor, log_weights_NS: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Two scores a sample: 1 - max_c rho(c), and the modes' mutual information H(rho) - sum_i w_i H(p_i).

    Modes that are each sure of another class are as unsure together as modes that are each unsure; only
    the second score tells them apart.

    >>> sure, even = [0.999, 0.001], [0.5, 0.5]
    >>> scores = uncertainty(torch.tensor([[sure, even], [sure[::-1], even]]).log())
    >>> [[round(float(v), 2) for v in score] for score in scores]
    [[0.5, 0.5], [0.69, 0.0]]
    """
    rho_SK = joint(log_probs_NSK, log_weights_NS)
    entropies_NS = _entropy(log_probs_NSK)
    each = (
        entropies_NS.mean(dim=0) if log_weights_NS is None else (log_weights_NS.exp() * entropies_NS).sum(0)
    )
    return (1 - rho_SK.exp().max(dim=1).values).cpu(), (_entropy(rho_SK) - each).cpu()


def _entropy(log_probs: Tensor) -> Tensor:
    probabilities = log_probs.exp()
    terms: Tensor = torch.special.xlogy(probabilities, probabilities)
    return -terms.sum(dim=-1)
