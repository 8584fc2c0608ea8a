"""The widest network that fits, by trying every width."""

from collections.abc import Callable


def widest(size: Callable[[float], int], budget: int, highest: int) -> float:
    """The largest multiple of 1 / 10,000 up to `highest` at which size(width) is within the budget, or 0."""
    widths = [step / 10_000 for step in range(1, highest * 10_000 + 1)]
    return max((width for width in widths if size(width) <= budget), default=0.0)
