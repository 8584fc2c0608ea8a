"""The worked example of CONTRIBUTING.md: extracted, put under the laws, run from the command line."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import manymodes as mm
from tests import toys
from tests.laws.cases import NETWORKS, Case, Lab
from tests.laws.laws import LAWS, applicable

ROOT = Path(__file__).parents[1]
TEXT = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
SECTION = TEXT[TEXT.index("## Adding a strategy") :]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder that holds the example's file, as a reader would save it."""
    (code,) = re.findall(r"```python\n(# my_learner\.py\n.*?)```", SECTION, flags=re.DOTALL)
    where = tmp_path_factory.mktemp("elsewhere")
    (where / "my_learner.py").write_text(code, encoding="utf-8")
    sys.path.insert(0, str(where))
    yield where
    sys.path.remove(str(where))
    sys.modules.pop("my_learner", None)


def test_the_laws_hold_for_it(folder):
    for network in NETWORKS:
        lab = Lab(Case("my_learner:L2"), network)
        names = applicable(lab)
        assert {"weight_zero_is_fine_tuning", "the_penalty_is_positive_once_the_weights_move"} <= set(names)
        for name in names:
            LAWS[name](lab)


def test_it_does_what_it_says(folder):
    from my_learner import L2

    moved = {}
    for strength in (0.0, 1.0, 100.0):
        learner = L2(toys.net(), strength=strength, epochs=3).learn(toys.task((0, 1)))
        start = learner.modes.theta.clone()
        learner.learn(toys.task((2, 3)))
        moved[strength] = float((learner.modes.theta - start).norm())
    assert moved[0.0] > moved[1.0] > moved[100.0] > 0


def _commands(word):
    lines = [
        line for block in re.findall(r"```sh\n(.*?)```", SECTION, re.DOTALL) for line in block.splitlines()
    ]
    return [line.split() for line in lines if line.startswith(word)]


def _run(folder, command, *more):
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"} | {"OMP_NUM_THREADS": "1"}
    words = [str(Path(sys.executable).with_name(command[0])), *command[1:], *more]
    return subprocess.run(words, cwd=folder, env=environment, capture_output=True, text=True, timeout=300)


def test_it_runs_from_the_command_line_where_the_file_is(folder):
    (command,) = _commands("manymodes run")
    done = _run(folder, command, "--stream.tasks", "2", "--stream.limit", "20", "--out", "out")
    assert done.returncode == 0, done.stderr
    assert "my_learner:L2:strength=0.03" in done.stdout
    (metrics,) = (folder / "out").glob("*/metrics.json")
    found = json.loads(metrics.read_text())
    assert found["strategy"] == "my_learner:L2"
    assert found["storage"]["anchors"] == found["storage"]["parameters"]


def test_a_saved_one_is_loaded_with_its_class(folder, tmp_path):
    from my_learner import L2

    learner = L2(mm.models.mlp(6, outputs=4), epochs=1).learn(toys.task((0, 1)))
    learner.save(tmp_path / "it.safetensors")
    with pytest.raises(mm.UserError, match=r"my_learner:L2.*strategy="):
        mm.load(tmp_path / "it.safetensors")
    again = mm.load(tmp_path / "it.safetensors", strategy=L2)
    assert (again.predict(toys.blobs((0, 1))[0]) == learner.predict(toys.blobs((0, 1))[0])).all()


def test_the_laws_take_its_name_on_the_command_line(folder):
    (command,) = _commands("pytest")
    environment = os.environ | {"PYTHONPATH": str(folder), "OMP_NUM_THREADS": "1"}
    words = [sys.executable, "-m", *command, "-k", "works_before", "-p", "no:cacheprovider", "-vv"]
    done = subprocess.run(words, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout
    assert "works_before_any_task-my_learner:L2-mlp" in done.stdout
