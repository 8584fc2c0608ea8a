"""ContinualClassifier: scikit-learn's own checks, tasks with new labels, pipelines, copies, river."""

import pickle
import sys

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.base import clone
from sklearn.datasets import load_digits
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

import manymodes as mm
from manymodes.sklearn import ContinualClassifier

X, Y = load_digits(return_X_y=True)
X = X / 16
TRAIN, TEST = np.arange(len(X)) % 4 != 0, np.arange(len(X)) % 4 == 0


@parametrize_with_checks([ContinualClassifier()])
def test_scikit_learns_own_checks(estimator, check):
    check(estimator)


def quick(strategy="lwf", **options):
    return ContinualClassifier(strategy, epochs=4, random_state=0, **options)


def test_fit_is_learn_on_one_task():
    found = quick("ewc").fit(X[TRAIN], Y[TRAIN])
    assert found.score(X[TEST], Y[TEST]) > 0.85
    same = mm.EWC(found.learner_.model.module, epochs=4, seed=found.learner_.seed)
    assert type(same) is type(found.learner_)
    direct = found.learner_.predict(torch.from_numpy(X[TEST]).float()).double()
    assert found.predict_proba(X[TEST]) == pytest.approx(direct.numpy(), abs=1e-6)
    again = found.fit(X[TRAIN][:50], Y[TRAIN][:50])
    assert again.learner_.tasks_learnt == 1


@pytest.mark.parametrize("names", [str, lambda v: f"digit {9 - v}"])
def test_labels_that_come_later_whatever_their_order(names):
    """Classes of the second task sort before, or between, those of the first."""
    labels = np.array([names(v) for v in Y])
    classifier = quick()
    for digits in ([7, 2], [5, 9, 0]):
        rows = TRAIN & np.isin(Y, digits)
        classifier.partial_fit(X[rows], labels[rows])
        held = TEST & np.isin(Y, digits)
        within = classifier.predict_proba(X[held])[:, np.isin(classifier.classes_, labels[held])]
        seen = classifier.classes_[np.isin(classifier.classes_, labels[held])]
        assert (seen[within.argmax(1)] == labels[held]).mean() > 0.9
    assert classifier.classes_.tolist() == sorted({names(v) for v in (7, 2, 5, 9, 0)})
    assert classifier.predict_proba(X).sum(axis=1) == pytest.approx(1.0)
    assert classifier.learner_.tasks_learnt == 2


def test_growing_leaves_earlier_columns_where_they_belong():
    classifier = quick("ewc", options={"strength": 0.0})
    rows = np.isin(Y, [6, 8])
    classifier.partial_fit(X[rows], Y[rows])
    before = classifier.predict_proba(X)
    classifier._make_room(np.array([1, 7]))
    after = classifier.predict_proba(X)
    assert classifier.classes_.tolist() == [1, 6, 7, 8]
    assert after[:, [1, 3]] == pytest.approx(before, abs=1e-6)
    assert (after[:, [0, 2]] == 0).all()


def test_classes_given_at_first():
    classifier = quick()
    rows = np.isin(Y, [3, 4])
    classifier.partial_fit(X[rows], Y[rows], classes=range(10))
    found = classifier.predict_proba(X)
    assert found.shape[1] == 10
    assert (found[:, [0, 1, 2, 5, 6, 7, 8, 9]] == 0).all()
    with pytest.raises(ValueError, match="is not the same"):
        classifier.partial_fit(X[rows], Y[rows], classes=[3, 4])
    with pytest.raises(ValueError, match="not among classes="):
        quick().partial_fit(X, Y, classes=range(9))


def test_every_strategy_name_works():
    for strategy in ("finetune", "si", "er", "agem", "multitask", "lwf-ewc", "ensemble", "mota"):
        classifier = ContinualClassifier(strategy, epochs=1, random_state=0)
        for digits in ([0, 1], [2, 3]):
            rows = np.isin(Y, digits)
            classifier.partial_fit(X[rows][:60], Y[rows][:60], classes=range(4))
        assert classifier.predict_proba(X[:5]).shape == (5, 4)


