"""The command line answers at once: what it imports is counted, not timed."""

import json
import os
import subprocess
import sys

import pytest

# What takes tenths of a second to import; a help text needs none of it.
HEAVY = {
    "torch",
    "numpy",
    "scipy",
    "sklearn",
    "rich",
    "jsonargparse",
    "yaml",
    "safetensors",
    "altair",
    "pandas",
}
ASK = """
import json, sys
before = set(sys.modules)
from manymodes import cli
code = cli.main(sys.argv[1:])
print(json.dumps([code, sorted(set(sys.modules) - before)]), file=sys.stderr)
"""


def imported(*words):
    done = subprocess.run([sys.executable, "-c", ASK, *words], capture_output=True, text=True, check=True)
    code, modules = json.loads(done.stderr.splitlines()[-1])
    assert code == 0
    return done.stdout, set(modules)


@pytest.mark.parametrize("words", [["--help"], ["-h"], [], ["--version"], ["-V"]])
def test_help_and_version_import_nothing_heavy(words):
    _, modules = imported(*words)
    assert not HEAVY & {name.partition(".")[0] for name in modules}
    ours = {name for name in modules if name.partition(".")[0] == "manymodes"}
    assert ours <= {"manymodes", "manymodes.cli", "manymodes.errors", "manymodes.version"}
    assert len(modules) < 60  # about 36 with Python 3.11; a library would bring hundreds


def test_the_counting_sees_an_import():
    _, modules = imported("list", "models")
    assert "rich" in modules
    assert "torch" not in modules


@pytest.mark.parametrize("words", ["list strategies", "reproduce"])
def test_a_reader_that_leaves_is_no_traceback(words):
    """`manymodes list | head -1`: here the reader has left before it starts."""
    read, write = os.pipe()
    os.close(read)
    command = [sys.executable, "-m", "manymodes", *words.split()]
    done = subprocess.run(command, stdout=write, stderr=subprocess.PIPE, text=True, timeout=60)
    os.close(write)
    assert (done.returncode, done.stderr) == (1, "")
