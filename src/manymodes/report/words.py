"""What the numbers say, in sentences."""

from __future__ import annotations

from collections.abc import Sequence

from manymodes import files
from manymodes.errors import UserError
from manymodes.report.groups import Method
from manymodes.report.runs import Run
from manymodes.report.tables import Table

MODES = (
    "A method with several modes can leave a task to some of them. These charts show who took what, and how "
    "it was decided."
)
SAME = 0.05  # points that are shown as 0.0
NO_LANDSCAPE = "This run has no landscape: run `manymodes landscape` on it."
NO_MODES = "This run has one mode and no backtracking: there is nothing to allocate."


def headline(table: Table) -> str:
    """Who is best, by how much, and how far from the upper bound.

    Says so where the paired test over seeds does not separate the first two.
    """
    experiment = table.experiment
    best = experiment.best
    if best is None:
        return f"{_name(experiment.methods[0])}: {_score(experiment.methods[0])}."
    parts = [f"{_name(best)} has the highest average accuracy after the last task: {_score(best)}"]
    second = _second(table)
    if second is not None:
        gap = best.mean("average_accuracy")[0] - second.mean("average_accuracy")[0]
        row = next(r for r in table.rows if r.method is second)
        tied = row.difference is not None and row.difference.tied
        if gap * 100 < SAME:
            parts.append(f", as {_name(second)} has")
        else:
            told = f", {gap * 100:.1f} points above {_name(second)}"
            parts.append(told + (" (a difference the seeds do not establish)" if tied else ""))
    upper = next((m for m in experiment.methods if m.is_reference), None)
    if upper is not None:
        gap = upper.mean("average_accuracy")[0] - best.mean("average_accuracy")[0]
        where = f"{abs(gap) * 100:.1f} points {'above' if gap >= 0 else 'below'} it"
        where = "no better" if abs(gap) * 100 < SAME else where
        parts.append(f". Training on all data at once ({_name(upper)}) is {where}")
    return "".join(parts) + "." + _without_data(table, best)


def _without_data(table: Table, best: Method) -> str:
    """The best of those that keep no old data, where that is another one."""
    storing = {row.method.label for row in table.rows if row.storage("replay_samples")}
    free = [m for m in table.experiment.methods if m.label not in storing and not m.is_reference]
    if best.label not in storing or not free:
        return ""
    first = max(free, key=lambda m: m.mean("average_accuracy")[0])
    return f" Of the methods that keep no old data, {_name(first)} is best: {_score(first)}."


def facts(tables: Sequence[Table], runs: Sequence[Run]) -> dict[str, str]:
    """What ran, where: a few words each."""
    methods = {m.label for table in tables for m in table.experiment.methods}
    seeds = sorted({seed for table in tables for seed in table.experiment.seeds})
    capacities = sorted({m.capacity for t in tables for m in t.experiment.methods if m.capacity})
    found = {
        "Streams": "; ".join(f"{t.experiment.title}, {_count(t.experiment.tasks, 'task')}" for t in tables),
        "Methods": str(len(methods)),
        "Seeds": ", ".join(map(str, seeds)),
        "Runs": str(len(runs)),
    }
    if capacities:
        ends = dict.fromkeys((capacities[0], capacities[-1]))
        found["Parameters"] = " to ".join(f"{c:,}" for c in ends)
    return found | _machine(runs[0])


def _machine(run: Run) -> dict[str, str]:
    try:
        environment = files.read_json(run.path / "environment.json")
        device = (
            environment.get("cuda") or f"{environment['machine']}, {_count(environment['cores'], 'core')}"
        )
        return {
            "Machine": str(device),
            "Software": f"manymodes {environment['manymodes']}, torch {environment['torch']}",
        }
    except (UserError, KeyError, TypeError, AttributeError):
        return {}


def _second(table: Table) -> Method | None:
    best = table.experiment.best
    rest = [m for m in table.experiment.methods if m is not best and not m.is_reference]
    return max(rest, key=lambda m: m.mean("average_accuracy")[0]) if rest else None


def _name(method: Method) -> str:
    return name_of(method.label)


def name_of(label: str) -> str:
    """A label as people write it.

    >>> name_of("mota:modes=4")
    'MOTA (modes=4)'
    """
    upper = {
        "mota": "MOTA",
        "ewc": "EWC",
        "si": "SI",
        "lwf": "LwF",
        "lwf-ewc": "LwF + EWC",
        "er": "ER",
        "agem": "A-GEM",
    }
    head, colon, rest = label.partition(":")
    return upper.get(head, head) + (f" ({rest.replace(':', ', ')})" if colon else "")


def _score(method: Method) -> str:
    mean, half = method.mean("average_accuracy")
    return f"{mean * 100:.1f} %" + (f" ± {half * 100:.1f}" if len(method.runs) > 1 else "")


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"
