"""The paper's tables (its Tables 1 and 3 in one): what a row holds, and as Markdown, LaTeX and CSV."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Sequence
from dataclasses import dataclass

from manymodes.metrics import mean_interval
from manymodes.report.compare import Difference, differences
from manymodes.report.groups import Experiment, Method

# What typesetters use, by name: their look-alikes on the keyboard are other characters.
NONE, TIMES, MINUS = "\N{EN DASH}", "\N{MULTIPLICATION SIGN}", "\N{MINUS SIGN}"


@dataclass(frozen=True)
class Column:
    """A metric as a column: where its values are, how it is written, which end is good."""

    key: str
    title: str
    best: int = 0  # 1: higher is better, -1: lower, 0: not compared
    percent: bool = True
    about: str = ""

    def values(self, experiment: Experiment, method: Method) -> list[float]:
        """One value a seed."""
        return experiment.relative_drift(method) if self.key == "relative_drift" else method.values(self.key)

    def text(self, values: Sequence[float], plus_minus: str = " ± ") -> str:
        """Mean and half-width of the 95 % interval."""
        if not values:
            return NONE
        mean, half = mean_interval(values)
        show = self._percent if self.percent else self._plain
        return show(mean) + (plus_minus + show(half) if len(values) > 1 else "")

    @staticmethod
    def _percent(value: float) -> str:
        return f"{value * 100:.1f}".replace("-0.0", "0.0").replace("-", MINUS)

    @staticmethod
    def _plain(value: float) -> str:
        return "0" if value == 0 else f"{value:.3f}" if abs(value) >= 1e-3 else f"{value:.1e}"


COLUMNS = (
    Column("average_accuracy", "Average accuracy", 1, about="mean over all tasks after the last one, in %"),
    Column(
        "relative_drift",
        "Task drift",
        percent=False,
        about="mean squared change per parameter between tasks, summed over modes; fine-tuning is 1",
    ),
    Column("backward_transfer", "Backward transfer", 1, about="accuracy gained on earlier tasks, in points"),
    Column(
        "forward_transfer",
        "Forward transfer",
        1,
        about="accuracy on a task before it is learnt, over the initial model's",
    ),
    Column("remembering", "Remembering", 1, about="100 minus what backward transfer lost"),
    Column("forgetting", "Forgetting", -1, about="peak accuracy minus final accuracy of earlier tasks"),
    Column(
        "final_nll", "NLL", -1, percent=False, about="negative log-likelihood of the final model, in nats"
    ),
    Column("final_calibration_error", "ECE", -1, about="gap between confidence and accuracy, in points"),
    Column("shifted_accuracy", "Noisy inputs", 1, about="accuracy with noise as strong as the inputs, in %"),
    Column(
        "ood_auroc", "OOD AUROC", 1, about="how well confidence tells unseen classes from seen ones, in %"
    ),
    Column(
        "ood_auroc_disagreement",
        "OOD AUROC, disagreement",
        1,
        about="the same by the disagreement (mutual information) of the modes, in %",
    ),
)


@dataclass(frozen=True)
class Row:
    """One method in the table."""

    method: Method
    values: dict[str, list[float]]
    difference: Difference | None

    def storage(self, kind: str) -> int:
        """A line of the storage ledger."""
        return int(self.method.runs[0].metrics["storage"].get(kind, 0))

    @property
    def networks(self) -> float:
        """Everything kept that has the size of the parameters, in multiples of them."""
        kinds = ("importances", "anchors", "teachers", "gradients", "path")
        storage = self.method.runs[0].metrics["storage"]
        extra = sum(storage.get(kind, 0) for kind in kinds)
        return 1 + float(extra) / max(1, storage.get("parameters", 0) or self.method.capacity)

    @property
    def kept(self) -> str:
        """What is kept beside the parameters, in multiples of them."""
        storage = self.method.runs[0].metrics["storage"]
        parameters = max(1, storage.get("parameters", 0) or self.method.capacity)
        skipped = ("parameters", "buffers", "replay_samples", "replay_bytes")
        shown = [(k, v / parameters) for k, v in storage.items() if v and k not in skipped]
        return ", ".join(f"{kind.replace('_', ' ')} {amount:.3g}{TIMES}" for kind, amount in shown) or NONE


@dataclass(frozen=True)
class Table:
    """The comparison of one experiment."""

    experiment: Experiment
    rows: list[Row]

    @property
    def columns(self) -> list[Column]:
        """The columns that any row has a value in."""
        return [column for column in COLUMNS if any(row.values[column.key] for row in self.rows)]

    def best(self, column: Column) -> Row | None:
        """The row with the best mean; the upper bound does not compete, and alone nobody wins."""
        rivals = [r for r in self.rows if r.values[column.key] and not r.method.is_reference]
        if not column.best or len(rivals) < 2:
            return None
        return max(rivals, key=lambda r: column.best * mean_interval(r.values[column.key])[0])


def table(experiment: Experiment) -> Table:
    """The rows of an experiment, in the paper's order."""
    found = differences(experiment)
    rows = [
        Row(m, {c.key: c.values(experiment, m) for c in COLUMNS}, found.get(m.label))
        for m in experiment.methods
    ]
    return Table(experiment, rows)


