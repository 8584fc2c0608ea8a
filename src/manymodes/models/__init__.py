"""Networks by name, one function each; a function's file is imported when it is first asked for."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from manymodes.models.registry import REGISTRY

if TYPE_CHECKING:
    from manymodes.models.build import build_model as build_model
    from manymodes.models.build import find_model as find_model
    from manymodes.models.cnn import small_cnn as small_cnn
    from manymodes.models.frozen import topped as topped
    from manymodes.models.perceptron import mlp as mlp
    from manymodes.models.pretrained import Report as Report
    from manymodes.models.pretrained import load_weights as load_weights
    from manymodes.models.reset import find_head as find_head
    from manymodes.models.reset import reset_head as reset_head
    from manymodes.models.reset import reset_parameters as reset_parameters
    from manymodes.models.resnet import resnet18 as resnet18
    from manymodes.models.resnet import resnet20 as resnet20
    from manymodes.models.resnet import resnet50 as resnet50
    from manymodes.models.resnet import resnet152 as resnet152
    from manymodes.models.resnet import small_resnet as small_resnet
    from manymodes.models.width import count_parameters as count_parameters
    from manymodes.models.width import fit_width as fit_width

_FILES = {
    "build": ("build_model", "find_model"),
    "pretrained": ("Report", "load_weights"),
    "reset": ("find_head", "reset_head", "reset_parameters"),
    "width": ("count_parameters", "fit_width"),
}
_WHERE = {entry.function: entry.where.partition(":")[0] for entry in REGISTRY.values()}
_WHERE |= {name: f"{__name__}.{file}" for file, names in _FILES.items() for name in names}

__all__ = ["REGISTRY", *_WHERE]


def __getattr__(name: str) -> Any:
    if name not in _WHERE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_WHERE[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
