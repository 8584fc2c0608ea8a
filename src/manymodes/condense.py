"""One network instead of several modes, if a person's bound on the loss of accuracy holds."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from manymodes.errors import UserError, require, unknown
from manymodes.heldout import HeldOut
from manymodes.modes import joint
from manymodes.penalties import distillation
from manymodes.reading import Samples, subset
from manymodes.strategies.base import Strategy
from manymodes.strategies.finetune import Finetune
from manymodes.streams.split import stratified
from manymodes.task import Batch, TensorData
from manymodes.train import Optimiser, gradient, randomness, shuffled, steps_per_epoch
from manymodes.using import as_input, outputs_of

WAYS = ("distil", "mean")
MEASURED = 0.3  # of the samples: never trained on


class LossTooLarge(UserError):
    """The single network loses more accuracy than was allowed; nothing was written."""

    code = 3


@dataclass(frozen=True)
class Single:
    """The single network as a learner, and held-out accuracy of the modes and of it."""

    learner: Strategy
    before: float
    after: float
    samples: int


def condense(
    learner: Strategy, samples: Samples, how: str, max_loss: float, *, epochs: int = 30, lr: float = 1e-3
) -> Single:
    """A single network in the place of the modes, or LossTooLarge.

    "mean" averages the modes' weights (good only where modes lie close together); "distil" trains one of
    them towards the joint distribution on 70 % of the samples. Accuracy is measured on the other 30 %.

    Args:
        learner: Any learner.
        samples: Labelled samples of what it has learnt.
        how: "distil" or "mean".
        max_loss: How much held-out accuracy may fall (0.01: one point).
        epochs: Passes of the distillation.
        lr: Its learning rate at the peak.
    """
    if how not in WAYS:
        raise unknown("--average", how, WAYS)
    require(0 <= max_loss <= 1, f"--max-loss {max_loss}: give a share from 0 to 1")
    targets = torch.tensor(outputs_of(learner, samples.labels or [], "--data"))
    train, _, measured = stratified(targets, learner.seed, (1 - MEASURED, 0.0, MEASURED))
    require(len(train) > 0 and len(measured) > 0, f"{samples.where} has too few samples: give ten per class")
    held_out = HeldOut(learner, subset(samples, measured.tolist()))
    before = held_out.accuracy(learner)
    if how == "mean":
        single = _single(learner, learner.modes.theta.mean(0), learner.modes.buffers.mean(0))
    else:
        raw = subset(samples, train.tolist()).read()
        single = _distilled(learner, as_input(learner, raw), epochs, lr)
    after = held_out.accuracy(single)
    if before - after > max_loss:
        raise LossTooLarge(
            f"refused: one network by {how!r} has held-out accuracy {after:.3f}, the modes {before:.3f}: a "
            f"loss of {before - after:.3f}, more than {max_loss:g}; nothing was written"
        )
    return Single(single, before, after, len(measured))


def _single(learner: Strategy, theta: Tensor, buffers: Tensor) -> Finetune:
    """A learner with this one vector, and the outputs and names of the other."""
    options = {k: v for k, v in learner.options.items() if k in ("batch_size", "device", "precision", "seed")}
    single = Finetune(learner.model.module, **options)
    state = {k: v for k, v in learner.state_dict().items() if k in single.state_dict()}
    single.load_state_dict(state | {"theta": theta[None], "buffers": buffers[None]})
    single.about = dict(learner.about)
    return single


def _distilled(learner: Strategy, data: TensorData, epochs: int, lr: float) -> Finetune:
    """The mode that is nearest to the joint distribution, trained towards it."""
    groups = learner.old_groups()
    teachers, gaps_N = [], torch.zeros(len(learner.modes))
    with torch.no_grad():
        for group in groups:
            valid = learner.valid(group.tolist())
            log_probs_NSK = learner.mode_log_probs(data, valid)
            teacher = joint(log_probs_NSK, learner.log_weights(data, valid))
            gaps_N += (teacher.exp() * (teacher - log_probs_NSK)).sum(dim=2).mean(dim=1).cpu()
            teachers.append(teacher)
    start = int(gaps_N.argmin())
    single = _single(learner, learner.modes.theta[start], learner.modes.buffers[start])
    size = single.batch_size
    optimiser = Optimiser(
        single.model.theta, name="adamw", lr=lr, weight_decay=0.0, schedule="1cycle",
        total_steps=epochs * steps_per_epoch(len(data), size),
    )  # fmt: skip

    def loss(batch: Batch) -> Tensor:
        rows = batch.index.to(single.model.device)
        return distillation(single.forward(batch.inputs), [t[rows] for t in teachers], groups, 1.0)

    single.use(0)
    single.model.module.train()
    for part in single.model.module.modules():  # statistics stay those of all that was learnt
        if isinstance(part, torch.nn.modules.batchnorm._BatchNorm):
            part.eval()
    for epoch in range(epochs):
        with randomness(learner.seed, "distil", epoch) as generator:
            for batch in data.batches(shuffled(len(data), size, generator)):
                moved = Batch(*(t.to(single.model.device) for t in batch))
                gradient(single.model, loss, moved)
                optimiser.step()
    return single
