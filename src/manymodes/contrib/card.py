"""The model card of a learner: what it is, how it learnt, what was measured, how to use it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import yaml

from manymodes.strategies.base import Strategy
from manymodes.strategies.registry import REGISTRY, name_of

MEASURED = {
    "average_accuracy": ("average accuracy over the tasks", 100.0, " %"),
    "backward_transfer": ("backward transfer", 100.0, " points"),
    "forward_transfer": ("forward transfer", 100.0, " points"),
    "forgetting": ("forgetting", 100.0, " points"),
    "final_nll": ("negative log-likelihood", 1.0, ""),
    "final_calibration_error": ("expected calibration error", 100.0, " points"),
}


def model_card(
    learner: Strategy,
    name: str,
    metrics: Mapping[str, Any] | None = None,
    *,
    licence: str | None = None,
    report: bool = False,
) -> str:
    """README.md of a learner: YAML for the hub, then text for people.

    Args:
        learner: The learner.
        name: Its title, and the name it is loaded by.
        metrics: What metrics.json of its run says; without it the card says that nothing was measured.
        licence: An identifier of the hub, such as "apache-2.0".
        report: Whether report.html lies beside the card.
    """
    header: dict[str, Any] = {"library_name": "manymodes"}
    header["tags"] = ["continual-learning", name_of(type(learner))]
    if licence:
        header["license"] = licence
    if metrics:
        header["model-index"] = [_index(name, metrics)]
    parts = [
        "---\n" + yaml.safe_dump(header, sort_keys=False, allow_unicode=True) + "---",
        f"# {name}",
        _about(learner),
        _use(name),
        _measured(metrics, report) if metrics else "## Measured\n\nNothing was measured.",
        _settings(learner),
    ]
    return "\n\n".join(parts) + "\n"


def _index(name: str, metrics: Mapping[str, Any]) -> dict[str, Any]:
    """What the hub shows beside a model: the accuracy, with where it was measured."""
    stream = f"{metrics.get('stream', 'own data')} ({metrics.get('scenario', 'task')}-incremental)"
    return {
        "name": name,
        "results": [
            {
                "task": {"type": "image-classification", "name": "continual learning"},
                "dataset": {"type": str(metrics.get("stream", "own")), "name": stream},
                "metrics": [
                    {
                        "type": "accuracy",
                        "name": "average accuracy over the tasks",
                        "value": round(float(metrics["average_accuracy"]), 4),
                    }
                ],
            }
        ],
    }


def _about(learner: Strategy) -> str:
    kind = name_of(type(learner))
    about = f" ({REGISTRY[kind].about})" if kind in REGISTRY else ""
    modes, parameters = learner.modes.theta.shape
    sentences = [
        f"A classifier that learnt {learner.tasks_learnt} tasks one after another, by {kind}{about}.",
        f"{modes} x {parameters:,} parameters in modes whose predictions are averaged."
        if modes > 1
        else f"{parameters:,} parameters.",
    ]
    if learner.about.get("stream"):
        sentences.append(f"Data: {learner.about['stream']}, {learner.about.get('scenario')}-incremental.")
    if learner.rehearses:
        sentences.append("It rehearses: samples of what it learnt from are inside model.safetensors.")
    else:
        sentences.append("No sample of what it learnt from is kept.")
    names = learner.about.get("class_names") or []
    if names:
        shown = ", ".join(map(str, names[:30])) + (", ..." if len(names) > 30 else "")
        sentences.append(f"Classes: {shown}.")
    return " ".join(sentences)


def _use(name: str) -> str:
    return "\n".join(
        [
            "## Use",
            "",
            "```python",
            "import manymodes as mm",
            "",
            f'learner = mm.Strategy.from_pretrained("{name}")',
            "probabilities = learner.predict(x)       # (samples, classes)",
            "learner.learn(x_new, y_new)              # it goes on learning",
            "```",
            "",
            '`pip install "manymodes[hub]"`. The file holds tensors and settings: loading it runs no code.',
        ]
    )


def _measured(metrics: Mapping[str, Any], report: bool) -> str:
    lines = ["## Measured", "", "| | |", "|---|---|"]
    for key, (title, factor, unit) in MEASURED.items():
        if metrics.get(key) is not None:
            lines.append(f"| {title} | {_short(metrics[key], factor)}{unit} |")
    lines += _matrix(metrics.get("accuracy") or [])
    if metrics.get("command"):
        lines += ["", f"On test data, by `{metrics['command']}`."]
    if report:
        lines += ["", "[report.html](report.html) shows the whole run."]
    return "\n".join(lines)


def _matrix(accuracy: Sequence[Sequence[float]]) -> list[str]:
    """Accuracy (%) on each task after each task."""
    if len(accuracy) < 2:
        return []
    tasks = range(1, len(accuracy[0]) + 1)
    lines = ["", "Accuracy (%) on the test data of each task:", ""]
    lines += ["| | " + " | ".join(f"task {t}" for t in tasks) + " |", "|---" * (len(tasks) + 1) + "|"]
    for number, row in enumerate(accuracy[1:], 1):
        cells = [
            _short(value, 100.0) if task <= number else "" for task, value in zip(tasks, row, strict=True)
        ]
        lines.append(f"| after task {number} | " + " | ".join(cells) + " |")
    return lines


def _settings(learner: Strategy) -> str:
    text = yaml.safe_dump(learner.options, sort_keys=True, allow_unicode=True)
    return f"## Settings\n\n```yaml\n{text}```"


def _short(value: Any, factor: float) -> str:
    return f"{float(value) * factor:.1f}" if factor != 1.0 else f"{float(value):.3f}"
