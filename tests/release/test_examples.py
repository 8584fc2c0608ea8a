"""Every script of examples/ runs, in an empty folder, with the installed wheel."""

import subprocess
import sys
from importlib.util import find_spec

import pytest

from tests.release.conftest import ROOT

EXAMPLES = ROOT / "examples"
SAYS = {
    "predict.py": ("probability,agreement", "exit code 3: refused", "In use: the version after task 2"),
    "export_onnx.py": ("digits.onnx", "of the modes agree", "right: 9"),
    "sklearn_pipeline.py": ("fit on all digits: 0.9", "at a time, er: 0.", "phishing, sample by sample"),
    "hub.py": ("library_name: manymodes", "model.safetensors", "has learnt 6 tasks"),
    "drifting_stream.py digits": ("as it arrives", "finetune", "EWC", "MOTA", "first task only"),
}  # fmt: skip
ELSEWHERE = {"clean_install.py", "documentation.py", "avalanche_mota.py"}  # below, test_site.py, and below


def test_none_is_forgotten():
    scripts = {path.name for path in EXAMPLES.glob("*.py")}
    assert scripts == {words.split()[0] for words in SAYS} | ELSEWHERE
    told = (EXAMPLES / "README.md").read_text(encoding="utf-8")
    assert all(f"[{name}]({name})" in told for name in scripts)


@pytest.mark.parametrize("words", SAYS)
def test_an_example_runs_and_shows_what_it_says(words, installed, tmp_path):
    name, *given = words.split()
    done = installed.run("python", EXAMPLES / name, *given, cwd=tmp_path)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    for text in SAYS[words]:
        assert text in done.stdout


@pytest.mark.parametrize("kind", ["wheel", "sdist"])
def test_a_new_environment_with_nothing_but_what_is_declared(kind, installed, tmp_path):
    words = [sys.executable, EXAMPLES / "clean_install.py", getattr(installed, kind), "--linked"]
    done = subprocess.run(list(map(str, words)), cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    assert "Report: " in done.stdout


def test_what_is_not_declared_is_missing_in_it(installed, tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(EXAMPLES))
    import clean_install

    commands = clean_install.install(installed.wheel, tmp_path / "venv", linked=True)
    ask = "from importlib.util import find_spec; print(*(find_spec(n) is not None for n in "
    ask += "('torch', 'altair', 'pytest')))"
    done = subprocess.run([commands / "python", "-c", ask], cwd=tmp_path, capture_output=True, text=True)
    assert done.stdout.split() == ["True", "True", "False"]


def test_the_one_for_avalanche(installed, tmp_path):
    """MOTA runs in Avalanche's loop, with its metrics; `make avalanche` has an environment for it."""
    if find_spec("avalanche") is None:
        pytest.skip("needs Avalanche: make avalanche")
    declared = ROOT / "tests" / "operators.py"
    done = installed.run("python", declared, EXAMPLES / "avalanche_mota.py", cwd=tmp_path)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    for text in ("Top1_Acc_Stream", "Avalanche's Naive  ", "MOTA  "):
        assert text in done.stdout


def test_without_avalanche_it_says_what_to_install(installed, tmp_path):
    example = f"import runpy; runpy.run_path({str(EXAMPLES / 'avalanche_mota.py')!r}, run_name='__main__')"
    for code in (example, "import manymodes.contrib.avalanche"):
        lacking = f"import sys; sys.modules['avalanche'] = None; {code}"
        done = installed.run("python", "-c", lacking, cwd=tmp_path)
        assert done.returncode == 1
        assert 'pip install "manymodes[avalanche]"' in done.stderr
