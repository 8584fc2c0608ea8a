"""Fine-tuning, and with it what all strategies inherit: the loop, predictions, reports, saving."""

import copy
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import Dataset, TensorDataset

import manymodes as mm
from manymodes import Finetune
from manymodes.errors import UserError
from manymodes.task import Task, TensorData
from tests import toys
from tests.reference import finetune as slow
from tests.strategies.recording import Recorded, assert_same_weights, network, recorded_tasks

TRAINING = {"epochs": 3, "batch_size": 8, "lr": 0.02, "weight_decay": 0.01, "device": "cpu"}


@pytest.mark.parametrize("norm", [False, True])
@pytest.mark.parametrize(
    "valid", [None, [(0, 1), (0, 1, 2, 3), (0, 1, 2, 3, 4, 5)], [(4, 2, 0, 1, 3, 5)] * 3]
)
def test_three_tasks_equal_a_hand_written_loop(norm, valid):
    module, learner, losses = network(norm=norm), Finetune(network(norm=norm), **TRAINING), []
    for task in recorded_tasks(valid=valid):
        learner.learn(task, on_event=lambda event: losses.append(event.loss))
        options = {k: TRAINING[k] for k in ("epochs", "lr", "weight_decay")}
        expected = slow.train(module, task.train.drawn, task.classes, **options)
        assert_same_weights(learner, module, rtol=1e-6)
        assert losses[-3:] == pytest.approx(expected, rel=1e-6)


def test_every_epoch_has_another_order_and_no_sample_is_left_out():
    task = recorded_tasks(1, samples=19)[0]
    Finetune(network(), **TRAINING).learn(task)
    epochs = [torch.cat([x for x, _ in task.train.drawn[3 * e : 3 * e + 3]]) for e in range(3)]
    assert not torch.equal(epochs[0], epochs[1])
    for epoch in epochs:
        assert torch.equal(epoch.sort(dim=0).values, task.train.inputs.sort(dim=0).values)


def test_events_tell_of_every_pass():
    events, epochs = [], []
    learner = Finetune(network(), **TRAINING)
    learner.learn(
        recorded_tasks(1)[0], on_event=events.append, on_epoch=lambda same: epochs.append(same.epochs_done)
    )
    assert [(e.task, e.epoch, e.epochs, e.mode, e.modes) for e in events] == [
        (0, e, 3, 0, 1) for e in (1, 2, 3)
    ]
    assert epochs == [1, 2, 3]
    assert all(e.seconds > 0 and e.penalty == 0 and e.name == "task 0" for e in events)
    assert events[0].drift > 0
    assert events[-1].drift == pytest.approx(
        (learner.modes.theta[0] - Finetune(network(), **TRAINING).modes.theta[0]).square().mean().item()
    )


# ---- what may be learnt ------------------------------------------------------------------------------


class Pairs(Dataset):
    def __init__(self, inputs, targets):
        self.pairs = list(zip(inputs, targets.tolist(), strict=True))

    def __len__(self):
        return len(self.pairs)

    def __getitem__(self, i):
        return self.pairs[i]


def test_all_forms_of_data_give_the_same_weights():
    x, y = toys.blobs((0, 1))
    forms = [
        ((x, y), {}),
        ((x.numpy(), y.numpy()), {}),
        (((x, y),), {}),
        ((TensorDataset(x, y),), {}),
        ((Pairs(x, y),), {}),
        ((x, y), {"classes": np.unique(y.numpy())}),
        ((Task("task 1", TensorData(x, y), None, None, (0, 1)),), {}),
    ]
    found = [Finetune(toys.net(), **TRAINING).learn(*data, **options) for data, options in forms]
    assert all(torch.equal(f.modes.theta, found[0].modes.theta) for f in found)
    assert all(f.heads == [(0, 1)] for f in found)


def test_a_task_speaks_for_itself():
    task = toys.task((0, 1))
    with pytest.raises(UserError, match="a Task has its own targets, classes"):
        Finetune(toys.net(), **TRAINING).learn(task, targets=[0], classes=(0,))


