"""Running a learner and a plain loop on the very same batches."""

import torch

from manymodes.task import Task, TensorData
from tests import toys

# SGD without a schedule: what the plain loops in tests/reference do.
PLAIN = {
    "epochs": 2, "batch_size": 8, "lr": 0.05, "optimiser": "sgd", "schedule": "constant", "device": "cpu",
}  # fmt: skip
GROUPS = ((0, 1), (2, 3), (4, 5))


class Recorded(TensorData):
    """Data that remembers the training batches drawn from it."""

    def __init__(self, inputs, targets):
        super().__init__(inputs, targets)
        self.drawn = []

    def batches(self, order, generator=None):
        for batch in super().batches(order, generator):
            if generator is not None:
                self.drawn.append((batch.inputs, batch.targets))
            yield batch


def recorded_tasks(count=3, valid=None, samples=20):
    """Tasks of two classes each, in float64, whose training batches are recorded."""
    return [
        Task(f"task {t}", Recorded(*toys.blobs(g, samples, dtype=torch.float64, spread=1.0)), None, None,
             g if valid is None else valid[t])
        for t, g in enumerate(GROUPS[:count])
    ]  # fmt: skip


def network(**options):
    return toys.net(outputs=6, dtype=torch.float64, **options)


def assert_same_weights(learner, module, mode=0, rtol=1e-8):
    expected = {n: p.detach() for n, p in module.named_parameters()}
    for segment in learner.model.segments:
        found = learner.modes.theta[mode][segment.slice].view(segment.shape)
        torch.testing.assert_close(found, expected[segment.name], rtol=rtol, atol=1e-10, msg=segment.name)


def recorded_replay(learner):
    """The batches of its memory that a learner is about to draw, in a list that fills as it does."""
    drawn, as_data = [], type(learner.memory).as_data

    def recorded(present):
        data = as_data(learner.memory, present)
        found = Recorded(data.inputs, data.targets)
        found.drawn = drawn
        return found

    learner.memory.as_data = recorded
    return drawn
