"""Configurations: what they build, their names, the command that repeats them."""

import shlex
from dataclasses import replace

import pytest
import torch
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from manymodes.commands.options import parse
from manymodes.config import Config, build_learner, build_model, build_stream, fitted, options_for, plain
from manymodes.errors import UserError
from manymodes.models import count_parameters
from manymodes.strategies.registry import REGISTRY

DIGITS = {"name": "digits", "scenario": "task"}


def config(**strategy):
    return Config({"name": "mota", **strategy}, DIGITS, {"name": "mlp", "hidden": [20]}, seed=2)


# ---- building ----------------------------------------------------------------------------------------


def test_the_seed_is_that_of_the_network_the_stream_and_the_learner():
    one, other = config(), replace(config(), seed=3)
    streams = build_stream(one), build_stream(other)
    assert streams[0].info["seed"] == 2
    assert streams[0].info["class_order"] != streams[1].info["class_order"]
    weights = [build_model(c, streams[0]).fc.weight for c in (one, one, other)]
    assert torch.equal(weights[0], weights[1])
    assert not torch.equal(weights[0], weights[2])
    assert build_learner(one, streams[0]).seed == 2


def test_a_stream_may_have_a_seed_of_its_own():
    own = replace(config(), stream={**DIGITS, "seed": 7})
    assert build_stream(own).info["seed"] == 7
    assert build_stream(replace(own, seed=9)).info["class_order"] == build_stream(own).info["class_order"]


def test_building_leaves_the_global_generator_alone():
    torch.manual_seed(1)
    expected = torch.rand(1)
    torch.manual_seed(1)
    build_learner(config(), build_stream(config()))
    assert torch.equal(torch.rand(1), expected)


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"strategy": {"name": "mota", "mode": 3}}, "did you mean 'modes'"),
        ({"stream": {"name": "digits", "task": 3}}, "did you mean 'tasks'"),
        ({"model": {"name": "mlp", "hiden": [3]}}, "did you mean 'hidden'"),
        ({"strategy": {"name": "motta"}}, "did you mean 'mota'"),
        ({"stream": {"name": "digit"}}, "did you mean 'digits'"),
        ({"model": {"name": "resnet19"}}, "did you mean 'resnet1"),
    ],
)
def test_unknown_names_and_options(changed, says):
    broken = replace(config(), **changed)
    with pytest.raises(UserError, match=says):
        build_learner(broken, build_stream(broken))


# ---- equal capacity ----------------------------------------------------------------------------------


@pytest.mark.parametrize("model", ["auto", "mlp", "small-cnn", "small-resnet", "resnet20"])
@pytest.mark.parametrize("modes", [1, 2, 3, 6])
def test_modes_together_never_exceed_the_single_network(model, modes):
    single = replace(config(modes=modes), model={"name": model})
    stream = build_stream(single)
    budget = count_parameters(build_model(single, stream))
    found = fitted(single, stream, budget)
    count = count_parameters(build_model(found, stream))
    assert modes * count <= budget
    if modes == 1:
        assert found == single
    else:
        wider = replace(found, model=found.model | {"width": found.model["width"] * 1.1})
        assert modes * count_parameters(build_model(wider, stream)) > budget
        assert build_learner(found, stream).modes.theta.numel() <= budget


def test_a_model_without_a_width_cannot_be_fitted():
    own = replace(config(), model={"name": "tests.toys:net"})
    with pytest.raises(UserError, match="no width option"):
        fitted(own, build_stream(own), 1000)


# ---- names -------------------------------------------------------------------------------------------


def test_the_label_names_what_is_not_default():
    assert config().label == "mota"
    assert config(modes=4, epochs=7, order="fixed").label == "mota:modes=4"
    assert Config({"name": "ewc", "strength": 3.0}, DIGITS).label == "ewc:strength=3.0"


def test_the_slug_is_a_file_name():
    own = Config({"name": "my.module:Learner"}, {"name": "digits", "scenario": "class"}, seed=4)
    with pytest.raises(UserError, match="cannot be imported"):
        own.slug  # noqa: B018
    assert config(modes=4).slug == "mota-modes=4-digits-task-seed2"
    assert "/" not in Config({"name": "finetune"}, {"name": "folder", "path": "a/b"}).slug


# ---- the command that repeats a run ------------------------------------------------------------------

VALUES = {
    int: st.integers(1, 9), float: st.floats(0.25, 64, allow_nan=False), bool: st.booleans(),
}  # fmt: skip


def changed_options(part, name):
    """Some options of a part with other values of their type."""
    known = {k: o for k, o in options_for(part, name).items() if o.type in VALUES}
    choices = {key: VALUES[option.type] for key, option in known.items()}
    return st.lists(st.sampled_from(sorted(choices)), unique=True, max_size=4).flatmap(
        lambda keys: st.fixed_dictionaries({key: choices[key] for key in keys})
    )


STRATEGIES = st.sampled_from(sorted(REGISTRY)).flatmap(
    lambda name: st.tuples(st.just(name), changed_options("strategy", name))
)
SEEDS = st.lists(st.integers(0, 99), min_size=1, max_size=3, unique=True)


@settings(max_examples=20)
@given(STRATEGIES, SEEDS, st.integers(0, 4), st.booleans())
def test_the_command_gives_the_same_configuration(strategy, seeds, threads, deterministic):
    name, options = strategy
    given_words = [f"--strategy={name}", *(f"--strategy.{k}={_word(v)}" for k, v in options.items())]
    first, _ = parse([*given_words, f"--seed={seeds[0]}", f"--threads={threads}",
                      *(["--deterministic"] if deterministic else [])])  # fmt: skip
    words = shlex.split(first.command(seeds))
    assert words[:2] == ["manymodes", "run"]
    again, request = parse(words[2:])
    assert again == first
    assert request.seeds == seeds
    for key, value in options.items():
        assert again.strategy[key] == value


def _word(value):
    return str(value).lower() if isinstance(value, bool) else str(value)


@pytest.mark.parametrize(
    "words",
    [
        ["--model", "mlp", "--hidden", "[7, 8]", "--width", "0.5"],
        [
            "--stream",
            "digits",
            "--stream.head",
            "shared",
            "--limit",
            "10",
            "--tasks",
            "2",
            "--stream.seed",
            "5",
        ],
        ["--model", "small-cnn", "--weights", "a file's name.safetensors", "--model.head", "fc"],
        ["--model", "tests.toys:net", "--hidden", "9"],
        ["--profile", "paper", "--strategy", "ewc"],
    ],
)
def test_awkward_values_survive_the_command(words):
    first, _ = parse(words)
    again, _ = parse(shlex.split(first.command())[2:])
    assert plain(again.as_dict()) == plain(first.as_dict())


def test_the_dictionary_is_plain_yaml():
    first, _ = parse(["--model", "mlp"])
    text = yaml.safe_dump(plain(first.as_dict()))
    assert yaml.safe_load(text) == plain(first.as_dict())
