"""Fine-tuning: learn each task and do nothing about forgetting (the paper's single-task row)."""

from __future__ import annotations

from manymodes.strategies.base import Strategy


class Finetune(Strategy):
    """Plain training on each task in turn: the lower bound that every other method must beat.

    theta <- theta - lr * grad L(theta; task t). The paper calls this row "Single-Task Learning".
    """
