"""`manymodes list`: everything that can be asked for, with what one should know before asking."""

import re

import pytest
import torch

from manymodes import models
from manymodes.commands import list as listing
from manymodes.errors import UserError
from manymodes.models.registry import LIBRARIES, REGISTRY
from manymodes.reproduce import recipes
from manymodes.strategies.registry import REGISTRY as STRATEGIES
from manymodes.streams.registry import STREAMS

NAMES = {"strategies": STRATEGIES, "streams": STREAMS, "models": REGISTRY | LIBRARIES, "recipes": recipes()}


@pytest.mark.parametrize("kind", NAMES)
def test_every_name_is_listed_with_what_it_is(kind, capsys):
    assert listing.main([kind]) == 0
    shown = capsys.readouterr().out
    assert shown.startswith(kind)
    starts = {line.split()[0] for line in shown.splitlines()[2:] if line and not line.startswith(" ")}
    assert set(NAMES[kind]) <= starts
    about = recipes() if kind == "recipes" else {name: entry.about for name, entry in NAMES[kind].items()}
    for text in about.values():
        assert text in " ".join(shown.split())


def test_streams_and_recipes_say_size_licence_and_download(capsys):
    listing.main(["streams", "recipes"])
    shown = " ".join(capsys.readouterr().out.split())
    for entry in STREAMS.values():
        assert f"{entry.size}; licence: {entry.licence}; download: {entry.download}" in shown
    for name in recipes():
        assert re.search(rf"{name} .*? licence: .*? download: ", shown), name


@pytest.mark.parametrize("name", REGISTRY)
def test_listed_sizes_are_true(name):
    inputs = {"inputs": 784} if name == "mlp" else {}
    with torch.device("meta"):
        parameters = models.count_parameters(models.find_model(name)(outputs=10, **inputs))
    assert REGISTRY[name].size.startswith(f"{parameters:,} parameters")


def test_names_are_whole_in_a_narrow_terminal(capsys, monkeypatch):
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "60")
    listing.main(["streams"])
    assert "\nsplit-tiny-imagenet  " in capsys.readouterr().out


def test_an_unknown_kind():
    with pytest.raises(UserError, match="unknown kind of thing 'stream'; did you mean 'streams'"):
        listing.main(["stream"])
