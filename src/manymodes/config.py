"""A run's configuration: what to learn, on what, with which network and seed; and how to build it."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, fields
from typing import TYPE_CHECKING, Any

from manymodes.errors import UserError, require
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
    deterministic: bool = False

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
        parts = [self.label, self.stream["name"], self.stream.get("scenario"), f"seed{self.seed}"]
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
        words += ["--threads", str(self.threads)] if self.threads else []
        words += ["--deterministic"] if self.deterministic else []
        return shlex.join(words)

    def _changed(self, part: str) -> dict[str, Any]:
        given = getattr(self, part)
        defaults = {name: option.default for name, option in options_for(part, given["name"]).items()}
        if part == "stream":
            defaults["seed"] = None  # the run's seed
        return {k: v for k, v in given.items() if k != "name" and (k not in defaults or defaults[k] != v)}


PARTS = ("strategy", "stream", "model")
COMMON = ("epochs", "batch_size", "micro_batch", "lr", "optimiser", "schedule", "weight_decay", "precision",
          "layout", "compile", "device")  # fmt: skip


def _word(value: Any) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    return str(list(value)) if isinstance(value, tuple | list) else str(value)


def canonical(part: str, name: str) -> str:
    """A registered name as the registry has it (dashes and underscores are alike); any other as it is.

    >>> canonical("strategy", "LwF_EWC"), canonical("model", "my.module:make")
    ('lwf-ewc', 'my.module:make')
    """
    from manymodes.models.registry import REGISTRY as MODELS
    from manymodes.strategies.registry import REGISTRY as STRATEGIES
    from manymodes.streams.registry import STREAMS

    known = {"strategy": [*STRATEGIES], "stream": [*STREAMS], "model": [*MODELS, "auto"]}[part]
    wanted = name.replace("_", "-").lower()
    return next((key for key in known if key.replace("_", "-") == wanted), name)


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


def plain(value: Any) -> Any:
    """The same as plain JSON values: tuples as lists, anything else that is no JSON as text."""
    return json.loads(json.dumps(value, default=str))


def differences(there: Any, wanted: Config) -> list[str]:
    """What is otherwise in a configuration that was read from a file, as text.

    An option that an older version did not have counts as its default. Nothing that the file names is
    imported.

    >>> config = Config({"name": "finetune", "lr": 0.1}, {"name": "digits"}, {"name": "auto"})
    >>> differences(config.as_dict() | {"strategy": {"name": "finetune", "lr": 0.2}}, config)
    ['strategy.lr is 0.2 there, 0.1 here']
    """
    if not isinstance(there, dict) or not all(isinstance(there.get(part), dict) for part in PARTS):
        return ["it is not the configuration of a run"]
    ours, found = plain(wanted.as_dict()), []
    for part in PARTS:
        theirs, name = there[part], ours[part]["name"]
        if theirs.get("name") != name:
            found.append(f"{part} is {theirs.get('name')!r} there, {name!r} here")
            continue
        defaults = {
            key: option.default for key, option in options_for(part, name).items() if not option.required
        }
        if part == "stream" and "seed" in defaults:
            defaults["seed"] = None
        found += _changed(plain(defaults) | theirs, plain(defaults) | ours[part], f"{part}.")
    rest = plain({f.name: f.default for f in fields(Config) if f.name not in PARTS})
    return found + _changed(rest | {k: v for k, v in there.items() if k not in PARTS},
                            {k: v for k, v in ours.items() if k not in PARTS})  # fmt: skip


def _changed(there: dict[str, Any], here: dict[str, Any], prefix: str = "") -> list[str]:
    return [
        f"{prefix}{key} is {there.get(key)!r} there, {here.get(key)!r} here"
        for key in dict.fromkeys([*here, *there])
        if there.get(key) != here.get(key)
    ]


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

    from manymodes.models import count_parameters, fit_width
    from manymodes.strategies.registry import strategy_class

    modes = int(config.strategy.get("modes", 1))
    make: Callable[[float], nn.Module] = lambda width: build_model(  # noqa: E731
        replace(config, model=config.model | {"width": width}), stream
    )
    if "width" not in options_for("model", config.model["name"]):
        raise UserError(f"model {config.model['name']!r} has no width option: equal capacity cannot be made")
    if modes == 1:
        return config
    name = config.strategy["name"]
    beside = strategy_class(name).beside(config.strategy, make(1.0), stream)
    require(
        beside < budget,
        f"strategy {name!r} keeps {beside:,} numbers beside its modes, {budget:,} are allowed",
    )
    each = (budget - beside) // modes
    if count_parameters(make(1.0)) == count_parameters(make(2.0)) <= each:
        return config  # without a hidden layer there is no width
    width = fit_width(make, each)
    return replace(config, model=config.model | {"width": width})
