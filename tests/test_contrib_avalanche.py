"""MOTA as a strategy of Avalanche: on its benchmarks, with its metrics and loggers."""

import io
from importlib.util import find_spec

import pytest
import torch

import manymodes as mm
from tests import toys

if find_spec("avalanche") is None:  # one that is there and cannot be imported is a failure
    pytest.skip("needs Avalanche: make avalanche", allow_module_level=True)
else:
    import tests.operators  # noqa: F401

from avalanche.benchmarks import tensors_benchmark
from avalanche.evaluation import metrics
from avalanche.logging import InteractiveLogger, TextLogger
from avalanche.models import IncrementalClassifier
from avalanche.training.plugins import EarlyStoppingPlugin, EvaluationPlugin

from manymodes.contrib.avalanche import MOTA, ManyModes

GROUPS = ((0, 1), (2, 3))


def _benchmark(labels=(0, 1), groups=GROUPS):
    return tensors_benchmark(
        train_tensors=[toys.blobs(g, 60) for g in groups],
        test_tensors=[toys.blobs(g, 40, seed=9) for g in groups],
        task_labels=list(labels),
    )


def _evaluator(stream=None):
    return EvaluationPlugin(
        metrics.accuracy_metrics(minibatch=True, epoch=True, experience=True, stream=True),
        metrics.loss_metrics(minibatch=True, epoch=True, experience=True),
        metrics.forgetting_metrics(experience=True, stream=True),
        metrics.bwt_metrics(stream=True),
        loggers=[TextLogger(stream or io.StringIO()), InteractiveLogger()],
    )


def _net():
    return toys.net(hidden=16)


def _trained(benchmark, evaluator=None, **options):
    strategy = MOTA(
        model=_net(), modes=2, train_epochs=6, train_mb_size=16, evaluator=evaluator, lr=0.02, **options
    )
    for experience in benchmark.train_stream:
        strategy.train(experience)
    return strategy


def _value(results, start, end=""):
    (found,) = [v for k, v in results.items() if k.startswith(start) and k.endswith(end)]
    return found


def test_train_and_eval_on_its_experiences_with_its_metrics():
    benchmark = _benchmark()
    strategy = MOTA(model=_net(), modes=2, train_epochs=6, train_mb_size=16, evaluator=_evaluator(), lr=0.02)
    for number, experience in enumerate(benchmark.train_stream):
        training = strategy.train(experience)
        assert _value(training, "Top1_Acc_Epoch", f"Task00{number}") > 0.8
        results = strategy.eval(benchmark.test_stream)
    for number, task in enumerate(benchmark.test_stream):
        x, y = toys.blobs(GROUPS[number], 40, seed=9)
        rho = strategy.learner.predict(x, GROUPS[number])
        accuracy = float((rho.argmax(1) == y).float().mean())
        loss = float(-rho[torch.arange(40), y].log().mean())
        ending = f"test_stream/Task00{number}/Exp00{number}"
        assert _value(results, "Top1_Acc_Exp", ending) == pytest.approx(accuracy)
        assert _value(results, "Loss_Exp", ending) == pytest.approx(loss, rel=1e-4)
        assert task is not None
    assert _value(results, "Top1_Acc_Stream/eval_phase/test_stream") > 0.8
    assert "StreamBWT/eval_phase/test_stream" in results


def test_it_learns_what_the_learner_learns_alone():
    strategy = _trained(_benchmark())
    alone = mm.MOTA(_net(), modes=2, epochs=6, batch_size=16, lr=0.02)
    for group in GROUPS:
        alone.learn(*toys.blobs(group, 60), classes=group)
    assert torch.equal(strategy.learner.modes.theta, alone.modes.theta)


def test_evaluating_while_training_changes_nothing():
    benchmark = _benchmark()
    plain = _trained(benchmark)
    strategy = MOTA(
        model=_net(), modes=2, train_epochs=6, train_mb_size=16, evaluator=_evaluator(), eval_every=2, lr=0.02
    )
    for experience in benchmark.train_stream:
        strategy.train(experience, eval_streams=[benchmark.test_stream])
    assert torch.equal(strategy.learner.modes.theta, plain.learner.modes.theta)
    assert strategy.clock.train_exp_epochs == 6
    assert strategy.clock.train_exp_iterations == 6 * 2 * 4  # epochs x modes x batches of 16 out of 60


def test_one_task_label_is_class_incremental():
    strategy = _trained(_benchmark(labels=(0, 0)))
    assert strategy.learner.heads == [(0, 1), (0, 1, 2, 3)]
    assert _trained(_benchmark(labels=(0, 1))).learner.heads == [(0, 1), (2, 3)]


def test_loggers_write():
    text = io.StringIO()
    benchmark = _benchmark()
    strategy = _trained(benchmark, _evaluator(text))
    strategy.eval(benchmark.test_stream)
    assert "Top1_Acc_Stream/eval_phase/test_stream" in text.getvalue()


def test_any_strategy_of_the_package():
    benchmark = _benchmark()
    strategy = ManyModes(learner=mm.EWC(_net(), epochs=2), train_mb_size=16, evaluator=None)
    strategy.train(benchmark.train_stream)
    assert strategy.learner.tasks_learnt == 2
    assert strategy.learner.batch_size == 16


def test_what_cannot_work_says_so():
    growing = torch.nn.Sequential(torch.nn.Linear(6, 5), IncrementalClassifier(5))
    with pytest.raises(mm.UserError, match="grows"):
        MOTA(model=growing)
    stop = EarlyStoppingPlugin(patience=0, val_stream_name="test_stream")
    stop.before_training_epoch = lambda strategy, **_: strategy.stop_training()
    strategy = MOTA(model=_net(), evaluator=None, plugins=[stop])
    before = strategy.learner.modes.theta.clone()
    with pytest.raises(mm.UserError, match="early stopping"):
        strategy.train(_benchmark().train_stream[0])
    assert torch.equal(strategy.learner.modes.theta, before)
    assert strategy.learner.step.__func__ is type(strategy.learner).step
