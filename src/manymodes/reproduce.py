"""The paper's tables and figures: what each needs, and the published numbers beside ours."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import yaml

from manymodes.config import Config
from manymodes.errors import unknown
from manymodes.metrics import mean_interval

FOLDER = Path(__file__).parent / "recipes"
PROFILES = ("paper", "small", "frozen", "smoke")
# What profiles.yaml says beside the options of `compare`.
OWN = ("pretrain", "single", "several", "published", *PROFILES)
PERCENT = ("average_accuracy", "backward_transfer", "forward_transfer", "remembering", "forgetting")


def recipes() -> dict[str, str]:
    """Every recipe and its first line."""
    files = sorted(path for path in FOLDER.glob("*.yaml") if path.stem != "profiles")
    return {path.stem: path.read_text(encoding="utf-8").splitlines()[0].lstrip("# ") for path in files}


def recipe_file(name: str) -> Path:
    """The file of a recipe by its name."""
    return FOLDER / f"{name}.yaml"


def recipe_stream(name: str) -> str:
    """The stream that a recipe in full size learns.

    >>> recipe_stream("demo")
    'digits'
    """
    recipe: dict[str, Any] = yaml.safe_load(recipe_file(name).read_text(encoding="utf-8"))
    return str(recipe["stream"]["name"])


def load(name: str, profile: str) -> dict[str, Any]:
    """A recipe in one of its sizes: options of `compare`, and what is in `OWN`."""
    targets = [r for r in recipes() if r != "demo"]
    if name not in targets:
        raise unknown("table or figure", name, targets)
    if profile not in PROFILES:
        raise unknown("profile", profile, PROFILES)
    recipe = yaml.safe_load(recipe_file(name).read_text(encoding="utf-8"))
    common = yaml.safe_load((FOLDER / "profiles.yaml").read_text(encoding="utf-8"))[profile]
    # Smoke replaces the stream; the other sizes only change it.
    stream = {} if profile == "smoke" else recipe.get("stream", {})
    scenario = {"scenario": recipe["stream"]["scenario"]} if "scenario" in recipe["stream"] else {}
    own = recipe.get(profile, {})
    merged = recipe | common | {k: v for k, v in recipe.items() if k in ("equal_capacity",)} | own
    merged["stream"] = scenario | stream | common.get("stream", {}) | own.get("stream", {})
    return {k: v for k, v in merged.items() if k not in PROFILES}


def options(recipe: dict[str, Any]) -> dict[str, Any]:
    """The part of a recipe that `compare` understands."""
    return {k: v for k, v in recipe.items() if k not in OWN}


def with_backbones(configs: Sequence[Config], recipe: dict[str, Any]) -> list[Config]:
    """The paper's rows: one large network for single learners, a smaller one for each of several modes."""
    chosen = []
    for config in configs:
        wanted = recipe.get("several" if config.strategy.get("modes", 1) > 1 else "single")
        if wanted is not None:
            model = config.model | {"name": wanted["model"], "weights": wanted["model.weights"]}
            config = replace(config, model=model)
        chosen.append(config)
    return chosen


def pretraining(config: Config, recipe: dict[str, Any]) -> Config:
    """The run that pretrains the network of `config` on other classes."""
    told = recipe["pretrain"]
    data_dir = config.stream.get("data_dir")
    return Config(
        strategy=dict(told["strategy"]),
        stream=told["stream"] | ({"data_dir": data_dir} if data_dir else {}),
        model={"name": told["model"], "width": config.model.get("width", 1.0)},
        seed=0,
        threads=config.threads,
    )


def printed_row(label: str, published: Iterable[str]) -> str | None:
    """The published row that one of ours belongs to: of the same method, sharing the most options.

    >>> printed_row("ensemble:init=seeds:separation=100.0", ["ewc", "ensemble", "ensemble:init=seeds"])
    'ensemble:init=seeds'
    """
    name, *options = label.split(":")
    fitting = [row for row in published if set(row.split(":")) <= {name, *options}]
    return max(fitting, key=lambda row: row.count(":"), default=None)


def beside(recipe: dict[str, Any], results: dict[str, list[dict[str, Any]]]) -> list[list[str]]:
    """Rows (method, metric, ours, published, difference) for every number the paper prints."""
    rows, published = [], recipe.get("published") or {}
    for label, ours in results.items():
        row = printed_row(label, published)
        for metric, printed in (published[row] if row is not None else {}).items():
            values = [r[metric] for r in ours if r.get(metric) is not None]
            if not values:
                continue
            mean, half = mean_interval(values)
            scale = 100.0 if metric in PERCENT else 1.0
            interval = f" ± {half * scale:.3g}" if len(values) > 1 else ""
            rows.append([
                label, metric.replace("_", " "), f"{mean * scale:.4g}{interval}",
                f"{printed:g}", f"{mean * scale - printed:+.3g}",
            ])  # fmt: skip
    return rows