def markdown(tables: Sequence[Table]) -> str:
    """All tables as GitHub's Markdown."""
    parts = []
    for content in tables:
        titles = ["Method", *(c.title for c in content.columns), "Parameters", "Also kept", "Replay", "Seeds"]
        lines = [" | ".join(titles), " | ".join(["---", *["---:"] * (len(titles) - 1)])]
        for row in content.rows:
            cells = [_markdown(row.method.label)]
            for column in content.columns:
                text = column.text(row.values[column.key])
                cells.append(f"**{text}**" if row is content.best(column) else text)
            cells += [f"{row.method.capacity:,}", row.kept, _replay(row), str(len(row.method.runs))]
            lines.append(" | ".join(cells))
        body = "\n".join(f"| {line} |" for line in lines)
        parts.append(f"## {_markdown(content.experiment.title)}\n\n{body}\n\n{_note(content)}\n")
    return "\n".join(parts)


def latex(tables: Sequence[Table]) -> str:
    """All tables for LaTeX with the booktabs package."""
    parts = []
    for content in tables:
        titles = ["Method", *(_heading(c.title, c.best) for c in content.columns)]
        titles.append(_heading("Numbers stored"))
        keeping = any(row.storage("replay_samples") for row in content.rows)
        titles += [_heading("Samples stored")] if keeping else []
        lines = [" & ".join(titles) + r" \\", r"\midrule"]
        for row in content.rows:
            cells = [_latex(row.method.label)]
            for column in content.columns:
                mean, _, half = (
                    column.text(row.values[column.key], " ± ").replace(MINUS, "-").partition(" ± ")
                )
                text = mean.replace(NONE, r"\text{--}")
                text = rf"\mathbf{{{text}}}" if row is content.best(column) else text
                cells.append(f"${text}_{{\\pm {half}}}$" if half else f"${text}$")
            cells.append(f"${row.networks:.3g} \\times {row.method.capacity:,}$".replace(",", "{,}"))
            cells += [_replay(row).replace(NONE, "--")] if keeping else []
            lines.append(" & ".join(cells) + r" \\")
        parts.append(
            "\n".join(
                [
                    r"\begin{table}[t]", r"\centering",
                    rf"\caption{{{_latex(content.experiment.title)}. {_latex(_note(content))}}}",
                    # as it is, or made smaller where it is wider than the text
                    r"\resizebox{\ifdim\width>\textwidth\textwidth\else\width\fi}{!}{%",
                    rf"\begin{{tabular}}{{@{{}}l{'r' * (len(titles) - 1)}@{{}}}}",
                    r"\toprule", *lines, r"\bottomrule", r"\end{tabular}}", r"\end{table}", "",
                ]
            )
        )  # fmt: skip
    return "% needs \\usepackage{booktabs,graphicx,amsmath}\n" + "\n".join(parts)


def _heading(title: str, best: int = 0) -> str:
    """In two lines, with an arrow to the good end."""
    arrow = {1: r" $\uparrow$", -1: r" $\downarrow$", 0: ""}[best]
    words = _latex(title).split()
    stacked = " ".join(words[:-1]) + r"\\" + words[-1] if len(words) > 1 else words[0]
    return rf"\shortstack[r]{{{stacked}{arrow}}}"


def csv_text(tables: Sequence[Table]) -> str:
    """All tables for a spreadsheet: mean and half-width of every metric in columns of their own."""
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    numbers = [name for c in COLUMNS for name in (c.key, f"{c.key}_ci95")]
    ends = ["minus_best", "p", "parameters", "networks_kept", "replay_samples", "seconds", "command"]
    writer.writerow(["stream", "scenario", "method", "seeds", *numbers, *ends])
    for content in tables:
        for row in content.rows:
            cells: list[object] = [content.experiment.stream, content.experiment.scenario, row.method.label]
            cells.append(" ".join(str(run.seed) for run in row.method.runs))
            for column in COLUMNS:
                values = row.values[column.key]
                cells += [f"{v:.6g}" for v in mean_interval(values)] if values else ["", ""]
            told = row.difference
            cells += (
                ["", ""] if told is None else [f"{told.mean:.6g}", "" if told.p is None else f"{told.p:.4g}"]
            )
            seconds = row.method.values("seconds")
            cells += [row.method.capacity, f"{row.networks:.4g}", row.storage("replay_samples")]
            cells += [f"{mean_interval(seconds)[0]:.4g}" if seconds else "", row.method.command]
            writer.writerow([_spreadsheet(cell) for cell in cells])
    return buffer.getvalue()


def _note(content: Table) -> str:
    seeds = len(content.experiment.seeds)
    interval = f"Mean ± half-width of the 95 % interval over {seeds} seeds" if seeds > 1 else "One seed"
    upper = any(method.is_reference for method in content.experiment.methods)
    return f"{interval}; best in bold" + (
        " (multitask keeps all data and does not compete)." if upper else "."
    )


def _replay(row: Row) -> str:
    samples = row.storage("replay_samples")
    return f"{samples:,}" if samples else NONE


def _markdown(text: str) -> str:
    return re.sub(r"([\\`*_\[\]<>|#&])", r"\\\1", " ".join(text.split()))


def _latex(text: str) -> str:
    special = {
        "\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "±": r"$\pm$",
        NONE: "--", **{c: f"\\{c}" for c in "&%$#_{}"},
    }  # fmt: skip
    return "".join(special.get(c, c) for c in " ".join(text.split()))


def _spreadsheet(cell: object) -> object:
    # A text cell that begins like a formula would be run by a spreadsheet.
    return f"'{cell}" if isinstance(cell, str) and cell[:1] in "=+@\t" else cell
