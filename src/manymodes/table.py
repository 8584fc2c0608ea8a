"""The comparison table: a row a method, mean and interval over seeds, the best value marked."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.markup import escape
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
    digits: int = 1
    scale: int = 100
    about: str = ""


COLUMNS = (
    Column("average_accuracy", "accuracy", 1),
    Column("backward_transfer", "BWT", 1, about="backward transfer"),
    Column("forward_transfer", "FWT", 1, about="forward transfer"),
    Column("forgetting", "forgetting", -1),
    Column("final_nll", "NLL", -1, digits=3, scale=1, about="negative log-likelihood"),
    Column("final_calibration_error", "ECE", -1, about="calibration error"),
    Column("shifted_accuracy", "noisy", 1, about="accuracy on noisy inputs"),
    Column("ood_auroc", "AUROC", 1, about="known from unknown classes, by probability"),
    Column("ood_auroc_disagreement", "MI AUROC", 1, about="the same, by the modes' disagreement"),
    Column("relative_drift", "drift", 0, digits=2, scale=1, about="of the weights; fine-tuning is 1"),
)
# What a narrow terminal does without, in the order in which it goes.
SPARED = ("also kept", "FWT", "drift", "MI AUROC", "AUROC", "noisy", "ECE", "NLL", "seconds", "storage",
          "BWT", "parameters", "forgetting")  # fmt: skip
ABOUT = {column.title: column.about for column in COLUMNS if column.about} | {
    "storage": "vectors as long as the parameters that learning needs"
}


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
    """Print the table, a part for each scenario, then the exact command of each row.

    A column that the terminal has no room for is left out whole, and named below the table.
    """
    marked = "[bold green]{}[/]" if console.color_system else "{}*"
    columns = _columns(rows, marked)
    boundless = console.options.update(width=10_000)
    left_out: list[str] = []
    table = _table(columns, title)
    for spared in SPARED:
        if console.measure(table, options=boundless).maximum <= console.width:
            break
        if columns.pop(spared, None):
            left_out.append(spared)
            table = _table(columns, title)
    console.print(table)
    for line in _below(rows, columns, left_out, marked):
        console.print(line, soft_wrap=True, highlight=False)
    console.print("To repeat a row:")
    for row in rows:
        console.print(f"  {row.command}", soft_wrap=True, markup=False, highlight=False)


def _columns(rows: Sequence[Row], marked: str) -> dict[str, list[list[str]]]:
    """The cells under each heading, a list for each scenario."""
    scenarios = list(dict.fromkeys(row.scenario for row in rows))
    parts = [[row for row in rows if row.scenario == scenario] for scenario in scenarios]
    found: dict[str, list[list[str]]] = {}
    if len(parts) > 1:
        found["scenario"] = [[part[0].scenario] + [""] * (len(part) - 1) for part in parts]
    found["method"] = [[escape(row.label) for row in part] for part in parts]
    for column in COLUMNS:
        if any(row.values(column.key) for row in rows):
            found[column.title] = [_cells(part, column, marked) for part in parts]
    for heading, cell in (("parameters", _parameters), ("storage", _multiple), ("seconds", _seconds),
                          ("also kept", _kept)):  # fmt: skip
        found[heading] = [[cell(row) for row in part] for part in parts]
    return found


def _table(columns: dict[str, list[list[str]]], title: str) -> Table:
    table = Table(title=title, title_justify="left", title_style="bold", box=SIMPLE_HEAD, header_style="",
                  pad_edge=False, collapse_padding=True)  # fmt: skip
    for heading in columns:
        left = heading in ("scenario", "method", "also kept")
        table.add_column(heading, justify="left" if left else "right", no_wrap=True)
    for part in zip(*columns.values(), strict=True):
        for cells in zip(*part, strict=True):
            table.add_row(*cells)
        table.add_section()
    return table


def _below(
    rows: Sequence[Row], columns: dict[str, list[list[str]]], left_out: list[str], marked: str
) -> list[str]:
    """What the numbers and headings mean, and what is not shown."""
    seeds = len(rows[0].results)
    told = f"Mean and 95 % interval over {seeds} seeds" if seeds > 1 else "One seed, so no intervals"
    if len(rows) > 1:
        told += f"; {marked.format('best')} of a column"
    if len(rows) > 1 and any(row.results[0]["strategy"] == "multitask" for row in rows):
        told += " (multitask keeps all data and does not compete)"
    told += ". Accuracies and transfer in %."
    meanings = [f"{heading}: {ABOUT[heading]}" for heading in columns if heading in ABOUT]
    lines = [told, "; ".join(meanings) + "."] if meanings else [told]
    if left_out:
        lines.append(f"No room for {', '.join(left_out)}: a wider terminal or the report shows them.")
    return lines


def _cells(rows: Sequence[Row], column: Column, marked: str) -> list[str]:
    """One metric of every row, the best marked; without colours the others leave room for the mark."""
    scored = [
        (column.best * mean_interval(row.values(column.key))[0], -number)
        for number, row in enumerate(rows)
        if row.values(column.key) and row.results[0]["strategy"] != "multitask"
    ]
    best = -max(scored)[1] if scored and column.best and len(scored) > 1 else None
    room = " " * marked.count("*")
    texts = [_text(row.values(column.key), column) for row in rows]
    return [marked.format(text) if n == best else text + room for n, text in enumerate(texts)]


def _text(values: Sequence[float], column: Column) -> str:
    if not values:
        return "-"
    mean, half = (f"{number * column.scale:.{column.digits}f}" for number in mean_interval(values))
    return f"{mean} ± {half}" if len(values) > 1 else mean


def _parameters(row: Row) -> str:
    return f"{row.results[0]['capacity']:,}"


def _seconds(row: Row) -> str:
    return f"{mean_interval(row.values('seconds'))[0]:.1f}"


def _multiple(row: Row) -> str:
    """Vectors kept while learning, in multiples of the parameters, as the paper counts them."""
    storage = row.results[0]["storage"]
    return f"{paper_multiple(storage):.3g}x" if storage.get("parameters") else "-"


def _kept(row: Row) -> str:
    """The storage ledger beside the parameters, in multiples of them."""
    storage = dict(row.results[0]["storage"])
    parameters = storage.pop("parameters", 1) or 1
    shown = []
    for kind, count in storage.items():
        if not count or kind in ("buffers", "replay_bytes"):
            continue
        amount = f"{count:,}" if kind == "replay_samples" else f"{count / parameters:.3g}x"
        shown.append(f"{kind.replace('_', ' ')} {amount}")
    return ", ".join(shown) or "-"
