"""Words of the command line and YAML files become configurations."""

import json
import re

import pytest
import yaml

from manymodes.cli import main
from manymodes.commands.compare import at_equal_capacity, plan
from manymodes.commands.complaints import explained
from manymodes.commands.options import full_name, parse, split, with_config_file
from manymodes.commands.request import parse_seeds
from manymodes.config import build_learner, build_stream, options_for, plain
from manymodes.errors import UserError
from manymodes.signature import options_of
from manymodes.strategies.registry import ALL, REGISTRY, strategy_class

TABLES = {part: options_for(part, name) for part, name in
          (("strategy", "mota"), ("stream", "digits"), ("model", "auto"))}  # fmt: skip


def strategy(*words):
    return parse(words)[0].strategy


# ---- names -------------------------------------------------------------------------------------------


def test_without_words_everything_is_default():
    config, request = parse([])
    assert (config.strategy["name"], config.stream["name"], config.model["name"]) == (
        "mota",
        "digits",
        "auto",
    )
    for option in options_of(strategy_class("mota"), skip=("model", "seed")).values():
        assert config.strategy[option.name] == option.default
    assert request.seeds == [0]
    assert str(request.out) == "runs"


@pytest.mark.parametrize(
    "words",
    [
        ["--strategy", "ewc", "--strength", "3"],
        ["--strategy=ewc", "--strength=3"],
        ["--strategy.name", "ewc", "--strategy.strength", "3"],
        ["--strength", "3", "--strategy", "ewc"],
        ["--strategy", "finetune", "--strategy", "ewc", "--strength", "1", "--strength", "3"],
        ["--strategy", "EWC", "--strength", "3.0"],
    ],
)
def test_short_and_long_names_and_the_last_one_wins(words):
    assert (strategy(*words)["name"], strategy(*words)["strength"]) == ("ewc", 3.0)


@pytest.mark.parametrize("given", ["lwf-ewc", "lwf_ewc", "LWF-EWC"])
def test_dashes_and_underscores_are_alike(given):
    assert strategy("--strategy", given, "--batch-size", "7")["batch_size"] == 7
    assert strategy("--strategy", given, "--batch_size", "7")["name"] == "lwf-ewc"


def test_a_name_that_two_parts_have_must_be_said_in_full():
    with pytest.raises(UserError, match=r"--head is ambiguous: say --stream.head or --model.head"):
        parse(["--head", "shared"])
    assert parse(["--stream.head", "shared"])[0].stream["head"] == "shared"


@pytest.mark.parametrize(
    ("word", "says"),
    [
        ("--strenght=3", "did you mean '--strength'"),
        ("--strategy.strenght=3", "unknown option of strategy 'strenght'; did you mean 'strength'"),
        ("--stream.taks=3", "did you mean 'tasks'"),
        ("--oput=3", "did you mean '--out'"),
        ("--model.hidden=3", "unknown option of model 'hidden'"),
        ("--modes.x=3", "unknown option '--modes.x'"),
    ],
)
def test_unknown_options_are_named_with_the_nearest(word, says):
    with pytest.raises(UserError, match=says):
        parse([word])


def test_split_takes_values_with_equals_or_after_and_flags():
    assert split(["--a-b=c=d", "--flag", "--n", "-3", "--e="]) == [
        ("a_b", "c=d"),
        ("flag", "true"),
        ("n", "-3"),
        ("e", ""),
    ]


# ---- values ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--modes", "two"], "modes must be a whole number, not 'two'"),
        (["--modes", "1.5"], "modes must be a whole number, not '1.5'"),
        (["--strength", "lots"], "strength must be a number, not 'lots'"),
        (["--strength", "nan"], "strength must be a number, not 'nan'"),
        (["--backtracking", "perhaps"], "backtracking must be true or false, not 'perhaps'"),
        (["--tasks", "x"], "tasks must be a whole number or null, not 'x'"),
        (["--model", "mlp", "--hidden", "3"], "hidden must be a list, not '3'"),
        (["--model", "mlp", "--hidden", "[a]"], "hidden must be a whole number, not 'a'"),
        (["--epochs"], "--epochs needs a value"),
        (["--strategy.epochs", "--seed", "1"], "--epochs needs a value"),
        (["--out"], "--out needs a value"),
        (["--threads", "-1"], "threads must be a whole number"),
        (["--checkpoint-every", "-1"], "checkpoint_every must be a number of seconds"),
        (["--profile", "papr"], "did you mean 'paper'"),
        (["--record-trajectory", "often"], "Valid: auto, false, true"),
    ],
)
def test_values_of_the_wrong_kind(words, says):
    with pytest.raises(UserError, match=says):
        parse(words)


