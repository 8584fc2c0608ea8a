"""Every table and figure: its recipe is valid in every size, and runs in the smallest."""

from pathlib import Path

import pytest

from manymodes import reproduce
from manymodes.cli import main
from manymodes.commands.compare import plan
from manymodes.commands.options import flattened
from manymodes.config import build_learner, build_stream

CIFAR = Path(__file__).parents[2] / "shared" / "data" / "cifar100"
TARGETS = [name for name in reproduce.recipes() if name != "demo"]


@pytest.mark.parametrize("profile", reproduce.PROFILES)
@pytest.mark.parametrize("target", TARGETS)
def test_every_recipe_is_a_valid_comparison(target, profile):
    recipe = reproduce.load(target, profile)
    configs, request, _ = plan(flattened(reproduce.options(recipe)))
    assert len({config.label for config in configs}) == len(configs) > 1
    assert request.seeds
    published = recipe.get("published", {})
    found = {reproduce.printed_row(config.label, published) for config in configs}
    assert set(published) <= found, "each published row has one of ours beside it"


@pytest.mark.parametrize("target", TARGETS)
def test_every_recipe_runs_in_the_smallest_size(target, tmp_path, capsys):
    code = main(["reproduce", target, "--profile=smoke", "--seeds=0", "--epochs=1", f"--out={tmp_path}"])
    output = capsys.readouterr().out
    assert code == 0
    rows = plan(flattened(reproduce.options(reproduce.load(target, "smoke"))))[0]
    assert len(list(tmp_path.glob("*/metrics.json"))) == len(rows)
    if "published" in reproduce.load(target, "smoke"):
        assert "beside the paper" in output


@pytest.mark.skipif(not CIFAR.exists(), reason=f"real data absent: {CIFAR}")
@pytest.mark.parametrize("target", [t for t in TARGETS if reproduce.recipe_stream(t) == "split-cifar100"])
def test_the_small_size_finds_its_classes_and_its_pretraining(target):
    """Ranges of classes and numbers are read as they are meant: the learner and its data can be made."""
    recipe = reproduce.load(target, "small")
    configs, _, _ = plan([*flattened(reproduce.options(recipe)), f"--data-dir={CIFAR}"])
    for config in (configs[0], reproduce.pretraining(configs[0], recipe)):
        stream = build_stream(config)
        assert build_learner(config, stream).epochs == config.strategy["epochs"]
        assert len(stream[0].train) > 0


def test_print_config_runs_nothing(tmp_path, capsys):
    words = ["reproduce", "table1b", "--profile=smoke", "--print_config", f"--out={tmp_path / 'runs'}"]
    assert main(words) == 0
    assert capsys.readouterr().out.count("strategy:") == 4
    assert not (tmp_path / "runs").exists()


def test_search_logs_lie_beside_the_tuned_rows():
    """The tuned values of the frozen recipes are the best trials of the logs that are kept."""
    import csv

    folder = Path("docs/results/frozen")
    for target, stream in (("table1a", "ci"), ("table2b", "pacs"), ("table3", "ct")):
        strategies = reproduce.load(target, "frozen")["strategies"]
        for method in ("ewc", "si"):
            with (folder / f"search-{stream}-{method}.csv").open() as file:
                trials = list(csv.DictReader(file))
            assert len(trials) == 16
            best = max(trials, key=lambda trial: float(trial["validation_accuracy"]))
            column = next(name for name in best if name.endswith("strength"))
            assert f"{method}:strength={float(best[column]):.4g}" in strategies
