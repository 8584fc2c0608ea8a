"""The search: spaces, validation data only, the same trials however often it is stopped."""

import csv
import math
import sys

import pytest
import torch
import yaml

import manymodes.tune as tune
from manymodes.cli import main
from manymodes.config import Config, options_for
from manymodes.errors import TrainingDiverged, UserError
from manymodes.signature import Option
from manymodes.spaces import Space, read_space
from manymodes.streams import digits
from manymodes.task import Stream, Task, TensorData
from manymodes.validation import Part, validation_stream
from tests import toys

pytest.importorskip("optuna", reason='needs Optuna: pip install "manymodes[tune]"')

OPTIONS = {
    "strength": Option("strength", float, 1.0, ""),
    "epochs": Option("epochs", int, 5, ""),
    "anchor": Option("anchor", str, "previous", ""),
    "limit": Option("limit", int | None, None, ""),
    "backtracking": Option("backtracking", bool, True, ""),
}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("strength=1e0..1e6:log", Space("strategy", "strength", 1.0, 1e6, log=True)),
        ("strength=0..1", Space("strategy", "strength", 0.0, 1.0)),
        ("strength=0.1,1,10", Space("strategy", "strength", choices=(0.1, 1.0, 10.0))),
        ("epochs=5..20", Space("strategy", "epochs", 5, 20, whole=True)),
        ("epochs=5..20:log", Space("strategy", "epochs", 5, 20, log=True, whole=True)),
        ("epochs=5,10", Space("strategy", "epochs", choices=(5, 10))),
        ("limit=10,null", Space("strategy", "limit", choices=(10, None))),
        ("anchor=previous,merged,merged", Space("strategy", "anchor", choices=("previous", "merged"))),
        ("backtracking=true,False", Space("strategy", "backtracking", choices=(True, False))),
    ],
)
def test_spaces(text, expected):
    found = read_space(text, "strategy", OPTIONS[text.partition("=")[0]])
    assert found == expected
    assert [type(c) for c in found.choices] == [type(c) for c in expected.choices]
    assert read_space(str(found).partition(".")[2], "strategy", OPTIONS[found.name]) == found


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("strength=", "no value"),
        ("strength=1..one", "'one' is not a number"),
        ("strength=1..inf", "'inf' is not a number"),
        ("strength=5..1", "must go up"),
        ("strength=0..1:log", "above 0"),
        ("strength=0..1:linear", "not 'linear'"),
        ("epochs=1.5..3", "not a whole number"),
        ("anchor=1..2", "not a number"),
        ("backtracking=yes,no", "true or false"),
    ],
)
def test_mistakes_in_spaces(text, message):
    with pytest.raises(UserError, match=message):
        read_space(text, "strategy", OPTIONS[text.partition("=")[0]])


def test_values_are_rounded_within_their_range():
    space = Space("strategy", "lr", 0.1, 0.99999)
    assert space.rounded(0.123456) == 0.1235
    assert space.rounded(0.999985) == 0.99999
    assert Space("strategy", "epochs", 1, 9, whole=True).rounded(7) == 7


# ---- validation data only ----------------------------------------------------------------------------------


class Untouchable:
    """A test part: whatever is asked of it is a failure."""

    def __getattribute__(self, name):
        raise AssertionError(f"test data was touched: {name}")

    def __len__(self):
        raise AssertionError("test data was touched: len")


def guarded(tasks: int = 3, limit: int = 30) -> Stream:
    """The digits with a test part that nobody may touch.

    Args:
        tasks: How many.
        limit: Training samples.
    """
    stream = digits("task", tasks=5, limit=limit)[:tasks]
    builders = tuple(lambda t=t: Task(t.name, t.train, t.val, Untouchable(), t.classes) for t in stream)
    return Stream("guarded", "task", stream.num_outputs, stream.input_shape, builders)


def numbers(data):
    return next(iter(data.batches([torch.arange(len(data))]))).inputs.flatten(1)


