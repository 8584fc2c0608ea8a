"""A river classifier: samples arrive one by one or in small tables; enough of them make a task."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from manymodes.errors import UserError, require
from manymodes.sklearn import ContinualClassifier

try:
    from river import base
except ImportError:
    raise UserError('manymodes.river needs river: pip install "manymodes[online]"') from None


class RiverClassifier(base.MiniBatchClassifier):
    """Any strategy of this package behind river's `learn_one`, `predict_one`, `learn_many`, `predict_many`.

    Samples are kept until there are `task_size` of them; then they are one more task for the classifier and
    are dropped. New labels may come at any time.

    Args:
        task_size: Samples that make a task.
        features: Names of the features; those of the first sample unless given. A sample
            that lacks one has 0 there, further ones are ignored.
        classifier: A ContinualClassifier; one with epochs=5 and random_state=0 unless given.

    >>> from river import datasets, preprocessing
    >>> model = preprocessing.StandardScaler() | RiverClassifier(task_size=200)
    >>> for x, y in datasets.Phishing().take(400):
    ...     _ = model.predict_one(x)
    ...     _ = model.learn_one(x, y)
    >>> model["RiverClassifier"].tasks_learnt
    2
    """

    def __init__(
        self,
        task_size: int = 200,
        features: Sequence[str] | None = None,
        classifier: ContinualClassifier | None = None,
    ) -> None:
        require(
            isinstance(task_size, int) and task_size >= 2,
            f"task_size must be a whole number from 2, not {task_size!r}",
        )
        self.task_size, self.features, self.classifier = task_size, features, classifier
        self._names: list[Hashable] | None = None if features is None else list(features)
        self._learner = _fresh(classifier)
        self._x: list[NDArray[Any]] = []
        self._y: list[Any] = []

    @property
    def _multiclass(self) -> bool:
        return True

    @property
    def tasks_learnt(self) -> int:
        """How many tasks are learnt."""
        return self._learner.learner_.tasks_learnt if hasattr(self._learner, "learner_") else 0

    # ---- one sample -------------------------------------------------------------------------------

    def learn_one(self, x: dict[Hashable, Any], y: Any) -> None:
        """Keep the sample; learn if there are enough."""
        self._x.append(self._row(x))
        self._y.append(y)
        if len(self._y) >= self.task_size:
            rows, labels = np.stack(self._x), np.asarray(self._y)
            self._x, self._y = [], []
            self._learner.partial_fit(rows, labels)

    def predict_proba_one(self, x: dict[Hashable, Any], **kwargs: Any) -> dict[Any, float]:
        """The probability of each class; before the first task, how often each label came."""
        if self.tasks_learnt == 0:
            return {label: count / len(self._y) for label, count in Counter(self._y).items()}
        found = self._learner.predict_proba(self._row(x)[None])[0]
        return dict(zip(self._learner.classes_.tolist(), found.tolist(), strict=True))

    def _row(self, x: Mapping[Hashable, Any]) -> NDArray[Any]:
        if self._names is None:
            self._names = sorted(x, key=str)  # whatever order they come in
        return np.asarray([float(x.get(name, 0.0)) for name in self._names], dtype=np.float32)

    # ---- many samples -----------------------------------------------------------------------------

    def learn_many(self, X: Any, y: Iterable[Any]) -> None:
        """Keep the rows of a data frame, learning whenever there are enough."""
        for row, label in zip(_rows(X), y, strict=True):
            self.learn_one(row, label)

    def predict_proba_many(self, X: Any) -> Any:
        """Probabilities as a data frame with a column per class."""
        import pandas as pd

        rows = [self._row(row) for row in _rows(X)]
        if self.tasks_learnt == 0 or not rows:
            return pd.DataFrame(index=X.index)
        found = self._learner.predict_proba(np.stack(rows))
        return pd.DataFrame(found, index=X.index, columns=self._learner.classes_.tolist())


def _fresh(classifier: ContinualClassifier | None) -> ContinualClassifier:
    from sklearn.base import clone

    given = ContinualClassifier(epochs=5, random_state=0) if classifier is None else classifier
    copied: ContinualClassifier = clone(given)
    return copied


def _rows(X: Any) -> list[dict[Hashable, Any]]:
    rows: list[dict[Hashable, Any]] = X.to_dict(orient="records")
    return rows
