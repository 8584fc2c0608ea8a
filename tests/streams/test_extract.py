"""Archives that try to get out, and honest ones."""

import io
import stat
import tarfile
import zipfile

import pytest

from manymodes.errors import UserError
from manymodes.streams.extract import extract

FILES = {"top/a.txt": b"a" * 10, "top/deep/er/b.bin": bytes(range(256))}


def make_tar(path, files=FILES, links=()):
    with tarfile.open(path, "w:gz") as tar:
        for name, content in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
        for name, kind, goal in links:
            info = tarfile.TarInfo(name)
            info.type, info.linkname = kind, goal
            tar.addfile(info)
    return path


def make_zip(path, files=FILES, links=()):
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as zipped:
        for name, content in files.items():
            zipped.writestr(name, content)
        for name, goal in links:
            info = zipfile.ZipInfo(name)
            info.external_attr = (stat.S_IFLNK | 0o777) << 16
            zipped.writestr(info, goal)
    return path


MAKERS = [make_tar, make_zip]


@pytest.mark.parametrize("make", MAKERS)
def test_honest_archives(make, tmp_path):
    target = extract(make(tmp_path / "archive"), tmp_path / "out")
    assert {
        p.relative_to(target).as_posix(): p.read_bytes() for p in target.rglob("*") if p.is_file()
    } == FILES
    assert sorted(p.name for p in tmp_path.iterdir()) == ["archive", "out"]


@pytest.mark.parametrize("make", MAKERS)
@pytest.mark.parametrize(
    "name", ["../evil", "/tmp/evil-absolute", "a/../../evil", "..", "a\\..\\evil", "C:evil"]
)
def test_escapes_are_refused_and_nothing_stays(make, name, tmp_path):
    archive = make(tmp_path / "archive", {"good": b"1", name: b"2"})
    with pytest.raises(UserError, match="refused") as error:
        extract(archive, tmp_path / "sub" / "out")
    assert "\n" not in str(error.value)
    assert sorted(p.name for p in tmp_path.rglob("*")) == ["archive", "sub"]


@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE, tarfile.CHRTYPE])
def test_tar_links_and_devices_are_refused(kind, tmp_path):
    archive = make_tar(tmp_path / "archive", links=[("top/link", kind, "/etc/passwd")])
    with pytest.raises(UserError, match="link or device"):
        extract(archive, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_zip_links_are_refused(tmp_path):
    archive = make_zip(tmp_path / "archive", links=[("link", "/etc/passwd")])
    with pytest.raises(UserError, match="link"):
        extract(archive, tmp_path / "out")


@pytest.mark.parametrize("make", MAKERS)
def test_bombs_stop_at_the_limit(make, tmp_path):
    archive = make(tmp_path / "archive", {"zeros": bytes(5_000_000)})
    assert archive.stat().st_size < 50_000
    with pytest.raises(UserError, match="more than 1,000,000 bytes"):
        extract(archive, tmp_path / "out", max_bytes=1_000_000)
    with pytest.raises(UserError, match="more than 1 files"):
        extract(make(tmp_path / "two"), tmp_path / "out", max_files=1)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["archive", "two"]


@pytest.mark.parametrize("make", MAKERS)
@pytest.mark.parametrize("cut", [0, 10, 60, -30])
def test_damaged_archives(make, cut, tmp_path):
    archive = make(tmp_path / "archive", {"noise": bytes(range(256)) * 50})
    archive.write_bytes(archive.read_bytes()[:cut])
    with pytest.raises(UserError, match="damaged") as error:
        extract(archive, tmp_path / "out")
    assert "\n" not in str(error.value)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["archive"]


def test_flipped_byte_in_a_zip(tmp_path):
    archive = make_zip(tmp_path / "archive", {"noise": bytes(range(256)) * 50})
    content = bytearray(archive.read_bytes())
    content[100] ^= 255
    archive.write_bytes(content)
    with pytest.raises(UserError, match="damaged"):
        extract(archive, tmp_path / "out")


def test_target_that_is_there_stays(tmp_path):
    (tmp_path / "out").mkdir()
    with pytest.raises(UserError, match="is there already"):
        extract(make_tar(tmp_path / "archive"), tmp_path / "out")
