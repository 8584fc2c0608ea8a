"""Shifted inputs, unseen classes, wrong labels: measured on real digits, and by hand where that is exact."""

import json
import math

import pytest
import torch
from scipy.stats import entropy
from sklearn.metrics import roc_auc_score

import manymodes as mm
from manymodes.cli import main
from manymodes.errors import UserError
from manymodes.metrics import auroc
from manymodes.modes import joint
from manymodes.robustness import Shifted, robustness, uncertainty
from manymodes.run import run
from manymodes.streams.split import Pool, Splits, make_tasks
from manymodes.task import TensorData

KEPT_OUT = {"tasks": 4, "unseen": 2}


def _log_probs(modes=3, samples=50, classes=4):
    draw = torch.Generator().manual_seed(0)
    return torch.log_softmax(3 * torch.randn(modes, samples, classes, generator=draw), dim=2)


def test_uncertainty_is_what_scipy_computes():
    log_probs_NSK = _log_probs()
    confidence, disagreement = uncertainty(log_probs_NSK)
    p_NSK = log_probs_NSK.exp().numpy()
    rho_SK = p_NSK.mean(axis=0)
    assert torch.allclose(confidence, torch.tensor(1 - rho_SK.max(axis=1)), atol=1e-6)
    expected = entropy(rho_SK, axis=1) - entropy(p_NSK, axis=2).mean(axis=0)
    assert torch.allclose(disagreement, torch.tensor(expected, dtype=torch.float32), atol=1e-5)
    assert (disagreement > -1e-6).all()
    same = log_probs_NSK[:1].repeat(3, 1, 1)
    assert uncertainty(same)[1].abs().max() < 1e-6


def test_uncertainty_of_a_certain_mode_is_finite():
    log_probs_NSK = torch.tensor([[[0.0, -math.inf]], [[-math.inf, 0.0]]])
    confidence, disagreement = uncertainty(log_probs_NSK)
    assert confidence.tolist() == [0.5]
    assert disagreement.tolist() == pytest.approx([math.log(2)])


def test_auroc_is_that_of_scikit_learn():
    draw = torch.Generator().manual_seed(1)
    low, high = torch.randn(40, generator=draw).round(decimals=1), torch.randn(30, generator=draw) + 0.5
    high = high.round(decimals=1)  # ties
    labels = [0] * 40 + [1] * 30
    assert auroc(low, high) == pytest.approx(roc_auc_score(labels, torch.cat([low, high])))


def test_noise_is_the_same_for_every_mode_and_of_the_asked_strength():
    data = Shifted(TensorData(torch.zeros(2000, 5), torch.zeros(2000)), spread=0.3)
    order = torch.arange(2000).split(512)
    first, again = ([b.inputs for b in data.batches(order)] for _ in range(2))
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
    assert not torch.equal(first[0], first[1])
    assert torch.cat(first).std().item() == pytest.approx(0.3, rel=0.05)


def test_the_random_state_and_the_learner_stay_as_they_were():
    stream = mm.streams.digits(**KEPT_OUT)
    learner = mm.MOTA(mm.models.mlp(64, [8], outputs=10), modes=2, epochs=1)
    learner.learn(stream[0])
    before, state = torch.get_rng_state(), learner.modes.theta.clone()
    tests = [_Test(task.test, task.classes) for task in stream]
    robustness(learner, tests, [test.classes for test in tests], stream.unseen())
    assert torch.equal(before, torch.get_rng_state())
    assert torch.equal(state, learner.modes.theta)


class _Test:
    def __init__(self, data, classes):
        self.data, self.classes = data, classes


def test_unseen_classes_are_in_no_task_and_all_their_test_samples_are_kept():
    stream = mm.streams.digits(**KEPT_OUT)
    arrived = {c for task in stream for c in task.classes}
    assert len(arrived) == 8
    everything = mm.streams.digits()
    left = [c for c in range(10) if c not in arrived]
    count = sum(int(torch.isin(t.test.targets, torch.tensor(left)).sum()) for t in everything)
    assert len(stream.unseen()) == count > 0
    inputs = next(iter(stream.unseen().batches([torch.arange(count)]))).inputs
    for task in stream:
        for part in (task.train, task.val, task.test):
            theirs = next(iter(part.batches([torch.arange(len(part))]))).inputs
            assert not (theirs[:, None] == inputs[None]).flatten(2).all(dim=2).any()
    assert everything.unseen is None


