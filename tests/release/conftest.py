"""A wheel, built from the sdist and installed into an environment that has nothing else of ours."""

import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import NamedTuple

import pytest
from filelock import FileLock

ROOT = Path(__file__).parents[2]
SOURCES = ("src", "tests", "docs", "examples", "benchmarks")


class Installed(NamedTuple):
    """The two archives, and the interpreter of the environment that has the wheel."""

    wheel: Path
    sdist: Path
    python: Path

    def run(self, *words, cwd, timeout=300, **environment):
        """A command of this environment: a script of its bin folder, or python."""
        plain = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "PYTEST_ADDOPTS")}
        plain |= {
            "OMP_NUM_THREADS": "1",
            "PATH": f"{self.python.parent}{os.pathsep}{os.environ['PATH']}",
            "PYTHONWARNINGS": "ignore",
        }
        command = [str(self.python.parent / words[0]), *map(str, words[1:])]
        return subprocess.run(
            command, cwd=cwd, env=plain | environment, capture_output=True, text=True, timeout=timeout
        )


@pytest.fixture(scope="session")
def installed(tmp_path_factory):
    """Built once, whatever the number of pytest's workers."""
    base = tmp_path_factory.getbasetemp()
    shared = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "installed"
    with FileLock(f"{shared}.lock"):
        if not (shared / "ready").exists():
            _build(shared)
            _install(shared)
            (shared / "ready").touch()
    (wheel,), (sdist,) = shared.glob("dist/*.whl"), shared.glob("dist/*.tar.gz")
    return Installed(wheel, sdist, shared / "venv" / "bin" / "python")


def _build(shared):
    """The sdist from a copy of the checkout, the wheel from the sdist."""
    copy = shared / "checkout"
    copy.mkdir(parents=True)
    for path in ROOT.iterdir():
        if path.is_file():
            shutil.copy(path, copy)
    leave = shutil.ignore_patterns("__pycache__", "*.egg-info")
    for name in SOURCES:
        shutil.copytree(ROOT / name, copy / name, ignore=leave)
    _do("-m", "build", "--no-isolation", "--outdir", shared / "dist", copy)


def _install(shared):
    """Only the wheel is new; what it depends on is taken from the environment that runs the tests."""
    venv = shared / "venv"
    _do("-m", "venv", "--without-pip", venv)
    (wheel,) = shared.glob("dist/*.whl")
    pip = ["-m", "pip", "--disable-pip-version-check", "--python", venv / "bin" / "python"]
    _do(*pip, "install", "--quiet", "--no-index", "--no-deps", wheel)
    own = venv / Path(sysconfig.get_path("purelib")).relative_to(sys.prefix)
    lent = [path for path in sys.path if Path(path).name == "site-packages"]  # two where one lends another
    (own / "dependencies.pth").write_text("\n".join(lent), encoding="utf-8")


def _do(*words):
    plain = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}  # a checkout on it looks installed
    done = subprocess.run([sys.executable, *map(str, words)], env=plain, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
