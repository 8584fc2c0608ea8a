"""Weights that somebody trained: from a file or the Hugging Face hub into a network of ours or anybody's."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from manymodes.errors import UserError, require
from manymodes.models.reset import find_head

PICKLED = (".pth", ".pt", ".bin")
WRAPPERS = ("module.", "_orig_mod.")  # what DataParallel and torch.compile put before every name
NESTED = ("state_dict", "model_state_dict", "model")  # where training scripts keep the weights

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Report:
    """What became of every tensor: names in the model's words, `unexpected` in the file's."""

    source: str
    loaded: tuple[str, ...]
    missing: tuple[str, ...]
    unexpected: tuple[str, ...]
    reinitialised: tuple[str, ...]

    def __str__(self) -> str:
        lines = [f"weights from {self.source}: {len(self.loaded)} tensors loaded"]
        parts = {
            "new head, keeps its initial values": self.reinitialised,
            "in the model but not in the file, keep their initial values": self.missing,
            "in the file but not in the model, left out": self.unexpected,
        }
        lines += [f"  {what}: {_few(names)}" for what, names in parts.items() if names]
        return "\n".join(lines)


def load_weights(module: nn.Module, source: str | Path, *, head: str | None = None) -> Report:
    """Copy weights into a freshly made module, all but a head of another shape; say what fitted.

    Names are the module's own (torchvision's for our ResNets). Half precision is widened. Nothing is
    changed unless everything fits, and no code in a file is ever run.

    Args:
        module: The network; afterwards `module.pretrained` is True.
        source: A .safetensors file, a weights-only .pth, .pt or .bin file, or
            `hf:ORGANISATION/NAME[/FILE]` for a safetensors file of the Hugging Face hub.
        head: The name of the last layer, where it is not the last Linear.
    """
    tensors = _read(str(source))
    own = module.state_dict()
    given = {_plain(name, own): tensor for name, tensor in tensors.items()}
    top = find_head(module, head)[0]
    heads = {name for name in own if name.startswith(f"{top}.")}
    wrong = [name for name in given if name in own and given[name].shape != own[name].shape]
    new_head = heads if heads & set(wrong) else heads - set(given)
    loaded = [name for name in own if name in given and name not in new_head]
    if others := [name for name in own if name in wrong and name not in heads]:
        raise UserError(_mismatch(others, given, own, module, source))
    require(bool(loaded), _no_match(given, own, source))
    for name in loaded:
        if own[name].is_floating_point() and not bool(given[name].float().isfinite().all()):
            raise UserError(f"{source}: tensor {name!r} holds NaN or infinite numbers: the file is damaged")
    with torch.no_grad():
        for name in loaded:
            own[name].copy_(given[name])
    vars(module)["pretrained"] = True  # a plain attribute: nn.Module's own setattr is typed for tensors
    report = Report(
        source=str(source),
        loaded=tuple(loaded),
        # counters of batches are often left out, and nothing here reads them
        missing=tuple(n for n in own if n not in given and n not in heads and own[n].is_floating_point()),
        unexpected=tuple(name for name in given if name not in own),
        reinitialised=tuple(name for name in own if name in new_head),
    )
    odd = report.missing or report.unexpected or report.reinitialised
    logger.log(logging.WARNING if odd else logging.INFO, "%s", report)
    return report


def _few(names: tuple[str, ...], most: int = 6) -> str:
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


def _plain(name: str, own: Mapping[str, Tensor]) -> str:
    """The name without what wrappers put before it, if the model knows it so."""
    plain = name
    while plain not in own and plain.startswith(WRAPPERS):
        plain = plain.partition(".")[2]
    return plain if plain in own else name


def _mismatch(
    names: list[str],
    given: Mapping[str, Tensor],
    own: Mapping[str, Tensor],
    module: nn.Module,
    source: str | Path,
) -> str:
    first = names[0]
    theirs, ours = tuple(given[first].shape), tuple(own[first].shape)
    if getattr(module, "width", 1.0) != 1.0:
        way_out = f"the model has width {module.width}: use width=1, or weights made at this width"
    elif first == "conv1.weight" and theirs[2:] != ours[2:]:
        way_out = "choose the stem the weights were made with"
    elif first == "conv1.weight" and theirs[0] == ours[0]:
        way_out = "choose the number of channels the weights were made for"
    else:
        way_out = "choose the network the weights were made for, or head=NAME if this is its last layer"
    more = f" (and {len(names) - 1} more)" if len(names) > 1 else ""
    return f"{source}: tensor {first!r} has shape {theirs}, but the model needs {ours}{more}; {way_out}"


def _no_match(given: Mapping[str, Tensor], own: Mapping[str, Tensor], source: str | Path) -> str:
    return (
        f"{source}: no tensor fits this model; the file has {_few(tuple(given), 3) or 'none at all'}; "
        f"the model has {_few(tuple(own), 3)}; choose the network the weights were made for"
    )


def _read(source: str) -> dict[str, Tensor]:
    path = _download(source) if source.startswith("hf:") else Path(source).expanduser()
    require(
        path.suffix in (".safetensors", *PICKLED),
        f"weights must be a .safetensors, {', '.join(PICKLED)} file or hf:ORGANISATION/NAME, not {source!r}",
    )
    require(path.is_file(), f"weights: there is no file {str(path)!r}")
    try:
        return load_file(path) if path.suffix == ".safetensors" else _weights_only(path)
    except (OSError, SafetensorError) as error:
        raise UserError(f"weights: cannot read {str(path)!r}, it may be damaged: {_line(error)}") from None


def _weights_only(path: Path) -> dict[str, Tensor]:
    try:
        with warnings.catch_warnings(action="ignore"):  # about files that are then refused
            content = torch.load(path, map_location="cpu", weights_only=True)
    except Exception:  # damaged or hostile bytes raise nearly anything here
        raise UserError(
            f"weights: {str(path)!r} is damaged or holds more than tensors, and code in a file is never run: "
            "save it anew with torch.save(model.state_dict(), ...) or as safetensors"
        ) from None
    for key in NESTED:
        if isinstance(content, dict) and isinstance(content.get(key), dict):
            content = content[key]
    tensors = {n: t for n, t in content.items() if isinstance(t, Tensor)} if isinstance(content, dict) else {}
    require(bool(tensors), f"weights: {str(path)!r} holds no dictionary of tensors (a state_dict)")
    return {str(name): tensor for name, tensor in tensors.items()}


def _download(source: str) -> Path:
    organisation, _, rest = source.removeprefix("hf:").partition("/")
    name, _, file = rest.partition("/")
    file = file or "model.safetensors"
    require(
        bool(organisation and name) and file.endswith(".safetensors"),
        f"weights {source!r} must read hf:ORGANISATION/NAME or hf:ORGANISATION/NAME/FILE.safetensors",
    )
    try:
        from huggingface_hub import hf_hub_download
    except ImportError:
        raise UserError(
            f"weights {source!r} need huggingface_hub: pip install 'manymodes[hub]', "
            "or download the file yourself and give its path"
        ) from None
    try:
        return Path(hf_hub_download(f"{organisation}/{name}", file))
    except Exception as error:  # its errors share no base class; all mean that the file cannot be had
        raise UserError(
            f"weights {source!r} cannot be fetched: {_line(error)}; check the name and the network, "
            "or download the file yourself and give its path"
        ) from None


def _line(error: Exception) -> str:
    text = " ".join(str(error).split()) or type(error).__name__
    return text if len(text) <= 200 else text[:200] + "..."
