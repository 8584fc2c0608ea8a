"""The documentation, as a reader tries it: each page's code in an empty folder, and the whole site.

Run from a checkout or an unpacked sdist:
     python examples/documentation.py tutorial         the code of docs/tutorial.md
     python examples/documentation.py                  every page (minutes)
     python examples/documentation.py site [FOLDER]    builds site/index.html; a warning is an error
"""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
RUNNER = ROOT / "tests" / "release" / "run_page.py"


def run_page(page):
    """Every block of it that can run here, one after another."""
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([sys.executable, RUNNER, page], cwd=folder, check=True)


def build_site(folder):
    quiet = os.environ | {"NO_MKDOCS_2_WARNING": "1"}
    words = ["-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", folder]
    subprocess.run([sys.executable, *words], cwd=ROOT, env=quiet, check=True)
    print(f"open {folder / 'index.html'}")


if __name__ == "__main__":
    given = sys.argv[1:] or [path.stem for path in sorted(ROOT.glob("docs/*.md"))]
    if given[0] == "site":
        build_site(Path(*given[1:]).resolve() if given[1:] else ROOT / "site")
    else:
        for name in given:
            run_page(ROOT / "docs" / f"{name}.md")
