"""Task after task with scikit-learn's interface, in a pipeline; and sample by sample with river's.

Run: python examples/sklearn_pipeline.py
"""

import numpy as np
from sklearn.datasets import load_digits
from sklearn.metrics import accuracy_score
from sklearn.model_selection import train_test_split
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import MinMaxScaler

from manymodes.sklearn import ContinualClassifier


def whole(x, y):
    """All at once, in a pipeline."""
    x_train, x_test, y_train, y_test = train_test_split(x, y, random_state=0)
    pipeline = make_pipeline(MinMaxScaler(), ContinualClassifier("mota", random_state=0))
    score = pipeline.fit(x_train, y_train).score(x_test, y_test)
    print(f"fit on all digits: {score:.3f}")
    return score


def in_turn(x, y, strategy):
    """Two digits, then two more, and so on; no earlier image is kept (except by er, which keeps a few)."""
    x_train, x_test, y_train, y_test = train_test_split(x / 16, y, random_state=0)
    classifier = ContinualClassifier(strategy, random_state=0)
    for digits in ([0, 1], [2, 3], [4, 5], [6, 7], [8, 9]):
        rows = np.isin(y_train, digits)
        classifier.partial_fit(x_train[rows], y_train[rows])
    score = accuracy_score(y_test, classifier.predict(x_test))
    print(f"two digits at a time, {strategy}: {score:.3f}")
    return score


def one_by_one():
    """river's loop: predict, then learn."""
    try:
        from river import datasets, metrics, preprocessing
    except ImportError:
        print('river is not installed: pip install "manymodes[online]"')
        return
    from manymodes.river import RiverClassifier

    model = preprocessing.StandardScaler() | RiverClassifier(task_size=100)
    accuracy = metrics.Accuracy()
    for x, y in datasets.Phishing():
        predicted = model.predict_one(x)
        if predicted is not None:
            accuracy.update(y, predicted)
        model.learn_one(x, y)
    print(f"phishing, sample by sample, predicted before learnt: {accuracy.get():.3f}")


if __name__ == "__main__":
    data = load_digits(return_X_y=True)
    assert whole(*data) > 0.9
    for name in ("finetune", "lwf", "er"):
        in_turn(*data, name)
    one_by_one()