def test_your_model_and_data_stay_as_they_were():
    module, task = toys.net(norm=True), toys.task((0, 1))
    before = copy.deepcopy(module.state_dict()), task.train.inputs.clone(), task.train.targets.clone()
    learner = Finetune(module, **TRAINING).learn(task)
    assert all(torch.equal(module.state_dict()[k], v) for k, v in before[0].items())
    assert torch.equal(task.train.inputs, before[1])
    assert torch.equal(task.train.targets, before[2])
    assert learner.model.module is not module


def test_float64_stays_float64():
    learner = Finetune(network(), **TRAINING).learn(recorded_tasks(1)[0])
    assert learner.modes.theta.dtype == torch.float64
    assert learner.predict(torch.zeros(1, 6, dtype=torch.float64)).dtype == torch.float64


def test_bf16_forward_keeps_float32_weights():
    learner = Finetune(toys.net(), precision="bf16", **TRAINING).learn(toys.task((0, 1)))
    assert learner.modes.theta.dtype == torch.float32
    full = Finetune(toys.net(), **TRAINING).learn(toys.task((0, 1)))
    assert not torch.equal(full.modes.theta, learner.modes.theta)
    torch.testing.assert_close(full.modes.theta, learner.modes.theta, atol=0.05, rtol=0)


def test_frozen_batch_norm_keeps_the_statistics_of_task_1():
    learner, first = Finetune(network(norm=True), batchnorm="frozen", **TRAINING), recorded_tasks(2)
    learner.learn(first[0])
    kept = learner.modes.buffers.clone()
    assert kept[0, :5].abs().sum() > 0
    learner.learn(first[1])
    assert torch.equal(learner.modes.buffers, kept)
    moving = Finetune(network(norm=True), **TRAINING)
    moving.learn(recorded_tasks(2)[0])
    moving.learn(recorded_tasks(2)[1])
    assert not torch.equal(moving.modes.buffers, kept)


def test_augmentation_reaches_training_and_nothing_else():
    seen = []

    def augment(raw, generator):
        seen.append(len(raw))
        return raw + torch.rand(raw.shape, generator=generator)

    task = toys.task((0, 1), augment=augment)
    learner = Finetune(toys.net(), **TRAINING).learn(task)
    assert sum(seen) == 3 * 30
    learner.predict(task.train)
    assert sum(seen) == 3 * 30
    again = Finetune(toys.net(), **TRAINING).learn(toys.task((0, 1), augment=augment))
    assert torch.equal(again.modes.theta, learner.modes.theta)


# ---- predictions -------------------------------------------------------------------------------------


def test_predictions_are_a_softmax_over_the_valid_outputs():
    learner = Finetune(toys.net(), **TRAINING).learn(toys.task((0, 1))).learn(toys.task((3,), name="c"))
    x = torch.randn(5, 6)
    learner.use(0)
    with torch.no_grad(), learner.model.evaluating():
        logits = learner.model.module(x)
    torch.testing.assert_close(learner.predict(x)[:, [0, 1, 3]], logits[:, [0, 1, 3]].softmax(dim=1))
    assert learner.predict(x)[:, 2].abs().max() == 0
    torch.testing.assert_close(learner.predict(x, classes=(1, 2))[:, 1:3], logits[:, 1:3].softmax(dim=1))
    torch.testing.assert_close(learner.predict(x, classes=range(4)), logits.softmax(dim=1))


def test_before_any_task_all_outputs_are_valid():
    found = Finetune(toys.net(), **TRAINING).predict(torch.randn(3, 6))
    assert found.shape == (3, 4)
    assert (found > 0).all()


def test_predict_takes_lists_arrays_and_data():
    learner = Finetune(toys.net(), **TRAINING).learn(toys.task((0, 1)))
    x = torch.randn(3, 6)
    expected = learner.predict(x)
    for form in (x.numpy(), x.tolist(), TensorData(x, torch.zeros(3))):
        torch.testing.assert_close(learner.predict(form), expected)


def test_many_samples_are_predicted_in_pieces():
    learner = Finetune(toys.net(norm=True), **TRAINING).learn(toys.task((0, 1)))
    x = torch.randn(1300, 6)
    torch.testing.assert_close(learner.predict(x)[600:700], learner.predict(x[600:700]))


