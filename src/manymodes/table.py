"""The comparison table: a row a method, mean and interval over seeds, the best value marked."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rich.console import Console
from rich.table import Table

from manymodes.config import Config
from manymodes.ledger import paper_multiple
from manymodes.metrics import mean_interval


@dataclass(frozen=True)
class Column:
    """One metric of the table."""

    key: str
    title: str
    best: int  # 1: higher is better, -1: lower, 0: not compared
    percent: bool = True


COLUMNS = (
    Column("average_accuracy", "accuracy", 1),
    Column("backward_transfer", "BWT", 1),
    Column("forward_transfer", "FWT", 1),
    Column("forgetting", "forgetting", -1),
    Column("final_nll", "NLL", -1, percent=False),
    Column("final_calibration_error", "ECE", -1),
    Column("shifted_accuracy", "noisy", 1),
    Column("ood_auroc", "AUROC", 1),
    Column("ood_auroc_disagreement", "MI AUROC", 1),
    Column("relative_drift", "drift", 0, percent=False),
)


@dataclass(frozen=True)
class Row:
    """One method in one scenario, over its seeds."""

    label: str
    results: list[dict[str, Any]]
    command: str
    scenario: str = ""

    def values(self, key: str) -> list[float]:
        """The metric of every seed."""
        return [float(r[key]) for r in self.results if r.get(key) is not None]


def rows_of(configs: Sequence[Config], results: Sequence[dict[str, Any]]) -> list[Row]:
    """Group runs that differ by their seed alone, in order of appearance."""
    groups: dict[tuple[str, str], list[int]] = {}
    for number, config in enumerate(configs):
        groups.setdefault((_scenario(config), config.label), []).append(number)
    _add_relative_drift(configs, results)
    return [
        Row(
            label,
            [results[n] for n in numbers],
            configs[numbers[0]].command([configs[n].seed for n in numbers]),
            scenario,
        )
        for (scenario, label), numbers in groups.items()
    ]


def _scenario(config: Config) -> str:
    return str(config.stream.get("scenario") or "")


def _add_relative_drift(configs: Sequence[Config], results: Sequence[dict[str, Any]]) -> None:
    """Drift as the paper gives it: relative to fine-tuning with the same seed."""
    reference = {
        (_scenario(config), config.seed): result["task_drift"]
        for config, result in zip(configs, results, strict=True)
        if config.strategy["name"] == "finetune"
    }
    for config, result in zip(configs, results, strict=True):
        base = reference.get((_scenario(config), config.seed))
        result["relative_drift"] = result["task_drift"] / base if base else None


def show(rows: Sequence[Row], console: Console, title: str) -> None:
    """Print the table, a part for each scenario, then the exact command of each row."""
    table = Table(title=title, title_justify="left", header_style="bold")
    parts = {row.scenario: [r for r in rows if r.scenario == row.scenario] for row in rows}
    if len(parts) > 1:
        table.add_column("scenario")
    table.add_column("method", no_wrap=True, overflow="fold")
    columns = [column for column in COLUMNS if any(row.values(column.key) for row in rows)]
    for column in columns:
        table.add_column(column.title, justify="right")
    table.add_column("parameters", justify="right")
    table.add_column("storage", justify="right")
    table.add_column("also kept", justify="left", overflow="fold")
    table.add_column("seconds", justify="right")
    for scenario, part in parts.items():
        best = {column.key: _best(part, column) for column in columns}
        for row in part:
            cells = [_cell(row, column, best[column.key]) for column in columns]
            first = row.results[0]
            seconds = mean_interval(row.values("seconds"))[0]
            table.add_row(
                *([scenario] if len(parts) > 1 else []), row.label, *cells,
                f"{first['capacity']:,}", _multiple(first), _kept(first), f"{seconds:.1f}",
            )  # fmt: skip
        table.add_section()
    console.print(table)
    console.print(f"Mean and 95 % interval over {len(rows[0].results)} seeds; [bold green]best[/] marked "
                  "(multitask keeps all data and is left out).")  # fmt: skip
    console.print("To repeat a row:")
    for row in rows:
        console.print(f"  {row.command}", soft_wrap=True, markup=False, highlight=False)


def _best(rows: Sequence[Row], column: Column) -> str | None:
    scored = [
        (column.best * mean_interval(row.values(column.key))[0], row.label)
        for row in rows
        if row.values(column.key) and row.results[0]["strategy"] != "multitask"
    ]
    return max(scored)[1] if scored and column.best and len(scored) > 1 else None


def _cell(row: Row, column: Column, best: str | None) -> str:
    values = row.values(column.key)
    if not values:
        return "-"
    mean, half = mean_interval(values)
    scale, digits = (100, 1) if column.percent else (1, 3)
    text = f"{mean * scale:.{digits}f}" + (f" ± {half * scale:.{digits}f}" if len(values) > 1 else "")
    return f"[bold green]{text}[/]" if row.label == best else text


def _multiple(result: dict[str, Any]) -> str:
    """Vectors kept while learning, in multiples of the parameters, as the paper counts them."""
    storage = result["storage"]
    return f"{paper_multiple(storage):.3g}x" if storage.get("parameters") else "-"


def _kept(result: dict[str, Any]) -> str:
    """The storage ledger beside the parameters, in multiples of them."""
    storage = dict(result["storage"])
    parameters = storage.pop("parameters", 1) or 1
    shown = []
    for kind, count in storage.items():
        if not count or kind in ("buffers", "replay_bytes"):
            continue
        amount = f"{count:,}" if kind == "replay_samples" else f"{count / parameters:.3g}x"
        shown.append(f"{kind.replace('_', ' ')} {amount}")
    return ", ".join(shown) or "-"
