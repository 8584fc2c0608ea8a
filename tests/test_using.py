"""A finished run from the shell: predict, evaluate, learn, rollback, and the mistakes people make."""

import csv
import io
import json

import numpy as np
import pytest
import torch

import manymodes as mm
from manymodes import versions
from manymodes.cli import main
from manymodes.growth import grow
from manymodes.learning import learn_next
from manymodes.preparation import Preparation, about, preparation_of
from manymodes.reading import samples_of
from manymodes.streams.images import NORMALISE, image_data
from manymodes.using import names_of, open_learner
from tests.finished import DIGITS, copy_of, finished_run, pixels, write


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return finished_run(tmp_path_factory.mktemp("finished"))


@pytest.fixture(scope="module")
def classes_run(tmp_path_factory):
    return finished_run(tmp_path_factory.mktemp("classes"), "class", "lwf")


@pytest.fixture
def new_images(tmp_path):
    """Images that no run has seen."""
    return write(tmp_path / "new", [0, 1, 2], 20, start=140)


def failing(words, capsys):
    """The one line that a mistake gives; exit code 2."""
    assert main([str(word) for word in words]) == 2
    lines = capsys.readouterr().err.strip().splitlines()
    assert len(lines) == 1
    assert lines[0].startswith("manymodes: error: ")
    return lines[0]


# ---- what a learner knows about its inputs ----------------------------------------------------------


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("name", NORMALISE)
def test_preparation_is_the_streams_to_the_bit(name, channels):
    raw = torch.randint(0, 256, (9, channels, 4, 5), dtype=torch.uint8)
    data = image_data(raw, torch.zeros(9), normalise=name, augment=True, training=True)
    found = Preparation.from_dict(json.loads(json.dumps(preparation_of(data).as_dict())))
    assert found.shape == (channels, 4, 5)
    assert torch.equal(found(raw), data.transform(raw))


def test_preparation_of_bundled_digits_and_of_tables():
    stream = mm.streams.digits()
    raw, found = stream[0].train.inputs, preparation_of(stream[0].train)
    assert torch.equal(found(raw), raw.float() / 16)
    assert preparation_of(mm.task.TensorData(torch.randn(5, 3), torch.zeros(5))).plain


def test_a_transform_that_is_no_scaling_is_not_passed_off_as_one():
    raw = torch.randint(0, 256, (5, 1, 4, 4), dtype=torch.uint8)
    data = mm.task.TensorData(raw, torch.zeros(5), transform=lambda r: (r.float() / 255).sqrt())
    assert preparation_of(data) is None


def test_learner_file_carries_names_and_preparation(run):
    learner, path = open_learner(run)
    assert path.name == "learner.safetensors"
    assert names_of(learner) == ["digit 0", "digit 1", "digit 2"]
    assert learner.about["scenario"] == "instance"
    assert learner.about["input"]["dtype"] == "uint8"


# ---- predict ----------------------------------------------------------------------------------------


def test_predict_equals_the_learner_itself(run, new_images, capsys):
    assert main(["predict", str(run), str(new_images)]) == 0
    rows = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    assert [row["input"] for row in rows[:2]] == ["digit 0/000.png", "digit 0/001.png"]
    learner, _ = open_learner(run)
    raw = torch.from_numpy(np.concatenate([pixels(d, 20, 140) for d in (0, 1, 2)]))[:, None]
    scale, shift = NORMALISE["imagenet"][1], NORMALISE["imagenet"][0]
    mean, std = torch.tensor(shift), torch.tensor(scale)
    x = raw.float() * (1 / (255 * std)).mean() + (-mean / std).mean()  # grey under colour statistics
    expected = learner.predict(x)
    assert [row["label"] for row in rows] == [f"digit {int(i)}" for i in expected.argmax(1)]
    written = torch.tensor([float(row["probability"]) for row in rows])
    assert torch.allclose(written, expected.max(dim=1).values, atol=2e-6)
    right = [row["label"] == row["input"].split("/")[0] for row in rows]
    assert sum(right) / len(right) > 0.9


