"""The comparison table as HTML: sortable, a swatch and a copyable command for every row."""

from __future__ import annotations

import math
from html import escape

from manymodes.metrics import mean_interval
from manymodes.report.tables import MINUS, NONE, Column, Row, Table
from manymodes.report.theme import Palette

# Paths on a square of -1 to 1, the same shapes as in the charts.
PATHS = {
    "circle": "M1 0A1 1 0 1 1-1 0A1 1 0 1 1 1 0Z",
    "square": "M-.9-.9H.9V.9H-.9Z",
    "triangle-up": "M0-1 1 .8H-1Z",
    "triangle-down": "M0 1-1-.8H1Z",
    "triangle-right": "M1 0-.8 1V-1Z",
    "triangle-left": "M-1 0 .8-1V1Z",
    "diamond": "M0-1.1 1.1 0 0 1.1-1.1 0Z",
    "cross": "M-.35-1H.35V-.35H1V.35H.35V1H-.35V.35H-1V-.35H-.35Z",
}


def swatch(palette: Palette, name: str) -> str:
    """A method's mark in its colour."""
    n = palette.names.index(name)
    light, dark = palette.colors["light"][n], palette.colors["dark"][n]
    return (
        f'<svg class=swatch style="--l:{light};--d:{dark}" viewBox="-1.3 -1.3 2.6 2.6" aria-hidden=true>'
        f'<path d="{PATHS[palette.shapes[n]]}"/></svg>'
    )


def comparison(table: Table, palette: Palette) -> str:
    """The table, then the command of each row."""
    heads = [_head("Method", "", "text")]
    heads += [_head(c.title, c.about, "number", {1: "↑", -1: "↓", 0: ""}[c.best]) for c in table.columns[:1]]
    test = "difference of average accuracy; p of a paired t-test over seeds, Holm's correction"
    heads.append(_head("Against the best", test, "number"))
    heads += [_head(c.title, c.about, "number", {1: "↑", -1: "↓", 0: ""}[c.best]) for c in table.columns[1:]]
    heads += [_head("Parameters", "of all modes together", "number"),
              _head("Also kept", "numbers kept beside the parameters, in multiples of them", "number"),
              _head("Replay", "samples of earlier tasks kept", "number"),
              _head("Seconds", "of training and evaluation, mean of the seeds", "number"),
              "<th scope=col><span class=plain>Command</span></th>"]  # fmt: skip
    rows = "".join(_row(table, row, palette) for row in table.rows)
    several = len(table.experiment.seeds) > 1
    note = "Mean ± half-width of the 95 % interval over seeds. " if several else "One seed: no interval. "
    return (
        "<div class=scroll tabindex=0 role=region aria-label='Comparison of methods'>"
        f"<table class=comparison><thead><tr>{''.join(heads)}</tr></thead><tbody>{rows}</tbody></table></div>"
        f"<p class=caption>{note}"
        "Best value of a column in bold (multitask keeps all data: it does not compete). "
        "Accuracies, transfer, forgetting and ECE in % and points.</p>" + _commands(table, palette)
    )


def _head(title: str, about: str, kind: str, arrow: str = "") -> str:
    hint = f' title="{escape(about)}"' if about else ""
    better = {
        "↑": "<span class=hidden>, higher is better</span>",
        "↓": "<span class=hidden>, lower is better</span>",
    }
    shown = f"<span class=arrow aria-hidden=true>{arrow}</span>{better.get(arrow, '')}" if arrow else ""
    return (
        f"<th scope=col data-kind={kind} aria-sort=none><button type=button{hint}>{escape(title)}{shown}"
        "<span class=order aria-hidden=true></span></button></th>"
    )


def _row(table: Table, row: Row, palette: Palette) -> str:
    label = row.method.label
    shown = escape(label).replace(":", ":<wbr>")
    cells = [f"<th scope=row><span class=who>{swatch(palette, label)}<span>{shown}</span></span></th>"]
    cells.append(_metric(table, row, table.columns[0]))
    cells.append(_difference(table, row))
    cells += [_metric(table, row, column) for column in table.columns[1:]]
    seconds = mean_interval(row.method.values("seconds"))[0]
    replay = row.storage("replay_samples")
    cells += [
        _cell(row.method.capacity, f"{row.method.capacity:,}"),
        _cell(row.networks - 1, escape(row.kept).replace(", ", ",<br>"), "words"),
        _cell(replay, f"{replay:,}" if replay else NONE),
        _cell(None, NONE) if math.isnan(seconds) else _cell(seconds, f"{seconds:.1f}"),
        f"<td><button type=button class=copy data-copy=\"{escape(row.method.command)}\">Copy"
        f"<span class=hidden> the command of {escape(label)}</span></button></td>",
    ]  # fmt: skip
    marked = " class=reference" if row.method.is_reference else ""
    return f"<tr{marked}>{''.join(cells)}</tr>"


def _metric(table: Table, row: Row, column: Column) -> str:
    values = row.values[column.key]
    if not values:
        return _cell(None, NONE)
    text, _, half = column.text(values).partition(" ± ")
    shown = escape(text) + (f" <span class=half>± {escape(half)}</span>" if half else "")
    best = row is table.best(column)
    return _cell(mean_interval(values)[0], shown + ("<span class=hidden> (best)</span>" if best else ""),
                 "best" if best else "")  # fmt: skip


def _difference(table: Table, row: Row) -> str:
    if row.method is table.experiment.best:
        return _cell(0, "best")
    told = row.difference
    if told is None or told.seeds == 0:
        return _cell(None, NONE)
    p = "" if told.p is None else f" <span class=half>p {_p(told.p)}</span>"
    return _cell(told.mean, f"{told.mean * 100:+.1f}".replace("-", MINUS) + p)


def _p(p: float) -> str:
    return "&lt; 0.001" if p < 0.001 else f"= {p:.3f}" if p < 0.1 else f"= {p:.2f}"


def _cell(value: float | None, shown: str, kind: str = "") -> str:
    key = "" if value is None else f' data-value="{value:.9g}"'
    marked = f" class={kind}" if kind else ""
    return f"<td{marked}{key}>{shown}</td>"


def _commands(table: Table, palette: Palette) -> str:
    items = "".join(
        f"<li>{swatch(palette, row.method.label)}<code>{escape(row.method.command)}</code>"
        f'<button type=button class=copy data-copy="{escape(row.method.command)}">Copy'
        f"<span class=hidden> the command of {escape(row.method.label)}</span></button></li>"
        for row in table.rows
        if row.method.command
    )
    return (
        f"<details class=commands><summary>The exact command of each row</summary><ul>{items}</ul></details>"
    )
