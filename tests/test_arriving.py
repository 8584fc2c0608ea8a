"""A stream without boundaries: when tasks begin, what is kept, and a real drifting stream."""

import sys
from pathlib import Path

import numpy as np
import pytest
import torch

import manymodes as mm
from manymodes.arriving import MOST, Arriving

river = pytest.importorskip("river", reason='needs river: pip install "manymodes[online]"')
sys.path.insert(0, str(Path(__file__).parents[1] / "examples"))

import drifting_stream  # noqa: E402


class After:
    """A detector that notices a drift at the n-th value."""

    estimation = 1.0

    def __init__(self, values, width=7):
        self.values, self.count, self.width, self.drift_detected = values, 0, width, False
        self.heard = []

    def update(self, x):
        self.heard.append(x)
        self.drift_detected = len(self.heard) == self.values

    def clone(self):
        return After(self.values, self.width)


def _batches(count, size=10, labels=(0, 1), seed=0):
    generator = torch.Generator().manual_seed(seed)
    for _ in range(count):
        y = torch.tensor(labels).repeat(-(-size // len(labels)))[:size]
        yield torch.randn(size, 6, generator=generator) + 3 * y[:, None], y


def _learner(**options):
    torch.manual_seed(0)
    return mm.Finetune(mm.models.mlp(6, (8,), outputs=4), epochs=3, **options)


def test_the_first_task_begins_at_once_and_its_samples_are_dropped_when_it_is_learnt():
    arriving = Arriving(_learner(), After(10**9), task_size=30)
    seen = [arriving.observe(x, y) for x, y in _batches(4)]
    assert [one.learnt for one in seen] == [False, False, True, False]
    assert [one.loss is None for one in seen] == [True, True, True, False]
    assert arriving.learner.tasks_learnt == 1
    assert arriving.kept == 10  # of the fourth batch alone


def test_it_learns_what_the_same_call_of_learn_would():
    batches = list(_batches(3))
    arriving, plain = Arriving(_learner(), After(10**9), task_size=30), _learner()
    for x, y in batches:
        arriving.observe(x, y)
    plain.learn(torch.cat([x for x, _ in batches]), torch.cat([y for _, y in batches]))
    assert torch.equal(arriving.learner.modes.theta, plain.modes.theta)


def test_a_task_begins_where_the_detector_says_that_the_drift_began():
    arriving = Arriving(_learner(), After(25, width=7), task_size=30)
    for number, (x, y) in enumerate(_batches(20), 1):
        before = arriving.kept
        seen = arriving.observe(x, y)
        assert arriving.kept <= 30
        if seen.drift:
            assert (number, before, arriving.kept) == (6, 20, 7)  # three tasks' batches, then 25 values
            break
    assert arriving.drifts == [60]
    assert arriving.collecting
    while not arriving.observe(*next(_batches(1))).learnt:
        assert 7 < arriving.kept < 30
    assert (arriving.learner.tasks_learnt, arriving.kept) == (2, 0)


def test_what_the_detector_hears_is_the_joint_loss_from_0_to_1():
    detector = After(10**9)
    arriving = Arriving(_learner(), detector, task_size=30)
    batches = list(_batches(4))
    for x, y in batches:
        arriving.observe(x, y)
    x, y = batches[3]
    probability = arriving.learner.predict(x)[torch.arange(10), y]
    expected = (-probability.log()).clamp(max=MOST) / MOST
    assert torch.tensor(arriving._detector.heard) == pytest.approx(expected, abs=1e-6)


def test_a_fall_of_the_loss_is_no_drift():
    class Falls(After):
        estimation = 0.0

        def clone(self):
            return Falls(self.values, self.width)

    arriving = Arriving(_learner(), Falls(5), task_size=30)
    assert not any(arriving.observe(x, y).drift for x, y in _batches(10))


def test_an_unseen_label_is_the_largest_loss_and_becomes_an_output_of_the_next_task():
    arriving = Arriving(_learner(), After(15, width=10), task_size=30)
    for x, y in _batches(4):
        arriving.observe(x, y)
    seen = arriving.observe(*next(_batches(1, labels=(2, 3))))
    assert (seen.loss, seen.accuracy, seen.drift) == (MOST, 0.0, True)
    for x, y in _batches(3, labels=(2, 3)):
        arriving.observe(x, y)
    assert arriving.learner.heads == [(0, 1), (0, 1, 2, 3)]


def test_a_single_label_is_not_a_task_yet():
    arriving = Arriving(_learner(), After(10**9), task_size=20)
    for x, y in _batches(5, labels=(0,)):
        assert not arriving.observe(x, y).learnt
    assert arriving.observe(*next(_batches(1))).learnt
    assert Arriving(_learner(), After(1), task_size=20, classes=(0, 1)).learn() is False


def test_learn_ends_a_task_early():
    arriving = Arriving(_learner(), After(10**9), task_size=1000)
    arriving.observe(*next(_batches(1)))
    assert arriving.learn()
    assert not arriving.learn()
    assert arriving.learner.tasks_learnt == 1


@pytest.mark.parametrize("name", ["adwin", "page-hinkley"])
def test_digits_that_are_suddenly_inverted_are_noticed_soon_and_not_before(name):
    stream = mm.streams.digits("instance")
    parts = [next(stream[t].train.batches([torch.arange(1200)])) for t in (0, 3)]
    torch.manual_seed(0)
    learner = mm.Finetune(mm.models.mlp(64, (64,), outputs=10), epochs=10)
    arriving, accuracy = Arriving(learner, name, task_size=700), []
    for part in parts:
        order = torch.randperm(1200, generator=torch.Generator().manual_seed(1))
        x, y = part.inputs[order].flatten(1), part.targets[order]
        accuracy += [arriving.observe(x[at : at + 50], y[at : at + 50]).accuracy for at in range(0, 1200, 50)]
    assert len(arriving.drifts) == 1
    assert 1200 < arriving.drifts[0] <= 1300
    assert learner.tasks_learnt == 2
    assert accuracy[-1] > accuracy[25] + 0.2  # inverted digits, learnt against not yet


def test_observe_of_a_learner_is_the_same():
    batches = list(_batches(5))
    learner, arriving = _learner(), Arriving(_learner(), After(10**9), task_size=30)
    learner.observe(*batches[0], detector=After(10**9), task_size=30)
    arriving.observe(*batches[0])
    for x, y in batches[1:]:
        assert learner.observe(x, y) == arriving.observe(x, y)
    with pytest.raises(mm.UserError, match=r"task_size.*first call"):
        learner.observe(*batches[0], task_size=5)
    learner.observe(*batches[0], task_size=30)  # the same as at first


@pytest.mark.parametrize(
    ("options", "line"),
    [
        ({"detector": "adwim"}, "did you mean 'adwin'"),
        ({"detector": object()}, "not a drift detector of river"),
        ({"task_size": 1}, "task_size"),
    ],
)
def test_mistakes_are_one_line(options, line):
    with pytest.raises(mm.UserError, match=line):
        Arriving(_learner(), **options)


def test_labels_out_of_range_are_named():
    arriving = Arriving(_learner(), After(10**9), task_size=30)
    for x, y in _batches(3):
        arriving.observe(x, y)
    with pytest.raises(mm.UserError, match="0 to 3, not 4 to 5"):
        arriving.observe(*next(_batches(1, labels=(4, 5))))
    with pytest.raises(mm.UserError, match="no sample to observe"):
        arriving.observe(torch.zeros(0, 6), torch.zeros(0))


def test_without_river_it_says_which_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "river", None)
    with pytest.raises(mm.UserError, match=r"manymodes\[online\]"):
        Arriving(_learner())


@pytest.mark.parametrize("name", ["MOTA", "EWC"])
def test_electricity_prices(name):
    path = drifting_stream.fetch("elec.csv")
    if path is None:
        pytest.skip("the electricity data (16 MB, in a wheel on PyPI) cannot be fetched")
    x, y = drifting_stream.table(path, most=9000)
    learners = [drifting_stream.learners(x.shape[1], 2)[name] for _ in range(2)]
    now, end, tasks = drifting_stream.follow(learners[0], x, y)
    before, _, one = drifting_stream.follow(learners[1], x, y, drifting_stream.Never())
    assert one == 1
    assert 2 <= tasks <= 10
    assert now > before + 0.01  # what was learnt after a drift is of use
    assert end > max(np.mean(y), 1 - np.mean(y)) + 0.05
