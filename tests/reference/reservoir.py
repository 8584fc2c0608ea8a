"""A class-balanced reservoir, the slow obvious way: remember everything, sort, cut."""

from __future__ import annotations


class Reservoir:
    """Of each class the `budget` samples with the smallest keys, among all that were ever offered."""

    def __init__(self, budget: int) -> None:
        self.budget = budget
        self.offered: list[tuple[float, int, int]] = []  # key, class, number

    def add(self, keys: list[float], classes: list[int], numbers: list[int]) -> None:
        self.offered += list(zip(keys, classes, numbers, strict=True))

    def kept(self) -> list[int]:
        """The numbers kept, class by class, in ascending order."""
        found: list[int] = []
        for label in {c for _, c, _ in self.offered}:
            of_class = sorted(entry for entry in self.offered if entry[1] == label)
            found += [number for _, _, number in of_class[: self.budget]]
        return sorted(found)
