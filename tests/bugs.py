"""Known bugs of other libraries, each as a strategy or function of ours that has it on purpose."""

import copy

import numpy as np
import torch
from torch.nn.functional import log_softmax

from manymodes import AGEM, ER, EWC, SI, LwF
from manymodes.strategies import lwf
from manymodes.strategies.teachers import Teacher
from manymodes.train import gradient, on_device, over

# ---- EWC ---------------------------------------------------------------------------------------------


class PenaltyAlwaysZero(EWC):
    """The anchor is a view of the live parameters, so that theta - anchor is zero."""

    def end(self, task):
        super().end(task)
        self.springs.anchor = self.modes.theta[0]


class FisherInTrainMode(EWC):
    """The pass that measures importance moves BatchNorm's running statistics."""

    def end(self, task):
        self.use(0)
        self.model.module.train()
        for batch in on_device(task.train.batches([torch.arange(len(task.train))]), self.model.device):
            self.forward(batch.inputs)
        super().end(task)


class SquaredBatchMean(EWC):
    """The square of the mean gradient of a batch instead of the mean of the squares."""

    fisher_batch = 4

    def end(self, task):
        super().end(task)
        self.use(0)
        self.model.module.eval()
        valid, total = self.valid(task.classes), torch.zeros_like(self.springs.importance)
        for batch in task.train.batches(torch.arange(len(task.train)).split(self.fisher_batch)):
            gradient(self.model, lambda b: self.loss(b, valid), batch)
            total += self.model.grad.square() * len(batch.index)
        self.springs.importance = total / len(task.train)


class NoOneHalf(EWC):
    def end(self, task):
        super().end(task)
        self.springs.strength = 2 * self.strength


class SkipsHeads(EWC):
    """Only the parameters before the head are held, as where head sizes were found to differ."""

    def end(self, task):
        super().end(task)
        head = self.model.segments[-2].slice.start
        self.springs.importance = self.springs.importance.clone()
        self.springs.importance[head:] = 0


class ForgetsSpringsOnResume(EWC):
    def load_state_dict(self, state):
        super().load_state_dict(state)
        self.springs = None


# ---- SI ----------------------------------------------------------------------------------------------


class PenaltyAfterBackward(SI):
    """The penalty is added to the loss that is reported, after the gradient was taken."""

    def step(self, mode, batch, loss):
        springs, self.springs = self.springs, None
        value = super().step(mode, batch, loss)
        self.springs = springs
        return value + (0 if springs is None else springs.value(self.model.theta.data))


class PathWithPenalty(SI):
    def step(self, mode, batch, loss):
        value, before = gradient(self.model, loss, batch), self.model.theta.data.clone()
        if self.springs is not None:
            self.springs.add_gradient(before, self.model.grad)
        self.optimisers[mode].step()
        self.path -= self.model.grad * (self.model.theta.data - before)
        return value


class ImportanceClipped(SI):
    """Silently, at a small constant."""

    def end(self, task):
        super().end(task)
        self.springs.importance = self.springs.importance.clamp(max=1e-3)


class BatchNormLeftOut(SI):
    def end(self, task):
        super().end(task)
        for segment in self.model.segments:
            if segment.name.startswith("1."):
                self.springs.importance[segment.slice] = 0


# ---- LwF ---------------------------------------------------------------------------------------------


class NoGradientFlows(LwF):
    def loss(self, batch, valid):
        whole = super().loss(batch, valid)
        plain = self.loss_of(self.forward(batch.inputs), batch, valid)
        return plain + (whole - plain).detach()


class MismatchedKeys(LwF):
    """Old heads are looked up under names that no old head has."""

    def old_groups(self):
        return []


class _InTrainMode(Teacher):
    def _looked_up(self, data):
        compute = lambda batch: torch.cat(self.on_inputs(batch.inputs), dim=1)  # noqa: E731
        return over(data, compute, self.model.device)

    def on_inputs(self, inputs):
        rows = []
        with torch.no_grad(), self.model.bound(self.frozen.theta[0], self.frozen.buffers[0]):
            self.model.module.train()
            logits = self.forward(inputs)
            self.model.module.eval()
        rows = [log_softmax(logits[:, g] / self.temperature, dim=1) for g in self.groups]
        return rows


class TeacherInTrainMode(LwF):
    def prepare(self, task):
        lwf.Teacher, good = _InTrainMode, lwf.Teacher
        try:
            super().prepare(task)
        finally:
            lwf.Teacher = good


class TeacherSeesOtherInputs(LwF):
    """The teacher's outputs are looked up in the order of the batch, not by the samples' numbers."""

    def loss(self, batch, valid):
        return super().loss(batch._replace(index=torch.arange(len(batch.index))), valid)


# ---- A-GEM and ER --------------------------------------------------------------------------------------


class HeadGradientsLeftOut(AGEM):
    """The reference gradient of heads that the task does not use is lost (None in other code)."""

    def _rehearse(self, replayed):
        used = self._allowed_SC.new_zeros(self._allowed_SC.shape[1])
        used[self.now] = True
        logits = super().forward(replayed.inputs)
        logits = torch.where(used, logits, logits.detach())
        return self.memory_loss(logits, replayed)

    def prepare(self, task):
        super().prepare(task)
        self.now = list(task.classes)


class NoEpsilon(AGEM):
    """g - (g . r) / (r . r) r, also where r is zero."""

    def step(self, mode, batch, loss):
        if self._reference is None:
            return super().step(mode, batch, loss)
        self.replayed = next(self._batches)
        gradient(self.model, lambda b: 0 * self._rehearse(b), self.replayed)
        r = self.model.grad.clone()
        value = gradient(self.model, loss, batch)
        g = self.model.grad
        g -= torch.dot(g, r).clamp(max=0) / torch.dot(r, r) * r
        self.optimisers[mode].step()
        return value


class ZeroReference(AGEM):
    """Ours, with a memory loss that has no gradient."""

    def _rehearse(self, replayed):
        return 0 * super()._rehearse(replayed)


class OneBatchStored(AGEM):
    def end(self, task):
        class First:
            targets = task.train.targets[:8]

            def __len__(self):
                return 8

            def batches(self, order, generator=None):
                return task.train.batches(order, generator)

        super().end(copy.copy(task).__class__(task.name, First(), None, None, task.classes))


class QuotaOfTheWhole(ER):
    """The budget is shared by the classes instead of being each one's own."""

    def end(self, task):
        super().end(task)
        chosen = torch.arange(len(self.memory))[: self.budget]
        for name in ("inputs", "targets", "owners", "keys"):
            setattr(self.memory, name, getattr(self.memory, name)[chosen])


# ---- metrics ------------------------------------------------------------------------------------------


def forgetting_first_minus_last(accuracy):
    matrix = np.asarray(accuracy)
    tasks = matrix.shape[1]
    return float(np.mean([matrix[v + 1, v] - matrix[tasks, v] for v in range(tasks - 1)]))


def accuracy_one_row_early(accuracy):
    matrix = np.asarray(accuracy)
    return float(matrix[matrix.shape[1] - 1].mean())


def accuracy_of_the_unseen(accuracy, after):
    return float(np.asarray(accuracy)[after].mean())


def accuracy_that_writes(accuracy):
    accuracy[0, :] = 0
    return float(accuracy[-1].mean())