def test_half_of_the_validation_part_judges_and_half_is_the_learner_s():
    for task, original in zip(validation_stream(guarded()), digits(limit=30), strict=False):
        own, judge, whole = numbers(task.val), numbers(task.test), numbers(original.val)
        assert torch.equal(torch.cat([own, judge]).sort(dim=0).values, whole.sort(dim=0).values)
        assert abs(len(own) - len(judge)) <= 1
        assert not {tuple(r.tolist()) for r in own} & {tuple(r.tolist()) for r in judge}
        labels = torch.cat([task.val.targets, task.test.targets])
        assert torch.equal(labels.sort().values, original.val.targets.sort().values)


def test_a_part_counts_from_zero():
    data = TensorData(torch.arange(10.0)[:, None], torch.arange(10) % 2)
    part = Part(data, torch.tensor([7, 2, 5]))
    batches = list(part.batches([torch.tensor([2, 0]), torch.tensor([1])]))
    assert [b.index.tolist() for b in batches] == [[2, 0], [1]]
    assert [b.inputs.flatten().tolist() for b in batches] == [[5, 7], [2]]
    assert [b.targets.tolist() for b in batches] == [[1, 1], [0]]
    assert part.targets.tolist() == [1, 0, 1]


def test_without_validation_data_there_is_no_search():
    bare = Stream("bare", "task", 4, (6,), (lambda: toys.task((0, 1), val=0),))
    with pytest.raises(UserError, match="0 validation samples"):
        validation_stream(bare)[0]
    with pytest.raises(UserError, match="first-tasks=9"):
        validation_stream(guarded(), 9)


def test_the_command_never_touches_test_data(tmp_path, capsys):
    words = ["tune", "--strategy", "mota", "--stream", f"{__name__}:guarded", "--epochs", "2"]
    words += [
        "--space",
        "strength=1..1000:log",
        "--space",
        "search=val,train",
        "--space",
        "model.width=0.2..1",
    ]
    assert main([*words, "--trials", "3", "--first-tasks", "2", "--out", str(tmp_path)]) == 0
    out = capsys.readouterr().out
    assert "Best of 3 trials" in out
    assert f"manymodes run --config {tmp_path}/best.yaml" in out
    with pytest.raises(AssertionError, match="touched"):
        len(guarded()[0].test)


# ---- the search --------------------------------------------------------------------------------------------

CONFIG = Config({"name": "ewc", "epochs": 5, "strength": 100.0}, {"name": "digits"}, {"name": "auto"})
SPACES = [
    Space("strategy", "strength", 1.0, 1e6, log=True),
    Space("strategy", "epochs", 1, 9, whole=True),
    Space("strategy", "anchor", choices=("previous", "merged")),
]


def bowl(config, tasks=0):
    """Best at strength 1000, epochs 4."""
    off = abs(math.log10(config.strategy["strength"]) - 3) + abs(config.strategy["epochs"] - 4)
    return 1 / (1 + off) - 0.01 * config.seed


@pytest.fixture
def fast(monkeypatch):
    monkeypatch.setattr(tune, "score", bowl)


def rows(folder):
    with open(folder / "trials.csv") as file:
        return [{k: v for k, v in row.items() if k != "seconds"} for row in csv.DictReader(file)]


def search(folder, **options):
    return tune.Search(CONFIG, SPACES, folder, **{"seeds": [0]} | options)


def test_the_first_trial_is_what_would_be_used_anyway(fast, tmp_path):
    config = Config(CONFIG.strategy | {"anchor": "merged"}, CONFIG.stream)
    tune.Search(config, SPACES, tmp_path, seeds=[0]).run(2)
    first = rows(tmp_path)[0]
    assert (first["strategy.strength"], first["strategy.epochs"]) == ("100.0", "5")
    assert first["strategy.anchor"] == "merged"


def test_it_finds_the_bottom_and_writes_the_winner(fast, tmp_path):
    best = search(tmp_path).run(40)
    found = rows(tmp_path)
    assert len(found) == 40
    assert f"{best.value:.6f}" == max(row["validation_accuracy"] for row in found)
    assert best.value > bowl(CONFIG)
    recipe = yaml.safe_load((tmp_path / "best.yaml").read_text())
    assert recipe["strategy"]["strength"] == best.settings["strategy.strength"]
    assert recipe["strategy"]["epochs"] == best.settings["strategy.epochs"]
    assert recipe["stream"] == {"name": "digits"}
    assert bowl(Config(recipe["strategy"], {})) == pytest.approx(best.value)


