"""A scikit-learn classifier that learns task after task: fit, partial_fit, predict, predict_proba."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils import check_random_state, column_or_1d
from sklearn.utils.multiclass import check_classification_targets, unique_labels
from sklearn.utils.validation import check_is_fitted, validate_data

from manymodes.errors import UserError, require
from manymodes.growth import grow
from manymodes.models import build_model
from manymodes.strategies.base import Strategy
from manymodes.strategies.registry import strategy_class
from manymodes.task import Stream, Task, TensorData

Array = NDArray[Any]


class ContinualClassifier(ClassifierMixin, BaseEstimator):  # type: ignore[misc]  # sklearn has no types
    """Any strategy of this package behind scikit-learn's interface.

    `fit` learns one task from scratch. Each call of `partial_fit` is one more task: `epochs` passes over
    what it is given, holding on to what was learnt before; nothing is kept of the data (unless the strategy
    rehearses). Labels may be anything that sorts. New labels may come in any call: outputs are added for
    them, unless `classes` named all of them in the first call.

    Standardise features first (`make_pipeline(StandardScaler(), ContinualClassifier())`).

    Args:
        strategy: A strategy's name ("mota", "ewc", "lwf-ewc", "er", ...), or `my.module:Class`.
        model: A network's name ("mlp", "small-cnn", ...), "auto", or `my.module:make`.
        model_options: The network's other options, e.g. {"hidden": [200]}.
        input_shape: The shape of a sample, e.g. (1, 28, 28): rows of X are reshaped. None: a row is a row.
        epochs: Passes over each task's data.
        batch_size: Samples in a step.
        lr: Learning rate (the peak of the schedule).
        options: The strategy's other options, e.g. {"modes": 4, "strength": 30.0}.
        scenario: "class" (a sample may be of any class learnt so far) or "instance" (the classes are the
            same in every task: all are always valid).
        validation_fraction: Held out of each task for strategies that choose by it (MOTA's backtracking).
        device: "auto", "cpu", "cuda".
        random_state: A number for the same result each time.

    >>> from sklearn.datasets import load_digits
    >>> x, y = load_digits(return_X_y=True)
    >>> classifier = ContinualClassifier("ewc", epochs=5, random_state=0)
    >>> for task in ([0, 1], [2, 3]):
    ...     rows = np.isin(y, task)
    ...     classifier = classifier.partial_fit(x[rows] / 16, y[rows])
    >>> classifier.classes_.tolist(), classifier.predict_proba(x[:2] / 16).shape
    ([0, 1, 2, 3], (2, 4))
    """

    classes_: Array
    learner_: Strategy
    n_features_in_: int

    def __init__(
        self,
        strategy: str = "mota",
        *,
        model: str = "auto",
        model_options: Mapping[str, Any] | None = None,
        input_shape: tuple[int, ...] | None = None,
        epochs: int = 20,
        batch_size: int = 32,
        lr: float = 2e-3,
        options: Mapping[str, Any] | None = None,
        scenario: str = "class",
        validation_fraction: float = 0.0,
        device: str = "auto",
        random_state: Any = None,
    ) -> None:
        self.strategy = strategy
        self.model = model
        self.model_options = model_options
        self.input_shape = input_shape
        self.epochs = epochs
        self.batch_size = batch_size
        self.lr = lr
        self.options = options
        self.scenario = scenario
        self.validation_fraction = validation_fraction
        self.device = device
        self.random_state = random_state

    # ---- learning -------------------------------------------------------------------------------

    def fit(self, X: ArrayLike, y: ArrayLike) -> Self:
        """Learn one task, forgetting everything from before."""
        x, labels = self._checked(X, y, reset=True)
        self.classes_ = unique_labels(labels)
        self._start(x)
        return self._learn(x, labels)

    def partial_fit(self, X: ArrayLike, y: ArrayLike, classes: ArrayLike | None = None) -> Self:
        """Learn one more task. `classes` names all classes to come; needed in no call."""
        first = not hasattr(self, "learner_")
        x, labels = self._checked(X, y, reset=first)
        given = unique_labels(labels) if classes is None else np.unique(np.asarray(classes))
        if first:
            self.classes_ = given
            self._start(x)
        elif classes is not None and not np.array_equal(given, self.classes_):
            require(
                bool(np.isin(self.classes_, given).all()),
                f"classes={classes!r} is not the same as in the first call to partial_fit, and lacks some of "
                f"{self.classes_.tolist()}",
            )
        missing = np.setdiff1d(unique_labels(labels), given)
        require(
            len(missing) == 0, f"y has labels {missing[:5].tolist()} that are not among classes={classes!r}"
        )
        if not first:
            self._make_room(given)
        return self._learn(x, labels)

    def _checked(self, X: ArrayLike, y: ArrayLike, *, reset: bool) -> tuple[Array, Array]:
        x, labels = validate_data(self, X, y, reset=reset, dtype=np.float32, y_numeric=False)
        labels = column_or_1d(labels, warn=True)
        check_classification_targets(labels)
        if self.scenario not in ("class", "instance"):
            raise UserError(f"scenario must be 'class' or 'instance', not {self.scenario!r}")
        return x, labels

    def _start(self, x: Array) -> None:
        """A network with an output per class, and the learner."""
        seed = int(check_random_state(self.random_state).randint(2**31 - 1))
        shape = (x.shape[1],) if self.input_shape is None else tuple(self.input_shape)
        require(
            int(np.prod(shape)) == x.shape[1],
            f"input_shape={shape} does not fit X, which has {x.shape[1]} features",
        )
        stream = Stream("X", self.scenario, len(self.classes_), shape, (_no_task,))
        with torch.random.fork_rng(devices=()):
            torch.manual_seed(seed)
            module = build_model(self.model, stream, **dict(self.model_options or {}))
        training: dict[str, Any] = {
            "epochs": self.epochs, "batch_size": self.batch_size, "lr": self.lr, "device": self.device,
            "seed": seed,
        }  # fmt: skip
        self.learner_ = strategy_class(self.strategy)(module, **training | dict(self.options or {}))
        self._shape = shape
        self._output_of = np.arange(len(self.classes_))  # the output of each class

    def _make_room(self, given: Array) -> None:
        """An output for each new label; `classes_` stays sorted, the known outputs keep their meaning."""
        new = np.setdiff1d(given, self.classes_)
        if len(new):
            count = len(self.classes_)
            self.learner_ = grow(self.learner_, count + len(new))
            labels = np.concatenate([self.classes_, new])
            order = np.argsort(labels, kind="stable")
            self.classes_ = labels[order]
            self._output_of = np.concatenate([self._output_of, np.arange(count, count + len(new))])[order]

    def _learn(self, x: Array, labels: Array) -> Self:
        targets = self._outputs(labels)
        present = {int(t) for t in targets.unique()}
        learnt = {c for head in self.learner_.heads for c in head}
        valid = range(len(self.classes_)) if self.scenario == "instance" else sorted(learnt | present)
        train, val = self._cut(targets)
        inputs = self._inputs(x)
        held = TensorData(inputs[val], targets[val]) if len(val) else None
        name = f"task {self.learner_.tasks_learnt + 1}"
        task = Task(name, TensorData(inputs[train], targets[train]), held, None, tuple(valid))
        self.learner_.learn(task)
        self.n_iter_ = self.learner_.epochs
        return self

    def _cut(self, targets: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        from manymodes.streams.split import stratified

        share = float(self.validation_fraction)
        require(0 <= share < 1, f"validation_fraction must be from 0 up to 1, not {share!r}")
        train, val, _ = stratified(targets, self.learner_.seed, (1 - share, share, 0.0))
        return train, val

    def _outputs(self, labels: Array) -> torch.Tensor:
        return torch.from_numpy(self._output_of[np.searchsorted(self.classes_, labels)])

    def _inputs(self, x: Array) -> torch.Tensor:
        return torch.from_numpy(np.ascontiguousarray(x)).view(len(x), *self._shape)

    # ---- predicting -----------------------------------------------------------------------------

    def predict_proba(self, X: ArrayLike) -> Array:
        """Probabilities (S, classes), in the order of `classes_`; zero for classes not learnt yet."""
        check_is_fitted(self, "learner_")
        x = validate_data(self, X, reset=False, dtype=np.float32)
        valid = range(len(self.classes_)) if self.scenario == "instance" else None
        found = self.learner_.predict(self._inputs(x), classes=valid).double().cpu()
        probabilities: Array = (found / found.sum(dim=1, keepdim=True)).numpy()[:, self._output_of]
        return probabilities

    def predict(self, X: ArrayLike) -> Array:
        """The most probable class of each sample."""
        check_is_fitted(self, "learner_")
        found: Array = self.classes_[self.predict_proba(X).argmax(axis=1)]
        return found

    # ---- copies and pickles ---------------------------------------------------------------------

    def __getstate__(self) -> dict[str, Any]:
        """The learner as plain state: its parameters are views, which do not survive a pickle."""
        state = dict(super().__getstate__())
        if "learner_" in state:
            learner = state.pop("learner_")
            state["_learner"] = (type(learner), learner.model.module, learner.options, learner.state_dict())
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        """The learner again."""
        kept = state.pop("_learner", None)
        super().__setstate__(state)
        if kept is not None:
            cls, module, options, found = kept
            self.learner_ = cls(module, **options)
            self.learner_.load_state_dict(found)


def _no_task() -> Task:
    raise UserError("this stream only says which shape the samples have")
