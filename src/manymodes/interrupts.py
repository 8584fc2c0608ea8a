"""Ctrl-C and SIGTERM while learning: finish the epoch, save, stop; a second time: stop at once."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, Protocol

SIGNALS = tuple(getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name))


class Interrupted(KeyboardInterrupt):
    """A run was stopped and everything is saved; its text is one line for the person."""


class Flag(Protocol):
    """A flag that processes share."""

    def is_set(self) -> bool:
        """Whether somebody set it."""


class Stop:
    """Whether to stop as soon as everything can be saved.

    While `patient`, a first signal only asks for it. At any other time, and at the second, a signal raises
    KeyboardInterrupt where the program happens to be: files are whole or not there even so.

    Args:
        shared: In a process that works for another one: what that one sets. Then signals are its business.
    """

    def __init__(self, shared: Flag | None = None) -> None:
        self._shared, self._asked, self._patient = shared, False, False
        self._listening = shared is not None

    @property
    def asked(self) -> bool:
        """Whether somebody asked for it."""
        return self._asked or (self._shared is not None and self._shared.is_set())

    def ask(self) -> None:
        """Ask for it."""
        self._asked = True

    @contextmanager
    def patient(self) -> Iterator[None]:
        """While inside, the first signal waits for a good moment."""
        before, self._patient = self._patient, True
        try:
            yield
        finally:
            self._patient = before

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Take the signals (in the main thread; those that somebody ignores, as nohup does, stay ignored)."""
        if self._listening or threading.current_thread() is not threading.main_thread():
            yield
            return
        self._listening = True
        before: dict[signal.Signals, Any] = {s: signal.getsignal(s) for s in SIGNALS}
        taken = [s for s in SIGNALS if before[s] not in (signal.SIG_IGN, None)]
        for number in taken:
            signal.signal(number, self._on_signal)
        try:
            yield
        finally:
            self._listening = False
            for number in taken:
                signal.signal(number, before[number])

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if self._asked or not self._patient:
            raise KeyboardInterrupt
        self._asked = True
        # Not print: the signal may have come in the middle of one.
        os.write(
            2, b"\nmanymodes: stopping when this epoch is finished and saved; once more to stop at once\n"
        )
