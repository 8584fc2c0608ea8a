"""A run's configuration: what to learn, on what, with which network and seed; and how to build it."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from manymodes.errors import UserError
from manymodes.signature import Option, check_names, options_of

if TYPE_CHECKING:
    from torch import nn

    from manymodes.strategies.base import Strategy
    from manymodes.task import Stream

# What the stream, not the person, decides about a network.
DERIVED = ("inputs", "channels", "outputs")


@dataclass(frozen=True)
class Config:
    """One run. `strategy`, `stream` and `model` hold a name and that thing's keyword arguments."""

    strategy: dict[str, Any]
    stream: dict[str, Any]
    model: dict[str, Any] = field(default_factory=lambda: {"name": "auto"})
    seed: int = 0
    threads: int = 0

    def as_dict(self) -> dict[str, Any]:
        """For config.yaml."""
        return asdict(self)

    @property
    def label(self) -> str:
        """The strategy with those options that are not its defaults, e.g. `mota:modes=4`."""
        changed = {k: v for k, v in self._changed("strategy").items() if k not in COMMON}
        return ":".join([self.strategy["name"], *(f"{k}={v}" for k, v in changed.items())])

    @property
    def slug(self) -> str:
        """A name for the run's directory."""
        parts = [self.label, self.stream["name"], str(self.stream.get("scenario", "")), f"seed{self.seed}"]
        kept = "".join(c if c.isalnum() or c in "=.,-" else "-" for c in "-".join(p for p in parts if p))
        return kept.replace("--", "-")

    def command(self, seeds: list[int] | None = None) -> str:
        """The shell command that repeats this run (for all `seeds`)."""
        words = ["manymodes", "run"]
        for part in ("strategy", "stream", "model"):
            words += [f"--{part}", getattr(self, part)["name"]]
            for name, value in self._changed(part).items():
                words += [f"--{part}.{name}", _word(value)]
        words += ["--seeds", ",".join(map(str, seeds or [self.seed]))]
        return shlex.join(words)

    def _changed(self, part: str) -> dict[str, Any]:
        given = getattr(self, part)
        defaults = {name: option.default for name, option in options_for(part, given["name"]).items()}
        if part == "stream":
            defaults["seed"] = None  # the run's seed
        return {k: v for k, v in given.items() if k != "name" and (k not in defaults or defaults[k] != v)}


COMMON = ("epochs", "batch_size", "lr", "optimiser", "schedule", "weight_decay", "precision", "device")


def _word(value: Any) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    return str(list(value)) if isinstance(value, tuple | list) else str(value)


def options_for(part: str, name: str) -> dict[str, Option]:
    """The options of a strategy, stream or model by its name."""
    if part == "strategy":
        from manymodes.strategies.registry import strategy_class

        return options_of(strategy_class(name), skip=("model", "seed"))
    if part == "stream":
        from manymodes.streams import find_stream

        return options_of(find_stream(name))
    pretrained = {
        "weights": Option("weights", str | None, None, "Pretrained weights: a file, or hf:ORG/NAME."),
        "head": Option("head", str | None, None, "The last layer's name, where it is not the last Linear."),
    }
    if name == "auto":
        return {"width": Option("width", float, 1.0, "How wide, as a factor.")} | pretrained
    from manymodes.models import find_model

    return options_of(find_model(name), skip=DERIVED) | pretrained


def build_stream(config: Config) -> Stream:
    """The stream; its seed is the run's unless given."""
    from manymodes.streams import make_stream

    return make_stream(**_seeded("stream", config))


def _seeded(part: str, config: Config) -> dict[str, Any]:
    given = {k: v for k, v in getattr(config, part).items() if v is not None}
    options = options_for(part, given["name"])
    check_names(f"{part} {given['name']!r}", {k: v for k, v in given.items() if k != "name"}, options)
    if "seed" in options and getattr(config, part).get("seed") is None:
        given["seed"] = config.seed
    return given


def build_model(config: Config, stream: Stream) -> nn.Module:
    """The network, drawn under the run's seed."""
    import torch

    from manymodes.models import build_model as build

    given = dict(config.model)
    name = given.pop("name")
    check_names(f"model {name!r}", given, options_for("model", name))
    with torch.random.fork_rng():
        torch.manual_seed(config.seed)
        return build(name, stream, **given)


def build_learner(config: Config, stream: Stream) -> Strategy:
    """The learner with its network."""
    from manymodes.strategies.registry import strategy_class

    given = dict(config.strategy)
    name = given.pop("name")
    check_names(f"strategy {name!r}", given, options_for("strategy", name))
    return strategy_class(name)(build_model(config, stream), seed=config.seed, **given)


def fitted(config: Config, stream: Stream, budget: int) -> Config:
    """The same run with the widest network of which all modes together do not exceed the budget."""
    from dataclasses import replace

    from manymodes.models import fit_width

    modes = int(config.strategy.get("modes", 1))
    make: Callable[[float], nn.Module] = lambda width: build_model(  # noqa: E731
        replace(config, model=config.model | {"width": width}), stream
    )
    if "width" not in options_for("model", config.model["name"]):
        raise UserError(f"model {config.model['name']!r} has no width option: equal capacity cannot be made")
    if modes == 1:
        return config
    width = fit_width(make, budget // modes)
    return replace(config, model=config.model | {"width": width})
