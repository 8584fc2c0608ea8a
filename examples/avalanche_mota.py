"""MOTA in a script that uses Avalanche: its benchmark, its metrics, its loggers, one line for the strategy.

Run: python examples/avalanche_mota.py     (needs `pip install "manymodes[avalanche]"`)
"""

import sys

import numpy as np
import torch
from sklearn.datasets import load_digits

import manymodes as mm

try:
    from avalanche.benchmarks import tensors_benchmark
    from avalanche.evaluation.metrics import accuracy_metrics, forgetting_metrics
    from avalanche.logging import InteractiveLogger
    from avalanche.models import as_multitask
    from avalanche.training import Naive
    from avalanche.training.plugins import EvaluationPlugin
except (ImportError, RuntimeError) as error:  # a torchvision that does not fit torch raises RuntimeError
    sys.exit(f'this example needs Avalanche: pip install "manymodes[avalanche]" ({error})')

from manymodes.contrib.avalanche import MOTA, ManyModes

PAIRS = ((0, 1), (2, 3), (4, 5), (6, 7), (8, 9))


def benchmark():
    """Two digits at a time, each pair with a task label of its own (task-incremental)."""
    x, y = load_digits(return_X_y=True)
    x, y = torch.tensor(x / 16, dtype=torch.float32), torch.tensor(y)
    test = torch.arange(len(y)) % 5 == 0

    def part(rows):
        chosen = [rows & torch.isin(y, torch.tensor(pair)) for pair in PAIRS]
        return [(x[where], y[where]) for where in chosen]

    return tensors_benchmark(
        train_tensors=part(~test), test_tensors=part(test), task_labels=list(range(len(PAIRS)))
    )


def evaluator(*loggers):
    return EvaluationPlugin(
        accuracy_metrics(experience=True, stream=True), forgetting_metrics(stream=True), loggers=[*loggers]
    )


def network():
    torch.manual_seed(0)
    return mm.models.mlp(64, outputs=10)


def learn(strategy):
    """Train on each experience in turn; the mean accuracy over all of them in the end."""
    data = benchmark()
    for experience in data.train_stream:
        strategy.train(experience)
    results = strategy.eval(data.test_stream)
    found = [value for key, value in results.items() if key.startswith("Top1_Acc_Exp")]
    return float(np.mean(found))


def main():
    model = as_multitask(network(), "fc")  # a head for each task, as our learners have by task label
    naive = Naive(
        model=model,
        optimizer=torch.optim.AdamW(model.parameters(), lr=0.002),
        criterion=torch.nn.CrossEntropyLoss(),
        train_mb_size=32,
        train_epochs=10,
        eval_mb_size=128,
        evaluator=evaluator(),
    )
    ewc = ManyModes(learner=mm.EWC(network(), epochs=10, batch_size=32), evaluator=evaluator())
    watched = evaluator(InteractiveLogger())
    mota = MOTA(model=network(), modes=2, train_mb_size=32, train_epochs=10, evaluator=watched)
    strategies = {"Avalanche's Naive": naive, "EWC of manymodes": ewc, "MOTA": mota}
    accuracy = {name: learn(strategy) for name, strategy in strategies.items()}
    for name, value in accuracy.items():
        print(f"{name:20} {100 * value:5.1f} % after the last of {len(PAIRS)} experiences")
    assert accuracy["MOTA"] > 0.9


if __name__ == "__main__":
    main()