@pytest.mark.parametrize(
    ("inputs", "classes", "says"),
    [
        (torch.zeros(2, 5), None, r"input of shape \(5,\)"),
        (torch.zeros(2, 6, dtype=torch.long), None, "does not accept"),
        (torch.zeros(0, 6), None, "no sample"),
        (torch.tensor([[0.0, float("nan"), 0, 0, 0, 0]]), None, "NaN or infinite inputs in 1 of 1 samples"),
        (torch.tensor(3.0), None, "first axis"),
        (7, None, "first axis"),
        ([["a"] * 6], None, "cannot become a tensor"),
        (torch.zeros(2, 6), (4,), "0 to 3"),
        (torch.zeros(2, 6), (), "0 to 3"),
        (torch.zeros(2, 6), 3, "0 to 3"),
        (torch.zeros(2, 6), ("cat",), "0 to 3"),
    ],
)
def test_what_cannot_be_predicted_says_why(inputs, classes, says):
    learner = Finetune(toys.net(), **TRAINING).learn(toys.task((0, 1)))
    with pytest.raises(UserError, match=says) as caught:
        learner.predict(inputs, classes=classes)
    assert "\n" not in str(caught.value)


# ---- seeds, saving -----------------------------------------------------------------------------------


def test_the_seed_is_the_order_of_the_batches():
    one, same, other = (Finetune(toys.net(), seed=s, **TRAINING).learn(toys.task((0, 1))) for s in (1, 1, 2))
    assert torch.equal(one.modes.theta, same.modes.theta)
    assert not torch.equal(one.modes.theta, other.modes.theta)


def test_learning_does_not_touch_the_global_generator():
    torch.manual_seed(3)
    expected = torch.rand(2)
    torch.manual_seed(3)
    Finetune(toys.net(), **TRAINING).learn(toys.task((0, 1)))
    assert torch.equal(torch.rand(2), expected)


def test_a_registered_learner_and_model_are_loaded_by_the_file_alone(tmp_path):
    task = toys.task((0, 1))
    learner = Finetune(mm.models.mlp(6, (5,), outputs=4), **TRAINING).learn(task)
    learner.save(tmp_path / "a.safetensors")
    again = mm.load(tmp_path / "a.safetensors")
    assert type(again) is Finetune
    assert again.options == learner.options
    assert torch.equal(again.predict(task.test), learner.predict(task.test))
    assert again.learn(toys.task((2, 3))).heads == [(0, 1), (2, 3)]


def test_your_own_model_has_to_be_given(tmp_path):
    learner = Finetune(toys.net(), **TRAINING).learn(toys.task((0, 1)))
    learner.save(tmp_path / "a.safetensors")
    with pytest.raises(UserError, match=r"load\(..., model=...\)"):
        mm.load(tmp_path / "a.safetensors")
    again = mm.load(tmp_path / "a.safetensors", model=toys.net(seed=9), epochs=1)
    assert torch.equal(again.modes.theta, learner.modes.theta)
    assert again.epochs == 1


def test_modules_with_everything_learn():
    """Tied and frozen weights, lazily never, an embedding, dropout, GroupNorm."""

    class Odd(nn.Module):
        def __init__(self):
            super().__init__()
            self.table = nn.Embedding(9, 6)
            self.norm, self.drop = nn.GroupNorm(2, 6), nn.Dropout(0.5)
            self.first, self.second = nn.Linear(6, 6), nn.Linear(6, 6)
            self.second.weight = self.first.weight
            self.first.bias.requires_grad_(False)
            self.fc = nn.Linear(6, 4)

        def forward(self, x):
            h = self.norm(self.table(x).mean(dim=1))
            return self.fc(self.second(torch.relu(self.first(self.drop(h)))))

    x, y = torch.randint(9, (40, 3)), torch.arange(40) % 4
    module = Odd()
    learner = Finetune(module, **TRAINING).learn(x, y)
    assert torch.equal(learner.model.module.first.bias, module.first.bias)
    assert learner.model.module.first.weight is learner.model.module.second.weight
    assert learner.predict(x).shape == (40, 4)
    again = Finetune(Odd().requires_grad_(True) and module, **TRAINING).learn(x, y)
    assert torch.equal(again.modes.theta, learner.modes.theta)  # dropout follows from the seed


def test_replaced_tasks_are_tasks():
    task = toys.task((0, 1))
    recorded = replace(task, train=Recorded(task.train.inputs, task.train.targets))
    Finetune(toys.net(), **TRAINING).learn(recorded)
    assert sum(len(x) for x, _ in recorded.train.drawn) == 90
