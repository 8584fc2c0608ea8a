"""Networks of other libraries, each imported only when one of its networks is asked for."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any

from torch import Tensor, nn

from manymodes.errors import UserError


class Logits(nn.Module):
    """A Hugging Face classifier that returns its logits alone."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, x: Tensor) -> Tensor:
        """Logits (S, C)."""
        logits: Tensor = self.network(x).logits
        return logits


def timm(name: str, *, outputs: int, channels: int, pretrained: bool = False, **options: Any) -> nn.Module:
    """A network of timm; `pretrained=True` fetches its weights."""
    library = _library("timm", "timm")
    options = {"num_classes": outputs, "in_chans": channels, "pretrained": pretrained, **options}
    network: nn.Module = _made(f"timm:{name}", library.create_model, name, **options)
    vars(network)["pretrained"] = pretrained
    return network


def torchvision(name: str, *, outputs: int, **options: Any) -> nn.Module:
    """A network of torchvision, untrained: weights come from a file."""
    library = _library("torchvision", "torchvision")
    options = {"weights": None, "num_classes": outputs, **options}
    network: nn.Module = _made(f"torchvision:{name}", library.models.get_model, name, **options)
    return network


def hugging_face(name: str, *, outputs: int, pretrained: bool = True, **options: Any) -> nn.Module:
    """An image classifier of the Hugging Face hub (or a local folder), with its weights and a new head."""
    library = _library("hf", "transformers")
    classifier, options = library.AutoModelForImageClassification, {"num_labels": outputs, **options}
    if pretrained:  # safetensors only: a pickled file of the hub is refused, not run
        options |= {"ignore_mismatched_sizes": True, "use_safetensors": True}
        network = _made(f"hf:{name}", classifier.from_pretrained, name, **options)
    else:
        config = _made(f"hf:{name}", library.AutoConfig.from_pretrained, name, **options)
        network = _made(f"hf:{name}", classifier.from_config, config)
    logits = Logits(network)
    vars(logits)["pretrained"] = pretrained
    return logits


LIBRARIES: dict[str, Callable[..., nn.Module]] = {
    "timm": timm,
    "torchvision": torchvision,
    "hf": hugging_face,
}


def _library(prefix: str, package: str) -> Any:
    try:
        return import_module(package)
    except ModuleNotFoundError as error:
        if error.name == package:
            raise UserError(
                f"models {prefix}:NAME need the package {package}: pip install {package}"
            ) from None
        raise UserError(f"{package} cannot be imported: {error}") from error
    except Exception as error:  # a torchvision that does not match torch fails with RuntimeError
        text = " ".join(str(error).split())
        raise UserError(
            f"{package} is installed but cannot be imported: {text}; reinstall it to match torch"
        ) from error


def _made(what: str, make: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
    try:
        return make(*arguments, **options)
    except Exception as error:
        text = " ".join(str(error).split())
        raise UserError(f"model {what!r} cannot be made: {text[:300]}") from error
