"""What is released: the archives' contents, the installed command, the version, the classifiers."""

import tarfile
import tomllib
import zipfile

import yaml

from manymodes.version import __version__
from tests.release.conftest import ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def _data(folder):
    """Files of the package that are not code."""
    found = (p.relative_to(folder) for p in (folder / "manymodes").rglob("*") if p.is_file())
    return {p.as_posix() for p in found if p.suffix not in (".py", ".pyc")}


def test_every_file_of_the_package_is_in_the_wheel(installed):
    names = set(zipfile.ZipFile(installed.wheel).namelist())
    code = {p.relative_to(ROOT / "src").as_posix() for p in (ROOT / "src" / "manymodes").rglob("*.py")}
    data = _data(ROOT / "src")
    assert {"manymodes/py.typed", "manymodes/recipes/demo.yaml", "manymodes/report/page.html"} <= data
    assert code | data <= names
    strangers = {name for name in names if not name.startswith(("manymodes/", "manymodes-"))}
    assert not strangers


def test_the_sdist_is_the_whole_project(installed):
    with tarfile.open(installed.sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    wanted = {
        "LICENSE",
        "CITATION.cff",
        "CHANGELOG.md",
        "mkdocs.yml",
        "tests/laws/laws.py",
        "docs/tutorial.md",
    }
    assert wanted <= names
    assert not [name for name in names if "__pycache__" in name or name.startswith((".venv", "runs"))]


def test_the_wheel_is_what_runs(installed, tmp_path):
    ask = "import manymodes, sys; print(manymodes.__file__, manymodes.__version__, 'torch' in sys.modules)"
    where, version, torch = installed.run("python", "-c", ask, cwd=tmp_path).stdout.split()
    assert where.startswith(str(installed.python.parents[1]))
    assert (version, torch) == (__version__, "False")


def test_the_command_says_its_version(installed, tmp_path):
    done = installed.run("manymodes", "--version", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, f"manymodes {__version__}\n")


def test_recipes_are_found_in_the_wheel(installed, tmp_path):
    words = [
        "run",
        "--strategy",
        "finetune",
        "--stream",
        "digits",
        "--stream.tasks",
        "2",
        "--stream.limit",
        "20",
    ]
    done = installed.run("manymodes", *words, "--epochs", "1", "--out", "runs", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    done = installed.run("manymodes", "report", "runs", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "<html" in (tmp_path / "runs" / "report.html").read_text(encoding="utf-8")[:500]
    assert "demo" in installed.run("manymodes", "list", "recipes", cwd=tmp_path).stdout


def test_the_same_version_everywhere():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert citation["version"] == __version__
    newest = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8").partition("\n## ")[2].split()[0]
    assert newest == __version__


def test_every_version_says_how_to_migrate():
    versions = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8").split("\n## ")[1:]
    assert all("### Migrating\n" in text for text in versions)


def test_the_paper_can_be_cited():
    paper = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))["preferred-citation"]
    assert [author["family-names"] for author in paper["authors"]] == ["Datta", "Shadbolt"]
    assert (paper["title"], paper["year"]) == ("Multiple Modes for Continual Learning", 2022)


def test_the_wheel_asks_for_what_pyproject_says(installed):
    archive = zipfile.ZipFile(installed.wheel)
    (name,) = (n for n in archive.namelist() if n.endswith(".dist-info/METADATA"))
    metadata = archive.read(name).decode("utf-8")
    for line in (f"Requires-Python: {PROJECT['requires-python']}", "License-Expression: Apache-2.0"):
        assert line in metadata
    for extra in PROJECT["optional-dependencies"]:
        assert f"Provides-Extra: {extra}" in metadata
