"""save_pretrained, from_pretrained, push_to_hub: against a folder, and against a hub that is a folder."""

import json
import shutil
import sys
from types import SimpleNamespace

import pytest
import torch
import yaml

import manymodes as mm
from manymodes.cli import main
from manymodes.contrib import hub
from tests import toys

huggingface_hub = pytest.importorskip("huggingface_hub")


def _learner(kind=mm.MOTA, **options):
    if kind is mm.MOTA:
        options = {"modes": 2} | options
    learner = kind(mm.models.mlp(6, outputs=4), epochs=1, **options)
    return learner.learn(toys.task((0, 1))).learn(toys.task((2, 3)))


def _header(folder):
    return yaml.safe_load((folder / "README.md").read_text().split("---\n")[1])


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A finished run of the command line."""
    out = tmp_path_factory.mktemp("runs")
    words = ["run", "--strategy", "mota", "--stream", "digits", "--stream.tasks", "2", "--stream.limit", "20"]
    assert main([*words, "--epochs", "1", "--out", str(out)]) == 0
    (run,) = out.glob("*/metrics.json")
    return run.parent


def test_it_comes_back_and_goes_on_learning_the_same(tmp_path):
    learner = _learner()
    written = learner.save_pretrained(tmp_path / "it")
    assert sorted(path.name for path in (tmp_path / "it").iterdir()) == sorted(path.name for path in written)
    again = mm.MOTA.from_pretrained(tmp_path / "it")
    x = toys.blobs((0, 1))[0]
    assert torch.equal(learner.predict(x), again.predict(x))
    for one in (learner, again):
        one.learn(toys.task((0, 1), seed=5))
    assert torch.equal(learner.modes.theta, again.modes.theta)


def test_options_are_those_of_load(tmp_path):
    _learner().save_pretrained(tmp_path)
    assert mm.Strategy.from_pretrained(tmp_path, lr=0.5).lr == 0.5


def test_the_class_is_checked(tmp_path):
    _learner(mm.EWC).save_pretrained(tmp_path)
    assert isinstance(mm.Strategy.from_pretrained(tmp_path), mm.EWC)
    with pytest.raises(mm.UserError, match=r"holds a EWC, not a MOTA"):
        mm.MOTA.from_pretrained(tmp_path)


def test_the_card_has_the_numbers_of_the_run(finished, tmp_path):
    (finished / "report.html").write_text("<p>report")
    learner = mm.load(finished / "learner.safetensors")
    learner.save_pretrained(tmp_path, name="me/digits", run=finished, licence="apache-2.0")
    metrics = json.loads((finished / "metrics.json").read_text())
    header, text = _header(tmp_path), (tmp_path / "README.md").read_text()
    (result,) = header["model-index"][0]["results"]
    assert header["license"] == "apache-2.0"
    assert header["model-index"][0]["name"] == "me/digits"
    assert result["metrics"][0]["value"] == pytest.approx(metrics["average_accuracy"], abs=1e-4)
    assert f"| backward transfer | {metrics['backward_transfer'] * 100:.1f} points |" in text
    assert f"| after task 2 | {' | '.join(f'{100 * a:.1f}' for a in metrics['accuracy'][2])} |" in text
    assert f"| after task 1 | {100 * metrics['accuracy'][1][0]:.1f} |  |" in text
    assert metrics["command"] in text
    assert (tmp_path / "report.html").read_text() == "<p>report"
    assert "[report.html]" in text
    huggingface_hub.ModelCard.load(tmp_path / "README.md").data.to_dict()  # the hub's own reader takes it


def test_without_a_run_the_card_says_so(tmp_path):
    _learner().save_pretrained(tmp_path)
    assert "Nothing was measured" in (tmp_path / "README.md").read_text()
    assert "model-index" not in _header(tmp_path)
    assert "No sample of what it learnt from is kept" in (tmp_path / "README.md").read_text()
    config = json.loads((tmp_path / "config.json").read_text())
    assert (config["strategy"], config["modes"], config["tasks"]) == ("mota", 2, [[0, 1], [2, 3]])


def test_a_card_of_a_rehearsing_learner_says_that_samples_are_inside(tmp_path):
    _learner(mm.ER).save_pretrained(tmp_path)
    assert "samples of what it learnt from are inside" in (tmp_path / "README.md").read_text()


MISTAKES = {
    "no run": lambda folder: _learner().save_pretrained(folder / "out", run=folder),
    "empty": mm.Strategy.from_pretrained,
    "name": lambda folder: _learner().push_to_hub("a/b/c"),
    "folder": lambda folder: mm.Strategy.from_pretrained(folder / "not" / "there"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_mistakes_are_one_line(tmp_path, mistake):
    with pytest.raises(mm.UserError) as error:
        MISTAKES[mistake](tmp_path)
    assert "\n" not in str(error.value)
    assert not (tmp_path / "out").exists()


class _Api:
    """HfApi with a folder in place of the hub."""

    root = None
    asked = []

    def __init__(self, token=None):
        self.token = token

    def create_repo(self, repo_id, *, private, exist_ok):
        self.asked.append((repo_id, private, exist_ok, self.token))
        (self.root / repo_id).mkdir(parents=True, exist_ok=exist_ok)

    def upload_folder(self, *, repo_id, folder_path, commit_message):
        shutil.copytree(folder_path, self.root / repo_id, dirs_exist_ok=True)
        return SimpleNamespace(commit_url=f"https://hub/{repo_id}/commit/1")


@pytest.fixture
def hub_folder(tmp_path, monkeypatch):
    root = tmp_path / "hub"
    monkeypatch.setattr(_Api, "root", root)
    monkeypatch.setattr(_Api, "asked", [])
    monkeypatch.setattr(huggingface_hub, "HfApi", _Api)

    def download(repo_id, filename, *, revision, token):
        path = root / repo_id / filename
        if not path.is_file():
            raise huggingface_hub.errors.LocalEntryNotFoundError(f"no {repo_id}\nat all")
        return str(path)

    monkeypatch.setattr(huggingface_hub, "hf_hub_download", download)
    return root


def test_pushed_and_fetched(hub_folder):
    learner = _learner()
    assert learner.push_to_hub("me/it", private=True, token="t") == "https://hub/me/it/commit/1"
    assert _Api.asked == [("me/it", True, True, "t")]
    x = toys.blobs((0, 1))[0]
    assert torch.equal(mm.Strategy.from_pretrained("me/it").predict(x), learner.predict(x))
    assert 'from_pretrained("me/it")' in (hub_folder / "me" / "it" / "README.md").read_text()


def test_samples_are_not_published_by_accident(hub_folder):
    with pytest.raises(mm.UserError, match="with_samples=True"):
        _learner(mm.ER).push_to_hub("me/er")
    assert not hub_folder.exists()
    _learner(mm.ER).push_to_hub("me/er", with_samples=True)
    assert (hub_folder / "me" / "er" / "model.safetensors").exists()


def test_a_hub_that_does_not_answer_is_one_line(hub_folder, monkeypatch):
    with pytest.raises(mm.UserError, match=r"cannot get me/none from the hub: no me/none at all$"):
        mm.Strategy.from_pretrained("me/none")

    def fails(*args, **kwargs):
        raise RuntimeError("the line\nis cut")

    monkeypatch.setattr(_Api, "create_repo", fails)
    with pytest.raises(mm.UserError, match=r"cannot put me/it on the hub: the line is cut$"):
        _learner().push_to_hub("me/it")


def test_a_damaged_file_is_not_taken(hub_folder):
    _learner().push_to_hub("me/it")
    path = hub_folder / "me" / "it" / hub.WEIGHTS
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    with pytest.raises(mm.UserError, match="damaged"):
        mm.Strategy.from_pretrained("me/it")


def test_without_the_package_it_says_which_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(mm.UserError, match=r"manymodes\[hub\]"):
        mm.Strategy.from_pretrained("me/it")