def test_stopped_and_continued_is_the_same_search(fast, tmp_path):
    search(tmp_path / "whole").run(16)
    for trials in (3, 3, 12, 16):
        search(tmp_path / "parts").run(trials)
    assert rows(tmp_path / "parts") == rows(tmp_path / "whole")


@pytest.mark.parametrize("at", [1, 2, 13])
def test_killed_within_a_trial_is_the_same_search(fast, tmp_path, monkeypatch, at):
    search(tmp_path / "whole").run(15)
    calls = []

    def killed(config, tasks=0):
        calls.append(config)
        if len(calls) == at:
            raise KeyboardInterrupt
        return bowl(config)

    monkeypatch.setattr(tune, "score", killed)
    with pytest.raises(KeyboardInterrupt):
        search(tmp_path / "parts").run(15)
    search(tmp_path / "parts").run(15)
    assert rows(tmp_path / "parts") == rows(tmp_path / "whole")


def test_seeds_are_averaged(fast, tmp_path):
    one, two = search(tmp_path / "1").run(1), search(tmp_path / "2", seeds=[0, 4]).run(1)
    assert two.value == pytest.approx(one.value - 0.02)


def test_a_setting_that_diverges_is_worth_nothing_and_the_search_goes_on(tmp_path, monkeypatch):
    def diverging(config, tasks=0):
        if config.strategy["epochs"] > 5:
            raise TrainingDiverged("the loss became nan")
        return 0.5

    monkeypatch.setattr(tune, "score", diverging)
    best = search(tmp_path).run(12)
    found = rows(tmp_path)
    assert {r["diverged"] for r in found} == {"true", "false"}
    assert all((r["diverged"] == "true") == (float(r["validation_accuracy"]) == 0) for r in found)
    assert not best.diverged


def test_a_directory_holds_one_search(fast, tmp_path):
    search(tmp_path).run(1)
    for other in ({"seeds": [1]}, {"tasks": 2}):
        with pytest.raises(UserError, match="other options or spaces"):
            search(tmp_path, **other).run(1)
    with pytest.raises(UserError, match="other options or spaces"):
        tune.Search(CONFIG, SPACES[:2], tmp_path, seeds=[0]).run(1)
    (tmp_path / "broken").mkdir()
    for text, message in (("not json", "not valid JSON"), ('{"trials": 1}', "damaged"), ("[]", "damaged")):
        (tmp_path / "broken" / "search.json").write_text(text)
        with pytest.raises(UserError, match=message):
            search(tmp_path / "broken").run(1)


def test_one_search_at_a_time(fast, tmp_path):
    with tune._alone(tmp_path), pytest.raises(UserError, match="another search is under way"):
        search(tmp_path).run(1)


def test_without_optuna_one_line_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "optuna", None)
    with pytest.raises(UserError, match=r"manymodes\[tune\]"):
        search(tmp_path)


def test_the_score_is_that_of_a_run_by_hand():
    from manymodes import Finetune
    from manymodes.config import build_learner

    config = Config({"name": "finetune", "epochs": 2}, {"name": "digits", "scenario": "class", "limit": 40})
    learner, stream = build_learner(config, digits("class")), validation_stream(digits("class", limit=40), 2)
    assert isinstance(learner, Finetune)
    right = []
    for task in stream:
        learner.learn(task)
    for task in stream:
        guess = learner.predict(task.test, classes=stream[-1].classes).argmax(1)
        right.append((guess == task.test.targets).float().mean().item())
    assert tune.score(config, 2) == pytest.approx(sum(right) / 2)


