"""A stream without boundaries: batches just arrive, and a drift detector says when a new task begins."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, Self

import torch
from torch import Tensor

from manymodes.errors import UserError, require, unknown
from manymodes.outputs import of_targets
from manymodes.task import Data, as_data
from manymodes.train import in_order

if TYPE_CHECKING:
    from manymodes.strategies.base import Strategy

DETECTORS = {"adwin": "ADWIN", "page-hinkley": "PageHinkley"}
MOST = 5.0  # a joint loss beyond this tells no more; detectors get numbers from 0 to 1


class Detector(Protocol):
    """What river's drift detectors have."""

    @property
    def drift_detected(self) -> bool:
        """Whether the last value showed a change."""
        ...

    def update(self, x: float) -> object:
        """One more value."""
        ...

    def clone(self) -> Self:
        """A fresh one with the same settings."""
        ...


class Observed(NamedTuple):
    """What happened on a batch: `loss` and `accuracy` are of before anything was learnt from it."""

    loss: float | None
    accuracy: float | None
    drift: bool
    learnt: bool


class Arriving:
    """Feed a learner from batches as they arrive, without being told where a task begins.

    Every batch is first predicted. The joint loss -log rho(y | x) of each sample goes to a drift detector:
    when it says that the loss has risen for good, a new task begins. From then on samples are kept until
    there are `task_size` of them; the learner learns them as one task, they are dropped, and a fresh
    detector watches again. The first task begins with the first sample. While nothing drifts only the
    latest samples (`task_size` at most) are at hand, so that a task begins where its drift began.

    Args:
        learner: Any strategy.
        detector: "adwin", "page-hinkley" or a drift detector of river.
        task_size: Samples that make a task.
        classes: Valid outputs of every task; those seen so far unless given.
    """

    def __init__(
        self,
        learner: Strategy,
        detector: str | Detector = "adwin",
        *,
        task_size: int = 1000,
        classes: tuple[int, ...] | None = None,
    ) -> None:
        whole = isinstance(task_size, int) and not isinstance(task_size, bool)
        require(whole and task_size >= 2, f"task_size must be a whole number from 2, not {task_size!r}")
        self.learner, self.task_size = learner, task_size
        self.classes = None if classes is None else tuple(classes)
        self.drifts: list[int] = []  # numbers of the samples at which a drift was noticed
        self.seen = 0
        self.collecting = learner.tasks_learnt == 0
        self._fresh = _detector(detector)
        self._detector = self._fresh.clone()
        self._total, self._count = 0.0, 0  # of the losses since the last task was learnt
        self._x: list[Tensor] = []
        self._y: list[Tensor] = []

    @property
    def kept(self) -> int:
        """How many samples are at hand."""
        return sum(map(len, self._y))

    def observe(self, inputs: Any, targets: Any) -> Observed:
        """Predict a batch, watch its loss, keep it, and learn if a task is complete."""
        data = as_data(inputs, targets)
        require(len(data) > 0, "there is no sample to observe")
        loss, accuracy, drift, learnt = None, None, False, False
        if self.learner.tasks_learnt > 0:
            loss_S, right_S = self._losses(data)
            loss, accuracy = float(loss_S.mean()), float(right_S.float().mean())
            if not self.collecting:
                drift = self._watch(loss_S)
        for batch in data.batches(in_order(len(data))):
            self._x.append(batch.inputs.cpu())
            self._y.append(batch.targets.cpu())
        self.seen += len(data)
        if drift:
            self.drifts.append(self.seen)
            self._keep(int(getattr(self._detector, "width", len(data))))
            self.collecting = True
        if not self.collecting:
            self._keep(self.task_size)
        elif self.kept >= self.task_size and len(self._known()) > 1:
            learnt = self.learn()
        return Observed(loss, accuracy, drift, learnt)

    def learn(self) -> bool:
        """Learn what is kept of a task that has begun, be it incomplete; whether there was any."""
        if not self.collecting or not self._y:
            return False
        self.learner.learn(torch.cat(self._x), torch.cat(self._y), classes=self._known())
        self._x, self._y, self.collecting = [], [], False
        self._detector, self._total, self._count = self._fresh.clone(), 0.0, 0
        return True

    def _watch(self, loss_S: Tensor) -> bool:
        """Give the losses to the detector; whether one of them showed a rise."""
        for value in (loss_S / MOST).tolist():
            self._detector.update(value)
            self._total, self._count = self._total + value, self._count + 1
            if self._detector.drift_detected:
                # ADWIN also notices a fall; what it holds after a change is the mean of the new part
                recent = float(getattr(self._detector, "estimation", 1.0))
                if recent > self._total / self._count:
                    return True
        return False

    def _losses(self, data: Data) -> tuple[Tensor, Tensor]:
        """The joint loss of each sample, at most MOST, and whether its label is the most probable."""
        rho_SC = self.learner.predict(data, self.classes).cpu()
        targets = data.targets.cpu()
        require(
            int(targets.min()) >= 0 and int(targets.max()) < rho_SC.shape[1],
            f"labels are numbers of outputs, 0 to {rho_SC.shape[1] - 1}, not {int(targets.min())} to "
            f"{int(targets.max())}",
        )
        loss_S = -of_targets(rho_SC, targets).clamp_min(1e-12).log()
        return loss_S.clamp_max(MOST), rho_SC.argmax(dim=1) == targets

    def _known(self) -> tuple[int, ...]:
        if self.classes is not None:
            return self.classes
        labels = {int(label) for batch in self._y for label in batch.unique()}
        return tuple(sorted(labels.union(*self.learner.heads)))

    def _keep(self, count: int) -> None:
        """Drop all but the latest samples."""
        while self._y and self.kept - len(self._y[0]) >= count:
            self._x.pop(0)
            self._y.pop(0)
        spare = self.kept - count
        if self._y and spare > 0:
            self._x[0], self._y[0] = self._x[0][spare:].clone(), self._y[0][spare:].clone()


def _detector(given: str | Detector) -> Detector:
    if not isinstance(given, str):
        missing = [name for name in ("update", "drift_detected", "clone") if not hasattr(given, name)]
        require(not missing, f"detector {given!r} is not a drift detector of river: it has no {missing}")
        return given
    if given not in DETECTORS:
        raise unknown("detector", given, DETECTORS, "Or give a drift detector of river.")
    try:
        from river import drift
    except ImportError:
        raise UserError(
            'a stream without boundaries needs a drift detector of river: pip install "manymodes[online]"'
        ) from None
    found: Detector = getattr(drift, DETECTORS[given])()
    return found