def test_flags_may_stand_alone():
    config, request = parse(["--deterministic", "--backtracking", "--print-config"])
    assert config.deterministic
    assert config.strategy["backtracking"]
    assert request.print_config
    assert not strategy("--backtracking=false")["backtracking"]


def test_other_messages_stay():
    assert explained("something\n  else") == "something else"


@pytest.mark.parametrize(
    ("text", "seeds"),
    [("3", [3]), ("0,1,2", [0, 1, 2]), ("0..3", [0, 1, 2, 3]), ("[4, 5]", [4, 5]), ("2,2,1", [2, 1])],
)
def test_seeds(text, seeds):
    assert parse_seeds(text) == seeds
    assert parse(["--seeds", text])[1].seeds == seeds


@pytest.mark.parametrize("text", ["", "a", "1,", "1.5", "-1", "0..-1", "3..1", "1...3"])
def test_seeds_that_are_none(text):
    with pytest.raises(UserError, match="seeds"):
        parse_seeds(text)


def test_the_last_of_seed_and_seeds_counts():
    assert parse(["--seed", "5", "--seeds", "1,2"])[1].seeds == [1, 2]
    config, request = parse(["--seeds", "1,2", "--seed", "5"])
    assert (request.seeds, config.seed) == ([5], 5)


def test_the_papers_profile():
    config, request = parse(["--profile", "paper", "--strategy", "ewc", "--epochs", "3"])
    assert (config.strategy["strength"], config.strategy["batch_size"], config.strategy["lr"]) == (
        1000.0,
        512,
        0.1,
    )
    assert config.strategy["epochs"] == 3
    assert request.seeds == [3407]
    assert parse(["--profile", "paper", "--seeds", "1"])[1].seeds == [1]


# ---- files -------------------------------------------------------------------------------------------


def written(path, content):
    path.write_text(content if isinstance(content, str) else yaml.safe_dump(content))
    return str(path)


def test_a_file_gives_options_and_words_win_wherever_they_stand(tmp_path):
    path = written(
        tmp_path / "a.yaml", {"strategy": {"name": "ewc", "strength": 5, "epochs": 9}, "seeds": "1,2"}
    )
    for words in (["--config", path, "--epochs", "4"], ["--epochs", "4", f"--config={path}"]):
        config, request = parse(words)
        assert (config.strategy["name"], config.strategy["strength"], config.strategy["epochs"]) == (
            "ewc",
            5.0,
            4,
        )
        assert request.seeds == [1, 2]


def test_short_names_and_json_in_a_file(tmp_path):
    path = tmp_path / "a.json"
    path.write_text(
        json.dumps({"strategy": "er", "budget": 3, "model": {"name": "mlp", "hidden": [3, 4]}, "seed": 7})
    )
    config, request = parse(["--config", str(path)])
    assert (config.strategy["budget"], config.model["hidden"], request.seeds) == (3, [3, 4], [7])
    assert parse(["--config", str(path), "--seeds", "1..3"])[1].seeds == [1, 2, 3]


@pytest.mark.parametrize("name", sorted(REGISTRY))
def test_print_config_is_a_config_file_that_gives_the_same(name, tmp_path, capsys):
    words = [
        "--strategy",
        name,
        "--model",
        "mlp",
        "--hidden",
        "[8]",
        "--epochs",
        "3",
        "--seed",
        "4",
        "--threads",
        "1",
    ]
    assert main(["run", *words, "--print-config"]) == 0
    path = written(tmp_path / "config.yaml", capsys.readouterr().out)
    assert main(["run", "--config", path, "--print-config"]) == 0
    assert capsys.readouterr().out == (tmp_path / "config.yaml").read_text()
    first, second = parse(words)[0], parse(["--config", path])[0]
    assert plain(first.as_dict()) == plain(second.as_dict())


