"""The page: whole in one file, small, quick to make, and labels are only ever text."""

from __future__ import annotations

import json
import re
import time
from html.parser import HTMLParser

import pytest

pytest.importorskip("altair")
pytest.importorskip("vl_convert")

from manymodes.errors import UserError
from manymodes.report import build, export
from tests.report.synthetic import comparison, write_run

HOSTILE = "<img src=x onerror=alert(1)></script><script>alert(2)</script>\"'&"


class Reader(HTMLParser):
    """Tags with their attributes, and the JSON in the page."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.data, self._inside = [], "", False
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        self._inside = dict(attrs).get("id") == "data"

    def handle_data(self, data):
        if self._inside:
            self.data += data

    def handle_endtag(self, tag):
        self._inside = False


def _page(folder, **options):
    build.write_report([folder], folder, **options)
    return (folder / "report.html").read_text(encoding="utf-8")


def test_nothing_is_loaded_from_anywhere(tmp_path):
    reader = Reader(_page(comparison(tmp_path)))
    for tag, attributes in reader.tags:
        assert "src" not in attributes, tag
        if "href" in attributes:
            assert attributes["href"].startswith("#"), attributes
        assert not any(name.startswith("on") for name in attributes), (tag, attributes)
    policy = next(a["content"] for t, a in reader.tags if a.get("http-equiv") == "Content-Security-Policy")
    assert policy.startswith("default-src 'none'")
    assert "http" not in policy


def test_labels_are_only_ever_text(tmp_path):
    write_run(tmp_path, "ewc", label=HOSTILE, command=HOSTILE)
    write_run(tmp_path, "finetune", stream=HOSTILE)
    (write_run(tmp_path, "si", label="cut") / "metrics.json").write_text(f'"{HOSTILE}')
    text = _page(tmp_path, title=HOSTILE)
    tags = [tag for tag, _ in Reader(text).tags]
    assert "img" not in tags
    assert tags.count("script") == 3
    assert HOSTILE not in text
    assert (
        HOSTILE
        in json.loads(Reader(text).data)["experiments"][1]["palettes"]["methods"]["names"]
        + json.loads(Reader(text).data)["experiments"][0]["palettes"]["methods"]["names"]
    )


def test_ten_runs_stay_below_five_megabytes(tmp_path):
    folder = tmp_path / "runs"
    for seed in range(5):
        write_run(folder, "mota", seed=seed, tasks=10, modes=2, epochs=200, landscape=25)
        write_run(folder, "ensemble", seed=seed, tasks=10, modes=2, epochs=200, landscape=25)
    text = _page(folder)
    assert len(text.encode()) < 5e6
    runs = json.loads(Reader(text).data)["experiments"][0]["runs"]
    assert all(run["data"].get("landscape") for run in runs if run["seed"] == 0)
    if not all(run["data"].get("landscape") for run in runs):
        assert "To keep the page small, landscape" in text


def test_thirty_runs_take_less_than_ten_seconds(tmp_path):
    for seed in range(3):
        for modes in range(1, 11):
            write_run(tmp_path, "mota", seed=seed, tasks=10, modes=modes, epochs=20)
    export.viewer()  # bundled once a machine, then read from the cache
    started = time.process_time()
    _page(tmp_path)
    assert time.process_time() - started < 10


def test_the_viewer_is_bundled_once(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    first = export.viewer()
    assert "</script" not in first.lower()
    made = next((tmp_path / "manymodes").iterdir())
    made.write_text("kept")
    assert export.viewer() == "kept"


def test_without_altair_the_tables_are_written_and_one_line_says_what_to_install(tmp_path, monkeypatch):
    write_run(tmp_path, "ewc")
    monkeypatch.setattr(
        export.importlib.util, "find_spec", lambda name: None if name == "altair" else object()
    )
    with pytest.raises(UserError, match=r"altair.*manymodes\[report\]"):
        build.write_report([tmp_path], tmp_path)
    assert {path.name for path in tmp_path.glob("table.*")} == {"table.md", "table.tex", "table.csv"}
    assert not (tmp_path / "report.html").exists()


def test_several_streams_make_one_page(tmp_path):
    comparison(tmp_path, seeds=1)
    comparison(tmp_path, seeds=1, stream="pacs", scenario="instance")
    text = _page(tmp_path)
    assert len(re.findall(r"<h2 id=e\d", text)) == 2
    ids = re.findall(r'\bid="?([^" >]+)', text[: text.index('<script type="application/json"')])
    assert len(ids) == len(set(ids)), "ids are unique"
