"""MOTA, and every other strategy of this package, behind Avalanche's benchmarks, metrics and loggers.

    from manymodes.contrib.avalanche import MOTA

    strategy = MOTA(model=model, modes=2, train_mb_size=32, train_epochs=5, evaluator=evaluator)
    for experience in benchmark.train_stream:
        strategy.train(experience)
        strategy.eval(benchmark.test_stream)

Which outputs are valid follows from the benchmark's task labels: those that were learnt under the same
label. So with a label per experience it is task-incremental, with one label for all class-incremental.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from manymodes.errors import UserError, require
from manymodes.outputs import Valid
from manymodes.strategies.base import Strategy
from manymodes.strategies.mota import MOTA as _MOTA
from manymodes.streams.mapped import MappedData
from manymodes.task import Batch, Task

try:
    from avalanche.models import DynamicModule
    from avalanche.training.plugins.evaluation import default_evaluator
    from avalanche.training.templates import SupervisedTemplate
except (ImportError, RuntimeError) as error:  # a torchvision that does not fit raises RuntimeError
    raise UserError(
        f'manymodes.contrib.avalanche needs Avalanche: pip install "manymodes[avalanche]" ({error})'
    ) from None

NEVER = -27.6  # log-probability of an output that is not valid: as good as none, and finite


class ManyModes(SupervisedTemplate):  # type: ignore[misc]  # Avalanche has no types here
    """A learner of this package behind Avalanche's `train` and `eval`.

    Plugins that watch (metrics, loggers, evaluation while training) work; those that change how a step is
    made (replay, penalties, another optimiser, early stopping) belong to Avalanche's own loop and do not.
    An iteration is a step of one mode (on the first task, of MOTA's modes together).

    Args:
        learner: Any strategy of this package, fresh.
        train_epochs: Passes over each experience; those of the learner unless given.
        train_mb_size: Samples in a step; that of the learner unless given.
        eval_mb_size: Samples in a batch of evaluation.
        plugins: Plugins of Avalanche that watch.
        evaluator: Metrics and loggers.
        eval_every: As Avalanche has it: -1 never, 0 after each experience, n after each n epochs.
    """

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """As classes are: Avalanche would wrap constructors so that they cannot take **options."""

    def __init__(
        self,
        *,
        learner: Strategy,
        train_epochs: int | None = None,
        train_mb_size: int | None = None,
        eval_mb_size: int = 128,
        plugins: Sequence[Any] | None = None,
        evaluator: Any = default_evaluator,
        eval_every: int = -1,
    ) -> None:
        learner.epochs = learner.epochs if train_epochs is None else train_epochs
        learner.batch_size = learner.batch_size if train_mb_size is None else train_mb_size
        model = Joint(learner)
        super().__init__(
            model=model,
            optimizer=torch.optim.SGD(model.parameters(), lr=learner.lr),  # for show: the learner has its own
            criterion=nn.CrossEntropyLoss(),
            train_mb_size=learner.batch_size,
            train_epochs=learner.epochs,
            eval_mb_size=eval_mb_size,
            device=str(learner.model.device),
            plugins=plugins,
            evaluator=evaluator,
            eval_every=eval_every,
        )
        self.learner = learner
        self.learnt: dict[int, set[int]] = {}  # the outputs learnt under each task label

    # ---- training -----------------------------------------------------------------------------------

    def _train_exp(self, experience: Any, eval_streams: Any = None, **kwargs: Any) -> None:
        label, task = self._task(experience)

        def after_epoch(learner: Strategy) -> None:
            self._after_training_epoch(**kwargs)
            if self._stop_training:
                raise UserError("early stopping is not possible here: a task is learnt whole or not at all")
            if (learner.epochs_done or 0) < learner.epochs:
                self._before_training_epoch(**kwargs)

        with _Steps(self, label, task.classes):
            self._before_training_epoch(**kwargs)
            self.learner.learn(task, on_epoch=after_epoch)
        self.learnt[label] = set(task.classes)

    def _task(self, experience: Any) -> tuple[int, Task]:
        labels = set(getattr(experience, "task_labels", None) or [0])
        require(len(labels) == 1, f"an experience with several task labels ({labels}) cannot be one task")
        (label,) = labels
        targets = torch.as_tensor([int(t) for t in self.adapted_dataset.targets])
        classes = self.learnt.get(label, set()) | set(targets.tolist())
        data = MappedData(_Pairs(self.adapted_dataset), targets=targets)
        name = f"experience {experience.current_experience}"
        return int(label), Task(name, data, None, None, tuple(sorted(classes)))

    def check_model_and_optimizer(self, **kwargs: Any) -> None:
        """The model has its size from the beginning, the learner its optimisers."""

    def model_adaptation(self, model: nn.Module | None = None) -> nn.Module:
        """The model never grows."""
        return self.model if model is None else model

    # ---- evaluation ---------------------------------------------------------------------------------

    def forward(self) -> Tensor:
        """Joint log-probabilities over the outputs that are valid for each sample's task label."""
        labels = self.mb_task_id if hasattr(self.experience, "task_labels") else torch.zeros(len(self.mb_x))
        rows: Tensor | None = None
        for label in labels.unique().tolist():
            where = labels == label
            found = self.model(self.mb_x[where], self.valid(int(label)))
            rows = found.new_full((len(labels), found.shape[1]), NEVER) if rows is None else rows
            rows[where] = found
        assert rows is not None
        return rows

    def valid(self, label: int) -> Iterable[int] | None:
        """The valid outputs under a task label: those learnt under it; None (all that were learnt) if new."""
        return self.learnt.get(label)


class MOTA(ManyModes):
    """MOTA in one line: `model` is a network with an output per class, options are those of manymodes.MOTA.

    Args:
        model: The network; it is copied once per mode.
        train_epochs: See ManyModes.
        train_mb_size: See ManyModes.
        eval_mb_size: See ManyModes.
        plugins: See ManyModes.
        evaluator: See ManyModes.
        eval_every: See ManyModes.
        **options: Such as modes, strength, lr, device, seed.
    """

    def __init__(
        self,
        *,
        model: nn.Module,
        train_epochs: int = 5,
        train_mb_size: int = 64,
        eval_mb_size: int = 128,
        plugins: Sequence[Any] | None = None,
        evaluator: Any = default_evaluator,
        eval_every: int = -1,
        **options: Any,
    ) -> None:
        grows = next((type(part).__name__ for part in model.modules() if isinstance(part, DynamicModule)), "")
        require(
            not grows, f"the model grows ({grows}): give one with an output for every class from the start"
        )
        super().__init__(
            learner=_MOTA(model, epochs=train_epochs, batch_size=train_mb_size, **options),
            eval_mb_size=eval_mb_size,
            plugins=plugins,
            evaluator=evaluator,
            eval_every=eval_every,
        )


class Joint(nn.Module):
    """log rho(x) of a learner, as a module; its parameter is the modes themselves, (N, P)."""

    def __init__(self, learner: Strategy) -> None:
        super().__init__()
        self._learner = [learner]  # in a list: what it is made of is not ours to move or to train
        self.theta = nn.Parameter(learner.modes.theta, requires_grad=False)

    def forward(self, inputs: Tensor, classes: Iterable[int] | None = None) -> Tensor:
        """Joint log-probabilities (S, C), NEVER where an output is not valid."""
        return self._learner[0].predict(inputs, classes).log().clamp_min(NEVER)


class _Pairs:
    """An Avalanche data set of (x, y, task label) as pairs."""

    def __init__(self, dataset: Any) -> None:
        self.dataset = dataset

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, index: int) -> tuple[Any, int]:
        sample = self.dataset[index]
        return sample[0], int(sample[1])