def test_agreement_is_the_share_of_modes(run, new_images, capsys):
    main(["predict", str(run), str(new_images), "--format", "jsonl", "--batch", "7"])
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    learner, _ = open_learner(run)
    samples = samples_of(new_images, Preparation.from_dict(learner.about["input"]))
    x = samples.preparation(samples.read())
    joint = learner.predict(x).argmax(1)
    votes = []
    for theta, buffers in zip(learner.modes.theta, learner.modes.buffers, strict=True):
        with learner.model.bound(theta, buffers), learner.model.evaluating(), torch.no_grad():
            votes.append(learner.model.module(x).argmax(1) == joint)
    expected = torch.stack(votes).float().mean(0)
    assert [row["agreement"] for row in rows] == expected.tolist()


def test_classes_batches_and_files_of_all_kinds(run, tmp_path, capsys):
    images = pixels(1, 10, 140)
    np.savez(tmp_path / "x.npz", x=images)
    lines = [",".join(map(str, image.ravel().tolist())) for image in images]
    (tmp_path / "x.csv").write_text("\n".join(lines), encoding="utf-8")
    header = ",".join(f"p{i}" for i in range(64)) + ",label"
    named = [header, *(f"{line},digit 1" for line in lines)]
    (tmp_path / "named.csv").write_text("\n".join(named), encoding="utf-8")
    write(tmp_path / "images", [1], 10, start=140)
    outputs = set()
    for source in ("x.npz", "x.csv", "named.csv", "images"):
        out = tmp_path / f"{source}.out.csv"
        assert main(["predict", str(run), str(tmp_path / source), "--out", str(out), "--batch", "3"]) == 0
        outputs.add(tuple(tuple(row[1:]) for row in csv.reader(out.read_text().splitlines())))
    assert len(outputs) == 1
    main(["predict", str(run), str(tmp_path / "x.npz"), "--classes", "digit 2,digit 0"])
    labels = {row["label"] for row in csv.DictReader(io.StringIO(capsys.readouterr().out))}
    assert labels <= {"digit 0", "digit 2"}
    assert labels


def test_a_learner_of_plain_tensors_predicts_from_a_csv(tmp_path, capsys):
    x, y = torch.from_numpy(DIGITS.data).float() / 16, torch.from_numpy(DIGITS.target)
    learner = mm.Finetune(mm.models.mlp(64, [20], outputs=10), epochs=3).learn(x, y)
    learner.save(tmp_path / "mine.safetensors")
    np.savetxt(tmp_path / "x.csv", x[:5].numpy(), delimiter=",")
    assert main(["predict", str(tmp_path / "mine.safetensors"), str(tmp_path / "x.csv")]) == 0
    rows = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    assert [row["label"] for row in rows] == [str(int(i)) for i in learner.predict(x[:5]).argmax(1)]


def test_unreadable_images_stop_or_are_left_out(run, new_images, tmp_path, capsys):
    (new_images / "digit 0" / "005.png").write_bytes(b"no image")
    line = failing(["predict", run, new_images, "--out", tmp_path / "p.csv"], capsys)
    assert "005.png" in line
    assert "--skip-unreadable" in line
    assert not (tmp_path / "p.csv").exists()
    assert main(["predict", str(run), str(new_images), "--skip-unreadable"]) == 0
    said = capsys.readouterr()
    assert len(said.out.splitlines()) == 1 + 59
    assert "1 images skipped" in said.err


# ---- evaluate ---------------------------------------------------------------------------------------


def test_evaluate_repeats_the_runs_own_numbers(run, tmp_path, capsys):
    assert main(["evaluate", str(run), "--out", str(tmp_path / "e.json")]) == 0
    tasks = json.loads((tmp_path / "e.json").read_text())["tasks"]
    metrics = json.loads((run / "metrics.json").read_text())
    assert [row["accuracy"] for row in tasks] == pytest.approx(metrics["accuracy"][-1])
    assert [row["nll"] for row in tasks] == pytest.approx(metrics["nll"][-1], rel=1e-5)
    assert [row["calibration_error"] for row in tasks] == pytest.approx(metrics["calibration"][-1], abs=1e-5)
    assert "ECE" in capsys.readouterr().out


def test_evaluate_finds_classes_by_name(run, tmp_path, capsys):
    """A stream with fewer classes numbers them otherwise."""
    write(tmp_path / "two" / "a", [1, 2], 30, start=140)
    words = [
        "evaluate",
        str(run / "learner.safetensors"),
        "--stream",
        "folder",
        "--path",
        str(tmp_path / "two"),
    ]
    assert main([*words, "--channels", "1", "--test", "0.5", "--out", str(tmp_path / "e.json")]) == 0
    (row,) = json.loads((tmp_path / "e.json").read_text())["tasks"]
    assert row["accuracy"] > 0.9


