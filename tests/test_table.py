"""The table in the terminal: it fits every width, marks the best, and says what it leaves out."""

import io

import pytest
from rich.console import Console

from manymodes.table import SPARED, Row, show


def row(label, accuracy, scenario="", strategy=None, **more):
    """A method with a result for each accuracy."""
    common = {
        "strategy": strategy or label, "backward_transfer": -0.01, "forgetting": 0.02, "final_nll": 0.5,
        "forward_transfer": 0.1, "final_calibration_error": 0.04, "relative_drift": 1.25, "seconds": 2.0,
        "capacity": 17610, "storage": {"parameters": 10, "importances": 10, "anchors": 20, "teachers": 10},
    }  # fmt: skip
    results = [common | more | {"average_accuracy": value} for value in accuracy]
    return Row(label, results, f"manymodes run --strategy {label}", scenario)


ROWS = [row("finetune", [0.8, 0.9]), row("mota:modes=4", [0.92, 0.94]), row("multitask", [0.99, 0.99])]


def shown(rows, width=400, **options):
    text = io.StringIO()
    show(rows, Console(file=text, width=width, **options), "digits task")
    return text.getvalue()


@pytest.mark.parametrize("width", [40, 60, 80, 100, 120, 160, 200, 400])
def test_every_cell_is_whole_at_every_width(width):
    table, _, rest = shown(ROWS, width).partition("Mean and")
    assert "\N{HORIZONTAL ELLIPSIS}" not in table
    assert len([line for line in table.splitlines() if "mota:modes=4" in line and "93.0 ±" in line]) == 1
    headings = table.splitlines()[2].split()
    left_out = [name for name in SPARED if f" {name}," in rest or f" {name}:" in rest.partition("No room")[2]]
    for name in SPARED[1:]:
        has = name in {"noisy", "AUROC", "MI AUROC"}
        assert (name in headings) + (name in left_out) + has == 1, name
    assert bool(left_out) == (width < 200)


def test_the_best_is_marked_and_multitask_does_not_compete():
    text = shown(ROWS)
    (mota,) = (line for line in text.splitlines() if line.lstrip().startswith("mota"))
    assert "93.0 ± 12.7*" in mota
    (multi,) = (line for line in text.splitlines() if line.lstrip().startswith("multitask"))
    assert "*" not in multi
    assert "multitask keeps all data" in text
    coloured = shown(ROWS, color_system="standard", force_terminal=True, no_color=False)
    assert "\x1b[1;32m93.0 ± 12.7\x1b[0m" in coloured
    assert "12.7*" not in coloured


def test_one_seed_has_no_interval_and_one_row_no_best():
    text = shown([row("ewc", [0.9])])
    assert "One seed, so no intervals" in text
    assert "±" not in text
    assert "*" not in text


def test_scenarios_are_parts_of_one_table():
    text = shown([row("ewc", [0.9], "task"), row("mota", [0.95], "task"), row("ewc", [0.2], "class"),
                  row("mota", [0.1], "class")])  # fmt: skip
    lines = [line.split()[:3] for line in text.splitlines() if "%" not in line]
    assert ["task", "ewc", "90.0"] in lines
    assert ["mota", "95.0*", "-1.0"] in lines
    assert ["class", "ewc", "20.0*"] in lines
    assert ["mota", "10.0", "-1.0"] in lines


def test_headings_are_explained_and_commands_are_whole():
    text = shown(ROWS, 60)
    assert "manymodes run --strategy mota:modes=4\n" in text
    assert "NLL: negative log-likelihood" in shown(ROWS)
    assert "NLL: negative" not in text


def test_labels_are_text():
    text = shown([row("my[bold]x:Y", [0.5], strategy="mota")])
    assert "my[bold]x:Y" in text