def test_several_files_in_their_order(tmp_path):
    one = written(tmp_path / "1.yaml", {"epochs": 1, "lr": 0.5})
    two = written(tmp_path / "2.yaml", {"epochs": 2})
    found = strategy("--config", one, "--config", two)
    assert (found["epochs"], found["lr"]) == (2, 0.5)


def test_words_without_a_file_stay():
    assert with_config_file(["--a", "1"]) == ["--a", "1"]


# ---- compare -----------------------------------------------------------------------------------------


def rows(*words):
    return [config.label for config in plan(words)[0]]


def test_rows_with_options_of_their_own():
    configs, _, equal = plan(["--strategies", "ewc,mota:modes=4,mota:modes=3:strength=7,lwf_ewc"])
    labels = [config.label for config in configs]
    assert labels == ["ewc", "mota:modes=4", "mota:modes=3:strength=7.0", "lwf-ewc"]
    assert not equal
    assert configs[1].strategy["modes"] == 4
    assert configs[2].strategy["strength"] == 7.0


def test_all_means_all_and_the_second_ensemble():
    assert rows() == ALL
    assert rows("--strategies", "all") == ALL
    assert set(REGISTRY) < set(ALL)
    assert rows("--strategies", "all,mota:modes=4") == [*ALL, "mota:modes=4"]


def test_an_option_goes_to_the_rows_that_have_it():
    configs, _, _ = plan(["--strategies", "finetune,ewc,mota", "--strength", "3", "--epochs", "2"])
    assert "strength" not in configs[0].strategy
    assert [c.strategy["strength"] for c in configs[1:]] == [3.0, 3.0]
    assert [c.strategy["epochs"] for c in configs] == [2, 2, 2]


@pytest.mark.parametrize("owner", ["lwf-ewc", "lwf_ewc"])
def test_an_option_of_one_strategy(owner):
    configs, _, _ = plan(["--strategies", "ewc,lwf-ewc", f"--{owner}.strength", "3"])
    default = options_for("strategy", "ewc")["strength"].default
    assert [c.strategy["strength"] for c in configs] == [default, 3.0]


def test_a_row_may_be_your_own(monkeypatch):
    configs, _, _ = plan(["--strategies", "finetune,manymodes.strategies.ewc:EWC:strength=2"])
    assert configs[1].strategy["strength"] == 2.0
    assert build_learner(configs[1], build_stream(configs[1])).strength == 2.0


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--strategies", "ewc,ewc"], "names 'ewc' twice"),
        (["--strategies", "lwf-ewc,lwf_ewc"], "names 'lwf-ewc' twice"),
        (["--strategies", "ewc,ewk"], "did you mean 'ewc'"),
        (["--strategies", ","], "needs at least one"),
        (["--strategies"], "--strategies needs a value"),
        (["--strategies", "ewc:strenght=1"], "did you mean 'strength'"),
        (["--strategies", "finetune:strength=1"], "unknown option of strategy 'strength'"),
        (["--strategies", "finetune,ewc", "--modes", "3"], "unknown option '--modes'"),
        (["--strategies", "finetune", "--ewc.strength", "3"], "unknown option '--ewc.strength'"),
        (["--strategies", "ewc:strength=lots"], "strength must be a number, not 'lots'"),
    ],
)
def test_rows_that_cannot_be(words, says):
    with pytest.raises(UserError, match=says):
        plan(words)


def test_equal_capacity_narrows_what_has_modes():
    configs, _, equal = plan(
        ["--strategies", "finetune,ensemble,mota:modes=3", "--equal-capacity", "--model", "mlp"]
    )
    assert equal
    fitted = at_equal_capacity(configs)
    stream = build_stream(fitted[0])
    sizes = [build_learner(c, stream).modes.theta.numel() for c in fitted]
    assert fitted[0] == configs[0]
    assert all(0.9 * sizes[0] <= size <= sizes[0] for size in sizes)
    words = fitted[2].command()
    assert "--model.width" in words


