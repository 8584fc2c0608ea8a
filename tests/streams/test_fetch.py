"""Downloads from a server that drops, corrupts, forgets ranges and fills the disk."""

import errno
import hashlib
import json
import multiprocessing
import os
import resource
import shutil
import signal
import socket

import numpy as np
import pytest

from manymodes.errors import UserError
from manymodes.streams import transfer
from manymodes.streams.fetch import Remote, damage, fetch_file
from manymodes.streams.transfer import Patience
from tests.streams.server import website

BODY = np.random.default_rng(0).bytes(3_000_000)
MD5 = "md5:" + hashlib.md5(BODY).hexdigest()
HASTE = Patience(timeout=5, tries=3, first_wait=0.001)


@pytest.fixture
def site():
    with website() as site:
        site.files["a.bin"] = BODY
        yield site


def get(site, folder, checksum=MD5, name="a.bin", **options):
    said = []
    path = fetch_file(
        Remote(site.url(name), name, checksum), folder, patience=HASTE, say=said.append, **options
    )
    return path, said


def leftovers(folder):
    return sorted(p.name for p in folder.iterdir() if p.name != "checksums.json")


def test_whole_download(site, tmp_path):
    path, _ = get(site, tmp_path / "new" / "folder")
    assert path.read_bytes() == BODY
    assert leftovers(path.parent) == ["a.bin"]


def test_second_fetch_asks_nobody(site, tmp_path):
    get(site, tmp_path)
    get(site, tmp_path)
    assert len(site.requests) == 1


def test_dropped_connection_is_resumed(site, tmp_path):
    site.mishaps = [("drop", 1_000_000), ("drop", 700_000)]
    path, _ = get(site, tmp_path)
    assert path.read_bytes() == BODY
    assert [r[1:] for r in site.requests] == [
        (None, 200),
        ("bytes=1000000-", 206),
        ("bytes=1700000-", 206),
    ]


def test_a_later_command_goes_on(site, tmp_path):
    site.mishaps = [("drop", 1_000_000)] + [("status", 503)] * 3
    with pytest.raises(UserError, match=r"gave up after 3 tries \(503.*goes on from there"):
        get(site, tmp_path)
    assert (tmp_path / "a.bin.part").stat().st_size == 1_000_000
    path, _ = get(site, tmp_path)
    assert path.read_bytes() == BODY
    assert site.requests[-1][1:] == ("bytes=1000000-", 206)


def test_server_without_ranges_starts_over(site, tmp_path):
    site.ranges = False
    site.mishaps = [("drop", 1_000_000)]
    assert get(site, tmp_path)[0].read_bytes() == BODY
    assert [r[2] for r in site.requests] == [200, 200]


def test_without_a_mark_nothing_is_patched_together(site, tmp_path):
    site.marks = False
    site.mishaps = [("drop", 1_000_000)]
    assert get(site, tmp_path)[0].read_bytes() == BODY
    assert [r[1] for r in site.requests] == [None, None]


def test_file_that_changed_on_the_server_is_not_patched_together(site, tmp_path):
    site.mishaps = [("drop", 1_000_000)] + [("status", 500)] * 3
    with pytest.raises(UserError):
        get(site, tmp_path)
    site.files["a.bin"] = BODY[::-1]
    assert get(site, tmp_path, checksum=None)[0].read_bytes() == BODY[::-1]


