"""manymodes: continual learning without keeping old data.

>>> import manymodes as mm
>>> stream = mm.streams.digits()
>>> learner = mm.MOTA(mm.models.mlp(64, outputs=stream.num_outputs), modes=2, epochs=1)
>>> learner.learn(stream[0]).tasks_learnt
1
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from manymodes.version import __version__

if TYPE_CHECKING:
    from manymodes import fisher, metrics, models, streams
    from manymodes.backtracking import backtrack
    from manymodes.errors import UserError
    from manymodes.flat import FlatModel
    from manymodes.modes import Modes
    from manymodes.run import run
    from manymodes.saving import load
    from manymodes.strategies.agem import AGEM
    from manymodes.strategies.base import Strategy
    from manymodes.strategies.ensemble import Ensemble
    from manymodes.strategies.er import ER
    from manymodes.strategies.ewc import EWC
    from manymodes.strategies.finetune import Finetune
    from manymodes.strategies.lwf import LwF
    from manymodes.strategies.lwf_ewc import LwFEWC
    from manymodes.strategies.mota import MOTA
    from manymodes.strategies.multitask import Multitask
    from manymodes.strategies.si import SI
    from manymodes.task import Stream, Task

# Everything is imported when it is first asked for: `manymodes --help` never waits for torch.
_HOMES = {
    "AGEM": "strategies.agem",
    "ER": "strategies.er",
    "EWC": "strategies.ewc",
    "Ensemble": "strategies.ensemble",
    "Finetune": "strategies.finetune",
    "FlatModel": "flat",
    "LwF": "strategies.lwf",
    "LwFEWC": "strategies.lwf_ewc",
    "MOTA": "strategies.mota",
    "Modes": "modes",
    "Multitask": "strategies.multitask",
    "SI": "strategies.si",
    "Strategy": "strategies.base",
    "Stream": "task",
    "Task": "task",
    "UserError": "errors",
    "backtrack": "backtracking",
    "load": "saving",
    "run": "run",
}
_MODULES = ("fisher", "metrics", "models", "streams")

__all__ = [
    "AGEM",
    "ER",
    "EWC",
    "MOTA",
    "SI",
    "Ensemble",
    "Finetune",
    "FlatModel",
    "LwF",
    "LwFEWC",
    "Modes",
    "Multitask",
    "Strategy",
    "Stream",
    "Task",
    "UserError",
    "__version__",
    "backtrack",
    "fisher",
    "load",
    "metrics",
    "models",
    "run",
    "streams",
]


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return importlib.import_module(f"manymodes.{name}")
    if name in _HOMES:
        return getattr(importlib.import_module(f"manymodes.{_HOMES[name]}"), name)
    raise AttributeError(f"module 'manymodes' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