# ---- learn and rollback -----------------------------------------------------------------------------


def test_learn_adds_classes_and_rollback_takes_them_back(classes_run, tmp_path, capsys):
    run, file = copy_of(classes_run, tmp_path), "learner.safetensors"
    before = (run / file).read_bytes()
    data = write(tmp_path / "next", [5, 7], 60)
    assert main(["learn", str(run), str(data), "--epochs", "20"]) == 0
    assert "new: digit 5, digit 7" in capsys.readouterr().out
    learner, _ = open_learner(run)
    assert names_of(learner) == [f"digit {d}" for d in (0, 1, 2, 3, 5, 7)]
    assert learner.tasks_learnt == 3
    assert learner.about["learnt"][0]["samples"] == 120
    assert sorted(versions.versions(run / file)) == [2, 3]
    assert (run / "learner-0002.safetensors").read_bytes() == before
    main(["predict", str(run), str(write(tmp_path / "test", [5, 7], 20, start=100))])
    rows = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    assert sum(row["label"] == row["input"].split("/")[0] for row in rows) > 30
    assert main(["rollback", str(run), "2"]) == 0
    assert (run / file).read_bytes() == before
    assert main(["rollback", str(run), "3"]) == 0
    assert open_learner(run)[0].tasks_learnt == 3
    line = failing(["rollback", run, "1"], capsys)
    assert "versions: 2, 3" in line


@pytest.mark.parametrize("strategy", ["er", "agem", "si", "ewc", "lwf-ewc", "ensemble", "mota"])
def test_every_strategy_can_go_on(strategy, tmp_path):
    run = finished_run(tmp_path, "class", strategy, epochs=1)
    done = learn_next(run, write(tmp_path / "next", [8], 30), epochs=1)
    assert (done.tasks, done.new_classes) == (3, ["digit 8"])
    learner, _ = open_learner(run)
    assert learner.heads[-1] == (0, 1, 2, 3, 4)


def test_too_much_forgetting_is_refused_and_nothing_changes(classes_run, tmp_path, capsys):
    run = copy_of(classes_run, tmp_path)
    files = {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}
    old, new = write(tmp_path / "old", [2, 3], 20, start=140), write(tmp_path / "new", [8, 9], 60)
    words = ["learn", str(run), str(new), "--held-out", str(old), "--max-forgetting"]
    assert main([*words, "0.0", "--epochs", "40", "--lr", "0.02"]) == 3
    said = capsys.readouterr().err
    assert "refused" in said
    assert "version after task 2 stays in use" in said
    assert {path: path.read_bytes() for path in run.rglob("*") if path.is_file()} == files
    assert main([*words, "1.0", "--epochs", "1"]) == 0
    assert "before" in capsys.readouterr().out


def test_refusal_measures_what_is_forgotten(classes_run, tmp_path):
    """The numbers of the refusal are the accuracies of the old and of the new learner."""
    run = copy_of(classes_run, tmp_path)
    old, new = write(tmp_path / "old", [0, 1, 2, 3], 20, start=140), write(tmp_path / "new", [8, 9], 60)
    done = learn_next(run, new, held_out=old, max_forgetting=1.0, epochs=10)
    raw = torch.from_numpy(np.concatenate([pixels(d, 20, 140) for d in range(4)]))[:, None]
    targets = torch.arange(4).repeat_interleave(20)
    for file, found in (("learner-0002.safetensors", done.before), ("learner-0003.safetensors", done.after)):
        learner, _ = open_learner(run / file)
        guess = learner.predict(Preparation.from_dict(learner.about["input"])(raw)).argmax(1)
        assert float((guess == targets).float().mean()) == pytest.approx(found)