def test_a_learner_is_less_sure_of_digits_it_never_saw():
    stream = mm.streams.digits(**KEPT_OUT)
    learner = mm.Ensemble(mm.models.mlp(64, [32], outputs=10), modes=2, epochs=8)
    record = run(learner, stream)
    found = record.metrics()
    assert found["ood_auroc"] > 0.6
    assert 0.5 < found["shifted_accuracy"] <= found["average_accuracy"] + 0.02
    assert len(record.unseen["confidence"]) == len(record.unseen["disagreement"]) == len(record.shifted) == 4
    task = stream[-1]
    valid = learner.valid_for(task.test, task.classes)
    scores = [1 - joint(learner.mode_log_probs(d, valid)).exp().amax(1) for d in (task.test, stream.unseen())]
    assert record.unseen["confidence"][-1] == pytest.approx(auroc(*scores))


def test_a_single_network_has_no_disagreement_and_a_whole_stream_nothing_unseen():
    learner = mm.Finetune(mm.models.mlp(64, [8], outputs=10), epochs=1)
    found = run(learner, mm.streams.digits(tasks=2, unseen=4)).metrics()
    assert "ood_auroc" in found
    assert "ood_auroc_disagreement" not in found
    found = run(
        mm.Finetune(mm.models.mlp(64, [8], outputs=10), epochs=1), mm.streams.digits(tasks=2)
    ).metrics()
    assert "shifted_accuracy" in found
    assert "ood_auroc" not in found


def test_label_noise_has_its_share_stays_within_the_task_and_spares_the_tests():
    clean, noisy = mm.streams.digits(tasks=2), mm.streams.digits(tasks=2, label_noise=0.25)
    for before, after in zip(clean, noisy, strict=True):
        told = torch.cat([after.train.targets, after.val.targets])
        true = torch.cat([before.train.targets, before.val.targets])
        assert int((told != true).sum()) == round(0.25 * len(true))
        assert set(told.tolist()) == set(before.classes)
        assert torch.equal(before.test.targets, after.test.targets)
    twice = [mm.streams.digits(tasks=2, label_noise=0.25)[0].train.targets for _ in range(2)]
    assert torch.equal(*twice)


@pytest.mark.parametrize("noise", [-0.1, 1.5, float("nan")])
def test_a_share_of_wrong_labels_is_from_0_to_1(noise):
    with pytest.raises(UserError, match=r"label_noise=.*from 0 to 1"):
        mm.streams.digits(label_noise=noise)


def test_a_lone_class_has_no_other_label():
    pool = Pool("one", torch.zeros(10).long(), ("only",), Splits(*torch.arange(10).split([6, 2, 2])),
                lambda index, targets, _: TensorData(torch.zeros(len(index), 2), targets), (2,))  # fmt: skip
    stream = make_tasks(pool, torch.zeros(10).long(), ["a"], scenario="class", label_noise=1.0)
    assert stream[0].train.targets.tolist() == [0] * 6


@pytest.mark.parametrize("words", [["--unseen", "9"], ["--unseen", "2", "--stream.scenario", "instance"]])
def test_too_many_unseen_classes_are_one_clear_line(words, capsys, tmp_path):
    given = ["run", "--strategy", "finetune", "--stream", "digits", "--out", str(tmp_path), *words]
    assert main(given) == 2
    message = capsys.readouterr().err.strip()
    assert message.count("\n") == 0
    assert f"unseen={words[1]}" in message


def test_the_table_shows_the_columns_that_were_measured(tmp_path, capsys):
    words = ["--strategies", "finetune,mota", "--stream", "digits", "--epochs", "1", "--seeds", "0"]
    assert main(["compare", *words, "--tasks", "4", "--unseen", "2", "--out", str(tmp_path / "a")]) == 0
    assert {"noisy", "AUROC", "MI"} <= set(capsys.readouterr().out.replace("┃", " ").split())
    assert main(["compare", *words, "--tasks", "2", "--out", str(tmp_path / "b")]) == 0
    assert "AUROC" not in capsys.readouterr().out
    assert main(["report", str(tmp_path / "a")]) == 0
    assert "OOD AUROC" in (tmp_path / "a" / "table.md").read_text()
    metrics = [json.loads(p.read_text()) for p in (tmp_path / "a").glob("*/metrics.json")]
    assert all(0 <= m["ood_auroc"] <= 1 and len(m["unseen"]["confidence"]) == 4 for m in metrics)