def test_pipeline_grid_search_frames_and_validation():
    frame = pd.DataFrame(X[:300], columns=[f"pixel {i}" for i in range(64)])
    pipeline = make_pipeline(StandardScaler(), quick("mota", validation_fraction=0.2))
    pipeline.fit(frame, pd.Series(Y[:300]).map(str))
    assert pipeline.score(frame, pd.Series(Y[:300]).map(str)) > 0.8
    assert cross_val_score(quick(), X[:300], Y[:300], cv=3).mean() > 0.5
    search = GridSearchCV(quick("mota"), {"options": [{"modes": 1}, {"modes": 3}]}, cv=2).fit(
        X[:200], Y[:200]
    )
    assert len(search.best_estimator_.learner_.modes) == search.best_params_["options"]["modes"]
    with pytest.raises(ValueError, match="feature names"):
        clone(pipeline[-1]).fit(frame, Y[:300]).predict(frame.rename(columns={"pixel 0": "other"}))


def test_images_through_input_shape():
    classifier = quick(model="small-cnn", input_shape=(1, 8, 8)).fit(X[:100], Y[:100])
    assert classifier.learner_.predict(torch.from_numpy(X[:2]).float().view(2, 1, 8, 8)).shape == (2, 10)
    with pytest.raises(ValueError, match="does not fit X"):
        quick(input_shape=(1, 9, 9)).fit(X[:100], Y[:100])


def test_pickles_and_copies_go_on_as_the_original():
    first, second = np.isin(Y, [0, 1]), np.isin(Y, [2, 3])
    original = quick("mota").partial_fit(X[first], Y[first])
    copied = pickle.loads(pickle.dumps(original))
    assert (copied.predict_proba(X) == original.predict_proba(X)).all()
    for classifier in (original, copied):
        classifier.partial_fit(X[second], Y[second])
    assert (copied.predict_proba(X) == original.predict_proba(X)).all()


def test_random_state_decides():
    scores = [quick().fit(X[:200], Y[:200]).predict_proba(X) for _ in range(2)]
    assert (scores[0] == scores[1]).all()
    other = ContinualClassifier("lwf", epochs=4, random_state=1).fit(X[:200], Y[:200])
    assert (other.predict_proba(X) != scores[0]).any()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"strategy": "ewk"}, "did you mean 'ewc'"),
        ({"model": "mlq"}, "did you mean 'mlp'"),
        ({"scenario": "task"}, "scenario must be"),
        ({"epochs": 0}, "epochs must be"),
        ({"validation_fraction": 1.0}, "validation_fraction"),
    ],
)
def test_mistakes(options, message):
    with pytest.raises(mm.UserError, match=message):
        ContinualClassifier(**options).fit(X[:20], Y[:20])


# ---- river ------------------------------------------------------------------------------------------


def test_river_learns_one_by_one_and_many_at_once():
    pytest.importorskip("river", reason="needs manymodes[online]")
    from manymodes.river import RiverClassifier

    order = np.random.default_rng(0).permutation(len(X))
    rows = [dict(enumerate(row.tolist())) for row in X[order]]
    one = RiverClassifier(task_size=300)
    assert one.predict_one(rows[0]) is None
    for row, label in zip(rows[:900], Y[order][:900].tolist(), strict=True):
        one.learn_one(row, label)
    assert one.tasks_learnt == 3
    right = [one.predict_one(row) == label for row, label in zip(rows[900:], Y[order][900:], strict=True)]
    assert np.mean(right) > 0.75
    many = RiverClassifier(task_size=300)
    frame = pd.DataFrame(X[order])
    for start in range(0, 900, 90):
        many.learn_many(frame[start : start + 90], pd.Series(Y[order][start : start + 90]))
    assert many.predict_proba_many(frame).to_numpy() == pytest.approx(
        np.array([[p[c] for c in range(10)] for p in map(one.predict_proba_one, rows)]), abs=1e-6
    )
    assert (many.predict_many(frame[900:]).to_numpy() == Y[order][900:]).mean() == pytest.approx(
        np.mean(right)
    )


def test_river_missing_says_so(monkeypatch):
    monkeypatch.setitem(sys.modules, "river", None)
    monkeypatch.delitem(sys.modules, "manymodes.river", raising=False)
    with pytest.raises(mm.UserError, match=r"manymodes\[online\]"):
        import manymodes.river  # noqa: F401
