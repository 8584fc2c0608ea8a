"""The site builds without a warning and opens without the network."""

import re
import subprocess
import sys

import pytest

from tests.release.conftest import ROOT

pytest.importorskip("mkdocs", reason="the site needs mkdocs-material: pip install manymodes[docs]")
pytest.importorskip("mkdocstrings", reason="the site needs mkdocstrings: pip install manymodes[docs]")

# What a browser fetches to show a page; a link that a reader may follow is no such thing.
FETCHED = re.compile(
    r"""<(?:script|img|iframe|source|video|audio|embed)\b[^>]*?\bsrc=["']?(?P<src>[^"'\s>]+)"""
    r"""|<link\b(?=[^>]*\brel=["']?(?:stylesheet|icon|preload|preconnect|modulepreload))"""
    r"""[^>]*?\bhref=["']?(?P<href>[^"'\s>]+)"""
    r"""|@import\s+(?:url\()?["']?(?P<css>[^"')]+)|url\(["']?(?P<url>[^"')]+)""",
    re.IGNORECASE,
)


def fetched(text):
    """The addresses that showing a page or a style sheet fetches."""
    return [next(filter(None, match.groups())) for match in FETCHED.finditer(text)]


def elsewhere(address):
    return address.startswith(("http:", "https:", "//"))


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    folder = tmp_path_factory.mktemp("site")
    words = [sys.executable, str(ROOT / "examples" / "documentation.py"), "site", str(folder)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


def test_nothing_is_fetched_from_elsewhere(site):
    seen = 0
    for path in (*site.rglob("*.html"), *site.rglob("*.css")):
        for address in fetched(path.read_text(encoding="utf-8")):
            seen += 1
            assert not elsewhere(address), f"{path.relative_to(site)} fetches {address}"
            if path.suffix == ".html" and path.name != "404.html" and not address.startswith("data:"):
                target = path.parent / address.partition("?")[0].partition("#")[0]
                assert target.exists(), f"{path.relative_to(site)} needs {address}, which is not there"
    assert seen > 50


def test_the_check_would_see_a_font_and_a_script():
    text = '<link rel="stylesheet" href="https://fonts.example/css"><script src=//cdn.example/a.js></script>'
    text += "<style>@font-face{src: url('https://fonts.example/a.woff')}</style><a href='https://ok.example'>"
    assert len([a for a in fetched(text) if elsewhere(a)]) == 3


def test_pages_made_of_other_files_are_there_and_their_links_work(site):
    for name in ("index", "own-strategy", "contributing", "changelog", "tutorial"):
        assert (site / f"{name}.html").is_file()
    index = (site / "index.html").read_text(encoding="utf-8")
    assert 'href="tutorial.html"' in index
    assert "my_learner.py" in (site / "own-strategy.html").read_text(encoding="utf-8")


def test_notebooks_are_pages_with_pictures_and_can_be_downloaded(site):
    for name in ("forgetting", "modes"):
        page = (site / "notebooks" / f"{name}.html").read_text(encoding="utf-8")
        assert "<figure><svg" in page
        assert f'href="{name}.ipynb"' in page
        assert (site / "notebooks" / f"{name}.ipynb").is_file()


def test_pictures_are_small_and_all_are_shown(site):
    pictures = sorted((ROOT / "docs" / "img").iterdir())
    assert sum(path.stat().st_size for path in pictures) < 1_500_000
    pages = "".join(
        page.read_text(encoding="utf-8") for page in (*ROOT.glob("docs/*.md"), ROOT / "README.md")
    )
    assert [path.name for path in pictures if path.name not in pages] == []


def test_the_reference_shows_docstrings(site):
    learners = (site / "reference" / "learners.html").read_text(encoding="utf-8")
    assert "how strongly the Fisher distance holds a mode" in learners
    parts = (site / "reference" / "parts.html").read_text(encoding="utf-8")
    assert "&gt;&gt;&gt; " in parts
    assert "<blockquote>" not in parts  # what a doctest becomes without its fence
