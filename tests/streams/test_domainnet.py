"""DomainNet in its true layout: lists and zips on a local server, fetched, unpacked, learnt from."""

import io
import zipfile
from functools import partial

import numpy as np
import pytest
from PIL import Image

import manymodes.streams as streams
from manymodes.errors import UserError
from manymodes.streams import domain_net, manage
from manymodes.streams.mapped import MappedData
from manymodes.streams.transfer import Patience
from tests.streams.server import website

CLASSES = ("aircraft_carrier", "airplane", "alarm_clock")
RNG = np.random.default_rng(0)


def jpeg(size):
    out = io.BytesIO()
    Image.fromarray(RNG.integers(0, 256, (*size, 3), dtype=np.uint8)).save(out, "JPEG")
    return out.getvalue()


def domain_files(domain, per_class=10):
    """{path: bytes} as in the zip, and the two lists."""
    files, lists = {}, {"train": [], "test": []}
    for label, name in enumerate(CLASSES):
        for number in range(per_class):
            path = f"{domain}/{name}/{domain}_{label:03d}_{number:06d}.jpg"
            files[path] = jpeg((40 + number, 50))
            lists["train" if number < 7 else "test"].append(f"{path} {label}\n")
    return files, {f"{domain}_{part}.txt": "".join(lines) for part, lines in lists.items()}


def zipped(files):
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        for path, content in files.items():
            archive.writestr(path, content)
    return out.getvalue()


@pytest.fixture
def site(monkeypatch):
    """Two of the six domains on a local server."""
    with website() as site:
        addresses = {}
        for domain in ("clipart", "sketch"):
            files, lists = domain_files(domain)
            site.files[f"{domain}.zip"] = zipped(files)
            site.files |= {f"txt/{name}": text.encode() for name, text in lists.items()}
            addresses[domain] = site.url(f"{domain}.zip")
        monkeypatch.setattr(domain_net, "ZIPS", addresses)
        monkeypatch.setattr(domain_net, "LISTS", site.url("txt"))
        monkeypatch.setattr("manymodes.streams.fetch.Patience", partial(Patience, first_wait=0.001))
        yield site


@pytest.fixture
def data(tmp_path):
    for domain in ("clipart", "sketch"):
        files, lists = domain_files(domain)
        for path, content in [*files.items(), *((k, v.encode()) for k, v in lists.items())]:
            (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / path).write_bytes(content)
    return tmp_path


DOMAINS = ["clipart", "sketch"]


def test_fetched_interrupted_unpacked_and_loaded(site, tmp_path, capsys):
    site.mishaps = [("none",)] * 4 + [("drop", 5000)]
    stream = streams.domainnet(domains=DOMAINS, data_dir=tmp_path, download=True, size=32)
    assert [task.name for task in stream] == DOMAINS
    assert stream.class_names == CLASSES
    assert [len(part) for part in (stream[0].train, stream[0].val, stream[0].test)] == [21, 3, 6]
    assert ("/clipart.zip", "bytes=5000-", 206) in site.requests
    assert sorted(p.name for p in (tmp_path / "domainnet").iterdir()) == sorted(
        ["checksums.json", *DOMAINS, *(f"{d}_{p}.txt" for d in DOMAINS for p in ("train", "test"))]
    )
    assert "its publisher gives no checksum; recorded sha256:" in capsys.readouterr().out
    asked = len(site.requests)
    streams.domainnet(domains=DOMAINS, data_dir=tmp_path, download=True, size=32)
    assert len(site.requests) == asked


def test_archive_that_escapes_is_refused(site, tmp_path):
    site.files["clipart.zip"] = zipped({"clipart/a/b.jpg": b"1", "../evil.jpg": b"2"})
    with pytest.raises(UserError, match="would leave the directory"):
        domain_net.fetch(tmp_path, DOMAINS)
    assert not list(tmp_path.rglob("*.jpg"))


def test_archive_of_something_else(site, tmp_path):
    site.files["clipart.zip"] = zipped({"other/a/b.jpg": b"1"})
    with pytest.raises(UserError, match="holds no directory 'clipart'"):
        domain_net.fetch(tmp_path, DOMAINS)


def test_official_split(data):
    stream = streams.domainnet(domains=DOMAINS, data_dir=data, split="official", size=24)
    assert [len(part) for part in (stream[1].train, stream[1].val, stream[1].test)] == [18, 3, 9]


def test_read_by_workers_when_large(data):
    stream = streams.domainnet(domains=DOMAINS, data_dir=data, size=24, memory_gb=0, workers=1)
    assert isinstance(stream[0].train, MappedData)


def test_class_untrained_in_one_domain_is_no_obstacle(data):
    """The cleaned lists lack a class in one domain's training part."""
    lines = (data / "sketch_train.txt").read_text().splitlines(keepends=True)
    (data / "sketch_train.txt").write_text("".join(line for line in lines if "airplane" not in line))
    stream = streams.domainnet(domains=DOMAINS, data_dir=data, split="official", size=24)
    assert stream[1].classes == (0, 1, 2)


def test_check_reads_the_lists(site, tmp_path, monkeypatch):
    lines = manage.fetch_stream("domainnet", tmp_path)
    assert "its data is in" in lines[0]
    domain = tmp_path / "domainnet" / "sketch_test.txt"
    domain.write_text(domain.read_text() + "x")
    with pytest.raises(UserError, match=r"sketch_test\.txt is damaged"):
        manage.check_stream("domainnet", tmp_path)


def _edit(name, text):
    def edit(folder):
        (folder / name).write_text(text)

    return edit


def _rename(name):
    def edit(folder):
        (folder / name).rename(folder / "elsewhere")

    return edit


@pytest.mark.parametrize(
    ("edit", "options", "message"),
    [
        (
            _edit("clipart_train.txt", "clipart/a/x.jpg zero\n"),
            {},
            r"line 1: expected 'clipart/CLASS/FILE NUMBER'",
        ),
        (_edit("clipart_train.txt", "../a/x.jpg 0\n"), {}, "line 1: expected"),
        (_edit("clipart_test.txt", "clipart/airplane/x.jpg 0\n"), {}, "class 0 is 'airplane' here"),
        (_edit("clipart_test.txt", "clipart/airplane/x.jpg 1\n"), {}, "cannot be read"),
        (_rename("sketch_test.txt"), {}, r"sketch_test\.txt is not there"),
        (_rename("sketch"), {}, "fetch it with: manymodes data fetch domainnet"),
        (_rename("clipart_train.txt"), {}, "Give data_dir with DOMAIN_train"),
        (None, {"domains": ["clip"]}, "did you mean 'clipart'"),
        (None, {"scenario": "class"}, "Valid: instance"),
        (None, {"split": "x"}, "Valid: official, paper"),
        (None, {"size": -1}, "size=-1"),
    ],
)
def test_mistakes_get_one_line(data, edit, options, message):
    if edit:
        edit(data)
    with pytest.raises(UserError, match=message) as error:
        streams.domainnet(**{"domains": DOMAINS, "data_dir": data, **options})
    assert "\n" not in str(error.value)