def test_growing_keeps_predictions_and_springs():
    x, y = torch.from_numpy(DIGITS.data).float() / 16, torch.from_numpy(DIGITS.target)
    small = mm.MOTA(mm.models.mlp(64, [20], outputs=4), epochs=2, modes=2)
    for pair in ((0, 1), (2, 3)):
        rows = torch.isin(y, torch.tensor(pair))
        small.learn(x[rows], y[rows])
    large = grow(small, 7)
    assert torch.allclose(large.predict(x)[:, :4], small.predict(x), atol=1e-6)
    assert large.drift(0) == 0
    assert [large.penalty(m) for m in (0, 1)] == pytest.approx([small.penalty(m) for m in (0, 1)])
    assert [float(s.importance.sum()) for s in large.springs.values()] == pytest.approx(
        [float(s.importance.sum()) for s in small.springs.values()]
    )
    rows = torch.isin(y, torch.tensor([4, 5, 6]))
    large.epochs = 10
    large.learn(x[rows], y[rows])
    assert float((large.predict(x[rows], classes=(4, 5, 6)).argmax(1) == y[rows]).float().mean()) > 0.9


# ---- mistakes ---------------------------------------------------------------------------------------


def test_mistakes_are_one_line_each(run, new_images, tmp_path, capsys):
    damaged = copy_of(run, tmp_path)
    content = bytearray((damaged / "learner.safetensors").read_bytes())
    content[-10] ^= 1
    (damaged / "learner.safetensors").write_bytes(content)
    np.savez(tmp_path / "shape.npz", x=np.zeros((3, 9, 9), dtype=np.uint8))
    np.savez(tmp_path / "range.npz", x=np.full((3, 8, 8), 300))
    np.savez(tmp_path / "floats.npz", x=np.full((3, 8, 8), 0.5))
    np.savez(tmp_path / "no_x.npz", y=np.zeros(3))
    np.savez(tmp_path / "object.npz", x=np.array([{}, {}], dtype=object))
    (tmp_path / "torn.csv").write_text("1,2\n3\n", encoding="utf-8")
    (tmp_path / "words.csv").write_text("a,b\n3,x\n", encoding="utf-8")
    (tmp_path / "empty").mkdir()
    (tmp_path / "unfinished").mkdir()
    (tmp_path / "unfinished" / "config.yaml").write_text("seed: 0", encoding="utf-8")
    cases = {
        "is not there": ["predict", tmp_path / "nowhere", new_images],
        "is not a run directory": ["predict", tmp_path / "empty", new_images],
        "it holds 1 runs": ["predict", run.parent, new_images],
        "is not finished": ["predict", tmp_path / "unfinished", new_images],
        "checksum does not match": ["predict", damaged, new_images],
        "(9, 9)": ["predict", run, tmp_path / "shape.npz"],
        "from 0 to 255": ["predict", run, tmp_path / "range.npz"],
        "this learner's are uint8": ["predict", run, tmp_path / "floats.npz"],
        "no array 'x'": ["predict", run, tmp_path / "no_x.npz"],
        "plain arrays": ["predict", run, tmp_path / "object.npz"],
        "line 2: 1 values": ["predict", run, tmp_path / "torn.csv"],
        "'x' is not a number": ["predict", run, tmp_path / "words.csv"],
        "has no images": ["predict", run, tmp_path / "empty"],
        "unknown class in --classes": ["predict", run, new_images, "--classes", "digit 9"],
        "unknown --format": ["predict", run, new_images, "--format", "xml"],
        "--batch must be": ["predict", run, new_images, "--batch", "0"],
        "unknown stream": ["evaluate", run, "--stream", "digitz"],
        "does not know": ["evaluate", run, "--stream", "digits"],
        "unknown option": ["evaluate", run, "--sed", "1"],
        "prepares its inputs otherwise": ["evaluate", run, "--normalise", "half"],
        "needs --held-out": ["learn", run, new_images, "--max-forgetting", "0.1"],
        "share from 0 to 1": ["learn", run, new_images, "--max-forgetting", "7", "--held-out", new_images],
        "no array 'y'": ["learn", run, tmp_path / "shape.npz"],
        "TASK": ["rollback", run, "yesterday"],
        "there is no version after task 7": ["rollback", run, "7"],
    }
    before = sorted(path.name for path in run.iterdir())
    for expected, words in cases.items():
        line = failing(words, capsys)
        assert expected.lower() in line.lower(), line
    assert sorted(path.name for path in run.iterdir()) == before


def test_multitask_and_shared_heads_say_why_not(tmp_path, capsys):
    run = finished_run(tmp_path, "class", "multitask", epochs=1)
    capsys.readouterr()
    line = failing(["learn", run, write(tmp_path / "next", [8], 10)], capsys)
    assert "run it again" in line
    learner, _ = open_learner(run)
    learner.about = about(mm.streams.digits(head="shared"))
    assert learner.about["head"] == "shared"
