"""Avalanche 0.6 as a peer: fine-tuning and EWC on the same tensors. For an environment of its own.

pip install torch==2.13.0 torchvision==0.28.0 avalanche-lib==0.6.0
"""

from __future__ import annotations

import io
from collections.abc import Callable
from contextlib import redirect_stdout, suppress
from typing import Any

import torch
from torch import Tensor, nn

Clock = Callable[[], float]


def available() -> bool:
    """Whether Avalanche can be imported here."""
    with suppress(RuntimeError):  # torchvision lacks two operators (that nobody calls) with this torch
        library = torch.library.Library("torchvision", "DEF")
        for name in ("nms", "qnms"):
            library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        KEPT.append(library)
    try:
        import avalanche  # noqa: F401
    except (ImportError, RuntimeError):
        return False
    return True


KEPT: list[Any] = []  # a library lives as long as its object


def epochs(
    model: nn.Module, data: tuple[Tensor, Tensor], batch: int, count: int, lr: float, clock: Clock, past: int
) -> list[float]:
    """When each epoch ended; with `past` tasks behind it, EWC with as many springs (its own "separate")."""
    from avalanche.benchmarks import tensors_benchmark
    from avalanche.training import EWC, Naive
    from avalanche.training.plugins import EvaluationPlugin, SupervisedPlugin

    ends: list[float] = []

    class Watch(SupervisedPlugin):  # type: ignore[misc]
        def after_training_epoch(self, strategy: Any, **_: Any) -> None:
            ends.append(clock())

    optimiser = torch.optim.AdamW(model.parameters(), lr=lr, weight_decay=0.0, fused=True)
    options: dict[str, Any] = {
        "model": model, "optimizer": optimiser, "train_mb_size": batch, "train_epochs": count,
        "criterion": nn.CrossEntropyLoss(),
        "evaluator": EvaluationPlugin(), "plugins": [Watch()],
    }  # fmt: skip
    with redirect_stdout(io.StringIO()):
        strategy = EWC(ewc_lambda=1000.0, mode="separate", **options) if past else Naive(**options)
        stream = tensors_benchmark(train_tensors=[data], test_tensors=[data], task_labels=[0]).train_stream
        if past:
            plugin = next(p for p in strategy.plugins if type(p).__name__ == "EWCPlugin")
            plugin.after_training_exp = lambda *_, **__: None  # the Fisher is no part of a step
            _remember(plugin, model, past)
            strategy.clock.train_exp_counter = past
        strategy.train(stream[0], num_workers=0)
    return ends


def _remember(plugin: Any, model: nn.Module, past: int) -> None:
    """Springs of so many past tasks, in the plugin's own form."""
    from avalanche.training.utils import ParamData

    def kept(values: dict[str, Tensor]) -> dict[str, Any]:
        return {n: ParamData(n, v.shape, init_tensor=v, device=v.device) for n, v in values.items()}

    for task in range(past):
        here = {name: p.detach() for name, p in model.named_parameters()}
        plugin.saved_params[task] = kept({n: p + 0.01 * torch.randn_like(p) for n, p in here.items()})
        plugin.importances[task] = kept({n: torch.rand_like(p) for n, p in here.items()})
