"""`manymodes data fetch|check`: what is said of data that is whole, partly there, or wrong."""

import pytest

from manymodes.cli import main
from manymodes.errors import UserError
from manymodes.streams import cifar100, cifar_files
from manymodes.streams.manage import check_stream, fetch_stream
from tests.streams import cifar_archive
from tests.streams.server import website


@pytest.fixture
def site(monkeypatch):
    """A small CIFAR-100 on a local server."""
    files = cifar_archive.pickles(cifar_archive.small_set(per_class=10))
    packed = cifar_archive.archive(files)
    for name, digest in cifar_archive.checksums(files, packed).items():
        monkeypatch.setitem(cifar_files.MD5, name, digest)
    with website() as site:
        site.files["cifar-100-python.tar.gz"] = packed
        monkeypatch.setattr(cifar100, "URL", site.url("cifar-100-python.tar.gz"))
        yield site


def test_fetch_then_check(site, tmp_path):
    lines = fetch_stream("split_cifar100", tmp_path)
    assert str(tmp_path / "cifar100" / "cifar-100-python.tar.gz") in lines[0]
    assert f"--data-dir {tmp_path}" in lines[1]
    report = check_stream("split-cifar100", tmp_path)
    assert "sound, by the published checksum" in report[0]
    assert "10 tasks, 20 outputs, inputs 3x32x32" in report[1]
    assert len(report) == 12


def test_check_reads_every_byte_again(site, tmp_path):
    fetch_stream("split-cifar100", tmp_path)
    file = tmp_path / "cifar100" / "cifar-100-python.tar.gz"
    content = bytearray(file.read_bytes())
    content[1000] ^= 1
    file.write_bytes(content)
    with pytest.raises(UserError, match="delete it to fetch it again"):
        check_stream("split-cifar100", tmp_path)


def test_nothing_there(tmp_path):
    with pytest.raises(UserError, match="manymodes data fetch split-cifar100"):
        check_stream("split-cifar100", tmp_path)


def test_streams_without_a_download(pacs_dir, tmp_path):
    assert fetch_stream("digits", tmp_path) == ["digits: nothing to fetch"]
    assert "5 tasks, 10 outputs, inputs 1x8x8" in check_stream("digits")[0]
    assert "4 tasks" in check_stream("pacs", pacs_dir)[0]
    with pytest.raises(UserError, match="no official direct link"):
        fetch_stream("pacs", tmp_path)


def test_own_data_needs_a_path(tmp_path):
    with pytest.raises(UserError, match="data check folder --path"):
        check_stream("folder")
    with pytest.raises(UserError, match="has no images"):
        check_stream("folder", tmp_path)
    with pytest.raises(UserError, match="did you mean"):
        check_stream("folders", tmp_path)


def test_check_takes_the_options_of_the_stream(capsys):
    assert main(["data", "check", "digits", "--scenario", "instance", "--tasks", "3"]) == 0
    assert "scenario 'instance', 3 tasks" in capsys.readouterr().out
    for wrong, said in (
        (["--scenari", "task"], "did you mean '--scenario'"),
        (["--tasks", "x"], "whole number"),
    ):
        assert main(["data", "check", "digits", *wrong]) == 2
        assert said in capsys.readouterr().err
    assert main(["data", "fetch", "--help"]) == 0
    assert "manymodes data check folder --path" in capsys.readouterr().out
    assert main(["data", "fetch", "digits", "--tasks", "3"]) == 2