def test_part_that_was_complete_already(site, tmp_path, monkeypatch):
    """Killed between the last byte and the renaming."""
    monkeypatch.setattr("os.replace", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        get(site, tmp_path, checksum=None)
    monkeypatch.undo()
    assert get(site, tmp_path)[0].read_bytes() == BODY
    assert site.requests[-1][1] == f"bytes={len(BODY)}-"


def test_part_longer_than_the_file(site, tmp_path):
    (tmp_path / "a.bin.part").write_bytes(BODY + b"more")
    (tmp_path / "a.bin.part.version").write_text('"' + hashlib.md5(BODY).hexdigest() + '"')
    assert get(site, tmp_path)[0].read_bytes() == BODY


@pytest.mark.parametrize("when", ["at once", "after resuming"])
def test_corrupted_bytes_are_deleted(site, tmp_path, when):
    site.mishaps = [("corrupt",)] if when == "at once" else [("drop", 1000), ("corrupt",)]
    with pytest.raises(UserError, match=r"damaged.*deleted") as error:
        get(site, tmp_path)
    assert "\n" not in str(error.value)
    assert not [name for name in leftovers(tmp_path) if name.startswith("a.bin.p") or name == "a.bin"]
    assert get(site, tmp_path)[0].read_bytes() == BODY


def test_unpublished_checksum_is_recorded_and_held_to(site, tmp_path):
    path, said = get(site, tmp_path, checksum=None)
    digest = "sha256:" + hashlib.sha256(BODY).hexdigest()
    assert len(said) == 1
    assert digest in said[0]
    assert json.loads((tmp_path / "checksums.json").read_text())["a.bin"]["checksum"] == digest
    path.unlink()
    site.files["a.bin"] = BODY[::-1]
    with pytest.raises(UserError, match="damaged or another file"):
        get(site, tmp_path, checksum=None)


def test_damaged_file_on_disk_is_reported_not_overwritten(site, tmp_path):
    path, _ = get(site, tmp_path)
    path.write_bytes(b"mine")
    with pytest.raises(UserError, match="delete it to fetch it again"):
        get(site, tmp_path)
    assert path.read_bytes() == b"mine"


def test_damage_rereads_when_told(site, tmp_path):
    path, _ = get(site, tmp_path)
    stat = path.stat()
    path.write_bytes(BODY[:-1] + bytes([BODY[-1] ^ 1]))
    os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    remote = Remote(site.url("a.bin"), "a.bin", MD5)
    assert damage(remote, path) is None
    assert "damaged" in damage(remote, path, again=True)


def test_a_file_the_person_put_there_is_taken(site, tmp_path):
    (tmp_path / "a.bin").write_bytes(BODY)
    assert get(site, tmp_path)[0].read_bytes() == BODY
    assert site.requests == []


@pytest.mark.parametrize("code", [403, 404, 410])
def test_refusals_are_not_retried(site, tmp_path, code):
    site.mishaps = [("status", code)]
    with pytest.raises(UserError, match=f"the server says {code}"):
        get(site, tmp_path)
    assert len(site.requests) == 1


@pytest.mark.parametrize("code", [429, 500, 503])
def test_passing_faults_are_retried(site, tmp_path, code):
    site.mishaps = [("status", code)] * 2
    assert get(site, tmp_path)[0].read_bytes() == BODY


def test_no_server(tmp_path):
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{unused.getsockname()[1]}/a.bin"
    with pytest.raises(UserError, match="gave up after 3 tries") as error:
        fetch_file(Remote(url, "a.bin"), tmp_path, patience=HASTE)
    assert "\n" not in str(error.value)


def test_other_schemes_are_refused(tmp_path):
    with pytest.raises(UserError, match="not an http"):
        fetch_file(Remote("file:///etc/passwd", "a.bin"), tmp_path)


def test_too_little_room_is_noticed_before_it_is_filled(site, tmp_path, monkeypatch):
    usage = shutil.disk_usage(tmp_path)._replace(free=1000)
    monkeypatch.setattr(transfer.shutil, "disk_usage", lambda _: usage)
    with pytest.raises(UserError, match=r"no room in .* free some"):
        get(site, tmp_path)
    assert (tmp_path / "a.bin.part").exists() is False


def _fetch_limited(url, folder, answer):
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (500_000, 500_000))
    try:
        fetch_file(Remote(url, "a.bin", MD5), folder, patience=HASTE)
    except UserError as error:
        answer.put(str(error))


def test_disk_full_keeps_the_part(site, tmp_path):
    context = multiprocessing.get_context("fork")
    answer = context.Queue()
    process = context.Process(target=_fetch_limited, args=(site.url("a.bin"), tmp_path, answer))
    process.start()
    message = answer.get(timeout=20)
    process.join()
    assert "no room" in message
    assert os.strerror(errno.EFBIG) in message
    assert (tmp_path / "a.bin.part").stat().st_size == 500_000
    assert get(site, tmp_path)[0].read_bytes() == BODY
    assert site.requests[-1][1] == "bytes=500000-"


def test_two_processes_want_the_same_file(site, tmp_path):
    context = multiprocessing.get_context("fork")
    remote = Remote(site.url("a.bin"), "a.bin", MD5)
    processes = [context.Process(target=fetch_file, args=(remote, tmp_path)) for _ in range(3)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(20)
    assert [p.exitcode for p in processes] == [0, 0, 0]
    assert (tmp_path / "a.bin").read_bytes() == BODY
    assert len(site.requests) == 1


def test_unwritable_folder(site, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match=r"cannot write a\.bin to"):
        get(site, tmp_path / "file")