def test_rows_with_a_network_of_their_own_stay_within_the_largest_single_one():
    words = ["--strategies", "finetune:model.hidden=[8],ewc,mota:lr=0.01:model.hidden=[4000],ensemble",
             "--model", "mlp", "--model.hidden", "[50]", "--equal-capacity"]  # fmt: skip
    fitted = at_equal_capacity(plan(words)[0])
    stream = build_stream(fitted[0])
    sizes = [build_learner(c, stream).modes.theta.numel() for c in fitted]
    assert sizes[0] < sizes[1]
    assert 0.9 * sizes[1] <= sizes[2] <= sizes[1]
    assert fitted[2].strategy["lr"] == 0.01


def test_a_network_without_width_need_not_be_narrowed_where_its_modes_fit():
    words = [
        "--strategies",
        "finetune,mota:modes=3:model.hidden=[]",
        "--model",
        "mlp",
        "--model.hidden",
        "[50]",
    ]
    configs, _, _ = plan(words)
    assert at_equal_capacity(configs) == configs
    configs, _, _ = plan([*words, "--model.hidden", "[2]"])
    with pytest.raises(UserError, match="no width fits"):
        at_equal_capacity(configs)


def test_rows_in_several_scenarios_each_at_its_own_capacity():
    words = ["--strategies", "finetune,mota", "--scenarios", "instance, task", "--model", "mlp"]
    configs, _, _ = plan(words)
    assert [(c.stream["scenario"], c.label) for c in configs] == [
        ("instance", "finetune"), ("instance", "mota"), ("task", "finetune"), ("task", "mota"),
    ]  # fmt: skip
    assert len({c.slug for c in configs}) == 4
    shared = at_equal_capacity(plan([*words, "--stream.head", "shared", "--scenarios", "task"])[0])
    sizes = [build_learner(c, build_stream(c)).modes.theta.numel() for c in shared]
    assert 0.9 * sizes[0] <= sizes[1] <= sizes[0]


def test_print_config_of_a_comparison_is_a_config_for_each_row(tmp_path, capsys):
    words = ["--strategies", "ewc,mota:modes=3", "--equal-capacity", "--epochs", "2"]
    assert main(["compare", *words, "--print-config", "--out", str(tmp_path / "runs")]) == 0
    documents = list(yaml.safe_load_all(capsys.readouterr().out))
    configs = at_equal_capacity(plan(words)[0])
    assert documents == [plain(c.as_dict()) for c in configs]
    path = written(tmp_path / "row.yaml", documents[1])
    assert plain(parse(["--config", path])[0].as_dict()) == documents[1]
    assert not (tmp_path / "runs").exists()


def test_help_of_compare_has_its_own_options(capsys):
    with pytest.raises(SystemExit) as stopped:
        main(["compare", "--help"])
    assert stopped.value.code == 0
    shown = capsys.readouterr().out
    assert all(option in shown for option in ("--strategies", "--scenarios", "--equal-capacity", "--seeds"))
    assert "--strategy NAME" not in shown  # the rows name the strategies


def _help(capsys, *words):
    with pytest.raises(SystemExit) as stopped:
        main([*words, "--help"])
    assert stopped.value.code == 0
    return capsys.readouterr().out


def test_help_shows_what_can_be_typed(capsys):
    shown = _help(capsys, "run", "--strategy", "mota")
    options = re.findall(r"^  (--[\w.-]+)", shown, re.MULTILINE)
    assert {"--modes", "--strategy", "--stream.seed", "--model.head", "--checkpoint-every"} <= set(options)
    assert len(options) > 40
    for name in options:
        assert full_name(name[2:].replace("-", "_"), TABLES)  # raises where it is unknown or ambiguous


def test_help_is_without_types_and_says_defaults(capsys):
    shown = _help(capsys, "run")
    assert "(default: 2)" in shown
    assert "weight decay. (default: 0.0)" in shown
    assert "type:" not in shown
    assert "null" not in shown
    assert _help(capsys, "learn").startswith("usage: manymodes learn RUN DATA [options]\n")
    assert "  --max-forgetting MAX_FORGETTING\n" in _help(capsys, "learn")
    assert _help(capsys, "report").startswith("usage: manymodes report FOLDERS ... [options]\n")


def test_equal_capacity_can_be_switched_off():
    assert not plan(["--strategies", "ewc", "--equal-capacity", "false"])[2]
