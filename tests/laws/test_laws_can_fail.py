"""Each law catches a strategy that breaks it."""

import pytest
import torch

from manymodes import ER, EWC, Finetune, LwF
from manymodes.errors import PastDataError
from tests.laws.cases import Case, Lab
from tests.laws.laws import LAWS


class DropsOutWhilePredicting(Finetune):
    def mode_log_probs(self, data, valid):
        return super().mode_log_probs(data, valid) + 1e-3 * torch.rand(1)


class ForgetsToRestrict(Finetune):
    def valid(self, classes):
        return super().valid(range(10))


class TrainsYourModule(Finetune):
    def __init__(self, model, **training):
        super().__init__(model, **training)
        self.yours = model

    def end(self, task):
        with torch.no_grad():
            next(self.yours.parameters()).add_(1.0)


class GlobalRandomness(Finetune):
    def begin(self, task):
        self.modes.theta.add_(1e-3 * torch.randn(self.modes.theta.shape))
        super().begin(task)


class PrefersSmallLabels(Finetune):
    def loss_of(self, logits, batch, valid):
        return super().loss_of(logits, batch, valid) - 0.01 * logits[:, 0].mean()


class SavesNoSprings(EWC):
    def state_dict(self):
        return super().state_dict() | {"springs": None}


class ForgetsTheEpoch(Finetune):
    def state_dict(self):
        state = super().state_dict()
        return state | {"epochs_done": None if state["epochs_done"] is None else 0}


class SharesItsOptimiser(Finetune):
    def load_state_dict(self, state):
        super().load_state_dict(state)
        for optimiser, saved in zip(self.optimisers, state["optimisers"], strict=True):
            optimiser.inner.state[optimiser.parameter] = saved["state"]


class RollsBackTheWeightsOnly(ER):
    """Its memory is written to in place while a task is learnt."""

    def epoch(self, task):
        super().epoch(task)
        self.memory.keys.mul_(0.5)


class KeepsBatches(Finetune):
    def __init__(self, model, **training):
        super().__init__(model, **training)
        self.kept = []

    def end(self, task):
        for data in self.kept:
            next(iter(data.batches([torch.tensor([0])])))
        self.kept.append(task.train)


class PenaltyWithoutStrength(EWC):
    def step(self, mode, batch, loss):
        self.strength = 1.0
        if self.springs is not None:
            self.springs.strength = 1.0
        return super().step(mode, batch, loss)


class PenaltyAlwaysZero(EWC):
    def end(self, task):
        super().end(task)
        self.springs.importance = torch.zeros_like(self.springs.importance)


class TeacherOfNothing(LwF):
    def old_groups(self):
        return []


class FisherInTrainMode(EWC):
    def end(self, task):
        self.model.module.train()
        self.forward(next(iter(task.train.batches([torch.arange(16)]))).inputs)
        super().end(task)


class CountsWrongly(EWC):
    def storage(self):
        return super().storage() | {"parameters": 1}


BROKEN = [
    (DropsOutWhilePredicting, "predict_is_pure"),
    (ForgetsToRestrict, "predictions_are_distributions_over_the_valid_outputs"),
    (TrainsYourModule, "nothing_of_yours_is_changed"),
    (GlobalRandomness, "nothing_of_yours_is_changed"),
    (GlobalRandomness, "same_seed_same_bits"),
    (PrefersSmallLabels, "renumbering_the_labels_renumbers_the_outputs"),
    (SavesNoSprings, "a_saved_learner_is_the_same_learner"),
    (SavesNoSprings, "killed_and_resumed_equals_never_killed"),
    (ForgetsTheEpoch, "killed_and_resumed_equals_never_killed"),
    (ForgetsTheEpoch, "the_same_with_augmented_data"),
    (SharesItsOptimiser, "a_loaded_learner_has_tensors_of_its_own"),
    (RollsBackTheWeightsOnly, "learning_is_all_or_nothing"),
    (KeepsBatches, "without_rehearsal_old_data_is_never_read"),
    (PenaltyWithoutStrength, "weight_zero_is_fine_tuning"),
    (PenaltyAlwaysZero, "the_penalty_is_positive_once_the_weights_move"),
    (TeacherOfNothing, "the_penalty_is_positive_once_the_weights_move"),
    (FisherInTrainMode, "consolidation_does_not_move_the_weights"),
    (CountsWrongly, "the_ledger_counts_what_is_there"),
    (CountsWrongly, "works_before_any_task"),
]


@pytest.mark.parametrize(("cls", "name"), BROKEN, ids=lambda x: x if isinstance(x, str) else x.__name__)
def test_the_law_catches_it(cls, name, monkeypatch):
    monkeypatch.setattr(Case, "cls", property(lambda case: cls))
    with pytest.raises((AssertionError, PastDataError)):
        LAWS[name](Lab(Case(cls.__name__), "norm"))
