"""--tune-loop: a measured choice, made once per machine, written down, and never of another result class."""

import json
from dataclasses import replace

import pytest
import torch

from manymodes import loop
from manymodes.cli import main
from manymodes.config import Config
from manymodes.errors import UserError
from manymodes.files import read_yaml

CONFIG = Config(
    {"name": "finetune", "epochs": 1, "device": "cpu"},
    {"name": "digits", "tasks": 2},
    {"name": "mlp", "hidden": (4,)},
)
FP32 = {"precision": "fp32", "compile": False}


@pytest.fixture(autouse=True)
def _own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("MANYMODES_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def speeds(monkeypatch):
    """What a step takes with each loop, by its name; a measurement that is not expected fails."""
    table, asked = {}, []

    def seconds(learner, task, batch, loops):
        asked.append([loop.name_of(each) for each in loops])
        return [table[name] for name in asked[-1]]

    monkeypatch.setattr(loop, "_seconds", seconds)
    return table, asked


def chosen(tmp_path, allow=(), config=CONFIG):
    (found,) = loop.fastest([config], allow, [tmp_path / "run"])
    return {name: found.strategy[name] for name in ("layout", "precision", "compile")}


def test_the_fastest_is_taken_told_and_not_measured_again(tmp_path, speeds, capsys):
    speeds[0].update({"channels_last fp32": 0.2, "contiguous fp32": 0.1})
    assert chosen(tmp_path) == {"layout": "contiguous", **FP32}
    out = capsys.readouterr().out
    assert out.startswith(
        "loop: contiguous fp32 (a step: channels_last fp32 200.0 ms, contiguous fp32 100.0 ms"
    )
    assert str(tmp_path / "cache" / "loops.json") in out
    speeds[0].update({"channels_last fp32": 0.1, "contiguous fp32": 0.2})
    assert chosen(tmp_path) == {"layout": "contiguous", **FP32}
    assert len(speeds[1]) == 1
    assert capsys.readouterr().out == out


def test_seeds_and_strategies_share_a_measurement(tmp_path, speeds):
    speeds[0].update({"channels_last fp32": 0.2, "contiguous fp32": 0.1})
    mota = replace(CONFIG, strategy=CONFIG.strategy | {"name": "mota", "modes": 3}, seed=1)
    found = loop.fastest([CONFIG, replace(CONFIG, seed=1), mota], (), [tmp_path / n for n in "abc"])
    assert [c.strategy["layout"] for c in found] == ["contiguous"] * 3
    assert [c.strategy.get("modes") for c in found] == [None, None, 3]
    assert len(speeds[1]) == 1


def test_another_batch_size_is_measured_anew(tmp_path, speeds):
    speeds[0].update({"channels_last fp32": 0.2, "contiguous fp32": 0.1})
    other = replace(CONFIG, strategy=CONFIG.strategy | {"batch_size": 7})
    loop.fastest([CONFIG, other], (), [tmp_path / "a", tmp_path / "b"])
    assert len(speeds[1]) == 2


def test_a_small_difference_is_noise(tmp_path, speeds):
    speeds[0].update({"channels_last fp32": 0.100, "contiguous fp32": 0.097})
    assert chosen(tmp_path)["layout"] == "channels_last"


def test_precision_and_compiling_change_only_where_that_is_allowed(tmp_path, speeds):
    everything = {
        f"{layout} {precision}{compiled}": 0.2
        for layout in ("channels_last", "contiguous")
        for precision in ("fp32", "bf16")
        for compiled in ("", " compiled")
    }
    speeds[0].update(everything | {"contiguous bf16 compiled": 0.1, "contiguous bf16": 0.11,
                                   "contiguous fp32 compiled": 0.12, "contiguous fp32": 0.13})  # fmt: skip
    assert chosen(tmp_path) == {"layout": "contiguous", "precision": "fp32", "compile": False}
    assert chosen(tmp_path, ("bf16",)) == {"layout": "contiguous", "precision": "bf16", "compile": False}
    assert chosen(tmp_path, ("compile",)) == {"layout": "contiguous", "precision": "fp32", "compile": True}
    assert chosen(tmp_path, ("bf16", "compile"))["precision"] == "bf16"
    assert [len(names) for names in speeds[1]] == [2, 4, 4, 8]


@pytest.mark.parametrize("content", ["", "no json", "[]", '{"x": 1}'])
def test_a_damaged_file_is_measured_anew(tmp_path, speeds, content):
    speeds[0].update({"channels_last fp32": 0.2, "contiguous fp32": 0.1})
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache" / "loops.json").write_text(content)
    assert chosen(tmp_path)["layout"] == "contiguous"
    entries = json.loads((tmp_path / "cache" / "loops.json").read_text())
    (key,) = [k for k in entries if k != "x"]
    entries[key]["loop"] = {"layout": "no such"}
    (tmp_path / "cache" / "loops.json").write_text(json.dumps(entries))
    assert chosen(tmp_path)["layout"] == "contiguous"
    assert len(speeds[1]) == 2


def test_a_run_keeps_the_loop_it_was_begun_with(tmp_path, speeds, capsys):
    words = ["run", "--strategy=finetune", "--epochs=1", "--stream=digits", "--tasks=2", "--model=mlp",
             "--model.hidden=[4]", "--device=cpu", f"--out={tmp_path / 'runs'}"]  # fmt: skip
    speeds[0].update({"channels_last fp32": 0.2, "contiguous fp32": 0.1})
    assert main([*words, "--tune-loop"]) == 0
    assert "--strategy.layout contiguous" in capsys.readouterr().out
    (folder,) = (tmp_path / "runs").iterdir()
    assert read_yaml(folder / "config.yaml")["strategy"]["layout"] == "contiguous"
    (tmp_path / "cache" / "loops.json").unlink()  # what is measured next time must not matter
    speeds[0].update({"channels_last fp32": 0.1, "contiguous fp32": 0.2})
    assert main([*words, "--tune-loop"]) == 0
    assert main(["run", "--resume", str(folder)]) == 0
    assert len(speeds[1]) == 1
    capsys.readouterr()
    assert main(["run", "--resume", str(folder), "--tune-loop"]) == 2
    assert "--tune_loop does not go with --resume" in capsys.readouterr().err


def test_a_word_that_it_does_not_know(capsys):
    assert main(["run", "--tune-loop=bf17"]) == 2
    assert "unknown word in --tune_loop 'bf17'; did you mean 'bf16'" in capsys.readouterr().err


def test_the_measurement_itself(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(loop, "ROUNDS", 2)
    before = torch.get_num_threads()
    assert chosen(tmp_path, ("bf16",))["compile"] is False
    (entry,) = json.loads((tmp_path / "cache" / "loops.json").read_text()).values()
    assert len(entry["milliseconds"]) == 4
    assert all(0 < ms < 1e4 for ms in entry["milliseconds"].values())
    assert torch.get_num_threads() == before


def test_where_nothing_can_be_chosen_nothing_is_measured(tmp_path, capsys):
    config = replace(CONFIG, stream={"name": "tests.toys:flat"})
    assert chosen(tmp_path, config=config)["layout"] == "channels_last"
    assert "nothing to choose from" in capsys.readouterr().out


def test_a_choice_that_cannot_be_kept_is_still_made(tmp_path, speeds, capsys):
    speeds[0].update({"channels_last fp32": 0.2, "contiguous fp32": 0.1})
    (tmp_path / "cache").write_text("a file where the folder should be")
    assert chosen(tmp_path)["layout"] == "contiguous"
    assert "cannot be kept" in capsys.readouterr().out


def test_tune_refuses_it(tmp_path):
    from manymodes.commands.tune import main as tune

    with pytest.raises(UserError, match="--tune-loop is for run and compare"):
        tune(["--stream=digits", "--space=lr=1e-3..1e-2", "--tune-loop", f"--out={tmp_path}"])
