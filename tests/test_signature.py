"""Options from signatures: names, types, defaults, help; of functions and of classes with their bases."""

from functools import partial

import pytest

from manymodes.errors import UserError
from manymodes.signature import check_names, options_of
from manymodes.strategies.registry import REGISTRY, strategy_class


class Base:
    """Base.

    Args:
        model: What.
        depth: How deep
            it is.
        rate: The base's rate.
    """

    def __init__(self, model, *, depth: int = 3, rate: float = 0.1):
        pass


class Child(Base):
    """Child.

    Args:
        rate: The child's rate.
        extra: More.
    """

    def __init__(self, model, *, rate: float = 0.5, extra: str | None = None, **rest: int):
        pass


def test_a_class_has_its_own_options_and_its_bases():
    options = options_of(Child, skip=("model",))
    assert list(options) == ["rate", "extra", "depth"]
    assert (options["rate"].default, options["rate"].type, options["rate"].help) == (
        0.5,
        float,
        "The child's rate.",
    )
    assert (options["depth"].default, options["depth"].help) == (3, "How deep it is.")
    assert options["extra"].type == str | None


def test_a_function_may_have_required_options_and_no_help():
    def make(path: str, size=3):
        pass

    options = options_of(make)
    assert options["path"].required
    assert not options["size"].required
    assert options["size"].help == ""


def test_what_a_partial_gives_is_no_option_and_the_rest_keeps_type_and_help():
    def make(name: str, *, size: int = 3):
        """Make.

        Args:
            name: Which.
            size: How large.
        """

    assert options_of(partial(partial(make), "x")) == {"size": options_of(make)["size"]}
    assert options_of(make)["size"][1:] == (int, 3, "How large.")


@pytest.mark.parametrize("name", REGISTRY)
def test_every_option_of_every_strategy_has_a_type_a_default_and_help(name):
    options = options_of(strategy_class(name), skip=("model",))
    assert {"epochs", "batch_size", "lr", "seed", "device"} <= set(options)
    for option in options.values():
        assert option.help, option
        assert not option.required
        assert isinstance(option.default, option.type), option


@pytest.mark.parametrize("name", REGISTRY)
def test_the_papers_profile_names_options_that_exist(name):
    cls = strategy_class(name)
    options = options_of(cls, skip=("model",))
    assert set(cls.paper) <= set(options)
    for option, value in cls.paper.items():
        assert isinstance(value, options[option].type), option


def test_an_unknown_name_is_told_with_the_nearest():
    with pytest.raises(UserError, match="unknown option of child 'rat'; did you mean 'rate'"):
        check_names("child", {"rat": 1}, options_of(Child))
    check_names("child", {"rate": 1}, options_of(Child))
