"""Colours: read on light and dark, told apart by the colour-blind, the same in every report."""

from __future__ import annotations

from itertools import combinations

import pytest

from manymodes.report import theme
from manymodes.report.groups import experiments
from manymodes.report.runs import read_runs
from tests.reference.contrast import BLINDNESS, contrast, distance
from tests.report.synthetic import comparison, write_run

THEMES = tuple(theme.TOKENS)


@pytest.mark.parametrize("name", THEMES)
def test_text_and_marks_stand_out_from_the_paper(name):
    token = theme.TOKENS[name]
    for text in ("ink", "muted", "accent"):
        for ground in ("paper", "low"):
            assert contrast(token[text], token[ground]) >= 4.5, (text, ground)
    for color in (*theme.CATEGORY[name], *theme.NEUTRAL[name], token["high"]):
        assert contrast(color, token["paper"]) >= 3, color


@pytest.mark.parametrize("blindness", BLINDNESS)
@pytest.mark.parametrize("name", THEMES)
def test_methods_are_told_apart_with_every_kind_of_vision(name, blindness):
    colors = (*theme.CATEGORY[name], *theme.NEUTRAL[name])
    least = min((distance(a, b, blindness), a, b) for a, b in combinations(colors, 2))
    assert least[0] >= 20, least


@pytest.mark.parametrize("name", THEMES)
def test_numbers_in_heat_maps_can_be_read_at_every_level(name):
    token = theme.TOKENS[name]
    for percent in range(101):
        ground = theme._mix(token["low"], token["high"], percent / 100)
        ink = token["onfill"] if percent / 100 > theme.FLIP[name] else token["cell"]
        assert contrast(ink, ground) >= 4.5, percent


def test_a_method_keeps_its_colour_whatever_else_ran(tmp_path):
    many = experiments(read_runs([comparison(tmp_path / "many")]).runs)[0]
    write_run(tmp_path / "one", "mota", modes=2, label="mota")
    one = experiments(read_runs([tmp_path / "one"]).runs)[0]
    first, second = theme.of_methods(many.methods), theme.of_methods(one.methods)
    assert first.colors["light"][first.names.index("mota")] == second.colors["light"][0]
    assert first.dashes[first.names.index("multitask")] != [1, 0]


def test_no_two_of_twelve_methods_share_colour_and_shape(tmp_path):
    for modes in range(1, 13):
        write_run(tmp_path, "mota", modes=modes)
    palette = theme.of_methods(experiments(read_runs([tmp_path]).runs)[0].methods)
    pairs = list(zip(palette.colors["light"], palette.shapes, strict=True))
    assert len(set(pairs)) == 12
    assert len(set(pairs[:8])) == len({color for color, _ in pairs[:8]})
