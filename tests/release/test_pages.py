"""Every code block of README and docs runs, in an empty folder, with the installed wheel."""

import pytest

from tests.release.conftest import ROOT
from tests.release.run_page import blocks

# CONTRIBUTING.md has tests of its own: tests/test_contributing.py
PAGES = [ROOT / "README.md", ROOT / "CHANGELOG.md", *sorted(ROOT.glob("docs/**/*.md"))]
WITH_CODE = [page for page in PAGES if any(b.excuse is None for b in blocks(page.read_text("utf-8")))]


@pytest.mark.parametrize("page", WITH_CODE, ids=lambda page: str(page.relative_to(ROOT)))
def test_the_blocks_of_a_page_run(page, installed, tmp_path):
    done = installed.run("python", ROOT / "tests" / "release" / "run_page.py", page, cwd=tmp_path)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]


def test_a_block_that_fails_fails_the_page_and_says_where(installed, tmp_path):
    page = tmp_path / "page.md"
    runner = ROOT / "tests" / "release" / "run_page.py"
    for code, line in (
        ("```python\nx = 1\n```\n\n```python\nassert x == 2\n```\n", 6),
        ("text\n\n```sh\nmanymodes --version\nmanymodes nonsense\n```\n", 5),
        ("```sh\ntrue | false\n```\n", 2),
    ):
        page.write_text(code, encoding="utf-8")
        done = installed.run("python", runner, page, cwd=tmp_path)
        assert done.returncode == 1
        assert f'page.md", line {line}' in done.stderr or f"page.md, line {line}" in done.stderr


def test_excuses_are_read_and_every_block_is_seen():
    text = "<!-- not run: no network -->\n```sh\npip install x\n```\n\n```bash\ntrue\n```\n```text\nno\n```\n"
    assert [(b.language, b.excuse, b.line) for b in blocks(text)] == [
        ("sh", "no network", 3),
        ("sh", None, 7),
    ]


def test_every_shell_or_python_fence_is_one_that_the_runner_sees():
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        fences = sum(
            line.lstrip().startswith(("```python", "```sh", "```bash", "```console"))
            for line in text.splitlines()
        )
        assert fences == len(blocks(text)), f"{page}: a fence is indented, or has options"
