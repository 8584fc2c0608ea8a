"""Avalanche's strategies on our tasks: same module, same initial weights, same order of samples.

Importing this needs Avalanche (benchmarks/peers.txt). A torchvision built for another torch lacks two
operators that nothing here calls; they are declared so that Avalanche can be imported all the same.
"""

from __future__ import annotations

import logging
import random
import warnings
from collections.abc import Iterator, Sequence
from contextlib import suppress
from copy import deepcopy
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

from manymodes.train import randomness, shuffled

with suppress(Exception):
    _OPERATORS = torch.library.Library("torchvision", "DEF")
    for _name in ("nms", "qnms"):
        _OPERATORS.define(f"{_name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")

warnings.filterwarnings("ignore", category=DeprecationWarning)
logging.getLogger("avalanche").setLevel(logging.ERROR)

from avalanche.benchmarks import tensors_benchmark  # noqa: E402
from avalanche.models import MultiTaskModule  # noqa: E402
from avalanche.training.plugins import (  # noqa: E402
    AGEMPlugin,
    EWCPlugin,
    LwFPlugin,
    ReplayPlugin,
    SynapticIntelligencePlugin,
)
from avalanche.training.storage_policy import ClassBalancedBuffer  # noqa: E402
from avalanche.training.supervised import Naive  # noqa: E402

Part = tuple[Tensor, Tensor, tuple[int, ...]]  # inputs, targets, the outputs that are valid


class Heads(MultiTaskModule):
    """A network whose outputs outside the task's classes are masked: a softmax over the task's own."""

    def __init__(self, net: nn.Module, classes: Sequence[tuple[int, ...]], outputs: int) -> None:
        super().__init__()
        self.net, self.max_class_label = net, outputs
        mask = torch.full((len(classes), outputs), -1e9)
        for row, valid in zip(mask, classes, strict=True):
            row[list(valid)] = 0.0
        self.register_buffer("mask", mask)

    def forward_single_task(self, x: Tensor, task_label: int) -> Tensor:
        """Logits of all outputs, those of other tasks far below."""
        return self.net(x) + self.mask[task_label]


class SingleSamples(EWCPlugin):
    """EWC whose Fisher squares the gradients of single samples, as the definition says."""

    def compute_importances(self, model: Any, criterion: Any, optimizer: Any, dataset: Any, device: Any,
                            batch_size: int, num_workers: int = 0) -> Any:  # fmt: skip
        """With a batch of one."""
        return super().compute_importances(model, criterion, optimizer, dataset, device, 1, num_workers)


class OurOrder(Naive):
    """Avalanche's loop over batches in the order in which a learner of ours with this seed draws them."""

    seed = 0

    def make_train_dataloader(self, **kwargs: Any) -> None:
        """The samples as they are, our batches."""
        order = _Epochs(self, len(self.adapted_dataset))
        self.dataloader = DataLoader(
            self.adapted_dataset, batch_sampler=order, collate_fn=self.adapted_dataset.collate_fn
        )


class _Epochs:
    """A batch sampler: each time it is asked, the next epoch's batches."""

    def __init__(self, strategy: OurOrder, count: int) -> None:
        self.strategy, self.count, self.epoch = strategy, count, 0

    def __iter__(self) -> Iterator[list[int]]:
        task = self.strategy.clock.train_exp_counter
        with randomness(self.strategy.seed, task, self.epoch, 0) as generator:
            batches = shuffled(self.count, self.strategy.train_mb_size, generator)
        self.epoch += 1
        return iter([batch.tolist() for batch in batches])

    def __len__(self) -> int:
        return -(-self.count // self.strategy.train_mb_size)


def plugin(name: str, options: dict[str, Any], outputs: int, tasks: int) -> Any:
    """The plugin of a method; `options` are ours, translated where a definition differs by a factor."""
    strength = options.get("strength", 0.0)
    if name == "ewc, as it comes":
        return EWCPlugin(strength)
    if name == "ewc":
        return SingleSamples(strength / 2, mode="online", decay_factor=1.0)
    if name == "ewc, one spring a task":
        return SingleSamples(strength / 2)
    if name == "si":
        return SynapticIntelligencePlugin(2 * strength, eps=options["damping"])
    if name == "lwf":
        temperature = options["temperature"]
        return LwFPlugin(options["distillation"] * temperature**2, temperature)
    size = options["budget"] * outputs
    if name == "er":
        memory = ClassBalancedBuffer(size, adaptive_size=False, total_num_classes=outputs)
        return ReplayPlugin(size, storage_policy=memory)
    assert name == "agem", name
    return AGEMPlugin(size // tasks, options["batch_size"])


def strategy(
    name: str, net: nn.Module, options: dict[str, Any], outputs: int, tasks: int, *, ours: bool
) -> Any:
    """A method of Avalanche, with our order of samples or its own."""
    optimiser = torch.optim.AdamW(net.parameters(), lr=options["lr"], weight_decay=0.0, fused=True)
    plugins = [] if name == "finetune" else [plugin(name, options, outputs, tasks)]
    cls = OurOrder if ours else Naive
    return cls(
        model=net, optimizer=optimiser, criterion=nn.CrossEntropyLoss(), train_mb_size=options["batch_size"],
        train_epochs=options["epochs"], plugins=plugins, evaluator=None,
    )  # fmt: skip


def experiences(parts: Sequence[Part], labels: Sequence[int]) -> Any:
    """The tasks as Avalanche has them."""
    tensors = [(x, y) for x, y, _ in parts]
    return tensors_benchmark(train_tensors=tensors, test_tensors=tensors, task_labels=labels).train_stream


def learnt(name: str, net: nn.Module, options: dict[str, Any], parts: Sequence[Part], outputs: int, *,
           heads: bool, seed: int) -> nn.Module:  # fmt: skip
    """A copy of the network after all tasks; the optimiser starts afresh with each, as ours do."""
    random.seed(seed)
    torch.manual_seed(seed)
    net = deepcopy(net)
    model = Heads(net, [classes for _, _, classes in parts], outputs) if heads else net
    learner = strategy(name, model, options, outputs, len(parts), ours=True)
    learner.seed = seed
    for experience in experiences(parts, range(len(parts)) if heads else [0] * len(parts)):
        learner.train(experience, reset_optimizer_state=True)
    return net
