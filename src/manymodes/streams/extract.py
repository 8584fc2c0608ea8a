"""Archives unpacked without trusting them: plain files below one directory, within a size limit."""

from __future__ import annotations

import shutil
import stat
import tarfile
import tempfile
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import IO

from manymodes.errors import UserError, require

MAX_BYTES = 60 * 10**9  # the largest set we unpack is a third of this
MAX_FILES = 3_000_000


def extract(
    archive: Path,
    target: Path,
    *,
    inner: str = "",
    max_bytes: int = MAX_BYTES,
    max_files: int = MAX_FILES,
) -> Path:
    """Unpack a zip or tar archive, or its directory `inner`, as the new directory `target`; all or nothing.

    Refused: absolute paths, "..", links, devices, and more bytes or files than the limits. The files
    are written to a temporary directory beside `target`, which is renamed at the end.
    """
    require(not target.exists(), f"{target} is there already: remove it to unpack {archive.name} again")
    target.parent.mkdir(parents=True, exist_ok=True)
    temporary = Path(tempfile.mkdtemp(prefix=f".{target.name}-", dir=target.parent))
    try:
        written = 0
        for count, (name, source) in enumerate(_members(archive), start=1):
            require(count <= max_files, f"{archive}: more than {max_files:,} files; not unpacked")
            place = temporary / _safe(name, archive)
            place.parent.mkdir(parents=True, exist_ok=True)
            with place.open("wb") as out:
                while chunk := source.read(1 << 20):
                    written += len(chunk)
                    require(
                        written <= max_bytes,
                        f"{archive}: unpacks to more than {max_bytes:,} bytes; not unpacked",
                    )
                    out.write(chunk)
        require((temporary / inner).is_dir(), f"{archive} holds no directory {inner!r}")
        (temporary / inner).chmod(0o755)
        (temporary / inner).rename(target)
    except (tarfile.TarError, zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError) as error:
        raise UserError(
            f"{archive} is damaged: {(str(error) or type(error).__name__).splitlines()[0]}"
        ) from None
    except OSError as error:
        raise UserError(f"cannot unpack {archive} to {target}: {error}") from None
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return target


def _members(archive: Path) -> Iterator[tuple[str, IO[bytes]]]:
    """The regular files; directories are skipped, anything else is refused."""
    if zipfile.is_zipfile(archive):
        with zipfile.ZipFile(archive) as zipped:
            for info in zipped.infolist():
                kind = stat.S_IFMT(info.external_attr >> 16)
                require(
                    kind in (0, stat.S_IFREG, stat.S_IFDIR),
                    f"{archive}: {info.filename!r} is a link; refused",
                )
                if not info.is_dir():
                    with zipped.open(info) as source:
                        yield info.filename, source
        return
    with tarfile.open(archive, "r:*") as tar:
        for member in tar:
            require(
                member.isfile() or member.isdir(), f"{archive}: {member.name!r} is a link or device; refused"
            )
            content = tar.extractfile(member) if member.isfile() else None
            if content is not None:
                yield member.name, content


def _safe(name: str, archive: Path) -> PurePosixPath:
    path = PurePosixPath(name)
    escapes = path.is_absolute() or ".." in path.parts or "\\" in name or ":" in name or "\0" in name
    require(
        not escapes and bool(path.parts),
        f"{archive}: {name!r} would leave the directory; refused, nothing unpacked",
    )
    return path