def test_several_at_a_time_are_the_same_search_however_often_stopped(tmp_path):
    config = Config({"name": "finetune", "epochs": 2}, {"name": "digits", "scenario": "class", "limit": 20})
    spaces = [Space("strategy", "epochs", 1, 3, whole=True), Space("strategy", "lr", 1e-3, 1e30, log=True)]

    def together(folder, trials, jobs=2):
        return tune.Search(config, spaces, folder, seeds=[0], tasks=2, jobs=jobs).run(trials)

    best = together(tmp_path / "whole", 3)
    for trials in (2, 3):
        together(tmp_path / "parts", trials)
    assert rows(tmp_path / "parts") == rows(tmp_path / "whole")
    assert best.value == pytest.approx(tune.score(tune.Search(config, spaces, tmp_path, seeds=[0]).configured(
        best.settings), 2))  # fmt: skip
    assert {row["diverged"] for row in rows(tmp_path / "whole")} == {"true", "false"}
    assert not (tmp_path / "whole" / "trials").exists()


# ---- the command -------------------------------------------------------------------------------------------


def test_all_modes_together_stay_within_a_capacity(tmp_path):
    """Each trial's network is as wide as its own options allow."""
    config = Config(
        {"name": "mota", "modes": 2, "epochs": 1},
        {"name": "digits", "tasks": 2},
        {"name": "mlp", "hidden": [10]},
    )
    space = Space("strategy", "modes", choices=(1, 2, 4))
    search = tune.Search(config, [space], tmp_path / "s", seeds=[0], capacity=2_000)
    stream = tune.build_stream(config)
    for modes in (2, 4):
        chosen = search.configured({"strategy.modes": modes})
        assert 1_800 <= tune.build_learner(chosen, stream).modes.theta.numel() <= 2_000


def test_the_recipe_is_one_that_run_takes(tmp_path, capsys):
    words = ["--strategy", "lwf", "--stream", "digits", "--stream.limit", "30", "--stream.tasks", "2"]
    search = ["--space", "epochs=1..3", "--space", "lr=1e-3..1e-2:log", "--trials", "2"]
    assert main(["tune", *words, *search, "--out", str(tmp_path / "tune")]) == 0
    assert main(["run", "--config", str(tmp_path / "tune/best.yaml"), "--print_config"]) == 0
    printed = yaml.safe_load(capsys.readouterr().out.partition("looked at.\n")[2])
    assert printed == yaml.safe_load((tmp_path / "tune/best.yaml").read_text())
    assert set(printed["strategy"]) == {"name", *options_for("strategy", "lwf")}


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "nothing to search"),
        (["--space", "strenght=1..2"], "unknown option '--strenght'"),
        (["--space", "strength"], "write NAME="),
        (["--space", "stream.seed=0,1"], "only options of the strategy and the network"),
        (["--space", "out=a,b"], "only options of the strategy and the network"),
        (["--space", "strength=1..2", "--space", "strategy.strength=1..3"], "two spaces"),
        (["--space", "strength=1..2", "--trials", "0"], "trials must be"),
        (["--space", "strength=1..2", "--trials", "many"], "trials must be"),
        (["--space", "strength=1..2", "--first-tasks", "9", "--trials", "1"], "5 tasks"),
        (["--space", "strength=1..2", "--engine", "ray"], "say how many settings to try at the same time"),
        (["--space", "strength=-2..-1", "--trials", "2", "--jobs", "2"], "strength must be"),
        (["--space", "strength=-2..-1", "--trials", "1"], "strength must be"),
        (["--space", "anchor=previous,nowhere", "--trials", "9"], "unknown anchor 'nowhere'"),
        (["--strategy", "ewk", "--space", "strength=1..2"], "did you mean 'ewc'"),
    ],
)
def test_a_mistake_is_one_line(words, message, tmp_path, capsys):
    given = [] if "--strategy" in words else ["--strategy", "ewc"]
    small = ["--stream", "digits", "--stream.limit", "10", "--epochs", "1", "--out", str(tmp_path / "t")]
    assert main(["tune", *given, *small, *words]) == 2
    error = capsys.readouterr().err.splitlines()[-1]
    assert error.startswith("manymodes: error:")
    assert message in error


def test_help_names_its_options(capsys):
    assert main(["tune", "--help"]) == 0
    text = capsys.readouterr().out
    assert all(word in text for word in ("--space", "--trials", "--first-tasks", "best.yaml"))
