"""A network for a stream, by name: one of ours, a person's own function, or one of another library."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from functools import partial
from importlib import import_module
from math import prod
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from manymodes.errors import UserError, require, unknown
from manymodes.models.elsewhere import LIBRARIES
from manymodes.models.pretrained import load_weights
from manymodes.models.registry import REGISTRY
from manymodes.models.reset import find_head, reset_head, reset_parameters
from manymodes.models.width import count_parameters, fit_width
from manymodes.task import Stream

__all__ = [
    "automatic",
    "build_model",
    "count_parameters",
    "find_head",
    "find_model",
    "fit_width",
    "reset_head",
    "reset_parameters",
]


def build_model(
    name: str, stream: Stream, *, weights: str | Path | None = None, head: str | None = None, **options: Any
) -> nn.Module:
    """The network called `name`, with the stream's inputs, channels and outputs, tried on two empty samples.

    Args:
        name: A registered name, "auto", `my.module:make`, `timm:NAME`, `torchvision:NAME` or `hf:NAME`.
        stream: Gives `inputs` (features), `channels` and `outputs` to a function that has such arguments.
        weights: For the network's function if it has such an argument (and no `head` is given), else for
            `load_weights`.
        head: The name of the last layer for `load_weights`, where it is not the last Linear.
        options: Arguments of the network's function.
    """
    name = automatic(stream) if name == "auto" else name
    factory = find_model(name)
    shape = stream.input_shape
    offered = {"inputs": prod(shape), "channels": shape[0] if shape else 1, "outputs": stream.num_outputs}
    if weights is not None and head is None and "weights" in inspect.signature(factory).parameters:
        options, weights = options | {"weights": weights}, None  # they may be those of a part of it
    module = factory(**_arguments(name, factory, offered, options))
    require(
        isinstance(module, nn.Module),
        f"model {name!r} must return an nn.Module, but returned {type(module).__name__}",
    )
    if weights is not None:
        load_weights(module, weights, head=head)
    _try_on(module, name, stream)
    return module


def automatic(stream: Stream) -> str:
    """What "auto" means: a perceptron for flat or small grey inputs, else a small or an ordinary ResNet."""
    shape = stream.input_shape
    if len(shape) != 3 or (shape[0] == 1 and prod(shape) <= 1024):
        return "mlp"
    return "small-resnet" if max(shape[1:]) <= 64 else "resnet18"


def find_model(name: str) -> Callable[..., nn.Module]:
    """The function behind a model's name, dashes and underscores alike, or behind an import path.

    >>> find_model("small_cnn") is find_model("small-cnn")
    True
    """
    before, colon, after = name.partition(":")
    if before in LIBRARIES:
        return partial(LIBRARIES[before], after)
    if colon:
        return _load(name)
    known = {key.replace("-", "_"): entry for key, entry in REGISTRY.items()}
    entry = known.get(name.replace("-", "_"))
    if entry is None:
        libraries = ", ".join(f"{library}:NAME" for library in LIBRARIES)
        raise unknown(
            "model", name, ["auto", *REGISTRY], f"Or {libraries}, or an import path: my.module:make"
        )
    return _load(entry.where)


def _load(where: str) -> Callable[..., nn.Module]:
    module_name, _, attribute = where.partition(":")
    try:
        found: Callable[..., nn.Module] = getattr(import_module(module_name), attribute)
    except AttributeError:
        raise UserError(f"module {module_name!r} has no function {attribute!r}") from None
    except Exception as error:  # a person's own file may fail in any way while it is imported
        raise UserError(f"cannot import the model {where!r}: {type(error).__name__}: {error}") from error
    require(callable(found), f"{where!r} is not a function that makes an nn.Module")
    return found


def _arguments(
    name: str, factory: Callable[..., nn.Module], offered: Mapping[str, int], options: Mapping[str, Any]
) -> dict[str, Any]:
    parameters = inspect.signature(factory).parameters.values()
    named = [p for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
    names = [p.name for p in named]
    if not any(p.kind is p.VAR_KEYWORD for p in parameters):
        for option in options:
            if option not in names:
                raise unknown(f"option of model {name!r}", option, [*names, "weights"])
    arguments = {key: value for key, value in offered.items() if key in names} | dict(options)
    missing = [p.name for p in named if p.default is p.empty and p.name not in arguments]
    require(not missing, f"model {name!r} needs {' and '.join(f'{option}=...' for option in missing)}")
    return arguments


def _try_on(module: nn.Module, name: str, stream: Stream) -> None:
    """Two samples of zeros through the module in eval mode: a misfit is named here, not in training."""
    training = [(part, part.training) for part in module.modules()]
    module.eval()
    needs = (
        f"stream {stream.name!r} has inputs of shape {stream.input_shape} and {stream.num_outputs} outputs"
    )
    try:
        logits = _logits(module, stream)
    except Exception as error:
        text = " ".join(str(error).split())
        raise UserError(f"model {name!r} does not fit: {needs}; the model says: {text}") from error
    finally:
        for part, mode in training:
            part.training = mode
    got = tuple(logits.shape) if isinstance(logits, Tensor) else type(logits).__name__
    require(
        got == (2, stream.num_outputs),
        f"model {name!r} does not fit: {needs}, so two samples must give logits of shape "
        f"{(2, stream.num_outputs)}, not {got}; give its function an argument `outputs`",
    )


@torch.no_grad()
def _logits(module: nn.Module, stream: Stream) -> Any:
    zeros = torch.zeros(2, *stream.input_shape)
    try:
        return module(zeros)
    except Exception:
        try:
            return module(zeros.long())  # the stream may be one of numbers of words
        except Exception:
            pass
        raise