class _Steps:
    """While it is entered, each step of the learner is an iteration that Avalanche's plugins see."""

    def __init__(self, strategy: ManyModes, label: int, classes: Sequence[int]) -> None:
        self.strategy, self.label, self.classes = strategy, label, list(classes)
        self.logits: Tensor | None = None

    def __enter__(self) -> None:
        learner = self.strategy.learner
        self.step, self.loss = learner.step, learner.loss
        self.hook = learner.model.module.register_forward_hook(self._note)
        learner.step = self._step  # type: ignore[method-assign]
        if getattr(learner, "separating", False):  # task 1 trains all modes at once, in a loop of its own
            learner.loss = self._separating  # type: ignore[method-assign]

    def __exit__(self, *error: object) -> None:
        for name in ("step", "loss"):
            vars(self.strategy.learner).pop(name, None)  # the instance's: the class's is back
        self.hook.remove()

    def _note(self, module: nn.Module, inputs: Any, logits: Any) -> None:
        """What the metrics see: as in the loss, an output that is not valid is no answer."""
        self.logits = None
        if isinstance(logits, Tensor):
            self.logits = torch.full_like(logits, torch.finfo(logits.dtype).min, requires_grad=False)
            self.logits[:, self.classes] = logits.detach()[:, self.classes]

    def _step(self, mode: int, batch: Batch, loss: Callable[[Batch], Tensor]) -> Tensor:
        return self._iteration(batch, lambda: self.step(mode, batch, loss))

    def _separating(self, batch: Batch, valid: Valid) -> Tensor:
        return self._iteration(batch, lambda: self.loss(batch, valid))

    def _iteration(self, batch: Batch, compute: Callable[[], Tensor]) -> Tensor:
        see, self.logits = self.strategy, None
        see.mbatch = [batch.inputs, batch.targets, torch.full_like(batch.targets, self.label)]
        see._before_training_iteration()
        see._before_forward()
        value = compute()
        see.mb_output, see.loss = self.logits, value.detach()
        see._after_forward()
        see._after_training_iteration()
        return value
