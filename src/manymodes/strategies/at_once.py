"""Modes that learn at the same time: each process trains those it owns and tells what came of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

from torch import Tensor

from manymodes import distributed
from manymodes.errors import UserError, require
from manymodes.strategies.base import Event
from manymodes.strategies.separation import Separated
from manymodes.task import Task

Found = TypeVar("Found")


class _Told(NamedTuple):
    """What a process tells after an epoch: each mode's result and events, or why it could not go on."""

    modes: dict[int, tuple[Any, list[Event]]]
    counted: dict[str, Tensor]  # by how much the module's own buffers (numbers of batches) grew
    error: UserError | None


def owner(mode: int) -> int:
    """The process that trains a mode."""
    return mode % distributed.count()


class AtOnce(Separated):
    """Base of strategies that can train their modes at the same time, each in the process that owns it.

    Within a task a mode's weights and optimiser are up to date with its owner only; `assemble` makes them
    the same everywhere, for a checkpoint and at the end of the task.
    """

    def __init__(self, *arguments: Any, mode_parallel: bool, **options: Any) -> None:
        super().__init__(*arguments, **options)
        require(
            not mode_parallel or distributed.count() <= len(self.modes),
            f"mode_parallel: {distributed.count()} processes for {len(self.modes)} modes; start at most "
            "as many processes as there are modes",
        )
        self.mode_parallel = mode_parallel
        self._scattered = False  # whether modes are up to date with their owners only

    def at_once(self, train: Callable[[int], Found], *, weights: bool = False) -> list[Found]:
        """What train(mode) returned, by mode; each mode was trained by its owner.

        With `weights` the modes themselves are exchanged too. If one owner cannot go on, nobody can.
        """
        told = _Told({}, {}, None)
        emit, counters = self._emit, dict(self._module_buffers())
        before = {name: buffer.clone() for name, buffer in counters.items()}
        mine = [mode for mode in range(len(self.modes)) if owner(mode) == distributed.number()]
        with distributed.apart():
            try:
                for mode in mine:
                    events: list[Event] = []
                    self._emit = events.append
                    told.modes[mode] = train(mode), events
            except UserError as error:
                told = told._replace(error=error)
            finally:
                self._emit = emit
        told.counted.update({name: buffer - before[name] for name, buffer in counters.items()})
        everyone = distributed.everyone(told)
        failed = next((other.error for other in everyone if other.error is not None), None)
        if failed is not None:
            raise failed
        for name, buffer in counters.items():
            grown = [other.counted[name].to(buffer.device) for other in everyone]
            buffer.copy_(before[name] + sum(grown))
        self._scattered = distributed.count() > 1
        if weights:
            self._share_modes()
        found = {mode: result for other in everyone for mode, result in other.modes.items()}
        for mode in range(len(self.modes)):
            for event in found[mode][1]:
                emit(event)
        return [found[mode][0] for mode in range(len(self.modes))]

    def level(self) -> None:
        """Modes with their owners are not to be overwritten."""
        if not self._scattered:
            super().level()

    def assemble(self) -> None:
        """Modes and optimisers from their owners."""
        super().assemble()
        if self._scattered:
            self._share_modes()
            for mode, optimiser in enumerate(self.optimisers):
                state = distributed.agreed_state(optimiser.state_dict(), owner(mode))
                if owner(mode) != distributed.number():
                    optimiser.load_state_dict(state)
        self._scattered = False

    def _end(self, task: Task) -> None:
        if self._scattered:
            self._share_modes()
        self._scattered = False
        super()._end(task)

    def _share_modes(self) -> None:
        for mode in range(len(self.modes)):
            distributed.same_(self.modes.theta[mode], self.modes.buffers[mode], source=owner(mode))
