"""The place in a Ray cluster where runs and whoever started them leave each other messages."""

from __future__ import annotations

from typing import Any

from manymodes.parcels import Parcel

# Who began (where, and whether it sees the directory), how far runs are, files, printed lines.
News = tuple[
    dict[int, tuple[str, bool]],
    dict[int, dict[str, Any]],
    list[tuple[int, int, Parcel]],
    list[tuple[int, str]],
]


class Desk:
    """Lives in the cluster: runs and whoever started them leave each other messages here."""

    def __init__(self) -> None:
        self.stop = False
        self.admitted: set[tuple[int, int]] = set()
        self.begun: dict[int, tuple[str, bool]] = {}  # where, and whether it sees the directory
        self.events: dict[int, dict[str, Any]] = {}
        self.said: list[tuple[int, str]] = []
        self.parcels: list[tuple[int, int, Parcel]] = []
        self.given: dict[tuple[int, int], Parcel | str] = {}

    def begin(self, number: int, attempt: int, where: str, sees: bool) -> bool:
        """A run is about to begin; whether it shall."""
        if not self.stop:
            self.admitted.add((number, attempt))
            self.begun[number] = where, sees
        return not self.stop

    def tell(self, number: int, event: dict[str, Any], said: list[str]) -> bool:
        """How far a run is and what it printed; whether it shall stop."""
        self.events[number] = event
        self.said += [(number, line) for line in said]
        return self.stop

    def post(self, number: int, attempt: int, parcel: Parcel) -> None:
        """Files of a run."""
        self.parcels.append((number, attempt, parcel))

    def give(self, number: int, attempt: int, parcel: Parcel | str) -> None:
        """The files that a run needs to go on, or why it cannot have them."""
        self.given[number, attempt] = parcel

    def take(self, number: int, attempt: int) -> Parcel | str | None:
        """The same for the run, once they are there."""
        return self.given.pop((number, attempt), None)

    def ask(self) -> set[tuple[int, int]]:
        """All are to stop; those that have not begun, and are not among these, never will."""
        self.stop = True
        return self.admitted

    def heard(self) -> News:
        """What is new since the last time."""
        news = self.begun, self.events, self.parcels, self.said
        self.begun, self.events, self.parcels, self.said = {}, {}, [], []
        return news
