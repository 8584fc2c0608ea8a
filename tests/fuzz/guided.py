"""Fuzzing guided by coverage, where our own Python reads bytes: `python -m tests.fuzz.guided [SECONDS]`.

Needs atheris (`pip install atheris`; Linux). Hypothesis edits good files and builds odd ones; this follows
branches of our code instead. Images and arrays are read by C code, which it cannot look into.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import warnings
from pathlib import Path

NAMES = ("configurations", "manifests", "saved learners")


def attempts(name: str, seconds: str, folder: Path) -> None:
    """One kind of file, for so many seconds; the first that breaks a promise ends it with a traceback."""
    import atheris

    with atheris.instrument_imports(include=["manymodes"]):
        from tests.fuzz.kinds import KINDS, check
    kind = KINDS[name](folder / "files")
    good = kind.good if isinstance(kind.good, bytes) else kind.text()
    (folder / "seeds").mkdir()
    (folder / "seeds" / "good").write_bytes(good)
    warnings.simplefilter("ignore")
    options = [f"-max_total_time={seconds}", "-rss_limit_mb=4096", f"-max_len={2 * len(good)}"]
    options += [f"-artifact_prefix={Path.cwd()}/fuzz-{name.replace(' ', '-')}-", "-verbosity=0"]
    atheris.Setup([sys.argv[0], *options, str(folder / "seeds")], lambda data: check(kind, data))
    atheris.Fuzz()


def main() -> int:
    """Every kind in a process of its own: libFuzzer ends the one it runs in."""
    seconds, failed = (sys.argv[1] if len(sys.argv) > 1 else "60"), 0
    for name in NAMES:
        with tempfile.TemporaryDirectory() as folder:
            words = [sys.executable, "-m", "tests.fuzz.guided", seconds, name, folder]
            code = subprocess.run(words, check=False).returncode
        end = "a file breaks it" if code else "survived"
        print(f"hostile {name}, guided by coverage for {seconds} s: {end}")
        failed += code != 0
    return failed


if __name__ == "__main__":
    if len(sys.argv) > 2:
        attempts(sys.argv[2], sys.argv[1], Path(sys.argv[3]))
    else:
        sys.exit(main())
