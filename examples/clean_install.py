"""What a newcomer gets: a wheel or sdist in a new environment, its version, a run, the report.

Run: python examples/clean_install.py dist/manymodes-0.1.0-py3-none-any.whl
     python examples/clean_install.py FILE --linked     without a network (needs `packaging` here)

With --linked the environment that runs this script lends the new one the distributions that the package
declares, and theirs, and nothing else: a dependency that is not declared is missing there.
"""

import os
import subprocess
import sys
import tempfile
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path

EXTRA = "report"
LINES = (
    "--version",
    "--help",
    "run --strategy mota --stream digits --tasks 2 --epochs 2 --out runs",
    "runs runs",
    "report runs --figures svg",
)


def needed(own):
    """The distributions that this one needs, with its extra, directly or not."""
    from packaging.requirements import Requirement

    def required(dist, extra):
        wanted = [Requirement(text) for text in dist.requires or ()]
        return [w for w in wanted if w.marker is None or w.marker.evaluate({"extra": extra})]

    seen, found, waiting = set(), {}, required(own, EXTRA)
    while waiting:
        wanted = waiting.pop()
        for extra in {"", *wanted.extras} - {e for name, e in seen if name == wanted.name}:
            seen.add((wanted.name, extra))
            try:
                found[wanted.name] = distribution(wanted.name)
            except PackageNotFoundError:
                sys.exit(f"{wanted.name} is needed, and this environment does not have it")
            waiting += required(found[wanted.name], extra)
    return found.values()


def lend(site, dists):
    """Link distributions of this environment into another."""
    for dist in dists:
        for top in {file.parts[0] for file in dist.files or ()} - {"..", "__pycache__"}:
            if not (site / top).exists():
                (site / top).symlink_to(dist.locate_file(top))


def install(file, venv, linked):
    """A new environment with the package; returns its folder of commands."""
    os.environ.pop("PYTHONPATH", None)  # a checkout on it would look installed
    subprocess.run([sys.executable, "-m", "venv", *(["--without-pip"] if linked else []), venv], check=True)
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--python", venv / "bin" / "python"]
    if not linked:
        subprocess.run([*pip, "install", "-q", f"{file}[{EXTRA}]"], check=True)
        return venv / "bin"
    (site,) = venv.glob("lib/python*/site-packages")
    if file.suffix == ".gz":
        lend(site, [distribution("setuptools")])  # an sdist is built first
    options = ["-q", "--no-index", "--no-deps", "--no-build-isolation"]
    subprocess.run([*pip, "install", *options, file], check=True)
    (metadata,) = site.glob("manymodes-*.dist-info")
    lend(site, needed(Distribution.at(metadata)))
    return venv / "bin"


def show(file, linked, folder):
    """Install, and do what the README says first, with less of it."""
    commands = install(file, folder / "venv", linked)
    for line in LINES:
        print(f"\n$ manymodes {line}", flush=True)
        subprocess.run([commands / "manymodes", *line.split()], cwd=folder, check=True)
    assert "<html" in (folder / "runs" / "report.html").read_text(encoding="utf-8")


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    with tempfile.TemporaryDirectory() as made:
        show(Path(sys.argv[1]).resolve(), "--linked" in sys.argv[2:], Path(made))
